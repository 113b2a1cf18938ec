//! An experiment without I/O for the tests of the runner: two arms with given figures.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::LabError;
use crate::experiment::{ArmRun, Experiment, HeadlineRow, Lab, Sweep, SweepPoint, Turn, TurnEnd};
use crate::point::{Parameter, Point, Values};
use crate::report::{ExperimentReport, Holds, Verdict};
use crate::terms::{ArmInfo, Axis, AxisScale, Check, Published, Role, Scale, Seed};

/// Two arms, with 1000 and 1500 I/Os a second.
pub struct Fake {
    /// Number of arms made so far.
    pub turns: AtomicUsize,
    /// Number of made arms after which the second arm has 1100 I/Os a second.
    pub slows_after: usize,
}

impl Default for Fake {
    fn default() -> Self {
        Self { turns: AtomicUsize::new(0), slows_after: usize::MAX }
    }
}

/// A fake experiment with a static lifetime.
pub static FAKE: Fake = Fake { turns: AtomicUsize::new(0), slows_after: usize::MAX };

pub fn lab() -> Lab {
    Lab { scale: Scale::Quick, cpus: sheave_load::cpu::allowed(), stop: Default::default() }
}

/// Asserts that an experiment has `count` checks and that all pass.
pub fn assert_checks_pass(experiment: &dyn Experiment, count: usize) {
    let checks = experiment.check(&lab()).expect("checked");
    assert_eq!(checks.len(), count);
    for check in checks {
        assert!(check.ok, "{}: {}", check.name, check.detail);
    }
}

struct FakeRun {
    iops: u64,
    stop: Option<Lab>,
}

impl ArmRun for FakeRun {
    fn turn(&mut self, end: TurnEnd) -> Result<Turn, LabError> {
        if let Some(lab) = &self.stop {
            lab.stop.store(true, Ordering::Relaxed);
        }
        let ns = match end {
            TurnEnd::Time(time) => time.as_nanos() as u64,
            TurnEnd::Ios(ios) => ios * 1_000_000_000 / self.iops,
        };
        let ios = self.iops * ns / 1_000_000_000;
        let mut latency = sheave_load::live::report_histogram();
        latency.record_n(1_000_000_000 / self.iops, ios).unwrap();
        Ok(Turn {
            ios,
            wall_ns: ns,
            cpu_ns: ns / 2,
            context_switches: ios,
            latency: Some(latency),
            counters: BTreeMap::from([("allocator_calls", 3.0 * ios as f64)]),
            gauges: BTreeMap::from([("workers", 2.0)]),
        })
    }
}

impl Experiment for Fake {
    fn id(&self) -> &'static str {
        "fake"
    }

    fn title(&self) -> &'static str {
        "Nothing <at> all"
    }

    fn seed(&self) -> Seed {
        Seed {
            subject: "[PATCH] nothing",
            author: "N. Body",
            date: "2021-08-10",
            message_id: "1@example.org",
            command: "nothing -a & -b",
            machine: "none",
        }
    }

    fn arms(&self) -> &'static [ArmInfo] {
        const ARMS: [ArmInfo; 2] = [
            ArmInfo { name: "before", role: Role::Before, what: "Slow." },
            ArmInfo { name: "after", role: Role::After, what: "Fast." },
        ];
        &ARMS
    }

    fn headline(&self) -> Vec<HeadlineRow> {
        let published = Some(Published { before: 1e6, after: 1.1e6, change_percent: 10.0 });
        vec![HeadlineRow { label: "QD 1".into(), point: Point::default(), published }]
    }

    fn sweeps(&self, _lab: &Lab) -> Vec<Sweep> {
        let axis = Axis { label: "queue depth", unit: "I/Os", scale: AxisScale::Log2 };
        let points = [1, 2, 4].map(|depth| SweepPoint::at(depth, Point { depth, ..Point::default() }).clone()).to_vec();
        vec![Sweep { name: "depth", title: "Queue depth", axis, points, arms: Vec::new(), metric: None }]
    }

    fn parameters(&self) -> &'static [Parameter] {
        &[Parameter { name: "fail", values: Values::Text }, Parameter { name: "stop", values: Values::Text }]
    }

    fn prepare(&self, lab: &Lab, arm: usize, point: &Point) -> Result<Box<dyn ArmRun>, LabError> {
        if point.text("fail").is_some() {
            return Err(LabError::run("there is no such device").fix("make one"));
        }
        let fast = if self.turns.fetch_add(1, Ordering::Relaxed) < self.slows_after { 1500 } else { 1100 };
        let stop = point.text("stop").map(|_| lab.clone());
        Ok(Box::new(FakeRun { iops: [1000, fast][arm], stop }))
    }

    fn check(&self, _lab: &Lab) -> Result<Vec<Check>, LabError> {
        Ok(vec![Check { name: "it is nothing".into(), ok: true, detail: "0 = 0".into() }])
    }

    fn instruction_points(&self) -> Vec<Point> {
        Vec::new()
    }

    fn verdict(&self, report: &ExperimentReport) -> Verdict {
        let change = report.headline[0].arm(1).and_then(|arm| arm.change).map_or(0.0, |change| change.percent);
        let (claim, does_not_show) = ("10 % more.".into(), "Anything real.".into());
        Verdict { holds: Holds::Yes, claim, shows: format!("{change:.1} % more."), does_not_show }
    }
}
