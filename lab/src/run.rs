//! A run: for each experiment the checks, the published table, the sweeps and the instructions. At the end of the run
//! follow all published tables once more, and the verdicts.
//!
//! Owns the order, and the handling of Ctrl-C: a point without a whole round is left out of the report, which states
//! that the run was interrupted. A caller that shows the run implements [`Show`].
//!
//! * I1. Runs on one thread, which is pinned to the first CPU of the lab.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use sheave_load::cpu;

use crate::LabError;
use crate::exp;
use crate::experiment::{Experiment, HeadlineRow, Lab, PublishedOnly, Sweep, Turn, TurnEnd};
use crate::machine::{self, Machine};
use crate::point::Point;
use crate::repeat;
use crate::report::{
    Again, ExperimentReport, Holds, InstructionRow, LabReport, Part, Row, SameArmsTwice, SweepReport, Verdict,
};
use crate::table;
use crate::terms::Scale;
use crate::turns::{self, Measured, Pace, What};

/// Description of a run.
#[derive(Clone)]
pub struct Plan {
    pub experiments: Vec<&'static dyn Experiment>,
    /// Number of rounds, and length of a turn.
    pub pace: Pace,
    pub sweeps: Sweeps,
    /// True to count instructions too.
    pub instructions: bool,
    /// The only point to measure, if there is one.
    pub point: Option<Point>,
    /// The job file of the point, which fio runs too.
    pub peer: Option<PathBuf>,
    /// The command line, for the report.
    pub command: String,
    /// Options that follow experiment and point in the command that repeats one row, for example ` --quick` or ` --turn
    /// 1s`.
    pub options: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sweeps {
    All,
    None,
    Named(String),
}

/// Shows a run in progress.
pub trait Show {
    /// Called when an experiment begins. Checks, tables and sweeps of the report are still empty.
    fn begin(&mut self, report: &ExperimentReport);
    /// Called when the published table or a sweep begins.
    fn part(&mut self, report: &ExperimentReport, part: &Part<'_>);
    /// Called when a row was measured.
    fn row(&mut self, part: &Part<'_>, row: &Row);
    /// Called when the instructions of a point were counted.
    fn instructions(&mut self, report: &ExperimentReport, row: &InstructionRow);
    /// Called when an experiment has its verdict.
    fn end(&mut self, report: &ExperimentReport);
    /// Called with the time of the turns that are `done`, the `total` time of all turns, and a description of the
    /// current step.
    fn progress(&mut self, done: Duration, total: Duration, what: &str);
}

pub fn run(plan: &Plan, lab: &Lab, show: &mut dyn Show) -> Result<LabReport, LabError> {
    let (began, start, machine) = (machine::now(), Instant::now(), Machine::here());
    cpu::pin(lab.cpu(0))?;
    let mut total = Duration::ZERO;
    for experiment in &plan.experiments {
        total += Work::of(plan, lab, *experiment)?.time(*experiment, plan.pace);
    }
    let mut runner = Runner { plan, lab, show, done: Duration::ZERO, total };
    let mut experiments = Vec::new();
    for &experiment in &plan.experiments {
        if lab.stopped() {
            break;
        }
        experiments.push(runner.experiment(experiment)?);
    }
    // A whole run lies between the two measurements of a table, so that they differ if the machine changes slowly.
    for (&experiment, report) in plan.experiments.iter().zip(&mut experiments) {
        runner.finish(experiment, report)?;
    }
    let mut report = LabReport {
        version: env!("CARGO_PKG_VERSION"),
        command: plan.command.clone(),
        began,
        seconds: start.elapsed().as_secs_f64(),
        machine,
        cpus: lab.cpus.clone(),
        scale: lab.scale,
        rounds: plan.pace.rounds,
        turn_ms: plan.pace.turn.as_secs_f64() * 1e3,
        experiments,
        same_arms_twice: SameArmsTwice::default(),
        interrupted: lab.stopped(),
    };
    report.same_arms_twice = table::same_arms(&report);
    Ok(report)
}

/// Runs one turn of one arm, for tools that count the work of a process.
pub fn run_arm(lab: &Lab, id: &str, arm: &str, point: &Point, ios: u64) -> Result<Turn, LabError> {
    cpu::pin(lab.cpu(0))?;
    let experiment = exp::find(id).ok_or_else(|| {
        let names: Vec<&str> = exp::ALL.iter().map(|experiment| experiment.id()).collect();
        LabError::usage(format!("there is no experiment {id:?}")).fix(format!("use one of {}", names.join(", ")))
    })?;
    let index = experiment.arms().iter().position(|info| info.name.replace(' ', "-") == arm).ok_or_else(|| {
        let names: Vec<&str> = experiment.arms().iter().map(|arm| arm.name).collect();
        LabError::usage(format!("{id} has no arm {arm:?}")).fix(format!("use one of {}", names.join(", ")))
    })?;
    experiment.admit(point)?;
    if !experiment.takes_part(index, point) {
        return Err(LabError::usage(format!("{id}: the arm {arm} takes no part at {point}"))
            .fix("use a point at which its place in the tables is not empty"));
    }
    experiment.prepare(lab, index, point)?.turn(TurnEnd::Ios(ios))
}

/// Rows and sweeps to measure in one experiment.
struct Work {
    headline: Vec<HeadlineRow>,
    sweeps: Vec<Sweep>,
    arms: usize,
    /// True if the table is measured again at the end. False for a single point, which gets no verdict, and with fewer
    /// rounds than an interval needs.
    repeats: bool,
}

impl Work {
    fn of(plan: &Plan, lab: &Lab, experiment: &dyn Experiment) -> Result<Self, LabError> {
        let arms = experiment.arms().len();
        if let Some(point) = &plan.point {
            experiment.admit(point)?;
            let known = experiment.headline().into_iter().find(|row| row.point == *point);
            let row = known.unwrap_or_else(|| HeadlineRow {
                label: "this point".into(),
                point: point.clone(),
                published: None,
            });
            return Ok(Self { headline: vec![row], sweeps: Vec::new(), arms, repeats: false });
        }
        let mut sweeps = experiment.sweeps(lab);
        match &plan.sweeps {
            Sweeps::All => {}
            Sweeps::None => sweeps.clear(),
            Sweeps::Named(name) => {
                let names: Vec<&str> = sweeps.iter().map(|sweep| sweep.name).collect();
                let names = names.join(", ");
                sweeps.retain(|sweep| sweep.name == name);
                // In a run of several experiments the sweep may belong to another one of them.
                if sweeps.is_empty() && plan.experiments.len() == 1 {
                    let id = experiment.id();
                    return Err(LabError::usage(format!("{id} has no sweep {name:?}"))
                        .fix(format!("use one of {names}, or all, or none")));
                }
            }
        }
        Ok(Self { headline: experiment.headline(), sweeps, arms, repeats: plan.pace.rounds >= turns::FEWEST })
    }

    /// Returns the time that all turns take.
    fn time(&self, experiment: &dyn Experiment, pace: Pace) -> Duration {
        let at = |arms: &[usize], point: &Point, again| pace.of_arms(those_of(experiment, arms, point).len() + again);
        let of = |sweep: &Sweep| -> Duration {
            let arms = self.arms_of(sweep);
            sweep.points.iter().map(|place| at(&arms, &place.point, 0)).sum()
        };
        let in_sweeps: Duration = self.sweeps.iter().map(of).sum();
        // In the published table the first arm has two turns a round; the second one is the control.
        let again = usize::from(pace.rounds >= turns::FEWEST);
        let all: Vec<usize> = (0..self.arms).collect();
        let table = |again| self.headline.iter().map(|row| at(&all, &row.point, again)).sum::<Duration>();
        let repeat = if self.repeats { table(0) } else { Duration::ZERO };
        table(again) + in_sweeps + repeat
    }

    fn arms_of(&self, sweep: &Sweep) -> Vec<usize> {
        if sweep.arms.is_empty() { (0..self.arms).collect() } else { sweep.arms.clone() }
    }
}

/// Returns those of `arms` that take part at a point.
fn those_of(experiment: &dyn Experiment, arms: &[usize], point: &Point) -> Vec<usize> {
    arms.iter().copied().filter(|&arm| experiment.takes_part(arm, point)).collect()
}

struct Runner<'a> {
    plan: &'a Plan,
    lab: &'a Lab,
    show: &'a mut dyn Show,
    done: Duration,
    total: Duration,
}

impl Runner<'_> {
    /// Measures an experiment. The repeated table and the verdict follow in `finish`.
    fn experiment(&mut self, experiment: &'static dyn Experiment) -> Result<ExperimentReport, LabError> {
        let work = Work::of(self.plan, self.lab, experiment)?;
        let mut report = empty(experiment);
        self.show.begin(&report);
        let all: Vec<usize> = (0..work.arms).collect();
        if self.plan.point.is_none() {
            self.say(&format!("{}: checks", experiment.id()));
            report.checks = self.unless_stopped(experiment.check(self.lab))?.unwrap_or_default();
        }
        let part = Part { heading: "The thread's table", axis: None, metric: experiment.metric() };
        self.show.part(&report, &part);
        let control = self.plan.pace.rounds >= turns::FEWEST;
        for row in &work.headline {
            let arms = those_of(experiment, &all, &row.point);
            let what = What { metric: experiment.metric(), point: &row.point, arms: &arms, control };
            let Some(row) = self.row(experiment, what, row, 0.0)? else { break };
            self.show.row(&part, &row);
            report.headline.push(row);
        }
        if let Some(job) = self.plan.peer.as_deref().filter(|_| !self.lab.stopped()) {
            self.say(&format!("{}: {} by fio", experiment.id(), job.display()));
            report.peer = self.unless_stopped(Ok(crate::peer::fio(job)))?;
        }
        if self.plan.point.is_none() && !self.lab.stopped() {
            for only in experiment.published_only() {
                let row = published_only(&only, work.arms);
                self.show.row(&part, &row);
                report.headline.push(row);
            }
        }
        for sweep in &work.sweeps {
            self.sweep(experiment, sweep, &work.arms_of(sweep), &mut report)?;
        }
        self.instructions(experiment, &mut report)?;
        if self.plan.point.is_none() && !self.lab.stopped() {
            self.say(&format!("{}: prediction", experiment.id()));
            report.predictions = self.unless_stopped(experiment.predictions(&report))?.unwrap_or_default();
        }
        report.work_out_control();
        Ok(report)
    }

