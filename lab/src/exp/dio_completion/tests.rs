//! Tests of the experiment's arms and points, and of the verdict on made-up figures.

use std::sync::Arc;

use sheave_base::sync::atomic::AtomicBool;

use super::arm::Patience;
use super::*;
use crate::TurnEnd;
use crate::exp::verdict_tests::{report, row};
use crate::report::{Holds, SweepReport};
use sheave_load::Rw;

fn lab() -> Lab {
    Lab { scale: Scale::Full, cpus: sheave_load::cpu::allowed(), stop: Arc::new(AtomicBool::new(false)) }
}

#[test]
fn every_point_of_every_sweep_can_be_had_by_every_arm() {
    let lab = lab();
    let headline = DioCompletion.headline().into_iter().map(|row| row.point);
    let sweeps = DioCompletion.sweeps(&lab).into_iter().flat_map(|sweep| sweep.points).map(|place| place.point);
    for point in headline.chain(sweeps).chain(DioCompletion.instruction_points()) {
        assert_eq!(point.to_string().parse::<Point>().as_ref(), Ok(&point), "goes through a command line");
        for (arm, info) in ARMS.iter().enumerate().filter(|(arm, _)| DioCompletion.takes_part(*arm, &point)) {
            let turn = DioCompletion.prepare(&lab, arm, &point).and_then(|mut arm| arm.turn(TurnEnd::Ios(300)));
            let turn = turn.unwrap_or_else(|err| panic!("{} at {point}: {err}", info.name));
            assert_eq!(turn.ios, 300, "{} at {point}", info.name);
            assert_eq!(turn.latency.map(|latency| latency.len()), Some(300), "{} at {point}", info.name);
        }
    }
}

#[test]
fn a_synchronous_write_stands_in_each_row_of_one_at_a_time_and_in_no_other() {
    for row in DioCompletion.headline() {
        assert_eq!(DioCompletion.takes_part(SYNC, &row.point), row.label.starts_with("QD 1,"), "{}", row.label);
        assert!((0..SYNC).all(|arm| DioCompletion.takes_part(arm, &row.point)));
    }
    assert!(synchronous_sweep().points.iter().all(|place| DioCompletion.takes_part(SYNC, &place.point)));
    let deep = DioCompletion.prepare(&lab(), SYNC, &overwrites(2)).err().expect("refused").to_string();
    assert!(deep.contains("one at a time"), "{deep}");
}

#[test]
fn the_verdict_tells_what_a_synchronous_write_gives() {
    let rows = DioCompletion.headline().into_iter().map(|head| row(head.label, head.point, &[50.0, 60.0, 90.0, 70.0]));
    let shows = DioCompletion.verdict(&report(&DioCompletion, rows.collect(), Vec::new())).shows;
    let told = "a synchronous one gives polled, +70.0 % (+69.0 to +71.0), and the thread's arm +60.0 % (+59.0 to +61.0\
                ); interrupts, +70.0 % (+69.0 to +71.0), and the thread's arm +50.0 %";
    assert!(shows.contains(told), "{shows}");
}

#[test]
fn the_checks_hold() {
    for check in DioCompletion.check(&lab()).expect("they run") {
        assert!(check.ok, "{}: {}", check.name, check.detail);
    }
}

#[test]
fn words_that_a_point_cannot_have_are_refused_with_those_it_can() {
    let refused = |point: Point| DioCompletion.prepare(&lab(), 0, &point).err().expect("refused").to_string();
    let error = refused(overwrites(1).with("cell", "holes"));
    assert!(error.contains("cell=holes") && error.contains("dsync-fua"), "{error}");
    let error = refused(overwrites(1).with("file", "volume").with("cell", "shared"));
    assert!(error.contains("file=memory"), "{error}");
    let error = refused(interrupted(1).with("file", "volume"));
    assert!(error.contains("polled"), "{error}");
    assert!(refused(Point { rw: Rw::Randread, ..overwrites(1) }).contains("rw=randwrite"));
}

/// Workers have another CPU for polled I/O. For interrupts, or if the point says so, they have the ring's CPU. The way
/// in which the ring waits follows from that, and is the same for all arms.
#[test]
fn all_arms_of_a_point_wait_in_one_way() {
    let lab = Lab { cpus: vec![1, 0], ..lab() };
    let of = |lab: &Lab, point: Point| Patience::of(lab, &point).expect("a point");
    for depth in design::DEPTHS {
        assert_eq!(of(&lab, overwrites(depth)), Patience::Spins);
        assert_eq!(of(&lab, overwrites(depth).with("worker", "same")), Patience::Sleeps);
        assert_eq!(of(&lab, interrupted(depth)), Patience::Sleeps);
    }
    let one_cpu = Lab { cpus: vec![0], ..lab.clone() };
    assert_eq!(of(&one_cpu, overwrites(1)), Patience::Sleeps, "it would spin where its workers have to run");
    for point in DioCompletion.instruction_points() {
        assert_eq!(of(&lab, point), Patience::Sleeps, "spins would be counted");
    }
}

