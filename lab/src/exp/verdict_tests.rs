//! Makes reports with made-up figures, for the tests of verdicts.

use std::collections::BTreeMap;

use crate::Point;
use crate::experiment::Experiment;
use crate::report::{ArmResult, Change, ExperimentReport, Row, SweepReport};

fn result(percent: Option<f64>) -> Option<ArmResult> {
    Some(ArmResult {
        value: 1.0,
        range: [1.0; 2],
        iops: 1.0,
        cpu_ns_per_io: 1.0,
        switches_per_io: 0.0,
        change: percent.map(|percent| Change { percent, low: percent - 1.0, high: percent + 1.0 }),
        cpu_change: None,
        latency: None,
        counters: BTreeMap::new(),
        gauges: BTreeMap::new(),
        rounds: 3,
    })
}

/// Makes a row in which the arms after the first change the metric by these percentages. Each interval is the
/// percentage plus and minus 1.
pub fn row(label: String, point: Point, changes: &[f64]) -> Row {
    let arms = std::iter::once(result(None)).chain(changes.iter().map(|&percent| result(Some(percent)))).collect();
    Row {
        label,
        x: 0.0,
        point,
        published: None,
        arms,
        again: Vec::new(),
        control: Vec::new(),
        threads_arm: None,
        command: String::new(),
    }
}

/// Makes a report with the given rows.
pub fn report(experiment: &dyn Experiment, headline: Vec<Row>, sweeps: Vec<SweepReport>) -> ExperimentReport {
    ExperimentReport {
        id: experiment.id(),
        title: experiment.title(),
        seed: experiment.seed(),
        metric: experiment.metric(),
        arms: experiment.arms().to_vec(),
        headline,
        peer: None,
        sweeps,
        instructions: Vec::new(),
        checks: Vec::new(),
        predictions: Vec::new(),
        control: None,
        strays: Vec::new(),
        verdict: None,
        interrupted: false,
    }
}
