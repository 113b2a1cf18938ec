//! Pools of earlier programs: each opens and has the data that was written to it (contract V18). Opening does not
//! convert it; an upgrade does.
//!
//! Owns the images in `crates/vol/tests/pools`. The program of 22 November 2026 made them, when data had no marks yet
//! and metadata no account. An image consists of runs of 8-byte words. Each run begins with a count; its highest bit is
//! set for one word that is repeated.
#![cfg(not(shuttle))]

use crate::support::{User, open, pattern};
use sheave_base::status::Status;
use sheave_blk::Device;
use sheave_drivers::open_device;
use sheave_vol::block_io::{BlockIo, DeviceIo};
use sheave_vol::format::SUPERBLOCKS;
use sheave_vol::superblock::{Superblock, choose};
use sheave_vol::{CheckOptions, Pool, ScrubOptions, check_device};

const UNIT: u64 = 65536;

/// Makes a device with the image.
fn device(runs: &[u8], size: &str) -> Device {
    let device = open_device(&format!("ram:size={size}")).expect("opens");
    DeviceIo::new(&device).expect("attaches").write(0, &sheave_testkit::expand_runs(runs)).expect("writes");
    device
}

fn user(pool: &Pool, name: &str) -> User {
    User::new(pool.open_volume(name).expect("is there"))
}

/// Verifies the content that four of the pools have in common.
fn holds_the_work(pool: &Pool) {
    let block = |name: &str, n: u64| user(pool, name).read(n * UNIT + n * 4096, 4096).expect("reads");
    for n in 0..4 {
        let now = if n < 2 { 100 + n } else { n };
        assert!(block("v", n) == pattern(now, 4096) && block("s", n) == pattern(n, 4096), "block {n}");
    }
    assert!(block("c", 0) == pattern(0, 4096) && block("c", 3) == pattern(200, 4096));
    assert!(block("c", 1).iter().all(|byte| *byte == 0), "it was discarded");
    assert!(user(pool, "g").read(0, 8192).expect("reads") == pattern(300, 8192));
    assert_eq!(pool.volume_info("g").expect("is there").size_bytes, 8192);
}

fn is_clean(device: &Device) {
    let report = check_device(device, &CheckOptions::default()).expect("checks");
    assert!(report.is_clean(), "{:?}", report.findings);
}

#[test]
fn closed_crashed_and_summed_pools_open_and_go_on() {
    for (name, runs) in [
        ("clean", &include_bytes!("pools/clean.runs")[..]),
        ("crashed", include_bytes!("pools/crashed.runs")),
        ("summed", include_bytes!("pools/summed.runs")),
        ("summed-crashed", include_bytes!("pools/summed-crashed.runs")),
    ] {
        let device = device(runs, "16M");
        let pool = open(&device);
        assert_eq!(pool.info().recovered, name.ends_with("crashed"), "{name}");
        holds_the_work(&pool);
        let v = user(&pool, "v");
        v.write(20 * UNIT, &pattern(9, 4096)).expect("writes");
        v.sync().expect("syncs");
        drop(v);
        pool.snapshot("v", "later").expect("snapshots");
        pool.close().expect("closes");
        is_clean(&device);
        let pool = open(&device);
        holds_the_work(&pool);
        assert!(user(&pool, "later").read(20 * UNIT, 4096).expect("reads") == pattern(9, 4096), "{name}");
    }
}

/// The program that made the pool could neither close it nor open it again.
#[test]
fn a_pool_that_had_locked_itself_out_opens() {
    let device = device(include_bytes!("pools/locked-out.runs"), "64M");
    let pool = open(&device);
    let size = UNIT << 34;
    for n in 0..20 {
        let volume = user(&pool, &format!("v{n}"));
        assert!(volume.read(size - 4096, 4096).expect("reads") == pattern(n, 4096), "volume {n}");
    }
    pool.close().expect("closes");
    is_clean(&device);
}

#[test]
fn a_full_pool_that_promises_more_than_it_has_opens_and_deletes() {
    let device = device(include_bytes!("pools/full.runs"), "16M");
    let pool = open(&device);
    let v = user(&pool, "v");
    for n in [0, 100, 245] {
        assert!(v.read(n * UNIT, 4096).expect("reads").iter().all(|byte| *byte == 0x5a));
    }
    assert_eq!(v.write(300 * UNIT, &[1; 4096]), Err(Status::NoSpc));
    v.sync().expect("flushes");
    drop(v);
    pool.delete("s").expect("deletes");
    pool.delete("v").expect("deletes");
    let w = User::new(pool.create_volume("w", 1 << 30).expect("creates"));
    w.write(0, &pattern(1, 4096)).expect("there is room now");
    drop(w);
    pool.close().expect("closes");
    is_clean(&device);
}

/// Returns true for each of marks and identities if the pool has the feature bit, by which programs without it refuse
/// the pool.
fn knows(device: &Device) -> (bool, bool) {
    let io = DeviceIo::new(device).expect("attaches");
    let slots = SUPERBLOCKS.map(|at| {
        let mut block = [0; 4096];
        io.read(at, &mut block).expect("reads");
        Superblock::decode(&block, at, u64::MAX)
    });
    let sb = choose(slots).expect("there is a pool").0;
    (sb.marks, sb.identities)
}

