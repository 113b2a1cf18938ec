//! Memory that the map of a volume takes for each extent, and the accuracy of the pool's own figure. A test program of
//! its own, because it measures the whole process.
#![cfg(all(target_os = "linux", not(shuttle)))]

mod support;

use sheave_base::rng::Rng;
use sheave_base::status::Status;
use sheave_drivers::open_device;
use sheave_iomap::File;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::file::WriteDone;
use sheave_iomap::mapping::Intent;
use sheave_vol::{CreateOptions, Pool, Volume};
use support::open;

const UNIT: u64 = 1 << 16;
/// Number of first writes. The units that they are spread over are 16 times as many, as with a million writes to a
/// volume of 1 TiB.
const WRITES: u64 = 1 << 18;
const UNITS: u64 = WRITES << 4;

/// Returns the resident anonymous memory of the process in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find(|line| line.starts_with("RssAnon")).expect("since Linux 4.5");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") << 10
}

/// Does the calls of a first write of a block, without I/O.
fn first_write(volume: &Volume, pos: u64) {
    let may_block = MayBlock::on_worker();
    let mut mapping = volume.map(pos, 4096, Intent::Write);
    while mapping == Err(Status::Again) {
        volume.map_blocking(pos, 4096, Intent::Write, &may_block).expect("there is space");
        mapping = volume.map(pos, 4096, Intent::Write);
    }
    volume.end_write(WriteDone::new(pos, 4096, Status::Ok, &[mapping.expect("is mapped")]), &may_block).expect("ends");
}

#[test]
fn a_random_extent_takes_at_most_150_bytes_and_the_pool_tells_so() {
    if sheave_testkit::under_sanitizer() {
        return sheave_testkit::skip("a sanitizer has memory of its own beside each byte");
    }
    let device = open_device("null:size=64G,keep=2M").expect("opens");
    // A small journal, because the blocks written to the `ram:` device take memory of the process too.
    let options = CreateOptions::default().unit_bytes(UNIT).journal_bytes(Some(1 << 20));
    Pool::create(&device, &options).expect("creates");
    let pool = open(&device);
    let volume = pool.create_volume("v", UNITS * UNIT).expect("creates");
    // The first write and sync allocate what is allocated only once.
    first_write(&volume, 0);
    pool.sync().expect("syncs");
    let (resident_before, told_before) = (resident(), pool.info().memory_bytes);
    let (entries_before, mut rng) = (pool.info().entries, Rng::new(7));
    for _ in 0..WRITES {
        first_write(&volume, rng.draw() % UNITS * UNIT);
    }
    pool.sync().expect("syncs");
    let info = pool.info();
    let (resident, told) = (resident() - resident_before, info.memory_bytes - told_before);
    let extents = info.entries - entries_before;
    assert!(extents > WRITES * 9 / 10, "few meet: {extents}");
    let each = resident as f64 / extents as f64;
    assert!(each <= 150.0, "{each:.1} bytes an extent, {extents} of them");
    let off = told as f64 / resident as f64;
    assert!((0.9..1.1).contains(&off), "the pool says {told}, the process has {resident} more");
}
