//! Tests of a whole run of an experiment without I/O.

use super::*;
use crate::fake::{FAKE, lab};
use crate::terms::Scale;

#[derive(Default)]
struct Log(Vec<String>);

impl Show for Log {
    fn begin(&mut self, report: &ExperimentReport) {
        self.0.push(format!("begin {}", report.id));
    }
    fn part(&mut self, _: &ExperimentReport, part: &Part<'_>) {
        let by = part.axis.map_or(String::new(), |axis| format!(" by {}", axis.label));
        self.0.push(format!("part {}{by}", part.heading));
    }
    fn row(&mut self, _: &Part<'_>, row: &Row) {
        self.0.push(format!("row {}", row.label));
    }
    fn instructions(&mut self, _: &ExperimentReport, _: &InstructionRow) {
        self.0.push("instructions".into());
    }
    fn end(&mut self, report: &ExperimentReport) {
        self.0.push(format!("end {}", report.id));
    }
    fn progress(&mut self, done: Duration, total: Duration, _: &str) {
        assert!(done <= total, "{done:?} of {total:?}");
    }
}

fn plan() -> Plan {
    Plan {
        experiments: vec![&FAKE],
        pace: Pace { rounds: 2, turn: Duration::from_millis(10) },
        sweeps: Sweeps::All,
        instructions: false,
        point: None,
        peer: None,
        command: "sheave-lab fake".into(),
        options: " --turn 10ms".into(),
    }
}

#[test]
fn everything_has_its_place() {
    let mut log = Log::default();
    let report = run(&plan(), &lab(), &mut log).unwrap();
    let expected = [
        "begin fake",
        "part The thread's table",
        "row QD 1",
        "part Queue depth by queue depth",
        "row 1",
        "row 2",
        "row 4",
        "end fake",
    ];
    assert_eq!(log.0, expected);
    let fake = &report.experiments[0];
    assert!(!report.interrupted && report.failed_checks().is_empty());
    let verdict = fake.verdict.as_ref().expect("a verdict");
    assert_eq!(verdict.holds, Holds::CannotTell, "a quick run claims nothing");
    assert!(verdict.shows.starts_with("A quick run claims nothing") && !verdict.shows.contains("50.0 %"));
    assert_eq!(fake.sweep("depth").map(|sweep| sweep.rows.len()), Some(3));
    assert_eq!(
        fake.row("QD 1").map(|row| row.command.as_str()),
        Some("sheave-lab fake --point bs=512,batch=32,depth=128,threads=1,rw=randread --turn 10ms")
    );
}

#[test]
fn a_point_by_itself_has_the_published_figures_when_it_is_a_row_of_the_table() {
    let report = run(&Plan { point: Some(Point::default()), ..plan() }, &lab(), &mut Log::default()).unwrap();
    let fake = &report.experiments[0];
    assert_eq!((fake.headline[0].label.as_str(), fake.headline[0].published.is_some()), ("QD 1", true));
    assert!(fake.sweeps.is_empty() && fake.checks.is_empty() && fake.verdict.is_none());
    let other = Point { depth: 7, ..Point::default() };
    let report = run(&Plan { point: Some(other), ..plan() }, &lab(), &mut Log::default()).unwrap();
    assert_eq!(report.experiments[0].headline[0].label, "this point");
}

#[test]
fn an_interrupted_run_says_so_and_keeps_what_it_has() {
    let lab = lab();
    let point = Point::default().with("stop", "yes");
    let report = run(&Plan { point: Some(point), ..plan() }, &lab, &mut Log::default()).unwrap();
    assert!(report.interrupted && report.experiments[0].interrupted);
    assert!(report.experiments[0].headline.is_empty());
}

#[test]
fn a_sweep_that_is_not_there_is_refused() {
    let error = run(&Plan { sweeps: Sweeps::Named("width".into()), ..plan() }, &lab(), &mut Log::default());
    let error = error.unwrap_err();
    assert!(error.usage && error.fix.is_some_and(|fix| fix.contains("depth")));
}

