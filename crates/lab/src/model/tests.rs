//! The network that an arm becomes, against cases that can be worked out by hand.

use super::*;

fn close(left: f64, right: f64) -> bool {
    (left / right - 1.0).abs() < 1e-9
}

fn load(private_ns: f64, visits: f64, local_ns: f64, moved_ns: f64, hidden_ns: f64) -> Load {
    Load {
        private_ns,
        beside_ns: private_ns,
        shared: vec![(visits, VisitCost { local_ns, moved_ns, hidden_ns })],
        copies: Copies::One,
    }
}

#[test]
fn what_shares_nothing_scales_evenly() {
    let arm = Load { private_ns: 40.0, beside_ns: 40.0, ..Load::default() };
    for cores in CORES {
        assert!(close(arm.iops(cores), 25e6 * f64::from(cores)) && close(arm.at_most(cores), arm.iops(cores)));
    }
}

#[test]
fn one_core_pays_for_local_visits_only() {
    assert!(close(load(88.0, 2.0, 6.0, 70.0, 10.0).iops(1), 1e7)); // M1
}

#[test]
fn two_cores_are_a_quadratic() {
    // p = 1/2: thinking 100, demand 10 + 70/2 = 45; the second core waits 45 * 45 / 145 on average.
    let wait = 45.0 * (1.0 + 45.0 / 145.0);
    assert!(close(load(100.0, 1.0, 10.0, 70.0, 0.0).iops(2), 2e9 / (100.0 + wait)));
    // Hidden time is taken from thinking: 100 - 30/2.
    let wait = 45.0 * (1.0 + 45.0 / 130.0);
    assert!(close(load(100.0, 1.0, 10.0, 70.0, 30.0).iops(2), 2e9 / (85.0 + wait)));
}

#[test]
fn many_cores_are_as_fast_as_the_line_can_go_round() {
    // M2: two visits an I/O, each 10 + 70 * 511/512.
    let (arm, full) = (load(100.0, 2.0, 10.0, 70.0, 0.0), 1e9 / (2.0 * (10.0 + 70.0 * 511.0 / 512.0)));
    assert!(close(arm.at_most(512), full));
    assert!((arm.iops(512) / full - 1.0).abs() < 1e-6, "{} {full}", arm.iops(512));
    assert!(CORES.iter().all(|&cores| arm.iops(cores) <= arm.at_most(cores) * (1.0 + 1e-12)));
}

#[test]
fn copies_serve_their_own_cores() {
    let one = load(100.0, 2.0, 10.0, 70.0, 0.0);
    let copies = Load { copies: Copies::PerCores(8), ..one.clone() };
    assert!(close(copies.iops(4), one.iops(4)));
    assert!(close(copies.iops(64), 8.0 * one.iops(8)));
    assert!(close(copies.iops(19), 2.0 * one.iops(8) + one.iops(3)));
    let own = Load { copies: Copies::PerCores(1), ..one.clone() };
    assert!(close(own.iops(512), 512.0 * one.iops(1)), "a copy a core never moves");
    let four = Load { copies: Copies::Total(4), ..one.clone() };
    assert!(close(four.iops(3), 3.0 * one.iops(1)));
    assert!(close(four.iops(6), 2.0 * one.iops(2) + 2.0 * one.iops(1)));
    assert!(close(four.iops(512), 4.0 * one.iops(128)));
}

#[test]
fn a_pair_is_explained_by_its_cost() {
    for (alone, local, both, moved) in [
        (60.0, 10.0, 117.0, 70.0), // slowed by the line
        (60.0, 0.0, 73.0, 70.0),   // mostly hidden
        (0.0, 6.5, 25.0, 70.0),    // nothing but the line: what it takes is limited by what was done
        (1000.0, 210.0, 1600.0, 400.0),
    ] {
        let cost = VisitCost::of_pair(alone, local, both, moved);
        let arm = Load { private_ns: alone, beside_ns: alone, shared: vec![(1.0, cost)], copies: Copies::One };
        assert!((arm.iops(2) * both / 2e9 - 1.0).abs() < 1e-6, "{alone} {local} {both}: {cost:?} {}", arm.iops(2));
        assert!(close(arm.iops(1), 1e9 / (alone + local)));
    }
}

#[test]
fn a_pair_that_lost_nothing_hides_all_of_it_and_is_never_faster_than_two() {
    let cost = VisitCost::of_pair(200.0, 5.0, 200.0, 60.0);
    let arm = Load { private_ns: 200.0, beside_ns: 200.0, shared: vec![(1.0, cost)], copies: Copies::One };
    assert!(cost.hidden_ns > 50.0, "{cost:?}");
    for cores in CORES {
        assert!(arm.iops(cores) <= f64::from(cores) * arm.iops(1) * (1.0 + 1e-9), "{cores}");
    }
    assert!(arm.iops(512) < 1e9 / 60.0, "the line still goes round no faster");
}

#[test]
fn cores_that_slow_each_other_down_anyway_are_not_taken_for_a_shared_line() {
    let arm = Load { private_ns: 40.0, beside_ns: 50.0, ..Load::default() };
    assert!(close(arm.iops(1), 25e6) && close(arm.iops(2), 40e6) && close(arm.iops(512), 512.0 * 20e6));
    let own = Load { copies: Copies::PerCores(1), beside_ns: 110.0, ..load(100.0, 2.0, 10.0, 70.0, 0.0) };
    assert!(close(own.iops(4), 4e9 / 130.0), "also where nobody shares a line");
}
