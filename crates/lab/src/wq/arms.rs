//! The pools that came before: kept here to be measured against, and nowhere else.
//!
//! | arm | queue | a worker takes | wakes |
//! |---|---|---|---|
//! | one-list | one list, one lock; flags are read wherever they are needed | one item | a worker an item |
//! | flags-once | the same; flags are read once | one item | the same |
//! | sharded | a list and a lock a worker; submitters go round | one item of its own list | that worker |
//!
//! All their workers are there from the start. What a woken worker waits for its list is part of its sleep, and is not
//! told as waiting for a lock. Hashed work as in the kernel of the time: the list is searched from
//! the front for an item whose hash nobody runs.

use sheave_base::sync::atomic::{AtomicU32, Ordering};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use sheave_base::clock::Clock;
use sheave_base::histogram::{Histogram, cells};

use super::pool_engine::{Back, Client, perform};
use super::{Flood, PoolFigures, Work};
use sheave_load::LoadError;
use sheave_load::cpu;

/// Flags of an item: it has a hash, in the bits from `HASH_SHIFT` on.
const HASHED: u32 = 1;
const UNBOUND: u32 = 2;
const HASH_SHIFT: u32 = 24;
const HASHES: usize = u64::BITS as usize;

/// An item, as the kernel has it: a word of flags that others may change.
struct Item {
    flags: AtomicU32,
    slot: u32,
    back: Back,
    queued: u64,
}

/// An item that was taken, and the hash that nobody else may run now.
type Taken = (Box<Item>, Option<usize>);

#[derive(Default)]
struct List {
    items: VecDeque<Box<Item>>,
    /// A bit a hash that somebody runs.
    busy: u64,
    sleeping: u32,
    ends: bool,
    /// Times the lock was taken, and of these when somebody else had it.
    taken: u64,
    contended: u64,
    /// Reads of a word of flags.
    flag_reads: u64,
    wait_cycles: u64,
    hold_cycles: u64,
}

#[derive(Default)]
#[repr(align(128))]
struct Shard {
    list: Mutex<List>,
    wake: Condvar,
}

struct Shared {
    shards: Vec<Shard>,
    work: Work,
    flags_once: bool,
    clock: Option<Clock>,
    starts: Option<Histogram<0, { cells(0, 64) }>>,
}

/// One of these pools, with its threads.
pub struct OldPool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl OldPool {
    /// One list, or one a worker.
    pub fn new(flood: &Flood, sharded: bool, flags_once: bool, measure: bool) -> Result<Self, LoadError> {
        let (workers, work) = (flood.workers, flood.work);
        let shards = if sharded { workers } else { 1 };
        let shared = Arc::new(Shared {
            shards: (0..shards).map(|_| Shard::default()).collect(),
            work,
            flags_once,
            clock: measure.then(Clock::real),
            starts: measure.then(Histogram::default),
        });
        let mut pool = Self { shared, threads: Vec::new() };
        for worker in 0..if flood.stepped { 0 } else { workers } {
            let shared = Arc::clone(&pool.shared);
            let cpus = flood.worker_cpus.clone();
            let body = move || {
                // Checked when the run was planned.
                let _ = cpu::pin_to(&cpus);
                shared.serve((worker % shards) as usize);
            };
            let thread = std::thread::Builder::new().name(format!("old-wq-{worker}")).spawn(body);
            pool.threads.push(thread.map_err(|err| LoadError::run(format!("cannot start a worker: {err}")))?);
        }
        Ok(pool)
    }

    /// A submitter's way in.
    pub fn client(&self, first: u32, back: Back) -> OldClient {
        let left = vec![None; self.shared.shards.len()];
        OldClient {
            shared: Arc::clone(&self.shared),
            back,
            next: first as usize,
            left,
            stepping: !self.has_threads(),
            at: 0,
        }
    }

    fn has_threads(&self) -> bool {
        !self.threads.is_empty()
    }

    /// What was counted and measured.
    pub fn figures(&self) -> PoolFigures {
        let mut figures = PoolFigures { created: self.threads.len() as u64, ..PoolFigures::default() };
        for shard in &self.shared.shards {
            let list = lock(&shard.list);
            let ns = |cycles| self.shared.clock.as_ref().map_or(0, |clock| clock.cycles_to_ns(cycles));
            figures.hold_ns += ns(list.hold_cycles);
            figures.wait_ns += ns(list.wait_cycles);
            figures.taken += list.taken;
            figures.contended += list.contended;
            figures.flag_reads += list.flag_reads;
        }
        let starts = self.shared.starts.iter().flat_map(|starts| starts.counted());
        figures.starts = starts.map(|(waits, count)| (*waits.end(), count)).collect();
        figures
    }
}