#[test]
fn every_experiment_admits_its_own_points() {
    for scale in [Scale::Quick, Scale::Full] {
        let lab = Lab { scale, ..lab() };
        for experiment in exp::ALL {
            let headline = experiment.headline().into_iter().map(|row| row.point);
            let sweeps = experiment.sweeps(&lab).into_iter().flat_map(|sweep| sweep.points).map(|place| place.point);
            for point in headline.chain(sweeps).chain(experiment.instruction_points()) {
                let read_again: Point = point.to_string().parse().expect("a point");
                assert_eq!(experiment.admit(&read_again), Ok(()), "{} at {point}", experiment.id());
            }
            let unknown = Point::default().with("nosuch", 1);
            assert!(experiment.admit(&unknown).is_err(), "{}", experiment.id());
        }
    }
}

fn verdict_of(rounds: u32) -> (ExperimentReport, Verdict) {
    let full = Lab { scale: Scale::Full, ..lab() };
    let pace = Pace { rounds, turn: Duration::from_millis(10) };
    let report = run(&Plan { pace, sweeps: Sweeps::None, ..plan() }, &full, &mut Log::default()).unwrap();
    let experiment = report.experiments.into_iter().next().expect("one experiment");
    let verdict = experiment.verdict.clone().expect("a verdict");
    (experiment, verdict)
}

#[test]
fn a_machine_whose_same_arm_does_not_differ_may_claim_by_time() {
    let (report, verdict) = verdict_of(10);
    assert_eq!(report.control.map(|control| (control.low, control.high)), Some((0.0, 0.0)));
    assert_eq!((verdict.holds, verdict.shows.as_str()), (Holds::Yes, "50.0 % more."));
}

#[test]
fn without_a_control_that_holds_zero_time_claims_nothing() {
    let (mut report, verdict) = verdict_of(2);
    assert!(!report.tells_time() && verdict.shows.starts_with("The same arm twice was not measured often enough"));
    report.headline[0].control = vec![1.02; 10];
    report.work_out_control();
    assert!(!report.tells_time(), "the same arm differs from itself");
    let blind = report.without_times();
    let change = blind.headline[0].arm(1).and_then(|arm| arm.change).expect("the estimate stays");
    assert!((change.percent - 50.0).abs() < 1e-6 && !change.is_clear() && !change.is_measurable());
    report.headline[0].control = vec![0.99, 1.01, 1.0, 0.98, 1.02, 1.0, 0.99, 1.01];
    report.work_out_control();
    assert!(report.tells_time());
}

#[test]
fn the_machine_tells_when_all_controls_together_are_within_two_percent() {
    let full = Lab { scale: Scale::Full, ..lab() };
    let pace = Pace { rounds: 10, turn: Duration::from_millis(10) };
    let mut report = run(&Plan { pace, ..plan() }, &full, &mut Log::default()).unwrap();
    let mut tells = |ratios: [f64; 8]| {
        report.experiments[0].headline[0].control = ratios.to_vec();
        report.machine_tells()
    };
    assert!(tells([1.019, 0.981, 1.0, 1.0, 1.0, 1.0, 0.99, 1.01]));
    assert!(!tells([1.05, 0.95, 1.0, 1.0, 1.0, 1.0, 0.99, 1.01]), "too wide");
    assert!(!tells([1.002, 1.001, 1.003, 1.001, 1.002, 1.001, 1.004, 1.001]), "narrow, and off");
}

/// Returns the time of the turns of all experiments on two CPUs, at the default pace.
fn configured(sweeps: Sweeps) -> Duration {
    let lab = Lab { scale: Scale::Full, cpus: vec![1, 0], ..lab() };
    let pace = Pace::FULL;
    let plan = Plan { pace, sweeps, experiments: exp::ALL.to_vec(), ..plan() };
    let of = |experiment: &&'static dyn Experiment| {
        let time = Work::of(&plan, &lab, *experiment).expect("its work").time(*experiment, pace);
        eprintln!("{}: {time:?}", experiment.id());
        time
    };
    plan.experiments.iter().map(of).sum()
}

/// A run of everything must take less than 4.5 minutes without sweeps and 25 with them. Checks, setup and the counting
/// of instructions took 82 s and 549 s when measured.
#[test]
fn the_turns_of_all_experiments_leave_time_for_the_rest() {
    let (table, all) = (configured(Sweeps::None), configured(Sweeps::All));
    eprintln!("{table:?}, {all:?}");
    assert!(table <= Duration::from_secs(170), "{table:?} of 270 s");
    assert!(all <= Duration::from_secs(930), "{all:?} of 1500 s");
}
