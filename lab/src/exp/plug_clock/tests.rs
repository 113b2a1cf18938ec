//! Tests of the arms' readings, the ages of their stamps, and verdicts on made-up figures.

use super::checks::OF_A_BATCH;
use super::design::{AFTER, KTIME, OWN, SEED};
use super::*;
use crate::exp::verdict_tests::{report, row};
use crate::experiment::TurnEnd;
use crate::fake;
use crate::report::{Holds, InstructionRow, SweepReport};

#[test]
fn every_check_passes() {
    fake::assert_checks_pass(&PlugClock, 5 * ARMS.len());
}

#[test]
fn the_arms_differ_in_their_readings_alone() {
    let reads =
        |arm: usize, batch: u32| arm::count(&fake::lab(), arm, &Point { batch, ..Point::default() }).expect("counted");
    for arm in [0, OWN, KTIME] {
        // There is one reading for each request, and those of each batch.
        let all = 1.0 + OF_A_BATCH / 32.0;
        assert_eq!((reads(arm, 32).clock, reads(arm, 32).age), (all, 0.0), "{}", ARMS[arm].name);
    }
    assert_eq!(reads(0, 32).age, reads(SEED, 32).age);
    assert_eq!(reads(SEED, 32).clock, reads(AFTER, 32).clock, "the bound costs no reading, only looks");
    assert!(reads(AFTER, 32).age > reads(SEED, 32).age);
    assert_eq!(reads(0, 1).clock, reads(AFTER, 1).clock, "a batch of one has nothing to share");
}

#[test]
fn slow_requests_are_looked_at() {
    for arm in 0..ARMS.len() {
        let mut run = PlugClock.prepare(&fake::lab(), arm, &slow(1000)).expect("an arm");
        let turn = run.turn(TurnEnd::Ios(640)).expect("a turn");
        assert_eq!(turn.ios, 640);
        assert!(turn.gauges["stamp_age_p50_ns"] <= turn.gauges["stamp_age_max_ns"]);
        // A request's own stamp is never too old. A shared stamp is taken before the 15 requests behind the first, of 1
        // us or more each.
        assert!(arm == OWN || turn.gauges["stamp_age_max_ns"] >= 15e3, "{:?}", turn.gauges);
    }
}

#[test]
fn before_shares_stamps_and_statistics_as_the_thread_does() {
    let ages = |arm: usize| {
        let mut run = PlugClock.prepare(&fake::lab(), arm, &slow(1000)).expect("an arm");
        run.turn(TurnEnd::Ios(640)).expect("a turn").gauges["stamp_age_p50_ns"]
    };
    assert!(ages(0) > 1000.0 && ages(KTIME) > 1000.0, "what is read is thrown away");
    assert!(ages(OWN) < ages(0));
}

/// Makes the row of the published table: changes of the arms after the first, and the CPU time of all arms.
fn measured(changes: [f64; 4], ns: [f64; 5]) -> crate::report::Row {
    let mut row = row(ROW.into(), Point::default(), &changes);
    for (arm, ns) in row.arms.iter_mut().flatten().zip(ns) {
        arm.cpu_ns_per_io = ns;
    }
    row
}

