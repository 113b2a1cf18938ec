//! Comparison of two sides in alternating turns on one core: ours, theirs, ours, theirs.
//!
//! Each pair gives a ratio of IOPS and a ratio of CPU time per I/O. The median over the pairs is reported, so that a
//! disturbance of one turn (another guest on the host, a page cache flush) does not matter. Ratios are ours divided by
//! theirs: IOPS above 1 and CPU below 1 are in our favour. Each median has its 95 % interval, if there are enough pairs
//! for one ([`interval`]).
//!
//! * I1. Both sides run on the calling thread, with the same seed and the same number of I/Os in flight.

mod interval;

use std::time::Duration;

use interval::Ranks;
use serde::Serialize;
use sheave_daemon::failure::Failure;
use sheave_drivers::ram::RamMemory;
use sheave_load::cpu::{CpuMeter, Spent};
use sheave_load::kernel::{KernelRing, Setup};
use sheave_load::looper::{Driven, IoError, Lane, Looper, Until};
use sheave_load::memcpy::Memcpy;
use sheave_load::pace::Pace;
use sheave_load::pattern::Pattern;
use sheave_load::sheave_engine::SheaveEngine;

use crate::args::Peer;
use crate::bench::board::Board;
use crate::bench::plan::{Part, Plan, open_peer_file};
use crate::bench::storage::{self, Target};
use crate::bench::subject::RawPeer;

/// Result of one turn of Sheave or of the peer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Turn {
    pub ios: u64,
    /// Wall and CPU time.
    pub spent: Spent,
}

impl Turn {
    fn iops(&self) -> f64 {
        self.ios as f64 * 1e9 / (self.spent.wall_ns.max(1)) as f64
    }

    fn ns_per_io(&self) -> f64 {
        self.spent.wall_ns as f64 / self.ios.max(1) as f64
    }

    fn cpu_ns_per_io(&self) -> f64 {
        self.spent.cpu_ns as f64 / self.ios.max(1) as f64
    }
}

/// Result of a comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Name of the peer.
    pub name: String,
    /// Number of completed pairs.
    pub pairs: usize,
    /// Median of the I/Os a second over the peer's turns.
    pub iops: f64,
    /// Median of the CPU time per I/O in ns over the peer's turns.
    pub cpu_ns_per_io: f64,
    /// Median of the wall time per I/O in ns over the peer's turns.
    pub ns_per_io: f64,
    /// Wall time per I/O in ns, ours minus theirs: the median over the pairs.
    pub more_ns_per_io: f64,
    /// CPU time per I/O in ns, ours minus theirs: the median over the pairs.
    pub more_cpu_ns_per_io: f64,
    /// IOPS, ours divided by theirs: the median over the pairs.
    pub ratio_iops: f64,
    /// CPU time per I/O, ours divided by theirs: the median over the pairs.
    pub ratio_cpu: f64,
    /// Smallest and largest ratio of IOPS among the pairs.
    pub ratio_iops_range: [f64; 2],
    /// 95 % interval of `ratio_iops`; `None` with fewer than six pairs.
    pub ratio_iops_95: Option<[f64; 2]>,
    /// 95 % interval of `ratio_cpu`; `None` with fewer than six pairs.
    pub ratio_cpu_95: Option<[f64; 2]>,
    /// Probability that one of these intervals contains the true median: the smallest value of at least 0.95 that this
    /// number of pairs allows.
    pub interval_coverage: Option<f64>,
    /// Method of calculating the intervals.
    pub interval_method: &'static str,
}

impl Comparison {
    /// Computes the figures from pairs of (ours, theirs). Returns `None` if there is no pair.
    pub fn of(name: String, pairs: &[(Turn, Turn)]) -> Option<Self> {
        let over = |figure: fn(&(Turn, Turn)) -> f64| median(pairs.iter().map(figure).collect());
        let iops = |(ours, theirs): &(Turn, Turn)| ours.iops() / theirs.iops();
        let cpu = |(ours, theirs): &(Turn, Turn)| ours.cpu_ns_per_io() / theirs.cpu_ns_per_io();
        let ratios = pairs.iter().map(iops);
        let ranks = Ranks::of(pairs.len());
        Some(Self {
            name,
            pairs: pairs.len(),
            iops: over(|(_, theirs)| theirs.iops())?,
            cpu_ns_per_io: over(|(_, theirs)| theirs.cpu_ns_per_io())?,
            ns_per_io: over(|(_, theirs)| theirs.ns_per_io())?,
            more_ns_per_io: over(|(ours, theirs)| ours.ns_per_io() - theirs.ns_per_io())?,
            more_cpu_ns_per_io: over(|(ours, theirs)| ours.cpu_ns_per_io() - theirs.cpu_ns_per_io())?,
            ratio_iops: over(iops)?,
            ratio_cpu: over(cpu)?,
            ratio_iops_range: [
                ratios.clone().fold(f64::INFINITY, f64::min),
                ratios.clone().fold(f64::NEG_INFINITY, f64::max),
            ],
            ratio_iops_95: ranks.map(|ranks| ranks.bounds(ratios.collect())),
            ratio_cpu_95: ranks.map(|ranks| ranks.bounds(pairs.iter().map(cpu).collect())),
            interval_coverage: ranks.map(|ranks| ranks.coverage),
            interval_method: interval::METHOD,
        })
    }
}

