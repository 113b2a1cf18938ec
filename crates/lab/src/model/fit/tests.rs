//! When curves are shown, and when not: on figures made up so that the answer is known.

use super::*;
use crate::Role;

const ARMS: [ArmInfo; 2] =
    [ArmInfo { name: "pair", role: Role::Before, what: "" }, ArmInfo { name: "tags", role: Role::After, what: "" }];

fn lines(hand_over_ns: f64) -> LineCosts {
    LineCosts { add_ns: 6.0, contended_add_ns: 12.0, hand_over_ns }
}

fn shapes() -> [Shape; 2] {
    [Shape::new(0, [Shared::line("counter", 2.0)]), Shape::new(1, [])]
}

/// Rounds of an arm that does what the model says, but for a factor on two threads.
fn rounds(load: &Load, factors: &[f64]) -> Vec<Round> {
    let round = |&factor: &f64| Round { measured: [load.iops(1), load.iops(2) * factor], load: load.clone() };
    factors.iter().map(round).collect()
}

fn filled(pair: &[f64], tags: &[f64], lines: &[LineCosts]) -> Prediction {
    let cost = VisitCost { local_ns: 6.0, moved_ns: 70.0, hidden_ns: 20.0 };
    let pair_load = Load { private_ns: 60.0, beside_ns: 60.0, shared: vec![(2.0, cost)], copies: Copies::One };
    let tags_load = Load { private_ns: 60.0, beside_ns: 60.0, ..Load::default() };
    let mut prediction = Prediction::default();
    fill(&mut prediction, &ARMS, &shapes(), lines, &[rounds(&pair_load, pair), rounds(&tags_load, tags)]);
    prediction
}

#[test]
fn a_model_that_fits_is_shown_for_every_number_of_cores() {
    let prediction = filled(&[1.0, 1.05, 0.95], &[1.0, 1.0, 0.92], &[lines(140.0)]);
    assert_eq!(prediction.not_shown, None);
    assert_eq!(prediction.fit.len(), 4);
    assert!(prediction.fit.iter().all(|fit| fit.off_percent.abs() < 1e-6), "medians: {:?}", prediction.fit);
    let cores = |curve: &Curve| curve.points.iter().map(|&(cores, _)| cores).collect::<Vec<_>>();
    assert_eq!(prediction.curves.iter().map(cores).collect::<Vec<_>>(), [CORES.to_vec(), CORES.to_vec()]);
    let [pair, tags] = &prediction.curves[..] else { panic!("two") };
    assert!((tags.points[10].1 / (512.0 * 1e9 / 60.0) - 1.0).abs() < 1e-9, "nothing shared: even");
    assert!(pair.points[10].1 < 1e9 / (2.0 * 70.0), "one line for all: full");
}

#[test]
fn one_miss_hides_all_curves_and_says_which() {
    let prediction = filled(&[0.8, 0.8, 1.0], &[1.0, 1.0, 1.0], &[lines(140.0), lines(150.0)]);
    assert!(prediction.curves.is_empty(), "F1");
    let why = prediction.not_shown.expect("a reason");
    assert!(
        why.contains("\"pair\" on 2 thread(s) by +25 %") && !why.contains("tags") && !why.contains("host"),
        "{why}"
    );
}

#[test]
fn a_machine_that_changed_is_named() {
    let prediction = filled(&[2.0; 3], &[1.0; 3], &[lines(40.0), lines(140.0)]);
    assert!(prediction.not_shown.expect("a reason").contains("changed from 40 to 140 ns"));
}

#[test]
fn what_is_not_a_number_is_no_fit() {
    let prediction = filled(&[1.0], &[f64::NAN], &[lines(140.0)]);
    assert!(prediction.not_shown.is_some() && prediction.curves.is_empty());
    assert!(filled(&[], &[], &[]).not_shown.is_some());
}

#[test]
fn a_second_cpu_that_others_use_teaches_nothing() {
    let load = Load { private_ns: 60.0, beside_ns: 100.0, ..Load::default() };
    let mut prediction = Prediction::default();
    let found = [rounds(&load, &[1.0; 3]), rounds(&load, &[1.0; 3])];
    fill(&mut prediction, &ARMS, &[Shape::new(0, []), Shape::new(1, [])], &[lines(140.0)], &found);
    assert!(prediction.fit.iter().all(|fit| fit.off_percent.abs() < 1e-6), "it would fit");
    assert!(prediction.curves.is_empty(), "F1");
    assert!(prediction.not_shown.expect("a reason").contains("only 1.20 times what one does"));
}
