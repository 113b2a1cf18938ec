//! Crash points: seeded runs are cut at many steps, recovered, cut again and compared with the model. An ordinary test
//! run has at least 2,000 crash points in all; `cargo xtask sim --nightly` has 100,000.
//!
//! The seeds are split over several tests, so that they run side by side.

use std::time::Duration;

use sheave_sim::disk::{Errors, Lie};
use sheave_sim::explore::{Plan, Report, explore};
use sheave_sim::setup::Setup;
use sheave_sim::shrink::shrink;
use sheave_sim::tally::Tally;

/// Least number of crash points in each test that searches random runs.
const POINTS: u64 = 700;

/// Runs seeds from `first` on until the number of crash points is reached.
fn crash(first: u64, ops: usize, cuts: usize) -> Report {
    crash_of(first, ops, cuts, &|setup| setup)
}

/// Same as `crash`, with each set-up changed by `change`.
fn crash_of(first: u64, ops: usize, cuts: usize, change: &dyn Fn(Setup) -> Setup) -> Report {
    let mut total = Report::default();
    let first = sheave_testkit::seeds(1).start * 1_000 + first;
    for seed in first.. {
        let mut plan = Plan::new(seed, ops, cuts);
        plan.setup = change(plan.setup);
        match explore(&plan) {
            Ok(report) => {
                total.crashes += report.crashes;
                total.nested += report.nested;
                total.grown += report.grown;
                total.trimmed += report.trimmed;
                total.tally.add(&report.tally);
            }
            Err(failure) => panic!("{}", shrink(&plan, failure, Duration::from_secs(20))),
        }
        if total.crashes >= POINTS {
            return total;
        }
    }
    unreachable!("there are enough seeds")
}

#[test]
fn short_runs_cut_at_every_step() {
    crash(100, 25, 400);
}

#[test]
fn runs_cut_often_a() {
    crash(200, 100, 60);
}

#[test]
fn runs_cut_often_b() {
    crash(300, 100, 60);
}

#[test]
fn runs_cut_often_c() {
    crash(400, 150, 60);
}

#[test]
fn runs_cut_often_d() {
    crash(500, 150, 60);
}

#[test]
fn long_runs_a() {
    crash(600, 600, 80);
}

#[test]
fn long_runs_b() {
    let report = crash(700, 600, 80);
    assert!(report.nested > 10, "recovery was cut, and life after it: {report:?}");
}

/// After a crash no good data fails its checksum, whatever was under way.
#[test]
fn no_checksum_is_wrong_after_a_crash() {
    let checksums: &dyn Fn(Setup) -> Setup = &Setup::with_checksums;
    crash_of(800, 25, 400, checksums);
    crash_of(830, 150, 60, checksums);
    crash_of(860, 400, 80, checksums);
}

/// Failed requests of the disk are reported and lose nothing that was acknowledged, even with a crash on top.
#[test]
fn a_disk_whose_reads_and_writes_fail_now_and_then() {
    // No volume grows: a failed DSYNC write beyond the end may leave its size (V23), which the model denies (S1).
    let errors = Errors { read: 10, write: 10, flush: 0, journal: 0 };
    crash_of(900, 150, 60, &|setup| Setup { growing: 0, ..setup.with_errors(errors) });
    // Space that a failed commit took, or that was freed in it, is not available before the next commit.
    let errors = Errors { read: 10, write: 60, flush: 0, journal: 0 };
    crash_of(930, 150, 60, &|setup| Setup { growing: 0, ..setup.with_checksums().with_errors(errors) });
}

/// Commits fail while volumes are copied and rolled back, and the volumes are written before the next commit. Data that
/// is flushed later to any of them must be there (V2, V3).
#[test]
fn commits_that_fail_while_volumes_are_copied() {
    let beside = "a commit of records failed beside a copy or a rollback";
    let window = format!("{beside}, and a map changed before the next one");
    let mut tally = Tally::default();
    for first in (2400..2700).step_by(100) {
        tally.add(&crash_of(first, 600, 4, &Setup::with_failing_commits).tally);
        tally.add(&crash_of(first + 50, 600, 4, &|setup| setup.with_checksums().with_failing_commits()).tally);
        if tally.of(beside) >= 10 && tally.of(&window) > 0 {
            return;
        }
    }
    panic!("hardly ever\n{tally}");
}

/// The addition of a disk is cut at every step. Then the pool is the old one or the one with another disk, and has its
/// contents (V14, V22).
#[test]
fn a_pool_that_gets_another_disk_cut_at_every_step() {
    let grows: &dyn Fn(Setup) -> Setup = &|setup| {
        let mut setup = setup.with_spare();
        setup.mix.grow = 12;
        setup
    };
    let short = crash_of(1000, 25, 400, grows);
    let long = crash_of(1030, 150, 60, grows);
    let summed = crash_of(1060, 40, 200, &|setup| grows(setup.with_checksums()));
    for report in [short, long, summed] {
        assert!(report.grown > report.crashes / 4 && report.grown < report.crashes, "both: {report:?}");
    }
}