/// Returns the number of voluntary context switches of this thread. A sleep is one; a preemption is none.
fn sleeps() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).expect("counted");
    line.trim().parse().expect("a number")
}

#[test]
fn no_arm_sleeps_for_polled_io() {
    if lab().cpus.len() < 2 {
        return;
    }
    for (arm, info) in ARMS.iter().enumerate() {
        let mut run = DioCompletion.prepare(&lab(), arm, &overwrites(1)).expect("it is made");
        let before = sleeps();
        assert_eq!(run.turn(TurnEnd::Ios(500)).expect("it runs").ios, 500);
        // A few sleeps are allowed: a lock may be contended now and then.
        let slept = sleeps() - before;
        assert!(slept < 50, "{}: {slept} sleeps in 500 I/Os", info.name);
    }
    let slack = rustix::thread::current_timer_slack().expect("known");
    assert!(slack > 1, "an arm leaves the timer slack of its thread as it was");
}

/// Makes a report with these gains in every row of the published table and in the cells that are not eligible.
fn made_up(seed: f64, inline: f64, after: f64, not_eligible: f64) -> ExperimentReport {
    let rows = DioCompletion.headline().into_iter().map(|head| row(head.label, head.point, &[seed, inline, after]));
    let [cells, _] = cell_sweeps();
    let of_cells = cells.points.into_iter().map(|place| {
        let gain = if arm::is_eligible(&place.point) { after } else { not_eligible };
        row(place.label, place.point, &[gain; 3])
    });
    let metric = DioCompletion.metric();
    let cells =
        SweepReport { name: cells.name, title: cells.title, axis: cells.axis, metric, rows: of_cells.collect() };
    report(&DioCompletion, rows.collect(), vec![cells])
}

#[test]
fn each_row_stands_beside_the_arm_that_is_the_threads() {
    for row in DioCompletion.headline() {
        let arm = if row.label.ends_with("polled") { design::INLINE } else { design::SEED };
        assert_eq!(DioCompletion.threads_arm(&row.point), Some(arm), "{}", row.label);
    }
}

#[test]
fn the_way_to_a_worker_has_an_interval_or_is_not_told() {
    let of = |inline: f64| DioCompletion.verdict(&made_up(50.0, inline, 90.0, 0.2)).shows;
    // The first arm does one I/O a second, of which the worker takes 0.375 to 0.383 seconds.
    assert!(of(61.0).contains("takes 378882.0 us here (375000.0 to 382716.0"), "{}", of(61.0));
    assert!(of(0.5).contains("cannot tell what the way to a worker and back takes"), "{}", of(0.5));
}

#[test]
fn the_verdict_follows_the_figures() {
    let of = |seed, inline, after, cells| DioCompletion.verdict(&made_up(seed, inline, after, cells));
    let verdict = of(50.0, 60.0, 90.0, 0.2);
    assert_eq!(verdict.holds, Holds::Yes);
    assert!(verdict.shows.contains("+50.0 %") && verdict.shows.contains("+90.0 %"), "{}", verdict.shows);
    assert!(verdict.shows.contains("In none of the 4 cells"), "{}", verdict.shows);
    assert_eq!(of(50.0, 60.0, 2.0, 0.2).holds, Holds::Yes, "the claim is the thread's, whatever Sheave's own arm does");
    assert_eq!(of(20.0, 20.0, 20.0, 0.0).holds, Holds::Partly, "the direction, not the size");
    assert_eq!(of(-3.0, -1.0, 2.0, 0.0).holds, Holds::No);
    let verdict = of(50.0, 60.0, 90.0, 25.0);
    assert_eq!(verdict.holds, Holds::Partly, "what must block gained too");
    assert!(verdict.shows.contains("unwritten in cells (+25.0 % at least)"), "{}", verdict.shows);
    let why = "dsync-flush in cells (+25.0 % at least), because the flush after the data is an I/O of the ring";
    assert!(verdict.shows.contains(why), "{}", verdict.shows);
    let mut flushed = made_up(50.0, 60.0, 90.0, 25.0);
    flushed.sweeps[0].rows.retain(|row| row.label == "dsync-flush");
    assert_eq!(DioCompletion.verdict(&flushed).holds, Holds::Yes, "what needs no worker here may gain");
    let mut nothing = made_up(50.0, 60.0, 90.0, 0.0);
    nothing.headline.clear();
    assert_eq!(DioCompletion.verdict(&nothing).holds, Holds::CannotTell);
}
