//! The published table measured a second time, at the end of the run, to find changes slower than a first interval
//! covers.
//!
//! The rounds of a point follow each other within seconds, so that their interval covers changes from round to round,
//! and nothing that lasts longer: the placement of virtual CPUs by the host, the pages that an arm gets, other load of
//! the machine. The beginning and the end of a run are minutes apart. A change is not repeated if its second interval
//! has no value in common with the first, and no verdict rests on it.
//!
//! * R1. All arms of all rows are measured again, in rounds of their own. The tables keep the figures and intervals of
//!   the first time.
//! * R2. A verdict rests on the published arm and on Sheave's. If one of these is not repeated in any row, there is no
//!   verdict ([`Holds::DoesNotRepeat`](crate::report::Holds)).
//! * R3. Two true 95 % intervals of one median are disjoint in fewer than one case in a hundred, so that a table of
//!   twenty changes rarely loses its verdict by chance.

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

/// Returns the changes on which a verdict rests and that the end of the run does not repeat (R2).
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

/// Returns the verdict in place of the computed one: the contradicted changes, and the findings of the first
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
mod tests;