/// The disk has become larger, and the pool extends to its end while it is used; this is cut at every step. Then the
/// pool has its old size or the new one, and no read returns the bytes behind its old end, which may be parts of an
/// older copy of the pool (V14, V17).
#[test]
fn a_pool_whose_disk_has_grown_cut_at_every_step() {
    let grows: &dyn Fn(Setup) -> Setup = &|setup| {
        let mut setup = setup.with_room_behind();
        setup.mix.grow = 12;
        setup
    };
    let short = crash_of(2200, 25, 400, grows);
    let long = crash_of(2230, 150, 60, grows);
    let summed = crash_of(2260, 40, 200, &|setup| grows(setup.with_checksums()));
    for report in [short, long, summed] {
        assert!(report.grown > report.crashes / 4 && report.grown < report.crashes, "both: {report:?}");
    }
    let errors = Errors { read: 5, write: 20, flush: 5, journal: 0 };
    crash_of(2290, 100, 40, &|setup| grows(setup.with_errors(errors)));
}

/// The range of a slow read is written, discarded, copied and cut off meanwhile, by its volume and by clones, and its
/// units are reused. The read must return no data of later writes (V1, V17). Few crashes for many runs.
#[test]
fn slow_reads_of_what_is_let_go_meanwhile() {
    crash_of(1400, 250, 4, &Setup::with_slow_reads);
}

/// Trims discard nothing that a reader still needs, or that its owner needs after a crash (V1, V3, V17).
#[test]
fn free_space_goes_back_to_the_disk_beside_all_else() {
    let short = crash_of(1500, 40, 300, &Setup::with_trims);
    let long = crash_of(1530, 150, 60, &|setup| setup.with_checksums().with_trims());
    for report in [short, long] {
        assert!(report.trimmed > report.crashes << 12, "{report:?}");
    }
}

/// Units that a slow read is reading are freed meanwhile. They must be discarded only when the read has ended (V1). Few
/// crashes for many runs.
#[test]
fn what_slow_reads_look_at_goes_back_to_the_disk_later() {
    let report = crash_of(1700, 250, 4, &|setup| {
        let mut setup = setup.with_trims();
        (setup.mix.stare, setup.mix.write, setup.mix.zero, setup.mix.pool_sync) = (12, 25, 30, 8);
        (setup.mix.copy, setup.mix.delete, setup.mix.turn) = (1, 1, 60);
        (setup.unit_bytes, setup.max_volume_bytes, setup.max_volumes) = (64 << 10, 512 << 10, 3);
        (setup.size_bytes, setup.disk.spare, setup.behind, setup.mix.grow) = (6 << 20, 0, 0, 0);
        (setup.disk.slow, setup.disk.max_delay) = (0, 0);
        setup
    });
    assert!(report.trimmed > 0, "{report:?}");
}

/// A failed discard leaks no space, and a discard in a full file system frees space for other users.
#[test]
fn free_space_goes_back_to_a_disk_that_fails_or_is_full() {
    let errors = Errors { read: 0, write: 60, flush: 0, journal: 0 };
    let failing = |setup: Setup| Setup { growing: 0, ..setup.with_errors(errors).with_trims() };
    crash_of(1600, 150, 60, &failing);
    crash_of(1630, 150, 60, &|setup| failing(setup.with_checksums()));
    let full = crash_of(1660, 150, 60, &|setup| setup.with_full_host(5).with_trims());
    assert!(full.trimmed > 0, "{full:?}");
}

/// A pool can only delete volumes, because its file was copied without its blank pages to a full file system. Each
/// delete is durable and all else is unchanged. Once there is space, the pool takes every request (V11, V15, V18).
#[test]
fn a_pool_that_opens_for_deletes_alone() {
    let plain = crash_of(2100, 60, 40, &Setup::with_sparse_copies);
    let summed = crash_of(2130, 60, 40, &|setup| setup.with_checksums().with_sparse_copies());
    for report in [plain, summed] {
        let kinds = [
            "openings for deletes alone",
            "deletes where nothing else is taken",
            "deletes that made room for everything else",
            "crashes among such deletes",
        ];
        for kind in kinds {
            assert!(report.tally.of(kind) >= 10, "{kind}: hardly ever\n{}", report.tally);
        }
    }
}

/// Writes are under way while their volume is cut, enlarged, rolled back and given another maximum size (V24).
#[test]
fn volumes_that_grow_are_resized_under_writes() {
    let report = crash_of(1800, 180, 60, &Setup::with_cuts);
    let summed = crash_of(1830, 180, 60, &|setup| setup.with_checksums().with_cuts());
    for report in [report, summed] {
        for kind in ["resize of a volume that grows", "rollback of a volume that grows", "largest size"] {
            let beside = report.tally.of(&format!("{kind}: with I/O to its volume under way"));
            assert!(beside > 0, "{kind}: none\n{}", report.tally);
        }
    }
}