/// Returns the middle value, or the mean of the two middle ones.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[half]),
        _ => Some((values[half - 1] + values[half]) / 2.0),
    }
}

/// Parameters that both sides share.
pub struct Arena<'a> {
    pub plan: &'a Plan,
    /// Range of blocks.
    pub part: Part,
    /// True if the file is opened with O_DIRECT.
    pub direct: bool,
    /// The raw device with which a volume is compared.
    pub raw: Option<&'a RawPeer>,
    /// Memory of a ram device.
    pub memory: Option<&'a RamMemory>,
    pub meter: &'a CpuMeter,
    /// Shows the number of completed pairs.
    pub board: &'a Board,
}

/// Result of a run with a peer: the time that Sheave's turns took, and the comparison with the peer (`None` if the run
/// was stopped before the first pair of turns was complete).
pub struct Outcome {
    pub spent: Spent,
    pub comparison: Option<Comparison>,
}

/// Runs Sheave's engine (`ours`) and the peer in alternating turns.
pub fn run<E: Driven>(arena: &Arena<'_>, ours: &mut Looper<E>, until: &Until, peer: Peer) -> Result<Outcome, Failure> {
    let args = &arena.plan.args;
    let total = arena.plan.runtime.unwrap_or(Duration::from_secs(5));
    let turn = total / args.pairs();
    let pattern = |base| Pattern::new(args.rw, args.mix, arena.part.base + base, args.bs, arena.part.blocks, args.seed);
    let their_base = arena.raw.map_or(0, |raw| raw.base);
    let (mut our_pattern, mut their_pattern) = (pattern(0), pattern(their_base));
    let mut theirs = Theirs::new(arena, until, peer)?;
    let warm_up = Duration::from_millis(100).min(turn);
    let our_turn = |ours: &mut Looper<E>, pattern: &mut Pattern, time| -> Result<Turn, Failure> {
        let before = ours.counts().ios;
        let watch = arena.meter.start();
        arena.board.turn_begins();
        let ran = ours.run(pattern, &Until { runtime: Some(time), ..until.clone() }, &mut Pace::Unlimited);
        arena.board.turn_ends();
        ran?;
        Ok(Turn { ios: ours.counts().ios - before, spent: watch.spent() })
    };
    our_turn(ours, &mut our_pattern, warm_up)?;
    theirs.turn(arena, &mut their_pattern, until, warm_up)?;
    ours.reset();
    let (mut pairs, mut spent) = (Vec::new(), Spent::default());
    for _ in 0..args.pairs() {
        let our = our_turn(ours, &mut our_pattern, turn)?;
        spent += our.spent;
        let their = theirs.turn(arena, &mut their_pattern, until, turn)?;
        // Relaxed: the flag carries nothing but itself. A turn that was cut short does not count.
        if until.stop.load(sheave_base::sync::atomic::Ordering::Relaxed) || ours.first_error().is_some() {
            break;
        }
        pairs.push((our, their));
        arena.board.pair_done();
    }
    Ok(Outcome { spent, comparison: Comparison::of(theirs.name(), &pairs) })
}

