//! The sides that are measured. Each side makes its pool for one turn and then drops it.

use sheave_uring::IoWq;
use sheave_uring::io_wq::{LockStats, Pool, PoolOptions};

use super::arms::OldPool;
use super::pool_engine::{BenchSource, PoolEngine, Stealing};
use super::ring_engine::RingEngine;
use super::{Arm, Flood, PoolFigures, Turn, turn};
use sheave_load::kernel::{KernelRing, Setup, Workers};
use sheave_load::{Driven, LoadError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Ours(Arm),
    /// The kernel's io_uring with IOSQE_ASYNC.
    Kernel,
}

/// A piece of work that needs the pool of a side.
pub trait Use {
    type Out;
    /// Called once with the pool. `make` returns an engine for a submitter on the calling thread. `figures` returns the
    /// counts of the pool.
    fn with<E: Driven>(
        self,
        make: impl Fn() -> Result<E, LoadError> + Sync,
        figures: impl Fn() -> PoolFigures,
    ) -> Result<Self::Out, LoadError>;
}

impl Side {
    pub fn of(arm: Arm) -> Self {
        Self::Ours(arm)
    }

    /// Runs one turn. If `measure` is true, also measures the pool's locks and start latencies.
    pub fn turn(self, flood: &Flood, measure: bool) -> Result<Turn, LoadError> {
        self.with(flood, measure, OneTurn(flood))
    }

    /// Makes the pool, passes it to `what`, and drops it.
    pub fn with<U: Use>(self, flood: &Flood, measure: bool, what: U) -> Result<U::Out, LoadError> {
        match self {
            Self::Ours(Arm::Ring) => ring(flood, measure, what),
            Self::Ours(Arm::Stealing) => stealing(flood, measure, what),
            Self::Ours(arm) => old(flood, arm, measure, what),
            Self::Kernel => kernel(flood, what),
        }
    }
}

struct OneTurn<'a>(&'a Flood);

impl Use for OneTurn<'_> {
    type Out = Turn;

    fn with<E: Driven>(
        self,
        make: impl Fn() -> Result<E, LoadError> + Sync,
        figures: impl Fn() -> PoolFigures,
    ) -> Result<Turn, LoadError> {
        turn::run(self.0, make, figures)
    }
}

fn ring<U: Use>(flood: &Flood, measure: bool, what: U) -> Result<U::Out, LoadError> {
    let wq = IoWq::builder().max_workers(flood.workers, flood.workers).cpus(&flood.worker_cpus).measure(measure);
    let wq = wq.stepped(flood.stepped).build();
    let wq = wq.map_err(|err| LoadError::run(format!("cannot make a pool: {err}")))?;
    let figures = || figures(wq.counts()[0].created, wq.lock_stats(), wq.starts());
    what.with(|| RingEngine::new(flood.depth, &wq), figures)
}

fn stealing<U: Use>(flood: &Flood, measure: bool, what: U) -> Result<U::Out, LoadError> {
    let pool = Pool::new(PoolOptions {
        max_workers: [flood.workers; 2],
        measure,
        cpus: flood.worker_cpus.clone(),
        stepped: flood.stepped,
        // Off, because with help a ring takes short items back before it waits, and wakes no worker for them until
        // then. This client does neither.
        help: false,
        ..PoolOptions::default()
    });
    let spins = flood.has_cpus_for_both();
    let make = || {
        PoolEngine::new(flood.depth, flood.hashed, spins, |back| {
            let submitter = pool.submitter(BenchSource { work: flood.work, back }, flood.depth);
            let submitter = submitter.ok_or_else(|| LoadError::run("the pool has no room for another submitter"))?;
            Ok(Stealing::new(submitter, flood.work))
        })
    };
    what.with(make, || figures(pool.counts()[0].created, pool.lock_stats(), pool.starts()))
}

fn old<U: Use>(flood: &Flood, arm: Arm, measure: bool, what: U) -> Result<U::Out, LoadError> {
    let pool = OldPool::new(flood, arm == Arm::Sharded, arm != Arm::OneList, measure);
    let spins = flood.has_cpus_for_both();
    let make = || PoolEngine::new(flood.depth, flood.hashed, spins, |back| Ok(pool.client(0, back)));
    what.with(make, || pool.figures())
}

fn kernel<U: Use>(flood: &Flood, what: U) -> Result<U::Out, LoadError> {
    if flood.stepped {
        return Err(LoadError::usage("the kernel's workers are threads").fix("leave stepped out"));
    }
    let workers = Workers { limit: flood.workers, cpus: &flood.worker_cpus };
    let make = || {
        let (depth, batch) = (flood.depth, flood.batch);
        KernelRing::new(Setup { file: None, depth, batch, bs: 512, poll: false, workers: Some(workers) })
    };
    what.with(make, PoolFigures::default)
}

fn figures(created: u64, locks: LockStats, starts: Vec<(u64, u64)>) -> PoolFigures {
    let LockStats { taken, contended, wait_ns, wait_cpu_ns, hold_ns } = locks;
    PoolFigures { created, taken, contended, flag_reads: 0, hold_ns, wait_ns, wait_cpu_ns, starts }
}
