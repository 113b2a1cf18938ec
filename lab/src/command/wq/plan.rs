//! Checks the combination of arguments of `sheave-lab wq`, and plans the turns.

use std::sync::Arc;
use std::time::Duration;

use sheave_base::sync::atomic::AtomicBool;
use sheave_load::value::CpuList;

use crate::LabError;
use crate::command::args::WqArgs;
use crate::wq::{Arm, Flood, Limit, Work};

pub struct WqPlan {
    /// The work and the pool of each turn.
    pub flood: Flood,
    /// Number of turns of each side.
    pub pairs: u32,
    pub arm: Arm,
}

/// Time that a turn runs before it is measured.
const WARM_UP: Duration = Duration::from_millis(20);
/// Number of turns without --compare, enough for a median.
const TURNS_ALONE: u32 = 3;

/// Checks that the process may use the CPUs of a list. Returns no CPUs if there is no list.
fn allowed(list: Option<&CpuList>) -> Result<Vec<usize>, LabError> {
    list.map_or(Ok(Vec::new()), |list| list.allowed().map(<[usize]>::to_vec))
}

/// Checks the arguments and makes the plan.
pub fn plan(args: &WqArgs, stop: Arc<AtomicBool>) -> Result<WqPlan, LabError> {
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
