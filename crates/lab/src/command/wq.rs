//! `sheave-lab wq`: what it costs to have work done by workers.
//!
//! Owns the turns and their order: ours, theirs, ours, theirs, so that a disturbance of one turn does not decide;
//! each turn has pools and rings of its own. Locks and starts are measured in one more turn after these, because
//! measuring them costs clock reads.
//!
//! The flood itself and the pools that take it are those of [`crate::wq`]; [`report`] holds the result.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use sheave::base::sync::atomic::{AtomicBool, Ordering};
use sheave_load::output;
use sheave_load::value::CpuList;

use super::args::WqArgs;
use crate::LabError;
use crate::wq::{Arm, Flood, Limit, Side, Work};
use report::Report;

mod report;

/// What is to be done.
struct WqPlan {
    /// What each turn does.
    flood: Flood,
    /// Turns of each side.
    pairs: u32,
    /// What is measured.
    arm: Arm,
}

/// How long a turn runs before it counts.
const WARM_UP: Duration = Duration::from_millis(20);
/// Turns without --compare: enough for a median.
const TURNS_ALONE: u32 = 3;

/// Runs it.
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
        // Relaxed: the flag carries nothing but itself. A turn that was cut short does not count.
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

/// The CPUs of a list, if the process may use them; none without a list.
fn allowed(list: Option<&CpuList>) -> Result<Vec<usize>, LabError> {
    list.map_or(Ok(Vec::new()), |list| list.allowed().map(<[usize]>::to_vec))
}

/// The arguments judged together.
fn plan(args: &WqArgs, stop: Arc<AtomicBool>) -> Result<WqPlan, LabError> {
    let plain = args.work == Work::Nop && args.hashed == 0;
    if args.compare.is_some() && !plain {
        return Err(LabError::usage(
            "the kernel's io_uring has no item that spins, sleeps or has a hash of our choice",
        )
        .fix("compare --work nop without --hashed"));
    }
    if args.batch.is_some_and(|batch| batch > args.depth) {
        return Err(LabError::usage(format!("--batch is more than --depth {}", args.depth))
            .fix("a batch is a part of what is in flight: raise --depth or lower --batch"));
    }
    let arm = args.arm.map_or(if plain { Arm::Ring } else { Arm::Stealing }, Arm::from);
    if arm == Arm::Ring && !plain {
        return Err(LabError::usage("a ring has no operation that spins, sleeps or has a hash of our choice")
            .fix("use --arm stealing, the same pool without the ring"));
    }
    let pairs = if args.compare.is_some() { args.pairs } else { TURNS_ALONE };
    let turn = args.runtime / pairs;
    if turn < Duration::from_millis(1) {
        return Err(LabError::usage(format!("--runtime leaves {turn:?} for each turn")).fix("use a longer --runtime"));
    }
    let flood = Flood {
        depth: args.depth,
        batch: args.batch.unwrap_or((args.depth / 4).clamp(1, 32)),
        workers: args.workers,
        submitters: args.submitters,
        work: args.work,
        hashed: args.hashed,
        warm_up: Limit::Time(WARM_UP),
        turn: Limit::Time(turn),
        cpus: allowed(args.cpu.as_ref())?,
        worker_cpus: allowed(args.worker_cpu.as_ref())?,
        stepped: false,
        stop,
    };
    Ok(WqPlan { flood, pairs, arm })
}
