//! Writers, readers, discards and snapshots at once: no volume ever shows data of another one.
#![cfg(not(shuttle))]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use crate::support::{User, format, open};
use sheave_base::rng::Rng;
use sheave_base::status::Status;
use sheave_drivers::open_device;

const BLOCK: usize = 4096;
const BLOCKS: u64 = 512;

/// Returns a block that names its volume, its place, and the number of its write, repeated throughout.
fn block(volume: u64, at: u64, number: u64) -> Vec<u8> {
    let words = [0xb10c_b10c, volume, at, number];
    (0..BLOCK / 8).flat_map(|word| words[word % 4].to_le_bytes()).collect()
}

/// Returns the number of the write that a block comes from, or 0 for zeroes. Panics if the block belongs to another
/// volume or place.
fn number_of(bytes: &[u8], volume: u64, at: u64) -> u64 {
    let word = |n: usize| u64::from_le_bytes(bytes[n * 8..n * 8 + 8].try_into().expect("8 bytes"));
    if bytes.iter().all(|byte| *byte == 0) {
        return 0;
    }
    assert_eq!((word(0), word(1), word(2)), (0xb10c_b10c, volume, at), "a block of another place");
    assert!(bytes == block(volume, at, word(3)), "a block of two writes");
    word(3)
}

/// Writes and discards blocks of its own volume at random, and reads them back.
fn churn(user: &User, volume: u64, mut rng: Rng, stop: &AtomicBool, done: &AtomicU64) {
    let mut newest = vec![0; BLOCKS as usize];
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let at = rng.below(BLOCKS);
        let pos = at * BLOCK as u64;
        match rng.below(8) {
            0..4 => {
                number += 1;
                match user.write(pos, &block(volume, at, number)) {
                    Ok(()) => newest[at as usize] = number,
                    Err(status) => assert_eq!(status, Status::NoSpc),
                }
            }
            4 => {
                let len = (1 + rng.below(40)).min(BLOCKS - at);
                match user.punch(pos, len * BLOCK as u64) {
                    Ok(()) => newest[at as usize..(at + len) as usize].fill(0),
                    Err(status) => assert_eq!(status, Status::NoSpc),
                }
            }
            5 if rng.below(20) == 0 => user.sync().expect("syncs"),
            _ => {
                let read = user.read(pos, BLOCK).expect("reads");
                assert_eq!(number_of(&read, volume, at), newest[at as usize], "volume {volume} block {at}");
            }
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
}

/// Reads blocks that another thread writes. All data is of this volume and place.
fn watch(user: &User, volume: u64, mut rng: Rng, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let at = rng.below(BLOCKS);
        let read = user.read(at * BLOCK as u64, BLOCK).expect("reads");
        let word = u64::from_le_bytes(read[8..16].try_into().expect("8 bytes"));
        // A block that is being written may have parts of two writes, but never of another place.
        if word != 0 {
            let place = u64::from_le_bytes(read[16..24].try_into().expect("8 bytes"));
            assert_eq!((word, place), (volume, at), "a block of another place");
        }
    }
}

#[test]
fn volumes_never_see_each_other() {
    for seed in sheave_testkit::seeds(3) {
        let device = open_device("ram:size=16M").expect("opens");
        format(&device, if seed % 2 == 0 { 4096 } else { 32768 });
        let pool = open(&device);
        let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
        let names = ["a", "b", "c"];
        for name in names {
            drop(pool.create_volume(name, BLOCKS * BLOCK as u64).expect("creates"));
        }
        thread::scope(|scope| {
            for (at, name) in names.iter().enumerate() {
                let (pool, stop, done) = (&pool, &stop, &done);
                scope.spawn(move || {
                    let user = User::new(pool.open_volume(name).expect("is there"));
                    churn(&user, at as u64 + 1, Rng::new(seed).fork(at as u64), stop, done);
                });
                scope.spawn(move || {
                    let user = User::new(pool.open_volume(name).expect("is there"));
                    watch(&user, at as u64 + 1, Rng::new(seed).fork(100 + at as u64), stop);
                });
            }
            let mut round = 0;
            while done.load(Ordering::Relaxed) < 30_000 {
                round += 1;
                let name = names[round % 3];
                let (snapshot, clone) = (format!("s{round}"), format!("c{round}"));
                if pool.snapshot(name, &snapshot).is_ok() {
                    check_frozen(&pool, &snapshot, (round % 3) as u64 + 1);
                    if pool.clone_volume(&snapshot, &clone).is_ok() {
                        pool.delete(&clone).expect("deletes");
                    }
                    pool.delete(&snapshot).expect("deletes");
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        for name in names {
            pool.delete(name).expect("deletes");
        }
        pool.sync().expect("syncs");
        let info = pool.info();
        assert_eq!((info.data_bytes, info.pending_bytes, info.entries), (0, 0, 0), "all came back");
    }
}

/// Verifies that a snapshot contains only data of its volume, and does not change.
fn check_frozen(pool: &sheave_vol::Pool, name: &str, volume: u64) {
    let user = User::new(pool.open_volume(name).expect("is there"));
    let read = || -> Vec<u64> {
        let all = user.read(0, BLOCKS as usize * BLOCK).expect("reads");
        all.chunks(BLOCK).enumerate().map(|(at, bytes)| number_of(bytes, volume, at as u64)).collect()
    };
    let first = read();
    for _ in 0..3 {
        assert_eq!(read(), first, "{name} is frozen");
    }
}
