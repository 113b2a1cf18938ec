//! Names, numbers and origins of volumes.

use super::*;

fn vol(id: u32, name: &str, origin: u32) -> Vol {
    Vol::from_entry(&VolumeEntry {
        id,
        snapshot: false,
        size: 0,
        grows: false,
        max_size: 0,
        created: 0,
        origin,
        family: 1,
        root: PageRef::NONE,
        root_level: 0,
        identity: None,
        interim: None,
        name: name.into(),
    })
}

#[test]
fn numbers_and_names_stay_unique() {
    let mut table = Table::new(1);
    assert!(table.insert(vol(1, "a", 0)) && table.insert(vol(2, "b", 1)));
    assert!(!table.insert(vol(3, "b", 0)) && !table.insert(vol(2, "c", 0)));
    assert!(!table.rename(2, "a") && table.rename(2, "c") && table.id_of("b").is_none());
    assert_eq!(table.remove(1).map(|vol| vol.name).as_deref(), Some("a"));
    assert_eq!(table.get(2).map(Vol::origin), Some(0), "its origin is gone");
    assert_eq!(table.next_id, 3, "numbers are never used again");
}

#[test]
fn origins_are_known_from_both_sides() {
    let mut table = Table::new(1);
    assert!((1..=5).all(|id| table.insert(vol(id, &id.to_string(), id / 2))));
    let origins = |table: &Table| table.iter().map(Vol::origin).collect::<Vec<_>>();
    assert_eq!(origins(&table), [0, 1, 1, 2, 2]);
    table.set_origin(4, 1);
    table.remove(5);
    table.remove(1);
    assert_eq!(origins(&table), [0, 0, 0], "all that were made of it have none");
    table.set_origin(3, 2);
    table.remove(2);
    assert_eq!(origins(&table), [0, 0]);
    assert!(table.by_origin.is_empty(), "and nothing is left behind: {:?}", table.by_origin);
}

/// The volumes of a table against a plain map: found singly, in order, and by ranges.
#[test]
fn volumes_are_found_by_their_numbers_and_in_order() {
    let mut rng = sheave_base::rng::Rng::new(11);
    let (mut table, mut plain) = (Table::new(1), std::collections::BTreeMap::new());
    let draw = |rng: &mut sheave_base::rng::Rng| match rng.below(3) {
        0 => rng.between(1, 200) as u32,
        1 => u32::MAX - rng.below(100) as u32,
        _ => 32 * rng.between(1, 50) as u32 - rng.below(2) as u32,
    };
    for step in 0..4000 {
        let id = draw(&mut rng);
        if rng.percent(60) {
            let is_new = plain.insert(id, id.to_string()).is_none();
            assert_eq!(table.insert(vol(id, &id.to_string(), 0)), is_new, "step {step}");
        } else {
            assert_eq!(table.remove(id).map(|vol| vol.name), plain.remove(&id), "step {step}");
        }
        assert_eq!(table.get(id).map(|vol| vol.id), plain.get(&id).map(|_| id), "step {step}");
        assert_eq!(table.get_mut(id ^ 1).map(|vol| vol.id), plain.get(&(id ^ 1)).map(|_| id ^ 1), "step {step}");
        assert_eq!(table.len(), plain.len(), "step {step}");
        if step % 100 == 0 {
            assert!(table.iter().map(|vol| vol.id).eq(plain.keys().copied()), "step {step}");
            assert!(table.iter().rev().map(|vol| vol.id).eq(plain.keys().rev().copied()), "step {step}");
            let (first, end) = (draw(&mut rng), draw(&mut rng));
            let (first, end) = (first.min(end), first.max(end));
            let range = || plain.range(first..end).map(|(id, _)| *id);
            assert!(table.range(first, end).map(|vol| vol.id).eq(range()), "step {step}");
            assert_eq!(table.mark_written(first, end, 3), range().take(3).last(), "step {step}");
        }
    }
}
