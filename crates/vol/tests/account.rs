//! Pools whose metadata is as full as possible: a flush, a delete and a close always find the pages that they need
//! (contract V3, V11, V13, V15).
//!
//! Owns the pools: many small volumes, volumes with units at very high offsets, pools without a free unit. Each must
//! flush, delete, close, and open again, after a close and after a crash.
#![cfg(not(shuttle))]

use std::time::Duration;

use crate::support::{User, pattern};
use sheave_base::rng::Rng;
use sheave_base::status::Status;
use sheave_blk::Device;
use sheave_drivers::open_device;
use sheave_vol::{CheckOptions, Checksum, CreateOptions, LowWater, OpenOptions, Pool, PoolError, check_device};

const UNIT: u64 = 65536;

fn format(device: &Device, unit_bytes: u64, checksum: Checksum) {
    let options = CreateOptions::default().unit_bytes(unit_bytes).checksum(checksum).overwrite(true);
    Pool::create(device, &options).expect("formats");
}

fn open(device: &Device) -> Pool {
    Pool::open(device, &OpenOptions::default()).expect("opens")
}

/// Writes a block into each unit from `from` on until there is no room. Returns the first unit that had none.
fn fill(user: &User, from: u64) -> u64 {
    let mut at = from;
    loop {
        match user.write(at * UNIT, &pattern(at, 4096)) {
            Ok(()) => at += 1,
            Err(status) => {
                assert_eq!(status, Status::NoSpc);
                return at;
            }
        }
    }
}

fn is_clean(device: &Device) {
    let report = check_device(device, &CheckOptions::default()).expect("checks");
    assert!(report.is_clean(), "{:?}", report.findings);
}

/// Makes a full pool of 256 MiB with `count` volumes, each with changes that no checkpoint contains.
fn many_dirty(count: u64, checksum: Checksum) -> (Device, Pool, Vec<User>) {
    let device = open_device("ram:size=256M").expect("opens");
    format(&device, UNIT, checksum);
    let pool = open(&device);
    let mut users = Vec::new();
    for number in 0..count {
        let user = User::new(pool.create_volume(&format!("v{number}"), 1 << 20).expect("creates"));
        user.write(0, &pattern(number, 4096)).expect("writes");
        users.push(user);
    }
    pool.sync().expect("syncs");
    let big = User::new(pool.create_volume("big", 4 << 30).expect("creates"));
    fill(&big, 0);
    pool.sync().expect("a full pool flushes");
    // These blocks lie in units that the volumes have already, so they take no space.
    for (number, user) in (0..).zip(&users) {
        user.write(8192, &pattern(number, 4096)).expect("a write to its own unit");
    }
    (device, pool, users)
}

fn all_there(pool: &Pool, count: u64) {
    for number in 0..count {
        let user = User::new(pool.open_volume(&format!("v{number}")).expect("is there"));
        for pos in [0, 8192] {
            assert!(user.read(pos, 4096).expect("reads") == pattern(number, 4096), "volume {number} at {pos}");
        }
    }
}

#[test]
fn a_full_pool_with_many_dirty_volumes_flushes_deletes_and_closes() {
    for (count, checksum) in [(250, Checksum::None), (500, Checksum::None), (250, Checksum::Crc32c)] {
        let (device, pool, users) = many_dirty(count, checksum);
        pool.sync().expect("flushes");
        drop(users);
        pool.delete("big").expect("deletes");
        pool.close().expect("closes");
        is_clean(&device);
        all_there(&open(&device), count);
    }
}

#[test]
fn a_full_pool_with_many_dirty_volumes_opens_after_a_crash() {
    let (device, pool, users) = many_dirty(400, Checksum::None);
    pool.sync().expect("flushes");
    drop((users, pool));
    let pool = open(&device);
    all_there(&pool, 400);
    pool.delete("big").expect("deletes");
    pool.close().expect("closes");
    is_clean(&device);
}

#[test]
fn volumes_that_are_written_far_out_take_a_page_a_level_and_no_more() {
    let device = open_device("ram:size=64M").expect("opens");
    format(&device, UNIT, Checksum::None);
    let size = UNIT << 34;
    let pool = open(&device);
    for number in 0..20 {
        let user = User::new(pool.create_volume(&format!("v{number}"), size).expect("creates"));
        user.write(size - 4096, &pattern(number, 4096)).expect("writes");
    }
    pool.sync().expect("syncs");
    pool.close().expect("closes");
    is_clean(&device);
    let pool = open(&device);
    for number in 0..20 {
        let user = User::new(pool.open_volume(&format!("v{number}")).expect("is there"));
        assert!(user.read(size - 4096, 4096).expect("reads") == pattern(number, 4096));
    }
}

