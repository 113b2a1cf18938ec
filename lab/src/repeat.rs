//! The published table measured a second time, at the end of the run. The repetition finds changes that are too slow
//! for the interval of the first measurement.
//!
//! The rounds of a point follow each other within seconds. So their interval covers changes from round to round, but
//! nothing that lasts longer: the placement of virtual CPUs by the host, the pages that an arm gets, other load of the
//! machine. The beginning and the end of a run are minutes apart. A change counts as not repeated if its second
//! interval has no value in common with the first, and then no verdict is based on it.
//!
//! * R1. All arms of all rows are measured again, in rounds of their own. The tables keep the figures and intervals of
//!   the first time.
//! * R2. A verdict is based on the published arm and on Sheave's arm. If one of these is not repeated in any row, there
//!   is no verdict ([`Holds::DoesNotRepeat`](crate::report::Holds)).
//! * R3. Two true 95 % intervals of one median are disjoint in fewer than one case in a hundred, so a table of twenty
//!   changes rarely loses its verdict by chance.

use crate::interval::Change;
use crate::report::{Again, ExperimentReport, Holds, Row, Stray, Verdict};
use crate::table;
use crate::terms::Role;

impl Row {
    /// Returns the result of an arm at the end of the run.
    pub fn again(&self, arm: usize) -> Option<&Again> {
        self.again.get(arm)?.as_ref()
    }

    /// Returns both changes of an arm if its second interval has no value in common with its first. A second
    /// measurement without an interval counts as disjoint too.
    fn stray(&self, arm: usize) -> Option<(Change, Change)> {
        let first = self.arm(arm)?.change.filter(Change::is_measurable)?;
        let again = self.again(arm)?.change?;
        (!first.meets(again)).then_some((first, again))
    }
}

/// Returns the changes on which a verdict is based and which the end of the run does not repeat (R2).
pub fn strays(report: &ExperimentReport) -> Vec<Stray> {
    let mut strays = Vec::new();
    for row in &report.headline {
        for (index, arm) in report.arms.iter().enumerate() {
            let judged = row.threads_arm == Some(index) || matches!(arm.role, Role::Seed | Role::After);
            if let Some((first, again)) = row.stray(index).filter(|_| judged) {
                strays.push(Stray { row: row.label.clone(), arm: arm.name.into(), first, again });
            }
        }
    }
    strays
}