/// Random runs have every kind of pool, and every kind of fault during every kind of call.
#[test]
fn everything_comes_in_random_runs() {
    let mut tally = Tally::default();
    // Many seeds, because only 4 % of the runs have hundreds of volumes; drawing takes next to no time.
    (1..=1000).for_each(|seed| Setup::of_run(seed, 160).count(&mut tally));
    let pools = tally.of("pools");
    let kinds = tally.to_string();
    for line in kinds.lines().filter(|line| line.contains("pools ")) {
        let count: u64 = line.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a number");
        assert!(count >= pools / 50, "{line}, of {pools}");
    }
    let summed = tally.of("pools with checksums");
    assert!((pools * 2 / 5..pools * 3 / 5).contains(&summed), "{summed} of {pools} have checksums");
    let mut tally = crash(1900, 200, 8).tally;
    tally.add(&crash(2000, 200, 8).tally);
    let calls = [
        "create",
        "snapshot",
        "clone",
        "rollback",
        "rename",
        "resize",
        "resize of a volume that grows",
        "largest size",
        "delete",
        "flush of the pool",
        "another disk",
        "scrub",
        "trim or discard",
    ];
    for kind in calls {
        assert!(tally.of(&format!("{kind}: with I/O under way")) > 0, "{kind}: never beside I/O\n{tally}");
    }
    let others = [
        "crashes within a call that changes a volume",
        "crashes with I/O under way",
        "crashes of runs in which something failed",
        "compared without a crash after something failed",
        "openings on a disk that failed meanwhile",
        "flush of the pool: with a slow read held across it",
    ];
    for what in others {
        assert!(tally.of(what) > 0, "{what}: never\n{tally}");
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let plan = Plan::new(77, 120, 20);
    let first = explore(&plan).unwrap_or_else(|failure| panic!("{failure}"));
    let second = explore(&plan).unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(first, second);
    let other = explore(&Plan::new(78, 120, 20)).unwrap_or_else(|failure| panic!("{failure}"));
    assert_ne!(first.trace, other.trace);
}

/// The simulator detects each broken promise of a disk within a few runs.
fn finds_out(lie: Lie) {
    let found = (1..=60).find_map(|seed| {
        let mut plan = Plan::new(seed, 120, 60);
        plan.setup = plan.setup.with_lie(lie);
        plan.setup.disk.fua = true;
        explore(&plan).err()
    });
    let failure = found.unwrap_or_else(|| panic!("nobody notices {lie:?}"));
    assert!(!failure.path.is_empty(), "only a crash shows a lie: {failure}");
}

#[test]
fn a_disk_whose_flush_does_nothing_is_found_out() {
    finds_out(Lie::FlushDoesNothing);
}

#[test]
fn a_disk_whose_flush_is_late_is_found_out() {
    finds_out(Lie::LateFlush);
}

#[test]
fn a_disk_that_forgets_fua_is_found_out() {
    finds_out(Lie::FuaIsVolatile);
}

/// Runs pools all of whose volumes grow with their writes.
fn growing(first: u64, ops: usize, cuts: usize, change: impl Fn(&mut Setup)) -> Report {
    let mut total = Report::default();
    let first = sheave_testkit::seeds(1).start * 1_000 + first;
    for seed in first.. {
        let mut plan = Plan::new(seed, ops, cuts);
        plan.setup.growing = 100;
        change(&mut plan.setup);
        match explore(&plan) {
            Ok(report) => {
                total.crashes += report.crashes;
                total.headless += report.headless;
            }
            Err(failure) => panic!("{}", shrink(&plan, failure, Duration::from_secs(20))),
        }
        if total.crashes >= POINTS {
            return total;
        }
    }
    unreachable!("there are enough seeds")
}

/// A crash leaves no size whose data is missing, and none smaller than the size that was flushed (V23, V24).
#[test]
fn volumes_that_grow_cut_at_every_step() {
    growing(1_000, 25, 400, |_| ());
    growing(1_040, 40, 400, |setup| *setup = setup.clone().with_checksums());
}

#[test]
fn volumes_that_grow_cut_often() {
    growing(1_100, 120, 60, |_| ());
    growing(1_200, 300, 60, |setup| *setup = setup.clone().with_checksums());
}

/// With many small units between two flushes, a commit of many blocks that did not all arrive has no effect.
#[test]
fn volumes_that_grow_in_commits_of_many_blocks() {
    let report = growing(1_300, 60, 120, |setup| *setup = setup.clone().with_long_commits());
    assert!(report.headless > 10, "some lost their first block alone: {report:?}");
}