/// Returns the number of blocks that a scrub finds bad.
fn bad_blocks(pool: &Pool) -> u64 {
    let report = pool.scrub(&ScrubOptions::default(), &mut |_| std::ops::ControlFlow::Continue(()));
    report.expect("scrubs").findings.iter().filter_map(|found| found.place.range).map(|range| range.1 / 4096).sum()
}

/// Flips a bit of a block of volume `v` on the device of an open pool.
fn rot(device: &Device, pool: &Pool) {
    let volume = pool.open_volume("v").expect("is there");
    let at = volume.extents(3 * UNIT + 3 * 4096, 4096).expect("is mapped")[0].addr;
    let io = DeviceIo::new(device).expect("attaches");
    let mut block = [0; 4096];
    io.read(at, &mut block).expect("reads");
    block[1234] ^= 4;
    io.write(at, &block).expect("writes");
}

/// Opens the region of checksums in which `v` has its data, so that opening after a crash verifies all of it.
fn open_region(pool: &Pool) {
    let v = user(pool, "v");
    v.write(0, &pattern(100, 4096)).expect("writes");
    v.sync().expect("syncs");
}

const SUMMED: [(&str, &[u8]); 2] =
    [("summed", include_bytes!("pools/summed.runs")), ("summed-crashed", include_bytes!("pools/summed-crashed.runs"))];

#[test]
fn opening_converts_nothing_and_an_upgrade_does() {
    for (name, runs) in SUMMED {
        let device = device(runs, "16M");
        for round in 0..3 {
            let pool = open(&device);
            assert_eq!(
                pool.upgrades().iter().map(|upgrade| upgrade.name).collect::<Vec<_>>(),
                ["marks", "identities", "owners", "copies"],
                "{name}"
            );
            user(&pool, "v").write((30 + round) * UNIT, &pattern(round, 4096)).expect("writes");
            pool.snapshot("v", &format!("s{round}")).expect("snapshots");
            assert_eq!(pool.volume_info(&format!("s{round}")).expect("is there").identity, None);
            if round == 1 {
                drop(pool);
            } else {
                pool.close().expect("closes");
            }
            assert_eq!(
                knows(&device),
                (false, false),
                "{name}, round {round}: the program that made it can still open it"
            );
            is_clean(&device);
        }
        let pool = open(&device);
        assert_eq!(pool.upgrade().expect("upgrades").len(), 4);
        assert!(knows(&device) == (true, true) && pool.upgrades().is_empty(), "{name}");
        assert_eq!(pool.upgrade().expect("there is nothing left to do"), Vec::<&sheave_vol::Upgrade>::new());
        drop(pool);
        let pool = open(&device);
        holds_the_work(&pool);
        assert!(pool.upgrades().is_empty());
        pool.close().expect("closes");
        assert_eq!(knows(&device), (true, true));
        is_clean(&device);
    }
    let plain = device(include_bytes!("pools/clean.runs"), "16M");
    let pool = open(&plain);
    assert_eq!(
        pool.upgrade().expect("upgrades").iter().map(|done| done.name).collect::<Vec<_>>(),
        ["identities", "owners", "copies"]
    );
    assert_eq!(knows(&plain), (false, true), "without checksums there is nothing to mark");
    pool.snapshot("v", "later").expect("snapshots");
    drop(pool);
    let pool = open(&plain);
    let identity = |name: &str| pool.volume_info(name).expect("is there").identity;
    assert!(identity("later").is_some() && identity("s").is_none() && identity("v").is_none());
    holds_the_work(&pool);
    drop(pool);
    is_clean(&plain);
}

/// Contract V16: once the pool is upgraded, blocks that were found bad stay so after a crash, also those found before
/// the upgrade.
#[test]
fn blocks_that_were_told_bad_stay_so_in_a_pool_that_was_upgraded() {
    let (name, runs) = SUMMED[0];
    for (upgrade_at, bad_after) in [(None, 0), (Some(0), 1), (Some(1), 1)] {
        let device = device(runs, "16M");
        let pool = open(&device);
        if upgrade_at == Some(0) {
            pool.upgrade().expect("upgrades");
        }
        open_region(&pool);
        rot(&device, &pool);
        let told = bad_blocks(&pool);
        assert!(told >= 1, "{name}");
        if upgrade_at == Some(1) {
            pool.upgrade().expect("upgrades");
        }
        pool.sync().expect("syncs");
        drop(pool);
        let pool = open(&device);
        let found = bad_blocks(&pool);
        assert_eq!(found, told * bad_after, "{name}: upgraded {upgrade_at:?}, {told} told");
    }
}

#[test]
fn an_upgrade_needs_a_pool_that_can_be_written() {
    let device = device(SUMMED[0].1, "16M");
    let options = sheave_vol::OpenOptions::default().read_only(true);
    let pool = Pool::open(&device, &options).expect("opens");
    let error = pool.upgrade().expect_err("is refused");
    assert!(error.to_string().contains("read-only"), "{error}");
    assert_eq!(pool.upgrades().len(), 4, "it can be told all the same");
}
