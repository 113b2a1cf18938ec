//! Names and numbers.

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
        name: name.into(),
    })
}

#[test]
fn names_are_held_to_the_rules() {
    for good in ["a", "0", "_x", "vm-1.disk_2", &"x".repeat(255)] {
        assert!(check_name(good).is_ok(), "{good}");
    }
    for bad in ["", "-a", ".a", "a b", "a/b", "ä", "a\n", "a#b", &"x".repeat(256)] {
        let error = check_name(bad).expect_err(bad).to_string();
        assert!(error.contains("letters, digits"), "{error}");
    }
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
