//! Placement of copies of shared units, measured by the length of the runs of a volume that is written at random
//! between snapshots.
#![cfg(not(shuttle))]

mod support;

use sheave_base::rng::Rng;
use sheave_blk::Device;
use sheave_drivers::open_device;
use sheave_vol::{CreateOptions, ExtentKind, Pool};
use support::{User, open, pattern};

const UNIT: u64 = 65536;

/// Makes a device that keeps only its front: placement does not depend on data.
fn null(size: &str) -> Device {
    open_device(&format!("null:size={size},keep=64M")).expect("opens")
}

/// Makes a pool. These tests never reopen it, so its metadata need not lie in the kept front of the device.
fn pool(device: &Device) -> Pool {
    Pool::create(device, &CreateOptions::default().unit_bytes(UNIT)).expect("formats");
    open(device)
}

/// Returns the mean length of the runs of a volume on the device.
fn mean_run(user: &User, size: u64) -> u64 {
    let extents = user.volume.extents(0, size).expect("is open");
    let data = extents.iter().filter(|extent| extent.kind == ExtentKind::Data);
    let (count, bytes) = data.fold((0, 0), |(count, bytes), extent| (count + 1, bytes + extent.len));
    bytes / count
}

#[test]
fn random_overwrites_between_snapshots_leave_runs_of_256_kib() {
    const SIZE: u64 = 512 << 20;
    for seed in 1..4 {
        let device = null("16G");
        let pool = pool(&device);
        let user = User::new(pool.create_volume("v", SIZE).expect("creates"));
        let chunk = vec![1; 1 << 20];
        (0..SIZE).step_by(1 << 20).for_each(|pos| user.write(pos, &chunk).expect("written"));
        let mut rng = Rng::new(seed);
        for round in 0..8 {
            pool.snapshot("v", &format!("s{round}")).expect("frozen");
            let before = pool.info().data_bytes;
            for _ in 0..4096 {
                user.write(rng.below(SIZE / 4096) * 4096, &chunk[..4096]).expect("written");
            }
            let run = mean_run(&user, SIZE);
            println!("seed {seed}, round {round}: mean run {} KiB", run >> 10);
            assert!(run >= 256 << 10, "seed {seed}, round {round}: {run}");
            // The cost: 87 % of the groups of four units are written to, and only 39 % of the units.
            let copied = (pool.info().data_bytes - before) * 100 / SIZE;
            assert!((83..90).contains(&copied), "seed {seed}, round {round}: {copied} %");
        }
    }
}

#[test]
fn a_copy_takes_what_is_shared_of_its_group_and_no_more() {
    let device = open_device("ram:size=64M").expect("opens");
    let pool = pool(&device);
    let user = User::new(pool.create_volume("v", 1 << 20).expect("creates"));
    let write = |unit: u64, tag: u64| user.write(unit * UNIT, &pattern(tag, UNIT as usize)).expect("written");
    let places = || -> Vec<u64> {
        let at = |unit: u64| user.volume.extents(unit * UNIT, 1).expect("is open")[0].addr / UNIT;
        (0..12).map(at).collect()
    };
    // Two groups of four units, and two units of a third group.
    (0..10).for_each(|unit| write(unit, unit));
    pool.snapshot("v", "s").expect("frozen");
    let before = places();
    write(5, 15);
    let after = places();
    assert!(after[4] % 4 == 0 && (4..8).all(|unit| after[unit] == after[4] + unit as u64 - 4), "{after:?}");
    assert!((0..4).chain(8..12).all(|unit| after[unit] == before[unit]), "others stay: {before:?} {after:?}");
    // Units that the volume alone owns are not copied again, and holes get no space.
    write(6, 16);
    assert_eq!(places(), after);
    // A former hole belongs to the volume alone, and stays in place when its neighbours are copied.
    write(10, 20);
    let (data, own) = (pool.info().data_bytes, places()[10]);
    write(8, 18);
    assert_eq!((pool.info().data_bytes - data, places()[10..].to_vec()), (2 * UNIT, vec![own, 0]));
    for (unit, tag) in [0, 1, 2, 3, 4, 15, 16, 7, 18, 9, 20].into_iter().enumerate() {
        let found = user.read(unit as u64 * UNIT, UNIT as usize).expect("read");
        assert!(found == pattern(tag, UNIT as usize), "unit {unit}");
    }
    let frozen = User::new(pool.open_volume("s").expect("is there"));
    for unit in 0..10 {
        assert!(frozen.read(unit * UNIT, UNIT as usize).expect("read") == pattern(unit, UNIT as usize), "unit {unit}");
    }
}

#[test]
fn a_pool_that_is_nearly_full_copies_single_units() {
    let device = open_device("ram:size=64M").expect("opens");
    let pool = pool(&device);
    let user = User::new(pool.create_volume("v", 64 << 20).expect("creates"));
    let units = pool.info().free_bytes / UNIT - (pool.info().size_bytes >> 3) / UNIT;
    (0..units - 3).for_each(|unit| user.write(unit * UNIT, &pattern(unit, 4096)).expect("written"));
    pool.snapshot("v", "s").expect("frozen");
    let costs = |unit: u64| {
        let before = pool.info().data_bytes;
        user.write(unit * UNIT, &pattern(1, 4096)).expect("written");
        (pool.info().data_bytes - before) / UNIT
    };
    assert_eq!(costs(0), 1, "less than an eighth would be free");
    assert_eq!(costs(1), 1);
    pool.delete("s").expect("deleted");
    pool.sync().expect("synced");
    (0..8).for_each(|unit| user.punch((100 + unit) * UNIT, UNIT).expect("punched"));
    pool.sync().expect("synced");
    pool.snapshot("v", "s").expect("frozen");
    assert_eq!((costs(40), costs(41), costs(44), costs(48)), (4, 0, 4, 1));
}