impl Drop for OldPool {
    fn drop(&mut self) {
        for shard in &self.shared.shards {
            lock(&shard.list).ends = true;
            shard.wake.notify_all();
        }
        for thread in self.threads.drain(..) {
            // A worker that panicked has said so.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// A worker's life.
    fn serve(&self, at: usize) {
        let shard = &self.shards[at];
        let mut left = None;
        while let Some(work) = self.next(shard, left, true) {
            left = self.run(work);
        }
    }

    /// What may run next, after the run of `left`'s hash has ended; `None` at the end, or when it may not sleep.
    fn next(&self, shard: &Shard, left: Option<usize>, sleeps: bool) -> Option<Taken> {
        let (mut list, mut since) = self.lock(shard);
        if let Some(hash) = left {
            list.busy &= !(1_u64 << hash);
        }
        loop {
            let work = self.take(&mut list);
            if work.is_some() || list.ends || !sleeps {
                self.unlock_times(&mut list, since);
                return work;
            }
            list.sleeping += 1;
            self.unlock_times(&mut list, since);
            list = shard.wake.wait(list).unwrap_or_else(PoisonError::into_inner);
            list.sleeping -= 1;
            drop(list);
            (list, since) = self.lock(shard);
        }
    }

    /// Runs it; its hash is nobody else's until the next look.
    fn run(&self, (item, hash): Taken) -> Option<usize> {
        if let (Some(clock), Some(starts)) = (&self.clock, &self.starts) {
            starts.add_shared(clock.cycles_to_ns(clock.cycles().wrapping_sub(item.queued)));
        }
        perform(self.work);
        item.back.finish([item.slot]);
        hash
    }

    /// The first item that may run, and its hash.
    fn take(&self, list: &mut List) -> Option<Taken> {
        for at in 0..list.items.len() {
            let item = &list.items[at];
            // Relaxed: flags are a word by themselves.
            let mut flags = item.flags.load(Ordering::Relaxed);
            list.flag_reads += 1;
            if flags & HASHED == 0 {
                return list.items.remove(at).map(|item| (item, None));
            }
            if !self.flags_once {
                flags = list.items[at].flags.load(Ordering::Relaxed);
                list.flag_reads += 1;
            }
            let hash = (flags >> HASH_SHIFT) as usize % HASHES;
            if list.busy & 1 << hash == 0 {
                list.busy |= 1 << hash;
                return list.items.remove(at).map(|item| (item, Some(hash)));
            }
        }
        None
    }

    /// As the pool's own lock counts: what is not contended was not waited for.
    fn lock<'a>(&self, shard: &'a Shard) -> (MutexGuard<'a, List>, u64) {
        let cycles = || self.clock.as_ref().map_or(0, Clock::cycles);
        let mut list = match shard.list.try_lock() {
            Ok(list) => list,
            Err(_) => {
                let from = cycles();
                let mut list = lock(&shard.list);
                list.contended += 1;
                list.wait_cycles += cycles().wrapping_sub(from);
                list
            }
        };
        list.taken += 1;
        (list, cycles())
    }

    fn unlock_times(&self, list: &mut List, since: u64) {
        if let Some(clock) = &self.clock {
            list.hold_cycles += clock.cycles().wrapping_sub(since);
        }
    }
}

/// A submitter's way in.
pub struct OldClient {
    shared: Arc<Shared>,
    back: Back,
    next: usize,
    /// Without threads: whose hash still counts as running, by list, and where to look next.
    left: Vec<Option<usize>>,
    stepping: bool,
    at: usize,
}

impl Client for OldClient {
    /// Like the kernel, item by item.
    fn queue(&mut self, slot: u32, hash: Option<u32>) {
        let shared = &*self.shared;
        let flags = hash.map_or(0, |hash| HASHED | (hash % HASHES as u32) << HASH_SHIFT);
        let queued = shared.clock.as_ref().map_or(0, Clock::cycles);
        let item = Box::new(Item { flags: AtomicU32::new(flags), slot, back: self.back.clone(), queued });
        // Items of a hash must meet in one list to keep their order.
        let at = hash.map_or(self.next, |hash| hash as usize) % shared.shards.len();
        self.next += 1;
        let shard = &shared.shards[at];
        let (mut list, since) = shared.lock(shard);
        if !shared.flags_once {
            // The account and the hash, each by a read of its own under the lock.
            let unbound = item.flags.load(Ordering::Relaxed) & UNBOUND;
            let hash = item.flags.load(Ordering::Relaxed) >> HASH_SHIFT;
            list.flag_reads += 2;
            std::hint::black_box((unbound, hash));
        }
        list.items.push_back(item);
        let wakes = list.sleeping > 0;
        shared.unlock_times(&mut list, since);
        drop(list);
        if wakes {
            shard.wake.notify_one();
        }
    }

    fn commit(&mut self) {}

    fn step(&mut self) -> bool {
        if !self.stepping {
            return false;
        }
        for _ in 0..self.left.len() {
            let at = self.at;
            self.at = (at + 1) % self.left.len();
            if let Some(work) = self.shared.next(&self.shared.shards[at], self.left[at].take(), false) {
                self.left[at] = self.shared.run(work);
                return true;
            }
        }
        false
    }
}

fn lock(list: &Mutex<List>) -> MutexGuard<'_, List> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
