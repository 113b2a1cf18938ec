//! One arm at one point: threads with a ring each on a null device, whose bios come from where the arm says.
//!
//! * A1. Device, ring and loop are the same in every arm but for the cache's bound and the store behind it.
//! * A2. The calls of the allocator are counted before the first turn, so that turns do not pay for the counting.

use std::sync::{Arc, Mutex, PoisonError};

use sheave::{Ring, RingBuilder, RingError, open_device};
use sheave_load::{SheaveEngine, cpu};

use super::design::{AFTER, HOOK, POOL, SEED};
use super::stores::{Allocator, Nothing, SharedPool};
use crate::crew::{Crew, MakeDrive};
use crate::drive::{self, Drive};
use crate::experiment::{ArmRun, Lab, Turn, TurnEnd};
use crate::{LabError, Point, alloc};

/// The bound that the thread's cache had (ALLOC_CACHE_MAX); its slack is the product's too.
const SEED_MAX: u32 = 512;
/// I/Os before anything is counted: every bio was used once.
const WARM_UP: u64 = 4096;
/// I/Os that are counted.
const COUNTED: u64 = 4096;

/// Who ends the I/O of a point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ends {
    /// The ring's thread, which polls.
    Polled,
    /// The ring's thread, which does not: `submit` ends what is ready too.
    Unpolled,
    /// Another thread, as an interrupt would.
    Thread,
}

impl Ends {
    /// Of a point.
    pub fn of(point: &Point) -> Result<Ends, LabError> {
        match point.text("ends").unwrap_or("polled") {
            "polled" => Ok(Ends::Polled),
            "unpolled" => Ok(Ends::Unpolled),
            "thread" => Ok(Ends::Thread),
            other => Err(LabError::usage(format!("ends={other} in the point {point}"))
                .fix("ends= is polled, unpolled or thread")),
        }
    }

    fn device(self) -> &'static str {
        if self == Ends::Thread { "null:size=1T,complete=thread" } else { "null:size=1T" }
    }
}

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
        // As large as the ring wants it; that it is bounded at all has the ring take a bio for each I/O.
        AFTER => builder.bio_cache(u32::MAX),
        // What is not polled is not cacheable: the thread's cache could not bear another thread's put.
        SEED if ends == Ends::Polled => builder.bio_cache(SEED_MAX),
        _ => builder.bio_cache(0),
    }
}

/// What stands behind the cache of an arm; `pool` is this ring's end of the arm's pool.
pub fn put_store(ring: &mut Ring, arm: usize, pool: impl FnOnce() -> SharedPool) -> Result<(), RingError> {
    match arm {
        AFTER => Ok(()),
        HOOK => ring.set_bio_store(Box::new(Nothing)),
        POOL => ring.set_bio_store(Box::new(pool())),
        _ => ring.set_bio_store(Box::new(Allocator::default())),
    }
}

/// How the loops of an arm are made.
fn drives(lab: &Lab, arm: usize, point: &Point) -> Result<MakeDrive, LabError> {
    let ends = Ends::of(point)?;
    let device = open_device(ends.device()).map_err(|err| LabError::run(err.to_string()))?;
    let (lab, point, shared) = (lab.clone(), point.clone(), Mutex::new(SharedPool::default()));
    Ok(Arc::new(move |index| {
        let opts = drive::opts(&point, ends == Ends::Polled);
        let attach = |ring: &mut Ring| {
            put_store(ring, arm, || shared.lock().unwrap_or_else(PoisonError::into_inner).another())?;
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
