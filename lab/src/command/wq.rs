//! `sheave-lab wq`: the cost of work done by workers.
//!
//! Owns the turns and their order: ours, theirs, ours, theirs, so that a disturbance of one turn does not decide the
//! result. Each turn has pools and rings of its own. Locks and start latencies are measured in one more turn at the
//! end, because reading the clock for them makes a turn slower.
//!
//! The flood and the pools are in [`crate::wq`]. [`plan`](mod@plan) checks the arguments, [`report`] has the result.

use std::process::ExitCode;
use std::sync::Arc;

use sheave_base::sync::atomic::{AtomicBool, Ordering};
use sheave_load::output;

use super::args::WqArgs;
use crate::LabError;
use crate::wq::Side;
use plan::plan;
use report::Report;

mod plan;
mod report;

pub fn run(args: &WqArgs, stop: Arc<AtomicBool>) -> Result<ExitCode, LabError> {
    let plan = plan(args, stop)?;
    let ours = Side::of(plan.arm);
    let theirs = args.compare.map(|_| Side::Kernel);
    let (mut our_turns, mut their_turns) = (Vec::new(), Vec::new());
    for _ in 0..plan.pairs {
        let our = ours.turn(&plan.flood, false)?;
        let their = match theirs {
            Some(side) => Some(side.turn(&plan.flood, false)?),
            None => None,
        };
        // Relaxed: the flag carries nothing but itself. An interrupted turn is not counted.
        if plan.flood.stop.load(Ordering::Relaxed) {
            break;
        }
        our_turns.push(our);
        their_turns.extend(their);
    }
    let measured = ours.turn(&plan.flood, true)?;
    let report = Report::new(&plan, &our_turns, &their_turns, &measured);
    let Some(report) = report else {
        return Err(LabError::run("the run was stopped before its first turn ended"));
    };
    if args.json {
        output::json(&report)?;
    } else {
        output::text(&report.table());
    }
    Ok(ExitCode::SUCCESS)
}
