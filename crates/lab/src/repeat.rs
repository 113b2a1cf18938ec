//! The thread's table measured a second time, at the end of the run: what a first interval cannot know of.
//!
//! The rounds of a point follow each other within seconds, so that their interval covers what changes from round to
//! round, and nothing that lasts longer: where the host puts two virtual CPUs, which pages an arm gets, what else the
//! machine does for minutes. Minutes lie between the beginning of a run and its end. A change whose second interval has
//! no value in common with the first is not repeated, and no verdict rests on it.
//!
//! * R1. All arms of all rows are measured again, in rounds of their own; figures and intervals in the tables are those
//!   of the first time.
//! * R2. A verdict rests on the thread's arm and on Sheave's; where one of these is not repeated in any row, there is
//!   none ([`Holds::DoesNotRepeat`](crate::report::Holds)).
//! * R3. Of two true 95 % intervals of one median fewer than one pair in a hundred has no value in common, so that a
//!   table of twenty changes rarely loses its verdict by chance.

use crate::interval::Change;
use crate::report::{Again, ExperimentReport, Holds, Row, Stray, Verdict};
use crate::table;
use crate::terms::Role;

impl Row {
    /// What an arm did at the end of the run.
    pub fn again(&self, arm: usize) -> Option<&Again> {
        self.again.get(arm)?.as_ref()
    }

    /// Both changes of an arm whose second interval has no value in common with its first. Rounds of the end without
    /// an interval repeat nothing.
    fn stray(&self, arm: usize) -> Option<(Change, Change)> {
        let first = self.arm(arm)?.change.filter(Change::is_measurable)?;
        let again = self.again(arm)?.change?;
        (!first.meets(again)).then_some((first, again))
    }
}

/// The changes on which a verdict rests and that the end of the run does not repeat (R2).
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

/// What stands in the place of a verdict: which changes the end of the run contradicts, and what was measured.
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
mod tests;
