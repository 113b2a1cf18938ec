//! Disks that break promises: with checksums, every outcome is reported or is one that the table of `broken` allows.

use sheave_sim::broken::{Tally, explore_broken};
use sheave_sim::disk::Lie;

const SEEDS: u64 = 60;

/// Runs all seeds. Returns the outcomes, and true if there were enough runs to expect each kind of outcome.
fn explore(lie: Lie, checksums: bool) -> (Tally, bool) {
    let (mut total, seeds) = (Tally::default(), sheave_testkit::seeds(SEEDS));
    for seed in seeds.clone() {
        total.add(&explore_broken(seed, lie, checksums).unwrap_or_else(|why| panic!("{why}")));
    }
    (total, seeds.end - seeds.start == SEEDS)
}

/// With misdirected writes, the pool serves no wrong data while it is in use or after it was closed. After a crash it
/// may serve wrong data, but only from regions that were open (V15, V16).
#[test]
fn writes_that_land_elsewhere_are_told_by_checksums() {
    let (total, enough) = explore(Lie::Misdirects, true);
    assert!(!enough || total.misdirected > 50 && total.told > 10 && total.refused > 50, "{total:?}");
}

/// Without checksums the same disks serve wrong data, so the checksums are what prevents it.
#[test]
fn without_checksums_they_are_out_of_contract() {
    let (total, enough) = explore(Lie::Misdirects, false);
    assert!(!enough || total.misdirected > 50 && total.older + total.foreign > 40, "{total:?}");
}

#[test]
fn flushes_that_lie_are_told_by_checksums_or_leave_an_older_pool() {
    let (mut total, mut enough) = (Tally::default(), true);
    for lie in [Lie::FlushDoesNothing, Lie::LateFlush, Lie::FuaIsVolatile] {
        let (one, all) = explore(lie, true);
        total.add(&one);
        enough = all;
    }
    assert!(!enough || total.kept > 20 && total.told + total.refused > 20 && total.older > 5, "{total:?}");
}

#[test]
fn flushes_that_lie_without_checksums() {
    let (total, enough) = explore(Lie::FlushDoesNothing, false);
    assert!(!enough || total.refused > 5 && total.older + total.older + total.foreign > 40, "{total:?}");
}
