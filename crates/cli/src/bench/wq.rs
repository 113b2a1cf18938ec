//! `sheave bench wq:`: what it costs to have work done by workers.
//!
//! Owns the turns and their order: ours, theirs, ours, theirs, so that a disturbance of one turn does not decide;
//! each turn has pools and rings of its own. Locks and starts are measured in one more turn after these, because
//! measuring them costs clock reads.
//!
//! The flood itself and the pools that take it are the lab's; [`report`] holds the result.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sheave_lab::wq::{Arm, Flood, Limit, Side, Work};

use crate::args::{BenchArgs, CpuList, Peer};
use crate::failure::Failure;
use crate::output;
use report::Report;
use sheave_load::cpu;

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
const RUNTIME: Duration = Duration::from_secs(5);

/// Runs it.
pub fn run(args: &BenchArgs, stop: Arc<AtomicBool>) -> Result<(), Failure> {
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
        return Err(Failure::run("the run was stopped before its first turn ended"));
    };
    if args.json {
        output::json(&report)?;
    } else {
        output::text(&report.table());
    }
    Ok(())
}

/// The CPUs of a list, if the process may use them.
fn allowed(list: Option<&CpuList>) -> Result<Vec<usize>, Failure> {
    let allowed = cpu::allowed();
    let cpus = list.map(|list| list.0.clone()).unwrap_or_default();
    match cpus.iter().find(|cpu| !allowed.contains(cpu)) {
        Some(missing) => {
            Err(Failure::usage(format!("CPU {missing} is not among those this process may use ({allowed:?})"))
                .fix("choose from those, or widen the set with taskset or the container's cpuset"))
        }
        None => Ok(cpus),
    }
}

/// The arguments judged together.
fn plan(args: &BenchArgs, stop: Arc<AtomicBool>) -> Result<WqPlan, Failure> {
    let wq = &args.wq;
    if args.spec != "wq:" {
        return Err(Failure::usage(format!("wq: takes no parameters, but the spec is {}", args.spec))
            .fix("write wq: and use --workers, --submitters, --work and --hashed"));
    }
    if args.verify || args.fill || args.rate.is_some() || args.ios.is_some() {
        return Err(Failure::usage("--verify, --fill, --rate and --ios are for devices").fix("leave them out"));
    }
    let plain = wq.work == Work::Nop && wq.hashed == 0;
    match args.compare {
        Some(Peer::Memcpy) => {
            return Err(Failure::usage("there is no memory to copy in wq:").fix("compare with the kernel"));
        }
        Some(Peer::Kernel) if !plain => {
            return Err(Failure::usage(
                "the kernel's io_uring has no item that spins, sleeps or has a hash of our choice",
            )
            .fix("compare --work nop without --hashed"));
        }
        _ => {}
    }
    let arm = wq.arm.map_or(if plain { Arm::Ring } else { Arm::Stealing }, Arm::from);
    if arm == Arm::Ring && !plain {
        return Err(Failure::usage("a ring has no operation that spins, sleeps or has a hash of our choice")
            .fix("use --arm stealing, the same pool without the ring"));
    }
    let pairs = if args.compare.is_some() { args.pairs } else { TURNS_ALONE };
    let turn = args.runtime.unwrap_or(RUNTIME) / pairs;
    if turn < Duration::from_millis(1) {
        return Err(Failure::usage(format!("--runtime leaves {turn:?} for each turn")).fix("use a longer --runtime"));
    }
    let flood = Flood {
        depth: args.depth,
        batch: args.batch.unwrap_or((args.depth / 4).clamp(1, 32)).min(args.depth),
        workers: wq.workers,
        submitters: wq.submitters,
        work: wq.work,
        hashed: wq.hashed,
        warm_up: Limit::Time(WARM_UP),
        turn: Limit::Time(turn),
        cpus: allowed(args.cpu.as_ref())?,
        worker_cpus: allowed(wq.worker_cpu.as_ref())?,
        stepped: false,
        stop,
    };
    Ok(WqPlan { flood, pairs, arm })
}
