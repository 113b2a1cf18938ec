//! What is measured: each side makes its pool for one turn and takes it down again.

use sheave::uring::IoWq;
use sheave::uring::io_wq::{LockStats, Pool, PoolOptions};

use super::WqPlan;
use super::arms::OldPool;
use super::pool_engine::{BenchSource, PoolEngine, Stealing};
use super::ring_engine::RingEngine;
use super::turn::{self, PoolFigures, Turn};
use crate::args::Arm;
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
    pub fn turn(self, plan: &WqPlan, measure: bool) -> Result<Turn, LoadError> {
        match self {
            Self::Ours(Arm::Ring) => ring(plan, measure),
            Self::Ours(Arm::Stealing) => stealing(plan, measure),
            Self::Ours(arm) => old(plan, arm, measure),
            Self::Kernel => kernel(plan),
        }
    }
}

fn ring(plan: &WqPlan, measure: bool) -> Result<Turn, LoadError> {
    let wq = IoWq::builder().max_workers(plan.workers, plan.workers).cpus(&plan.worker_cpus).measure(measure).build();
    let wq = wq.map_err(|err| LoadError::run(format!("cannot make a pool: {err}")))?;
    let figures = || figures(wq.counts()[0].created, wq.lock_stats(), wq.starts());
    turn::run(plan, || RingEngine::new(plan.depth, &wq), figures)
}

fn stealing(plan: &WqPlan, measure: bool) -> Result<Turn, LoadError> {
    let pool = Pool::new(PoolOptions {
        max_workers: [plan.workers; 2],
        measure,
        cpus: plan.worker_cpus.clone(),
        ..PoolOptions::default()
    });
    let make = || {
        PoolEngine::new(plan.depth, plan.hashed, |back| {
            let submitter = pool.submitter(BenchSource { work: plan.work, back }, plan.depth);
            let submitter = submitter.ok_or_else(|| LoadError::run("the pool has no room for another submitter"))?;
            Ok(Stealing::new(submitter, plan.work))
        })
    };
    turn::run(plan, make, || figures(pool.counts()[0].created, pool.lock_stats(), pool.starts()))
}

fn old(plan: &WqPlan, arm: Arm, measure: bool) -> Result<Turn, LoadError> {
    let pool = OldPool::new(plan, arm == Arm::Sharded, arm != Arm::OneList, measure)?;
    let make = || PoolEngine::new(plan.depth, plan.hashed, |back| Ok(pool.client(0, back)));
    turn::run(plan, make, || pool.figures())
}

fn kernel(plan: &WqPlan) -> Result<Turn, LoadError> {
    let workers = Workers { limit: plan.workers, cpus: &plan.worker_cpus };
    let make = || {
        let (depth, batch) = (plan.depth, plan.batch);
        KernelRing::new(Setup { file: None, depth, batch, bs: 512, poll: false, workers: Some(workers) })
    };
    turn::run(plan, make, PoolFigures::default)
}

fn figures(created: u64, locks: LockStats, starts: Vec<(u64, u64)>) -> PoolFigures {
    PoolFigures { created, hold_ns: locks.hold_ns, wait_ns: locks.wait_ns, starts }
}
