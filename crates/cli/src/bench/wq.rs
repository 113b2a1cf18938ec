//! `sheave bench wq:`: what it costs to have work done by workers.
//!
//! Owns the turns and their order: ours, theirs, ours, theirs, so that a disturbance of one turn does not decide;
//! each turn has pools and rings of its own. Locks and starts are measured in one more turn after these, because
//! measuring them costs clock reads.
//!
//! | module | holds |
//! |---|---|
//! | [`turn`] | one turn: submitters in step, each with the loop of all benches |
//! | [`side`] | what is measured: the ring, the pool, earlier pools, the kernel |
//! | [`pool_engine`], [`ring_engine`] | the loop's view of a pool, and of a ring |
//! | [`arms`] | pools as they were before, kept for comparison |
//! | [`report`] | the result |

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::args::{Arm, BenchArgs, CpuList, Peer, Work};
use crate::failure::Failure;
use crate::output;
use report::Report;
use sheave_load::cpu;
use side::Side;

mod arms;
mod pool_engine;
mod report;
mod ring_engine;
mod side;
mod turn;

/// What is to be done.
pub struct WqPlan {
    /// Items in flight, a submitter.
    pub depth: u32,
    /// Items handed over at once.
    pub batch: u32,
    /// Most workers.
    pub workers: u32,
    /// Threads that queue.
    pub submitters: u32,
    /// What an item does.
    pub work: Work,
    /// Hashes; 0 for none.
    pub hashed: u32,
    /// Time of a turn.
    pub turn: Duration,
    /// Turns of each side.
    pub pairs: u32,
    /// What is measured.
    pub arm: Arm,
    /// The CPU of each submitter in turn; none for any.
    pub cpus: Vec<usize>,
    /// CPUs of workers; none for any.
    pub worker_cpus: Vec<usize>,
    /// Set by Ctrl-C.
    pub stop: Arc<AtomicBool>,
}

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
        let our = ours.turn(&plan, false)?;
        let their = match theirs {
            Some(side) => Some(side.turn(&plan, false)?),
            None => None,
        };
        // Relaxed: the flag carries nothing but itself. A turn that was cut short does not count.
        if plan.stop.load(Ordering::Relaxed) {
            break;
        }
        our_turns.push(our);
        their_turns.extend(their);
    }
    let measured = ours.turn(&plan, true)?;
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
    let arm = wq.arm.unwrap_or(if plain { Arm::Ring } else { Arm::Stealing });
    if arm == Arm::Ring && !plain {
        return Err(Failure::usage("a ring has no operation that spins, sleeps or has a hash of our choice")
            .fix("use --arm stealing, the same pool without the ring"));
    }
    let pairs = if args.compare.is_some() { args.pairs } else { TURNS_ALONE };
    let turn = args.runtime.unwrap_or(RUNTIME) / pairs;
    if turn < Duration::from_millis(1) {
        return Err(Failure::usage(format!("--runtime leaves {turn:?} for each turn")).fix("use a longer --runtime"));
    }
    Ok(WqPlan {
        depth: args.depth,
        batch: args.batch.unwrap_or((args.depth / 4).clamp(1, 32)).min(args.depth),
        workers: wq.workers,
        submitters: wq.submitters,
        work: wq.work,
        hashed: wq.hashed,
        turn,
        pairs,
        arm,
        cpus: allowed(args.cpu.as_ref())?,
        worker_cpus: allowed(wq.worker_cpu.as_ref())?,
        stop,
    })
}