    /// Measures the table again, and computes the verdict.
    fn finish(&mut self, experiment: &'static dyn Experiment, report: &mut ExperimentReport) -> Result<(), LabError> {
        let work = Work::of(self.plan, self.lab, experiment)?;
        if work.repeats {
            self.repeat(experiment, &work, report)?;
        }
        report.strays = repeat::strays(report);
        report.interrupted = self.lab.stopped();
        // A table that lacks rows or repetitions gets no verdict, because the verdict would depend on the point at
        // which the run was interrupted.
        let rows = &report.headline[..work.headline.len().min(report.headline.len())];
        let whole = rows.len() == work.headline.len() && rows.iter().all(|row| row.again.is_empty() != work.repeats);
        if self.plan.point.is_none() && whole {
            report.verdict = Some(self.verdict(experiment, report));
        }
        self.show.end(report);
        Ok(())
    }

    /// Measures the rows of the published table once more (`repeat`).
    fn repeat(
        &mut self,
        experiment: &'static dyn Experiment,
        work: &Work,
        report: &mut ExperimentReport,
    ) -> Result<(), LabError> {
        if self.lab.stopped() {
            return Ok(());
        }
        let heading = format!("{}: the thread's table again, at the end of the run", experiment.id());
        let part = Part { heading: &heading, axis: None, metric: experiment.metric() };
        self.show.part(report, &part);
        let all: Vec<usize> = (0..work.arms).collect();
        for (at, asked) in work.headline.iter().enumerate().take(report.headline.len()) {
            let arms = those_of(experiment, &all, &asked.point);
            let what = What { metric: experiment.metric(), point: &asked.point, arms: &arms, control: false };
            let Some(row) = self.row(experiment, what, asked, 0.0)? else { break };
            self.show.row(&part, &row);
            report.headline[at].again = row.arms.iter().map(|arm| arm.as_ref().map(Again::from)).collect();
        }
        Ok(())
    }

