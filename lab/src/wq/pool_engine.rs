//! An engine over a pool without a ring, and the return path of results that all pools here share.
//!
//! Whatever pool runs the items, results return through the queue and the parker that a ring uses. So arms differ only
//! in their queues and workers.

use std::time::{Duration, Instant};

use sheave_base::clock::Clock;
use sheave_base::mpscq::{Consumer, MpscQueue};
use sheave_base::parker::{Parker, Unparker};
use sheave_uring::WorkDone;
use sheave_uring::io_wq::{Ends, Section, Source, Submitter, WorkFlags};

use super::Work;
use sheave_load::LoadError;
use sheave_load::engine::Engine;
use sheave_load::looper::{Driven, Looper, Until};
use sheave_load::pace::Pace;
use sheave_load::pattern::Pattern;

/// Time for which a submitter polls for results before it sleeps, like a ring does.
const SPIN: Duration = Duration::from_micros(10);

/// A submitter of a pool.
pub trait Client {
    fn queue(&mut self, slot: u32, hash: Option<u32>);
    /// Submits the queued slots.
    fn commit(&mut self);
    /// In a pool without threads, runs some items on this thread. Returns false if there are none, or if the pool has
    /// threads.
    fn step(&mut self) -> bool;
}

/// The workers' end of the return path.
#[derive(Clone)]
pub struct Back {
    queue: MpscQueue,
    unparker: Unparker,
}

impl Back {
    /// Reports the slots as done, and wakes the submitter.
    pub fn finish(&self, slots: impl IntoIterator<Item = u32>) {
        self.queue.push_all(slots);
        self.unparker.unpark();
    }
}

/// An engine whose `submit` queues items in a pool and waits for results.
pub struct PoolEngine<A> {
    arm: A,
    back: Consumer,
    parker: Parker,
    ready: Vec<u32>,
    clock: Clock,
    spin: u64,
    hashed: u32,
}

impl<A: Client> PoolEngine<A> {
    /// Makes an engine over the client that `arm` builds; `arm` gets the end of the return path through which workers
    /// pass results back. `spins` is true if workers can run while the submitter polls. The caller must say so, because
    /// this thread may be pinned to a CPU although the workers are not.
    pub fn new(
        depth: u32,
        hashed: u32,
        spins: bool,
        arm: impl FnOnce(Back) -> Result<A, LoadError>,
    ) -> Result<Self, LoadError> {
        let parker = Parker::new().map_err(|err| LoadError::run(format!("no event descriptor: {err}")))?;
        let (queue, consumer) = MpscQueue::new(depth);
        let arm = arm(Back { queue, unparker: parker.unparker() })?;
        let clock = Clock::real();
        let spin = if spins { clock.ns_to_cycles(SPIN.as_nanos() as u64) } else { 0 };
        Ok(Self { arm, back: consumer, parker, ready: Vec::with_capacity(depth as usize), clock, spin, hashed })
    }

    fn collect(&mut self) {
        while let Some(slot) = self.back.pop() {
            self.ready.push(slot);
        }
    }
}

impl<A: Client> Driven for PoolEngine<A> {
    fn run(looper: &mut Looper<Self>, pattern: &mut Pattern, until: &Until, pace: &mut Pace) -> Result<(), LoadError> {
        looper.turns(pattern, until, pace)
    }
}

impl<A: Client> Engine for PoolEngine<A> {
    fn expected(&self) -> i32 {
        0
    }

    #[inline]
    fn prep(&mut self, slot: u32, _: bool, _: u64) {
        let hash = (self.hashed > 0).then(|| slot % self.hashed);
        self.arm.queue(slot, hash);
    }

    #[inline]
    fn submit(&mut self, wait: u32) -> Result<(), LoadError> {
        self.arm.commit();
        let mut from = self.clock.cycles();
        loop {
            self.collect();
            if self.ready.len() >= wait as usize {
                return Ok(());
            }
            if self.arm.step() {
                continue;
            }
            if self.clock.cycles().wrapping_sub(from) < self.spin {
                std::hint::spin_loop();
            } else if self.parker.prepare_sleep() {
                if self.back.is_empty() {
                    self.parker.park(None);
                } else {
                    self.parker.cancel_sleep();
                }
                from = self.clock.cycles();
            }
        }
    }

    #[inline]
    fn reap(&mut self, mut done: impl FnMut(u32, i32)) -> u32 {
        self.collect();
        let reaped = self.ready.len() as u32;
        for slot in self.ready.drain(..) {
            done(slot, 0);
        }
        reaped
    }

    fn buffer(&mut self, _: u32) -> &mut [u8] {
        &mut []
    }
}

/// Does the work of an item.
pub fn perform(work: Work) {
    match work {
        Work::Nop => {}
        Work::Spin(time) => {
            let start = Instant::now();
            while start.elapsed() < time {
                std::hint::spin_loop();
            }
        }
        Work::Sleep(time) => std::thread::sleep(time),
        Work::Http => debug_assert!(false, "each item is something of it"),
    }
}

/// The items of one submitter in Sheave's pool.
pub struct BenchSource {
    pub work: Work,
    pub back: Back,
}

impl Source for BenchSource {
    type Context = ();

    fn run(&self, _: &mut (), slot: u32, _: &Section<'_>) -> WorkDone {
        perform(self.work.of(slot));
        WorkDone::Result(0)
    }

    fn run_short(&self, _: &mut (), slots: &[u32], ends: &mut impl Ends) {
        for at in 0..slots.len() {
            ends.end(at, WorkDone::Result(0));
        }
    }

    fn finish(&self, done: &[(u32, WorkDone)]) {
        self.back.finish(done.iter().map(|&(slot, _)| slot));
    }
}

/// A submitter of Sheave's pool.
pub struct Stealing {
    submitter: Submitter<BenchSource>,
    short: bool,
}

impl Stealing {
    pub fn new(submitter: Submitter<BenchSource>, work: Work) -> Self {
        Self { submitter, short: work == Work::Nop }
    }
}

impl Client for Stealing {
    #[inline]
    fn queue(&mut self, slot: u32, hash: Option<u32>) {
        let flags = match (hash, self.short) {
            (None, true) => WorkFlags::SHORT,
            (None, false) => WorkFlags::BOUND,
            (Some(hash), _) => WorkFlags::hashed(hash),
        };
        let queued = self.submitter.queue(slot, flags);
        debug_assert!(queued, "the loop queues free slots");
    }

    #[inline]
    fn commit(&mut self) {
        self.submitter.commit();
    }

    #[inline]
    fn step(&mut self) -> bool {
        self.submitter.pool().step()
    }
}
