//! Tests that compare rates with cases that can be computed by hand.

use super::*;

const MACHINE: Machine =
    Machine { id: "m", what: "a machine", complex: 2, socket: 4, hop_ns: [10.0, 20.0, 40.0], cores: &[1, 4] };

fn counted(threads: u32, hops: [u64; 3], busiest: [u64; 3]) -> Counted {
    Counted { arm: "before".into(), machine: "m".into(), threads, ios: 100, hops, busiest, ..Counted::default() }
}

fn close(left: f64, right: f64) -> bool {
    (left / right - 1.0).abs() < 1e-9
}

#[test]
fn what_moves_nothing_scales_evenly_and_has_no_band() {
    for factor in [1.0 / BAND, 1.0, BAND] {
        assert!(close(rate(&MACHINE, &counted(1, [0; 3], [0; 3]), 100.0, factor), 1e7));
        assert!(close(rate(&MACHINE, &counted(64, [0; 3], [0; 3]), 100.0, factor), 64e7));
    }
}

#[test]
fn hops_take_as_long_as_they_are_far() {
    // Each of 100 I/Os has one hop of each distance. They are on many lines, so the busiest line has next to none of
    // them.
    let spread = counted(1, [100, 100, 100], [0; 3]);
    assert!(close(rate(&MACHINE, &spread, 30.0, 1.0), 1e9 / (30.0 + 10.0 + 20.0 + 40.0)));
    assert!(close(rate(&MACHINE, &spread, 30.0, 2.0), 1e9 / (30.0 + 140.0)));
}

#[test]
fn no_rate_exceeds_the_busiest_line() {
    // Each I/O has two hops of 40 ns on one line, so at most 12.5 M I/Os a second are possible (M2).
    let one = counted(512, [0, 0, 200], [0, 0, 200]);
    assert!((rate(&MACHINE, &one, 100.0, 1.0) / 12.5e6 - 1.0).abs() < 1e-6);
    // With two lines each has half of the hops.
    let two = counted(512, [0, 0, 200], [0, 0, 100]);
    assert!((rate(&MACHINE, &two, 100.0, 1.0) / 25e6 - 1.0).abs() < 1e-6);
}

#[test]
fn two_cores_are_a_quadratic() {
    // A thinking time of 100 and a demand of 40: the second core waits 40 * 40 / 140 on average.
    let wait = 40.0 * (1.0 + 40.0 / 140.0);
    assert!(close(rate(&MACHINE, &counted(2, [0, 0, 100], [0, 0, 100]), 100.0, 1.0), 2e9 / (100.0 + wait)));
}

#[test]
fn a_lock_has_the_time_that_one_task_leaves_it() {
    let task = |item_ns| Task { depth: 1000, item_ns, of_task: 0.5 };
    let share = |hops, item_ns| share_at_lock(&MACHINE, &counted(64, [0, 0, hops], [0, 0, hops]), task(item_ns), 1.0);
    // The lock takes 40 ns for each 400 ns that the task takes, so it is a queue whose server is busy for a tenth of
    // the time.
    let queue = 0.1 / 0.9;
    assert!((share(100, 800.0) - queue / (2.0 + queue)).abs() < 1e-3, "{}", share(100, 800.0));
    // The lock takes longer than the task, so all but one or two of the 63 items wait for it.
    assert!(share(100, 40.0) > 0.95, "{}", share(100, 40.0));
    assert!(share(0, 40.0).abs() < 1e-9, "nothing moves");
    assert!(share(200, 800.0) > share(100, 800.0) && share(100, 400.0) > share(100, 800.0));
    let few = Task { depth: 1, ..task(800.0) };
    let alone = share_at_lock(&MACHINE, &counted(64, [0, 0, 100], [0, 0, 100]), few, 1.0);
    assert!(close(alone, 40.0 / 840.0), "one item at a time waits for nobody: {alone}");
}

#[test]
fn the_band_is_twice_as_wide_at_most_and_holds_the_middle() {
    let known = |arm: &str, iops| Known { arm: arm.into(), cores: 64, iops, used: false };
    let arms = [
        counted(1, [0; 3], [0; 3]),
        counted(4, [0, 0, 100], [0, 0, 100]),
        counted(64, [0, 0, 200], [0, 0, 200]),
        Counted { arm: "after".into(), ..counted(64, [0; 3], [0; 3]) },
        Counted { machine: "another".into(), ..counted(2, [0; 3], [0; 3]) },
    ];
    let made = predict(&MACHINE, &arms, (100.0, "given"), vec![known("before", 11e6), known("after", 900e6)]);
    assert_eq!(made.curves.iter().map(|curve| curve.points.len()).collect::<Vec<_>>(), [3, 1], "of this machine");
    for point in made.curves.iter().flat_map(|curve| &curve.points) {
        let Predicted { low, middle, high, .. } = *point;
        assert!(low <= middle && middle <= high && high <= 2.0 * low * (1.0 + 1e-9), "{point:?}");
    }
    let wide = made.curves[0].points[2];
    assert!(wide.high > 1.9 * wide.low, "{wide:?}: where a line decides it is as wide as may be");
    // A missed point is reported with the size of the miss, a met one as within the band.
    assert!(made.against[0].contains("within the band, the middle +14 % off"), "{:?}", made.against);
    assert!(made.against[1].contains("MISSED: the middle is -29 % off"), "{:?}", made.against);
    assert!(made.against[2].starts_with("after / before on 64 cores: published 81.82 times, predicted 51.20"));
}

#[test]
fn machines_that_are_near_are_cheaper_than_those_far_away() {
    for machine in machines::ALL {
        assert!(machine.hop_ns.is_sorted() && machine.complex <= machine.socket, "{}", machine.id);
        assert!(machine.cores.is_sorted() && machine.cores.iter().all(|&cores| cores as usize <= 2 * machine.socket));
    }
}
