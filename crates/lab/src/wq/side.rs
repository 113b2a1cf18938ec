//! What is measured: each side makes its pool for one turn and takes it down again.

use sheave::uring::IoWq;
use sheave::uring::io_wq::{LockStats, Pool, PoolOptions};

use super::arms::OldPool;
use super::pool_engine::{BenchSource, PoolEngine, Stealing};
use super::ring_engine::RingEngine;
use super::{Arm, Flood, PoolFigures, Turn, turn};
use sheave_load::LoadError;
use sheave_load::kernel::{KernelRing, Setup, Workers};

/// A side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// One of ours.
    Ours(Arm),
    /// The kernel's io_uring with IOSQE_ASYNC.
    Kernel,
}

impl Side {
    /// The side of an arm.
    pub fn of(arm: Arm) -> Self {
        Self::Ours(arm)
    }

    /// One turn; `measure` the pool too.
    pub fn turn(self, flood: &Flood, measure: bool) -> Result<Turn, LoadError> {
        match self {
            Self::Ours(Arm::Ring) => ring(flood, measure),
            Self::Ours(Arm::Stealing) => stealing(flood, measure),
            Self::Ours(arm) => old(flood, arm, measure),
            Self::Kernel => kernel(flood),
        }
    }
}

fn ring(flood: &Flood, measure: bool) -> Result<Turn, LoadError> {
    let wq =
        IoWq::builder().max_workers(flood.workers, flood.workers).cpus(&flood.worker_cpus).measure(measure).build();
    let wq = wq.map_err(|err| LoadError::run(format!("cannot make a pool: {err}")))?;
    let figures = || figures(wq.counts()[0].created, wq.lock_stats(), wq.starts());
    turn::run(flood, || RingEngine::new(flood.depth, &wq), figures)
}

fn stealing(flood: &Flood, measure: bool) -> Result<Turn, LoadError> {
    let pool = Pool::new(PoolOptions {
        max_workers: [flood.workers; 2],
        measure,
        cpus: flood.worker_cpus.clone(),
        ..PoolOptions::default()
    });
    let make = || {
        PoolEngine::new(flood.depth, flood.hashed, |back| {
            let submitter = pool.submitter(BenchSource { work: flood.work, back }, flood.depth);
            let submitter = submitter.ok_or_else(|| LoadError::run("the pool has no room for another submitter"))?;
            Ok(Stealing::new(submitter, flood.work))
        })
    };
    turn::run(flood, make, || figures(pool.counts()[0].created, pool.lock_stats(), pool.starts()))
}

fn old(flood: &Flood, arm: Arm, measure: bool) -> Result<Turn, LoadError> {
    let pool = OldPool::new(flood, arm == Arm::Sharded, arm != Arm::OneList, measure)?;
    let make = || PoolEngine::new(flood.depth, flood.hashed, |back| Ok(pool.client(0, back)));
    turn::run(flood, make, || pool.figures())
}

fn kernel(flood: &Flood) -> Result<Turn, LoadError> {
    let workers = Workers { limit: flood.workers, cpus: &flood.worker_cpus };
    let make = || {
        let (depth, batch) = (flood.depth, flood.batch);
        KernelRing::new(Setup { file: None, depth, batch, bs: 512, poll: false, workers: Some(workers) })
    };
    turn::run(flood, make, PoolFigures::default)
}

fn figures(created: u64, locks: LockStats, starts: Vec<(u64, u64)>) -> PoolFigures {
    PoolFigures { created, hold_ns: locks.hold_ns, wait_ns: locks.wait_ns, starts }
}