/// Returns the verdict that replaces the computed one: it has the contradicted changes, and the findings of the first
/// measurement.
pub fn refused(report: &ExperimentReport, verdict: Verdict) -> Verdict {
    let told: Vec<String> = report.strays.iter().map(|stray| table::stray(stray, report.metric)).collect();
    let shows = format!(
        "There is no verdict, because the end of the run does not repeat its beginning: {}. What was measured at the \
         beginning: {}",
        told.join("; "),
        verdict.shows
    );
    Verdict { holds: Holds::DoesNotRepeat, shows, ..verdict }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use super::*;
    use crate::experiment::Lab;
    use crate::fake::{FAKE, Fake, lab};
    use crate::html::tests::Silent;
    use crate::run::{Plan, Sweeps, run};
    use crate::terms::Scale;
    use crate::turns::Pace;

    const FIRST: Change = Change { percent: 29.7, low: 25.6, high: 36.1 };

    fn strays_of(first: Change, again: Option<Change>) -> Vec<Stray> {
        let mut report = crate::html::tests::report().experiments.remove(0);
        let row = &mut report.headline[0];
        row.arms[1].as_mut().expect("measured").change = Some(first);
        row.again = vec![None, Some(Again { value: 1.0, change: again })];
        strays(&report)
    }

    #[test]
    fn a_second_interval_must_meet_the_first() {
        let again = |percent, low, high| strays_of(FIRST, Some(Change { percent, low, high })).len();
        assert_eq!(again(31.0, 28.0, 33.0), 0, "within");
        assert_eq!(again(40.0, 36.1, 44.0), 0, "they have one value in common");
        assert_eq!(again(20.0, 10.0, 25.6), 0, "from below, too");
        assert_eq!(again(40.0, 36.2, 44.0), 1, "above");
        assert_eq!(again(20.0, 10.0, 25.5), 1, "below");
        assert_eq!(again(179.0, 171.0, 185.0), 1, "as the counters of two CPUs were seen to differ within a run");
        assert_eq!(again(30.0, f64::NAN, f64::NAN), 1, "what cannot be measured again is not repeated");
    }

    #[test]
    fn a_change_without_repeat_or_verdict_is_no_stray() {
        let again = Change { percent: 179.0, low: 171.0, high: 185.0 };
        assert_eq!(strays_of(FIRST.blinded(), Some(again)), []);
        assert_eq!(strays_of(FIRST, None), []);
    }

    /// Runs 10 rounds without sweeps of an experiment whose second arm is slower after `slows_after` made arms.
    fn run_of(slows_after: usize) -> crate::report::LabReport {
        let fake: &'static Fake = Box::leak(Box::new(Fake { turns: AtomicUsize::new(0), slows_after }));
        let plan = Plan {
            experiments: vec![fake, &FAKE],
            pace: Pace { rounds: 10, turn: Duration::from_millis(10) },
            sweeps: Sweeps::None,
            instructions: false,
            point: None,
            peer: None,
            command: "sheave-lab all".into(),
            options: String::new(),
        };
        let full = Lab { scale: Scale::Full, ..lab() };
        run(&plan, &full, &mut Silent).expect("a run")
    }

    /// Returns the text, the JSON, the page and the Markdown of a report.
    fn all_outputs(report: &crate::report::LabReport) -> [String; 4] {
        let text = report.experiments.iter().map(|experiment| crate::table::ending(experiment, true)).collect();
        let json = crate::stored::text(report).expect("JSON");
        [text, json, crate::html::page(report), crate::markdown::page(report)]
    }

    #[test]
    fn a_table_that_does_not_repeat_has_no_verdict_in_any_output() {
        // 12 rounds of the two arms and the control make 36 arms; the next arm belongs to the end of the run.
        let report = run_of(36);
        let [slower, steady] = &report.experiments[..] else { panic!("two experiments") };
        let changes = |report: &ExperimentReport| {
            let (first, again) = (report.headline[0].arm(1), report.headline[0].again(1));
            [first.and_then(|arm| arm.change), again.and_then(|again| again.change)]
                .map(|it| it.map(|it| it.percent.round()))
        };
        assert_eq!(changes(slower), [Some(50.0), Some(10.0)]);
        assert_eq!(changes(steady), [Some(50.0); 2]);
        let holds = |report: &ExperimentReport| report.verdict.as_ref().map(|verdict| verdict.holds);
        assert_eq!((holds(slower), holds(steady)), (Some(Holds::DoesNotRepeat), Some(Holds::Yes)));
        assert_eq!((slower.strays.len(), steady.strays.len()), (1, 0));
        let told = "QD 1, after: +50.0 % [50.0, 50.0], at the end of the run +10.0 % [10.0, 10.0]";
        for (at, output) in all_outputs(&report).into_iter().enumerate() {
            let plain = output.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(plain.contains(told), "output {at} lacks what does not repeat: {plain}");
            let refused =
                if at == 1 { "\"does_not_repeat\"" } else { "No verdict: the end of the run does not repeat" };
            assert!(plain.contains(refused), "output {at} gives a verdict: {plain}");
        }
        let read_again = crate::stored::read(crate::stored::text(&report).expect("JSON")).expect("a report");
        assert_eq!(read_again.experiments[0].strays, slower.strays);
    }

    #[test]
    fn a_table_that_repeats_says_so() {
        let report = run_of(usize::MAX);
        for output in all_outputs(&report) {
            assert!(!output.contains("No verdict") && !output.contains("does_not_repeat"), "{output}");
        }
        let [text, _, page, tables] = all_outputs(&report);
        for output in [text, page, tables] {
            let plain = output.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(plain.contains("Measured again at the end of the run: each interval"), "{plain}");
        }
    }
}
