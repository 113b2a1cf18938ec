//! One arm at one point: threads with a ring each on a null device, whose bios come from the store of the arm.
//!
//! * A1. Device, ring and loop are the same in every arm except for the bound of the cache and the store behind it. All
//!   arms except `no bio` take a bio for each I/O.
//! * A2. Calls of the allocator are counted before the first turn, so that turns are not slowed down by the counting.

use std::sync::Arc;

use sheave::{Ring, RingBuilder, RingError, open_device};
use sheave_load::{SheaveEngine, cpu};

use super::design::{AFTER, Ends, HOOK, MALLOC, NO_BIO, PER_CPU, SEED};
use super::stores::{Malloc, Nothing, PerCpu, ThreadSlab};
use crate::crew::{Crew, MakeDrive};
use crate::drive::{self, Drive};
use crate::experiment::{ArmRun, Lab, Turn, TurnEnd};
use crate::{LabError, Point, alloc};

/// Bound of the published cache (`ALLOC_CACHE_MAX`). Sheave's slack above it is the same as in the patches.
const SEED_MAX: u32 = 512;
/// Number of I/Os before anything is counted. After them every bio was used once.
const WARM_UP: u64 = 4096;
/// Number of I/Os in which the calls of the allocator and the cache misses are counted.
pub const COUNTED: u64 = 4096;

/// A built arm.
pub struct BioArm {
    crew: Crew,
    /// Number of calls of the allocator in [`COUNTED`] I/Os, or `None` if the counting allocator is not installed.
    allocator_calls: Option<u64>,
    misses: u64,
}

impl BioArm {
    /// Builds the rings of an arm on the calling thread, warms them up, and counts [`COUNTED`] I/Os (A2).
    pub fn new(lab: &Lab, arm: usize, point: &Point) -> Result<BioArm, LabError> {
        let mut crew = Crew::new(lab, point, &drives(lab, arm, point)?)?;
        crew.run_alone(WARM_UP)?;
        let before = crew.drive().ring().io().bios().refills();
        let (allocator_calls, ran) = alloc::calls(|| crew.run_alone(COUNTED));
        ran?;
        let misses = crew.drive().ring().io().bios().refills() - before;
        Ok(BioArm { crew, allocator_calls, misses })
    }

    /// Returns the number of calls of the allocator per I/O, or `None` if the counting allocator is not installed.
    pub fn allocator_calls(&self) -> Option<f64> {
        Some(self.allocator_calls? as f64 / COUNTED as f64)
    }

    /// Returns the ring of the first thread. Used between turns only.
    #[cfg(test)]
    pub fn ring(&self) -> &Ring {
        self.crew.drive().ring()
    }

    /// Returns the number of bios per I/O that came from the store and not from the cache.
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

/// Sets the cache bound of `arm` on the ring's builder.
pub fn bounded(builder: RingBuilder, arm: usize, ends: Ends) -> RingBuilder {
    match arm {
        NO_BIO => builder,
        // With any bound the ring takes a bio for each I/O. The ring makes the cache as large as it needs.
        AFTER => builder.bio_cache(u32::MAX),
        // The published cache has no lock, so only polled I/O may use it, which ends on the ring's own thread.
        SEED if ends == Ends::Polled => builder.bio_cache(SEED_MAX),
        _ => builder.bio_cache(0),
    }
}

/// Installs the store of `arm` behind the ring's cache.
pub fn put_store(ring: &mut Ring, arm: usize, ends: Ends) -> Result<(), RingError> {
    match arm {
        AFTER | NO_BIO => Ok(()),
        HOOK => ring.set_bio_store(Box::new(Nothing::default())),
        MALLOC => ring.set_bio_store(Box::new(Malloc::default())),
        PER_CPU => ring.set_bio_store(Box::new(PerCpu::new(ends == Ends::Polled))),
        _ => ring.set_bio_store(Box::new(ThreadSlab::default())),
    }
}

/// Returns the maker of the loops of an arm.
fn drives(lab: &Lab, arm: usize, point: &Point) -> Result<MakeDrive, LabError> {
    let ends = Ends::of(point)?;
    let device = open_device(ends.device()).map_err(|err| LabError::run(err.to_string()))?;
    let (lab, point) = (lab.clone(), point.clone());
    Ok(Arc::new(move |index| {
        let opts = drive::opts(&point, ends == Ends::Polled);
        let attach = |ring: &mut Ring| {
            put_store(ring, arm, ends)?;
            // The device's completion thread starts in `attach` and inherits the CPU of this thread. So this thread is
            // pinned to another CPU than those of the loops meanwhile, if there is one.
            let elsewhere = point.threads as usize + index;
            let moved = ends == Ends::Thread && cpu::pin(lab.cpu(elsewhere)).is_ok();
            let attached = ring.attach(&device);
            if moved {
                // The thread ran on this CPU before, so pinning it back cannot be refused.
                let _ = cpu::pin(lab.cpu(index));
            }
            attached
        };
        let engine = SheaveEngine::built(bounded(opts.ring(1), arm, ends), attach, &opts)?;
        Ok(Drive::new(engine, &point, device.size_bytes(), 1 + index as u64))
    }))
}
