//! The pages of the volume table that a checkpoint writes, and their content.

use std::collections::BTreeMap;

use sheave_base::rng::Rng;
use sheave_blk::Device;
use sheave_drivers::open_device;

use crate::{CheckOptions, CreateOptions, OpenOptions, Pool, check_device};

fn formatted() -> Device {
    let device = open_device("ram:size=64M").unwrap();
    Pool::create(&device, &CreateOptions::default()).unwrap();
    device
}

fn open(device: &Device) -> Pool {
    Pool::open(device, &OpenOptions::default()).unwrap()
}

fn name(n: u64) -> String {
    format!("volume-{n:04}")
}

/// Addresses of the pages of level 0; 0 for a hole.
fn pages(pool: &Pool) -> Vec<u64> {
    pool.inner.lock().table.pages.leaves.iter().map(|leaf| leaf.page.address).collect()
}

/// Makes `change`, then a checkpoint. Returns the number of table pages of level 0 that it writes, and the number of
/// pages that the account expected in all.
fn writes(pool: &Pool, change: impl FnOnce(&Pool)) -> (usize, u64) {
    change(pool);
    let (before, due) = (pages(pool), pool.inner.lock().pages_due());
    let generation = pool.inner.lock().sb.generation;
    pool.inner.checkpoint().unwrap();
    let state = pool.inner.lock();
    assert_eq!(state.sb.generation, generation + 2);
    let table = &state.table;
    assert!(table.pages.leaves.len() as u64 <= table.most_pages(), "T3");
    drop(state);
    let new = pages(pool).into_iter().filter(|page| *page != 0 && !before.contains(page)).count();
    assert!(new as u64 <= due, "M2");
    (new, due)
}

#[test]
fn a_checkpoint_writes_the_pages_whose_volumes_changed() {
    let device = formatted();
    let pool = open(&device);
    (0..1000).for_each(|n| drop(pool.create_volume(&name(n), 1 << 20).unwrap()));
    pool.inner.checkpoint().unwrap();
    assert!(pages(&pool).len() >= 15, "{:?}", pages(&pool));
    assert_eq!(writes(&pool, |_| ()).0, 0, "nothing has changed");
    assert_eq!(writes(&pool, |pool| pool.resize(&name(500), 2 << 20).unwrap()).0, 1);
    assert_eq!(writes(&pool, |pool| pool.rename(&name(500), "volume-now").unwrap()).0, 1);
    assert_eq!(writes(&pool, |pool| pool.delete(&name(0)).unwrap()).0, 1);
    assert_eq!(writes(&pool, |pool| drop(pool.create_volume("new", 1 << 20).unwrap())).0, 1, "the last one");
    assert_eq!(writes(&pool, |pool| [3, 990].iter().for_each(|n| pool.delete(&name(*n)).unwrap())).0, 2);
    // The copy names its source as origin, so a delete of the source changes the entry of the copy too.
    pool.snapshot(&name(700), "copy").unwrap();
    assert_eq!(writes(&pool, |_| ()).0, 1);
    assert_eq!(writes(&pool, |pool| pool.delete(&name(700)).unwrap()).0, 2);
    pool.close().unwrap();
    let pool = open(&device);
    assert_eq!(writes(&pool, |_| ()).0, 0, "what was loaded is what was written");
    assert_eq!(writes(&pool, |pool| pool.resize(&name(1), 2 << 20).unwrap()).0, 1);
}

#[test]
fn a_name_that_has_no_room_moves_what_comes_behind() {
    let device = formatted();
    let pool = open(&device);
    (0..1000).for_each(|n| drop(pool.create_volume(&name(n), 1 << 20).unwrap()));
    pool.inner.checkpoint().unwrap();
    let all = pages(&pool);
    let long = "x".repeat(255);
    let (new, _) = writes(&pool, |pool| pool.rename(&name(500), &long).unwrap());
    let now = pages(&pool);
    let kept = all.iter().zip(&now).take_while(|(a, b)| a == b).count();
    assert!(kept > 0 && new + kept == now.len(), "{new} new, {kept} kept of {}", now.len());
    pool.close().unwrap();
    assert!(check_device(&device, &CheckOptions::default()).unwrap().is_clean());
    assert_eq!(open(&device).info().volumes, 1000);
}

/// Many volumes are deleted at one end, at the other, and everywhere: the table gets fewer pages.
#[test]
fn a_table_of_which_much_has_gone_is_packed() {
    let parts: [fn(u64) -> bool; 4] = [|n| n >= 40, |n| n < 960, |n| !n.is_multiple_of(25), |_| true];
    for which in parts {
        let device = formatted();
        let pool = open(&device);
        (0..1000).for_each(|n| drop(pool.create_volume(&name(n), 1 << 20).unwrap()));
        pool.inner.checkpoint().unwrap();
        (0..1000).filter(|n| which(*n)).for_each(|n| pool.delete(&name(n)).unwrap());
        writes(&pool, |_| ());
        let left = (0..1000).filter(|n| !which(*n)).count();
        assert!(pages(&pool).len() <= left.div_ceil(40), "{:?} for {left} volumes", pages(&pool));
        pool.close().unwrap();
        assert!(check_device(&device, &CheckOptions::default()).unwrap().is_clean());
        assert_eq!(open(&device).info().volumes as usize, left);
    }
}

/// Random changes, with checkpoints and openings in between, against a model of names and sizes.
#[test]
fn what_is_loaded_is_what_was_there() {
    for seed in 0..8 {
        let mut rng = Rng::new(seed);
        let device = formatted();
        let mut pool = open(&device);
        let mut model: BTreeMap<String, u64> = BTreeMap::new();
        for step in 0..600 {
            let some = model.keys().nth(rng.below(model.len().max(1) as u64) as usize).cloned();
            let fresh = format!("{step}-{}", "y".repeat(rng.below(240) as usize));
            match (rng.below(12), some) {
                (0..5, _) | (_, None) => {
                    pool.create_volume(&fresh, 1 << 20).unwrap();
                    model.insert(fresh, 1 << 20);
                }
                (5..7, Some(old)) => {
                    pool.delete(&old).unwrap();
                    model.remove(&old);
                }
                (7..9, Some(old)) => {
                    pool.rename(&old, &fresh).unwrap();
                    let size = model.remove(&old).unwrap();
                    model.insert(fresh, size);
                }
                (9, Some(old)) => {
                    pool.resize(&old, 4 << 20).unwrap();
                    model.insert(old, 4 << 20);
                }
                (10, Some(old)) => {
                    pool.clone_volume(&old, &fresh).unwrap();
                    model.insert(fresh, model[&old]);
                }
                _ => drop(writes(&pool, |_| ())),
            }
            if step % 100 == 99 {
                if rng.below(2) == 0 {
                    pool.close().unwrap();
                } else {
                    drop(pool);
                }
                assert!(check_device(&device, &CheckOptions::default()).unwrap().is_clean());
                pool = open(&device);
                let found: BTreeMap<String, u64> =
                    pool.volumes().into_iter().map(|vol| (vol.name, vol.size_bytes)).collect();
                assert_eq!(found, model, "seed {seed}, step {step}");
            }
        }
    }
}
