//! Reduction of a failure: leaves out operations for as long as something still fails.

use std::time::{Duration, Instant};

use crate::explore::{Failure, Plan, explore};

/// Leaves out as many operations of a failing run as it can within `time`. The smaller run may fail for another reason.
#[must_use]
pub fn shrink(plan: &Plan, first: Box<Failure>, time: Duration) -> Box<Failure> {
    let until = Instant::now() + time;
    let mut best = first;
    let mut plan = plan.clone();
    let mut chunk = plan.setup.ops.div_ceil(2);
    while chunk > 0 {
        let mut at = 0;
        while at < plan.setup.ops {
            if Instant::now() >= until {
                return best;
            }
            let mut candidate = plan.clone();
            let skipped = (at..(at + chunk).min(plan.setup.ops)).filter(|op| !plan.setup.skip.contains(op));
            candidate.setup.skip.extend(skipped);
            at += chunk;
            if candidate.setup.skip.len() == plan.setup.skip.len() {
                continue;
            }
            if let Err(failure) = explore(&candidate) {
                (best, plan) = (failure, candidate);
            }
        }
        // Halved as in delta debugging: large pieces first, single operations last.
        chunk /= 2;
    }
    best
}
