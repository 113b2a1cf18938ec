//! Pools that earlier programs left behind: each opens, and holds what was written to it (contract V18).
//!
//! Owns the images in `crates/vol/tests/pools`, which the program of 22 November 2026 made, before data had marks and
//! metadata an account. An image is its 8-byte words in runs: a count, with the highest bit set for one word that is
//! repeated.
#![cfg(not(shuttle))]

mod support;

use sheave_base::status::Status;
use sheave_blk::Device;
use sheave_drivers::open_device;
use sheave_vol::block_io::{BlockIo, DeviceIo};
use sheave_vol::{CheckOptions, Pool, check_device};
use support::{User, open, pattern};

const UNIT: u64 = 65536;

/// A device with the image.
fn device(runs: &[u8], size: &str) -> Device {
    let device = open_device(&format!("ram:size={size}")).expect("opens");
    let (mut bytes, mut rest) = (Vec::new(), runs);
    while let Some((count, more)) = rest.split_first_chunk::<4>() {
        let count = u32::from_le_bytes(*count);
        let repeated = count >> 31 == 1;
        let words = if repeated { 1 } else { count as usize };
        let (literal, more) = more.split_at(words * 8);
        bytes.extend(literal.repeat(if repeated { count as usize & 0x7fff_ffff } else { 1 }));
        rest = more;
    }
    DeviceIo::new(&device).expect("attaches").write(0, &bytes).expect("writes");
    device
}

fn user(pool: &Pool, name: &str) -> User {
    User::new(pool.open_volume(name).expect("is there"))
}

/// What the four pools with the same work in them hold.
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

/// Its own program could neither close it nor open it again.
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