#[test]
fn the_verdict_is_that_of_the_figures() {
    let of = |changes: [f64; 4], instructions: Option<[f64; 5]>| {
        let row = measured(changes, [40.0, 55.0, 60.0, 32.0, 30.0]);
        let mut report = report(&PlugClock, vec![row], Vec::new());
        report.instructions = instructions
            .map(|per_io| InstructionRow { per_io: per_io.map(Some).to_vec(), ..InstructionRow::default() })
            .into_iter()
            .collect();
        PlugClock.verdict(&report)
    };
    let yes = of([-20.0, -30.0, 25.0, 24.0], None);
    assert_eq!(yes.holds, Holds::Yes);
    assert!(yes.shows.contains("+24.0 % (+23.0 to +25.0)") && yes.shows.contains("not counted"), "{}", yes.shows);
    assert!(
        yes.shows.contains("20 % of an I/O's CPU time with the bare cycle counter (8.0 of 40.0 ns)"),
        "{}",
        yes.shows
    );
    assert!(
        yes.shows.contains("47 % with a clock that does what the kernel's does (28.0 of 60.0 ns)"),
        "{}",
        yes.shows
    );
    let small = of([-20.0, -30.0, 4.0, 4.0], Some([420.0, 490.0, 450.0, 409.0, 410.0]));
    assert_eq!(small.holds, Holds::Partly);
    assert!(small.shows.contains("the readings are 10.0 of 420.0"), "{}", small.shows);
    assert!(small.shows.contains("counting one by one 70.0 more"), "{}", small.shows);
    let counted = Some([450.0, 490.0, 460.0, 410.0, 410.0]);
    assert_eq!(of([0.0, 0.0, 0.0, 0.5], counted).holds, Holds::Partly, "fewer instructions, and no size by them");
    assert_eq!(of([0.0, 0.0, 0.5, 25.0], None).holds, Holds::CannotTell, "by the thread's arm");
    let more = Some([450.0, 490.0, 460.0, 451.0, 410.0]);
    assert_eq!(of([0.0, 0.0, 0.0, 0.5], more).holds, Holds::CannotTell);
    assert_eq!(of([0.0, 0.0, 0.0, 0.5], None).holds, Holds::CannotTell);
    assert_eq!(of([-5.0; 4], counted).holds, Holds::No);
    assert_eq!(PlugClock.verdict(&report(&PlugClock, Vec::new(), Vec::new())).holds, Holds::CannotTell);
}

#[test]
fn the_age_of_a_stamp_is_told_as_it_was_measured() {
    let of_ages = ages(Scale::Full);
    let rows = of_ages.points.into_iter().map(|place| {
        let mut told = row(place.label, place.point, &[0.0; 4]);
        told.x = place.x;
        for (arm, factor) in [(SEED, 32.0), (AFTER, 16.0)] {
            told.arms[arm].as_mut().expect("measured").gauges.insert("stamp_age_p99_ns", factor * place.x);
        }
        told
    });
    let rows = rows.collect();
    let sweep = SweepReport { name: of_ages.name, title: of_ages.title, axis: of_ages.axis, metric: AGE_P99, rows };
    let headline = vec![measured([-20.0, -30.0, 25.0, 24.0], [40.0, 55.0, 60.0, 32.0, 30.0])];
    let shows = PlugClock.verdict(&report(&PlugClock, headline, vec![sweep])).shows;
    let told = "younger than 2 us at 0.1 us a request (the thread's: 3), 16 us at 1.0 us a request (the thread's: 32), \
                48 us at 3.0 us a request (the thread's: 96), 160 us at 10.0 us a request (the thread's: 320), 480 us \
                at 30.0 us a request (the thread's: 960): the bound of 50 us is looked at for every 16th request.";
    assert!(shows.contains(told), "{shows}");
}

#[test]
fn a_gain_with_batches_of_one_is_not_explained_away() {
    let of = |percent: f64| {
        let headline = vec![row(ROW.into(), Point::default(), &[-20.0, -20.0, 20.0, 20.0])];
        let sweep = batches(Scale::Quick);
        let mut one = row("1".into(), Point::default(), &[0.0, 0.0, 0.0, percent]);
        one.x = 1.0;
        let metric = Metric::IOPS;
        let sweep = SweepReport { name: sweep.name, title: sweep.title, axis: sweep.axis, metric, rows: vec![one] };
        PlugClock.verdict(&report(&PlugClock, headline, vec![sweep])).shows
    };
    assert!(of(0.3).contains("no clear difference, as it must be"));
    assert!(of(-5.0).contains("though it should give nothing"));
}
