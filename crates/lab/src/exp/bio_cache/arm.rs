//! One arm at one point: threads with a ring each on a null device, whose bios come from where the arm says.
//!
//! * A1. Device, ring and loop are the same in every arm but for the cache's bound and the store behind it. All arms
//!   but one take a bio for each I/O.
//! * A2. The calls of the allocator are counted before the first turn, so that turns do not pay for the counting.

use std::sync::Arc;

use sheave::{Ring, RingBuilder, RingError, open_device};
use sheave_load::{SheaveEngine, cpu};

use super::design::{AFTER, Ends, HOOK, MALLOC, NO_BIO, PER_CPU, SEED};
use super::stores::{Malloc, Nothing, PerCpu, ThreadSlab};
use crate::crew::{Crew, MakeDrive};
use crate::drive::{self, Drive};
use crate::experiment::{ArmRun, Lab, Turn, TurnEnd};
use crate::{LabError, Point, alloc};

/// The bound that the thread's cache had (ALLOC_CACHE_MAX); its slack is the product's too.
const SEED_MAX: u32 = 512;
/// I/Os before anything is counted: every bio was used once.
const WARM_UP: u64 = 4096;
/// I/Os that are counted.
pub const COUNTED: u64 = 4096;

/// An arm that is ready.
pub struct BioArm {
    crew: Crew,
    /// Calls of the allocator, and bios that the cache did not serve, in [`COUNTED`] I/Os.
    allocator_calls: Option<u64>,
    misses: u64,
}

impl BioArm {
    /// Builds it on the calling thread.
    pub fn new(lab: &Lab, arm: usize, point: &Point) -> Result<BioArm, LabError> {
        let mut crew = Crew::new(lab, point, &drives(lab, arm, point)?)?;
        crew.run_alone(WARM_UP)?;
        let before = crew.drive().ring().io().bios().refills();
        let (allocator_calls, ran) = alloc::calls(|| crew.run_alone(COUNTED));
        ran?;
        let misses = crew.drive().ring().io().bios().refills() - before;
        Ok(BioArm { crew, allocator_calls, misses })
    }

    /// Calls of the allocator per I/O; `None` when nobody counts them.
    pub fn allocator_calls(&self) -> Option<f64> {
        Some(self.allocator_calls? as f64 / COUNTED as f64)
    }

    /// Its first ring, between turns.
    #[cfg(test)]
    pub fn ring(&self) -> &Ring {
        self.crew.drive().ring()
    }

    /// Bios per I/O that the cache did not serve.
    pub fn misses(&self) -> f64 {
        self.misses as f64 / COUNTED as f64
    }
}

impl ArmRun for BioArm {
    fn turn(&mut self, end: TurnEnd) -> Result<Turn, LabError> {
        let mut turn = self.crew.turn(end)?;
        let ios = turn.ios as f64;
        if let Some(calls) = self.allocator_calls() {
            turn.counters.insert("allocator_calls", calls * ios);
        }
        turn.counters.insert("cache_misses", self.misses() * ios);
        Ok(turn)
    }
}

/// The ring of an arm, whose cache has the arm's bound.
pub fn bounded(builder: RingBuilder, arm: usize, ends: Ends) -> RingBuilder {
    match arm {
        NO_BIO => builder,
        // As large as the ring wants it; that it is bounded at all has the ring take a bio for each I/O.
        AFTER => builder.bio_cache(u32::MAX),
        // What is not polled is not cacheable: the thread's cache could not bear another thread's put.
        SEED if ends == Ends::Polled => builder.bio_cache(SEED_MAX),
        _ => builder.bio_cache(0),
    }
}

/// What stands behind the cache of an arm.
pub fn put_store(ring: &mut Ring, arm: usize, ends: Ends) -> Result<(), RingError> {
    match arm {
        AFTER | NO_BIO => Ok(()),
        HOOK => ring.set_bio_store(Box::new(Nothing::default())),
        MALLOC => ring.set_bio_store(Box::new(Malloc::default())),
        PER_CPU => ring.set_bio_store(Box::new(PerCpu::new(ends == Ends::Polled))),
        _ => ring.set_bio_store(Box::new(ThreadSlab::default())),
    }
}

/// How the loops of an arm are made.
fn drives(lab: &Lab, arm: usize, point: &Point) -> Result<MakeDrive, LabError> {
    let ends = Ends::of(point)?;
    let device = open_device(ends.device()).map_err(|err| LabError::run(err.to_string()))?;
    let (lab, point) = (lab.clone(), point.clone());
    Ok(Arc::new(move |index| {
        let opts = drive::opts(&point, ends == Ends::Polled);
        let attach = |ring: &mut Ring| {
            put_store(ring, arm, ends)?;
            // The device's thread starts here and stays where its maker is: beside the loops where there is a CPU.
            let elsewhere = point.threads as usize + index;
            let moved = ends == Ends::Thread && cpu::pin(lab.cpu(elsewhere)).is_ok();
            let attached = ring.attach(&device);
            if moved {
                // It ran there before.
                let _ = cpu::pin(lab.cpu(index));
            }
            attached
        };
        let engine = SheaveEngine::built(bounded(opts.ring(1), arm, ends), attach, &opts)?;
        Ok(Drive::new(engine, &point, device.size_bytes(), 1 + index as u64))
    }))
}
