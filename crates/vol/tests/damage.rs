//! Damage: each block of metadata in turn gets a flipped bit. The damage is reported, and no wrong data is returned.
#![cfg(not(shuttle))]

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use crate::support::{User, format, open, pattern};
use sheave_blk::bio::Op;
use sheave_drivers::open_device;
use sheave_vol::block_io::DeviceIo;
use sheave_vol::{BlockIo, OpenOptions, Pool, PoolError};

const BLOCK: usize = 4096;
const SIZE: usize = 16 << 20;

/// Returns the content of all volumes whose maps are intact.
fn contents(pool: &Pool) -> Vec<(String, Vec<u8>)> {
    let names = pool.volumes().into_iter().filter(|volume| volume.damage.is_none()).map(|volume| volume.name);
    let read = |name: String| {
        let user = User::new(pool.open_volume(&name).expect("is there"));
        let bytes = user.read(0, 3 << 20).expect("reads");
        (name, bytes)
    };
    names.map(read).collect()
}

#[test]
fn any_damaged_block_of_metadata_is_told() {
    let device = open_device("ram:size=16M").expect("opens");
    format(&device, 65536);
    {
        let pool = open(&device);
        let user = User::new(pool.create_volume("v", 3 << 20).expect("creates"));
        for at in 0..40u64 {
            user.write(at * 70_000 / 4096 * 4096, &pattern(at, 8192)).expect("writes");
        }
        user.sync().expect("syncs");
        pool.snapshot("v", "s").expect("snapshots");
        drop(user);
        pool.close().expect("closes");
        let pool = open(&device);
        let user = User::new(pool.open_volume("v").expect("is there"));
        // Two commits in the journal: only the second can be mistaken for a torn one.
        for at in 0..2 {
            user.write(at << 20, &pattern(100 + at, 4096)).expect("writes");
            user.sync().expect("syncs");
        }
    }
    let io = DeviceIo::new(&device).expect("attaches");
    let mut image = vec![0; SIZE];
    io.read(0, &mut image).expect("reads");
    let wanted = contents(&open(&device));
    let (mut told, mut harmless) = (0, 0);
    for at in (0..SIZE).step_by(BLOCK).filter(|at| image[*at..].starts_with(b"SHVE")) {
        for bit in [5, 8 * 40, 8 * 70 + 3, 8 * 4000] {
            let mut bad = image.clone();
            bad[at + bit / 8] ^= 1 << (bit % 8);
            io.write(0, &bad).expect("writes");
            match Pool::open(&device, &OpenOptions::default()) {
                Err(PoolError::Damaged { .. } | PoolError::Format { .. }) => told += 1,
                Err(error) => panic!("block {at}: {error}"),
                Ok(pool) if !pool.info().damaged.is_empty() => {
                    let whole = contents(&pool);
                    assert!(whole.iter().all(|volume| wanted.contains(volume)), "block {at}: wrong bytes are served");
                    assert_eq!(whole.len() + pool.info().damaged.len(), wanted.len(), "block {at}");
                    told += 1;
                }
                Ok(pool) => {
                    // Harmless: a page of an older checkpoint, the older superblock, or the end of the journal.
                    let last = contents(&pool);
                    let same = last == wanted || (8192..8192 + 16 * BLOCK).contains(&at);
                    assert!(same, "block {at} is damaged, and the pool opens with something else in it");
                    harmless += 1;
                }
            }
        }
    }
    assert!(told >= 16, "{told} were told, {harmless} were harmless");
}

#[test]
fn one_commit_serves_all_who_wait() {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let device = open_device(&format!("file:{},size=64M", file.path().display())).expect("opens");
    format(&device, 65536);
    let pool = open(&device);
    drop(pool.create_volume("v", 32 << 20).expect("creates"));
    let before = device.stats().op(Op::Flush).ios;
    let syncs = AtomicU64::new(0);
    thread::scope(|scope| {
        for writer in 0..4u64 {
            let (pool, syncs) = (&pool, &syncs);
            scope.spawn(move || {
                let user = User::new(pool.open_volume("v").expect("is there"));
                for at in 0..50 {
                    user.write((writer * 50 + at) * 131_072, &pattern(at, 4096)).expect("writes");
                    user.sync().expect("syncs");
                    syncs.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let flushes = device.stats().op(Op::Flush).ios - before;
    assert_eq!(syncs.load(Ordering::Relaxed), 200);
    // Two flushes for each sync, if each were alone, and a few more for checkpoints.
    assert!(flushes <= 400 + 40, "{flushes} flushes for 200 syncs");
    drop(pool);
    let pool = open(&device);
    let user = User::new(pool.open_volume("v").expect("is there"));
    for writer in 0..4u64 {
        for at in 0..50 {
            let read = user.read((writer * 50 + at) * 131_072, 4096).expect("reads");
            assert!(read == pattern(at, 4096), "writer {writer} block {at}");
        }
    }
}