/// The peer's side of the comparison.
enum Theirs {
    Kernel { looper: Box<Looper<KernelRing>>, name: &'static str },
    Raw { looper: Box<Looper<SheaveEngine>>, name: String },
    Memcpy(Memcpy),
}

impl Theirs {
    fn new(arena: &Arena<'_>, until: &Until, peer: Peer) -> Result<Self, Failure> {
        let args = &arena.plan.args;
        if peer == Peer::Memcpy {
            let none = || Failure::usage("--compare memcpy wants a ram: device").fix("use ram:size=1G");
            let memory = arena.memory.ok_or_else(none)?.clone();
            return Ok(Self::Memcpy(Memcpy::new(memory, args.bs, args.depth())?));
        }
        if let (Peer::Raw, Some(raw)) = (peer, arena.raw) {
            return Self::raw(arena, until, raw);
        }
        let (file, name) = match &arena.plan.target {
            Target::File(path) => {
                let dsync = args.dsync || storage::is_sync(&args.spec);
                let file = open_peer_file(path, args.rw.writes(), arena.direct, dsync)?;
                (Some(file), "kernel io_uring, same I/O on the same file")
            }
            _ => (None, "kernel io_uring, NOP"),
        };
        let (poll, batch) = (args.poll.is_on(), arena.plan.batch);
        let setup = Setup { file, depth: args.depth(), batch, bs: args.bs, poll, workers: None };
        let ring = KernelRing::new(setup)?;
        let lane = std::sync::Arc::new(Lane::default());
        Ok(Self::Kernel {
            looper: Box::new(
                Looper::new(ring, args.depth(), arena.plan.batch, 0, lane).completing(arena.plan.complete),
            ),
            name,
        })
    }

    /// Opens the raw device and writes its range once, like that of the volume. If this is interrupted, the turns are
    /// too, and there is no pair.
    fn raw(arena: &Arena<'_>, until: &Until, raw: &RawPeer) -> Result<Self, Failure> {
        let args = &arena.plan.args;
        let engine = SheaveEngine::built(args.ring(1), |ring| ring.attach(&raw.device), &args.engine())?;
        let lane = std::sync::Arc::new(Lane::default());
        let looper = Looper::new(engine, args.depth(), arena.plan.batch, 0, lane);
        let mut looper = looper.completing(arena.plan.complete);
        let base = arena.part.base + raw.base;
        let mut all = Pattern::new(sheave_load::Rw::Write, 0, base, args.bs, arena.part.blocks, 0);
        let until = Until { runtime: None, ios: arena.part.blocks, ..until.clone() };
        looper.run(&mut all, &until, &mut Pace::Unlimited)?;
        match looper.first_error() {
            Some(error) => Err(raw_failed(error)),
            None => Ok(Self::Raw { looper: Box::new(looper), name: format!("raw {}", raw.device.name()) }),
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Raw { name, .. } => name.clone(),
            Self::Kernel { name, .. } => (*name).into(),
            Self::Memcpy(_) => "memcpy loop over the same memory".into(),
        }
    }

    fn turn(
        &mut self,
        arena: &Arena<'_>,
        pattern: &mut Pattern,
        until: &Until,
        time: Duration,
    ) -> Result<Turn, Failure> {
        match self {
            Self::Kernel { looper, .. } => looper_turn(looper, arena, pattern, until, time, peer_failed),
            Self::Raw { looper, .. } => looper_turn(looper, arena, pattern, until, time, raw_failed),
            Self::Memcpy(memcpy) => {
                let clock = sheave_base::clock::Clock::real();
                let watch = arena.meter.start();
                let ios = memcpy.run(pattern, &clock, time, &until.stop)?;
                Ok(Turn { ios, spent: watch.spent() })
            }
        }
    }
}

fn looper_turn<E: Driven>(
    looper: &mut Looper<E>,
    arena: &Arena<'_>,
    pattern: &mut Pattern,
    until: &Until,
    time: Duration,
    failed: fn(IoError) -> Failure,
) -> Result<Turn, Failure> {
    looper.reset();
    let watch = arena.meter.start();
    looper.run(pattern, &Until { runtime: Some(time), ..until.clone() }, &mut Pace::Unlimited)?;
    let spent = watch.spent();
    match looper.first_error() {
        Some(error) => Err(failed(error)),
        None => Ok(Turn { ios: looper.counts().ios, spent }),
    }
}

fn raw_failed(error: IoError) -> Failure {
    let what = if error.write { "write" } else { "read" };
    Failure::run(format!(
        "the raw device beside the volume failed: {what} at byte {} gave {}",
        error.offset, error.result
    ))
    .fix("see that there is space for a second file as large as the range, or use a smaller --range")
}

fn peer_failed(error: IoError) -> Failure {
    let what = if error.write { "write" } else { "read" };
    Failure::run(format!(
        "the kernel's side of the comparison failed: {what} at byte {} gave {}",
        error.offset, error.result
    ))
    .fix("`sheave doctor PATH` tells what the file supports")
}

#[cfg(test)]
mod tests;