    /// Computes the verdict from the figures that may decide it. A quick run decides nothing. A table that the end of
    /// the run contradicts gets no verdict. On a machine where an arm differs from itself, times do not count.
    fn verdict(&self, experiment: &'static dyn Experiment, report: &ExperimentReport) -> Verdict {
        if self.lab.scale == Scale::Quick {
            let verdict = experiment.verdict(&report.without_times());
            let shows = "A quick run claims nothing: its few short turns show that everything works.".into();
            return Verdict { holds: Holds::CannotTell, shows, does_not_show: String::new(), ..verdict };
        }
        if !report.strays.is_empty() {
            return repeat::refused(report, experiment.verdict(report));
        }
        if report.tells_time() {
            return experiment.verdict(report);
        }
        let verdict = experiment.verdict(&report.without_times());
        let shows = format!("{} {}", table::control(report.control), verdict.shows);
        Verdict { shows, ..verdict }
    }

    fn sweep(
        &mut self,
        experiment: &'static dyn Experiment,
        sweep: &Sweep,
        arms: &[usize],
        report: &mut ExperimentReport,
    ) -> Result<(), LabError> {
        if self.lab.stopped() {
            return Ok(());
        }
        let metric = sweep.metric.unwrap_or(experiment.metric());
        let (name, title, axis) = (sweep.name, sweep.title, sweep.axis);
        let part = Part { heading: title, axis: Some(axis), metric };
        self.show.part(report, &part);
        let mut rows = Vec::new();
        for place in &sweep.points {
            let asked = HeadlineRow { label: place.label.clone(), point: place.point.clone(), published: None };
            let arms = those_of(experiment, arms, &place.point);
            let what = What { metric, point: &place.point, arms: &arms, control: false };
            let Some(row) = self.row(experiment, what, &asked, place.x)? else { break };
            self.show.row(&part, &row);
            rows.push(row);
        }
        report.sweeps.push(SweepReport { name, title, axis, metric, rows });
        Ok(())
    }