/// A rollback waits for I/O, and meanwhile discards use the pages that were reserved for it.
#[test]
fn a_rollback_that_finds_its_pages_used_after_its_wait_is_refused() {
    let device = open_device("ram:size=64M").expect("opens");
    format(&device, UNIT, Checksum::None);
    let pool = open(&device);
    let volume = |name, size| User::new(pool.create_volume(name, size).expect("creates"));
    // `far` needs many index pages above its leaves, `wide` one leaf for each unit.
    let (far, wide) = (volume("far", 60 << 40), volume("wide", 1 << 40));
    (0..60).for_each(|at| far.write(at << 40, &pattern(at, 4096)).expect("writes"));
    let place = |at: u64| at * 256 * UNIT;
    (0..400).for_each(|at| wide.write(place(at), &pattern(at, 8192)).expect("writes"));
    ["far", "wide"].into_iter().for_each(|name| pool.snapshot(name, &format!("{name}-s")).expect("a snapshot"));
    let big = volume("big", 4 << 30);
    fill(&big, 0);
    pool.set_low_water(LowWater::Off).expect("a checkpoint");
    let held = far.hold();
    std::thread::scope(|scope| {
        let rolled = scope.spawn(|| pool.rollback("far", "far-s"));
        // Gives the rollback time to begin its wait for the I/O. If it begins later, it is refused before the wait,
        // with the same result.
        std::thread::sleep(Duration::from_millis(300));
        let full = (0..400).find_map(|at| wide.punch(place(at), 4096).err());
        assert_eq!(full, Some(Status::NoSpc), "the discards have used what they may");
        far.let_go(held);
        let rolled = rolled.join().expect("no panic");
        pool.set_low_water(LowWater::default()).expect("a checkpoint finds its pages");
        assert!(matches!(rolled, Err(PoolError::Full { .. })), "{rolled:?}");
    });
    assert!(far.read(7 << 40, 4096).expect("reads") == pattern(7, 4096));
    drop((far, wide, big));
    pool.close().expect("closes");
    is_clean(&device);
}

/// Passes on the result of an operation in [`random_work`], which may fail only because the pool is full.
fn allowed<T>(what: &str, result: Result<T, PoolError>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(PoolError::Full { .. }) => None,
        Err(error) => panic!("{what}: {error}"),
    }
}

/// Does random work on a small pool that is full most of the time. A flush, a discard, a delete and a close never fail,
/// and the pool opens after a crash.
fn random_work(seed: u64, unit_bytes: u64, checksum: Checksum) {
    let device = open_device("ram:size=16M").expect("opens");
    format(&device, unit_bytes, checksum);
    let mut rng = Rng::new(seed);
    let (mut made, mut alive) = (0, Vec::<String>::new());
    for round in 0..6 {
        let pool = open(&device);
        let mut pick = |most: u64| rng.below(most);
        for _ in 0..250 {
            let name = alive.get(pick(alive.len() as u64) as usize).cloned();
            match (pick(20), name) {
                (0..=2, _) | (_, None) => {
                    let name = format!("{}{made}", "n".repeat(pick(200) as usize + 1));
                    made += 1;
                    let size = unit_bytes << (4 + pick(30));
                    if let Some(volume) = allowed("create", pool.create_volume(&name, size)) {
                        drop(volume);
                        alive.push(name);
                    }
                }
                (3..=4, Some(name)) => {
                    let copy = format!("c{made}");
                    made += 1;
                    let copied =
                        if pick(2) == 0 { pool.snapshot(&name, &copy) } else { pool.clone_volume(&name, &copy) };
                    if allowed("copy", copied).is_some() {
                        alive.push(copy);
                    }
                }
                (5..=14, Some(name)) => {
                    let user = User::new(pool.open_volume(&name).expect("is there"));
                    let size = pool.volume_info(&name).expect("is there").size_bytes;
                    for _ in 0..20 {
                        let pos = pick(size / 4096) * 4096;
                        match user.write(pos, &pattern(pos, 4096)) {
                            Ok(()) | Err(Status::NoSpc | Status::ReadOnly) => {}
                            Err(status) => panic!("write: {status}"),
                        }
                    }
                }
                (15, Some(name)) => {
                    let user = User::new(pool.open_volume(&name).expect("is there"));
                    let size = pool.volume_info(&name).expect("is there").size_bytes;
                    let pos = pick(size / 4096) * 4096;
                    match user.punch(pos, (size - pos).min(1 << 20)) {
                        Ok(()) | Err(Status::ReadOnly) => {}
                        Err(status) => panic!("seed {seed}: a discard in a full pool: {status}, {:?}", pool.info()),
                    }
                }
                (16, Some(name)) => {
                    alive.retain(|other| *other != name);
                    pool.delete(&name)
                        .unwrap_or_else(|error| panic!("seed {seed}: delete: {error}; {:?}", pool.info()));
                }
                _ => pool.sync().unwrap_or_else(|error| panic!("seed {seed}: flush: {error}; {:?}", pool.info())),
            }
        }
        pool.sync().unwrap_or_else(|error| panic!("seed {seed}: flush: {error}; {:?}", pool.info()));
        if round % 2 == 0 {
            pool.close().unwrap_or_else(|error| panic!("seed {seed}: close: {error}"));
            is_clean(&device);
        }
    }
    is_clean(&device);
}

#[test]
fn a_pool_that_is_full_is_never_locked_out() {
    for seed in sheave_testkit::seeds(6) {
        random_work(seed, 4096 << (seed % 3 * 2), if seed % 2 == 0 { Checksum::Crc32c } else { Checksum::None });
    }
}