    /// Measures one point. Returns `None` if the run was stopped before the first round ended.
    fn row(
        &mut self,
        experiment: &'static dyn Experiment,
        what: What<'_>,
        asked: &HeadlineRow,
        x: f64,
    ) -> Result<Option<Row>, LabError> {
        if self.lab.stopped() {
            return Ok(None);
        }
        let HeadlineRow { label, point, published } = asked.clone();
        let doing = format!("{}: {point}", experiment.id());
        self.say(&doing);
        let (plan, lab) = (self.plan, self.lab);
        let mut tick = |time| {
            self.done += time;
            self.show.progress(self.done, self.total, &doing);
        };
        let measured = turns::measure(lab, experiment, &what, plan.pace, &mut tick)?;
        let command = format!("sheave-lab {} --point {point}{}", experiment.id(), plan.options);
        let threads_arm = published.and_then(|_| experiment.threads_arm(&point));
        Ok(measured.map(|Measured { arms, control }| Row {
            label,
            x,
            point,
            published,
            arms,
            threads_arm,
            again: Vec::new(),
            control,
            command,
        }))
    }

    fn instructions(
        &mut self,
        experiment: &'static dyn Experiment,
        report: &mut ExperimentReport,
    ) -> Result<(), LabError> {
        if !self.plan.instructions {
            return Ok(());
        }
        let points = match &self.plan.point {
            Some(point) => vec![point.clone()],
            None => experiment.instruction_points(),
        };
        for point in points {
            if self.lab.stopped() {
                break;
            }
            self.say(&format!("{}: instructions per I/O at {point}", experiment.id()));
            let row = crate::instructions::count(self.lab, experiment, &point)?;
            let Some(row) = row else { break };
            self.show.instructions(report, &row);
            report.instructions.push(row);
        }
        Ok(())
    }

    /// Returns the outcome of a step. Returns `None` if the run was interrupted, because the step may have failed due
    /// to that.
    fn unless_stopped<T>(&self, outcome: Result<T, LabError>) -> Result<Option<T>, LabError> {
        if self.lab.stopped() { Ok(None) } else { outcome.map(Some) }
    }

    fn say(&mut self, what: &str) {
        self.show.progress(self.done, self.total, what);
    }
}

/// Makes a row that has gaps for our figures.
fn published_only(only: &PublishedOnly, arms: usize) -> Row {
    Row {
        label: only.label.into(),
        x: 0.0,
        point: Point::default(),
        published: Some(only.published),
        arms: vec![None; arms],
        threads_arm: None,
        again: Vec::new(),
        control: Vec::new(),
        command: format!("not measured here: {}", only.why),
    }
}

/// Makes the report of an experiment before its first figure.
pub(crate) fn empty(experiment: &dyn Experiment) -> ExperimentReport {
    ExperimentReport {
        id: experiment.id(),
        title: experiment.title(),
        seed: experiment.seed(),
        metric: experiment.metric(),
        arms: experiment.arms().to_vec(),
        headline: Vec::new(),
        peer: None,
        sweeps: Vec::new(),
        instructions: Vec::new(),
        checks: Vec::new(),
        predictions: Vec::new(),
        control: None,
        strays: Vec::new(),
        verdict: None,
        interrupted: false,
    }
}

#[cfg(test)]
mod tests {
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
                let sweeps =
                    experiment.sweeps(&lab).into_iter().flat_map(|sweep| sweep.points).map(|place| place.point);
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

    /// A run of everything must take less than 4.5 minutes without sweeps and less than 25 with them. When they were
    /// measured, checks, setup and the counting of instructions took 82 s and 549 s of these.
    #[test]
    fn the_turns_of_all_experiments_leave_time_for_the_rest() {
        let (table, all) = (configured(Sweeps::None), configured(Sweeps::All));
        eprintln!("{table:?}, {all:?}");
        assert!(table <= Duration::from_secs(170), "{table:?} of 270 s");
        assert!(all <= Duration::from_secs(930), "{all:?} of 1500 s");
    }
}
