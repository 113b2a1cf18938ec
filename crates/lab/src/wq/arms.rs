//! The pools that came before: kept here to be measured against, and nowhere else.
//!
//! | arm | queue | a worker takes | workers |
//! |---|---|---|---|
//! | one-list | one list, one spinlock; flags are read where needed | one item | one more if an item finds none free |
//! | flags-once | the same; flags are read once | one item | the same |
//! | sharded | a list, a spinlock and a worker each; submitters go round | one item of its own list | one a list |
//!
//! Built as the kernel's io-wq was: an item is part of its request and is not allocated; a submitter that finds a free
//! worker wakes that one, and makes another where none is free and there may be more: each item has `IOSQE_ASYNC`,
//! which the kernel takes as the wish to run beside the others (`IO_WQ_WORK_CONCURRENT`). A worker goes on until its
//! list is empty, and one that is about to block has another woken or made when nobody else runs and work waits.
//! Hashed work as in the kernel of the time: the list is searched from the front for an item whose hash nobody runs.
//!
//! The lock spins, and yields its CPU when that takes long, for a holder that was preempted would otherwise be waited
//! for all its time away (a kernel's holder cannot be). What counts as waiting is time spent trying, on a CPU.
//!
//! * O1. Only `try_lock` takes a list's lock, so that no thread ever sleeps for it.
//! * O2. `running` counts the workers that are neither free nor blocked, and changes under the lock; a worker that is
//!   woken counts from when it was taken from the free ones.

use std::collections::VecDeque;
use std::sync::PoisonError;

use sheave_base::clock::Clock;
use sheave_base::histogram::{Histogram, cells};
use sheave_base::parker::{Parker, Unparker};
use sheave_base::sync::atomic::{AtomicU32, Ordering};
use sheave_base::sync::thread::{self, JoinHandle};
use sheave_base::sync::{Arc, Mutex, MutexGuard, crossing, hint};

use super::pool_engine::{Back, Client, perform};
use super::{Flood, PoolFigures, Work};
use sheave_load::cpu;

/// Flags of an item: it has a hash, in the bits from `HASH_SHIFT` on.
const HASHED: u32 = 1;
const UNBOUND: u32 = 2;
const HASH_SHIFT: u32 = 24;
const HASHES: usize = u64::BITS as usize;
/// Tries of the lock before the CPU is yielded.
const SPINS: u32 = 1000;
/// A try that took longer, in ns, was not on a CPU.
const PREEMPTED_NS: u64 = 2000;

/// An item, as the kernel has it: a part of its request, with a word of flags that others may change.
struct Item {
    flags: AtomicU32,
    slot: u32,
    /// Whose it is: an index of [`Lists::backs`].
    client: u32,
    queued: u64,
}

/// An item that was taken, and the hash that nobody else may run now.
type Taken = (Item, Option<usize>);

#[derive(Default)]
struct List {
    items: VecDeque<Item>,
    /// A bit a hash that somebody runs.
    busy: u64,
    /// Workers that have nothing to do, the last one first.
    free: Vec<Unparker>,
    /// Workers that run (O2), and those that were made.
    running: u32,
    made: u32,
    ends: bool,
    /// Times the lock was taken, and of these when somebody else had it.
    taken: u64,
    contended: u64,
    /// Reads of a word of flags.
    flag_reads: u64,
    wait_cycles: u64,
    hold_cycles: u64,
}

/// What a change of the list asks for, once the lock is free again.
enum Ask {
    Nothing,
    Wake(Unparker),
    Make,
}

#[derive(Default)]
#[repr(align(128))]
struct Shard {
    list: Mutex<List>,
}

struct Lists {
    shards: Vec<Shard>,
    /// Most workers of a list.
    most: u32,
    work: Work,
    flags_once: bool,
    clock: Option<Clock>,
    starts: Option<Histogram<0, { cells(0, 64) }>>,
    cpus: Vec<usize>,
    backs: Mutex<Vec<Back>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    stepped: bool,
}

/// One of these pools, with its threads.
pub struct OldPool {
    shared: Arc<Lists>,
}

impl OldPool {
    /// One list, or one a worker.
    pub fn new(flood: &Flood, sharded: bool, flags_once: bool, measure: bool) -> Self {
        let shards = if sharded { flood.workers } else { 1 };
        Self {
            shared: Arc::new(Lists {
                shards: (0..shards).map(|_| Shard::default()).collect(),
                most: flood.workers / shards,
                work: flood.work,
                flags_once,
                clock: measure.then(Clock::real),
                starts: measure.then(Histogram::default),
                cpus: flood.worker_cpus.clone(),
                backs: Mutex::default(),
                threads: Mutex::default(),
                stepped: flood.stepped,
            }),
        }
    }

    /// A submitter's way in.
    pub fn client(&self, first: u32, back: Back) -> OldClient {
        let mut backs = self.shared.backs.lock().unwrap_or_else(PoisonError::into_inner);
        backs.push(back.clone());
        OldClient {
            shared: Arc::clone(&self.shared),
            client: backs.len() as u32 - 1,
            backs: Vec::new(),
            next: first as usize,
            left: vec![None; self.shared.shards.len()],
            at: 0,
        }
    }

    /// What was counted and measured.
    pub fn figures(&self) -> PoolFigures {
        let mut figures = PoolFigures::default();
        for shard in &self.shared.shards {
            let list = self.shared.lock(shard).0;
            let ns = |cycles| self.shared.clock.as_ref().map_or(0, |clock| clock.cycles_to_ns(cycles));
            figures.created += u64::from(list.made);
            figures.hold_ns += ns(list.hold_cycles);
            figures.wait_ns += ns(list.wait_cycles);
            // Not this look itself.
            figures.taken += list.taken - 1;
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
            let mut list = self.shared.lock(shard).0;
            list.ends = true;
            list.free.drain(..).for_each(|free| free.unpark());
        }
        // A worker that is being made has its handle here before it can end.
        let threads = std::mem::take(&mut *self.shared.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A worker that panicked has said so.
            let _ = thread.join();
        }
    }
}

impl Lists {
    /// A worker's life: it takes items until the list is empty, and is free then.
    fn serve(self: &Arc<Self>, at: usize, mut parker: Parker) {
        let shard = &self.shards[at];
        let (mut left, mut backs): (Option<usize>, Vec<Back>) = (None, Vec::new());
        loop {
            let (mut list, since) = self.lock(shard);
            if let Some(hash) = left.take() {
                list.busy &= !(1_u64 << hash);
            }
            let work = self.take(&mut list);
            if work.is_none() {
                if list.ends {
                    return;
                }
                list.running -= 1;
                list.free.push(parker.unparker());
            }
            self.unlock_times(&mut list, since);
            drop(list);
            match work {
                Some(work) => left = self.run(work, at, &mut backs),
                None => {
                    parker.park(None);
                }
            }
        }
    }

    /// There is work: whom that asks for. A free worker is woken; another is made where none is free.
    fn ask(&self, list: &mut List) -> Ask {
        if list.ends || self.stepped {
            return Ask::Nothing;
        }
        if let Some(free) = list.free.pop() {
            list.running += 1;
            return Ask::Wake(free);
        }
        if list.made >= self.most {
            return Ask::Nothing;
        }
        list.running += 1;
        list.made += 1;
        Ask::Make
    }

    fn answer(self: &Arc<Self>, ask: Ask, at: usize) {
        match ask {
            Ask::Nothing => {}
            Ask::Wake(free) => free.unpark(),
            Ask::Make => {
                let shared = Arc::clone(self);
                let body = move |parker| {
                    // Checked when the run was planned.
                    let _ = cpu::pin_to(&shared.cpus);
                    shared.serve(at, parker);
                };
                let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
                let thread = thread::Builder::new().name(format!("old-wq-{}", threads.len()));
                match Parker::new().and_then(|parker| thread.spawn(move || body(parker))) {
                    Ok(thread) => threads.push(thread),
                    // As in the kernel: the next item, or the next worker that blocks, tries again.
                    Err(_) => {
                        let mut list = self.lock(&self.shards[at]).0;
                        list.running -= 1;
                        list.made -= 1;
                    }
                }
            }
        }
    }

    /// Runs it; its hash is nobody else's until the next look.
    fn run(self: &Arc<Self>, (item, hash): Taken, at: usize, backs: &mut Vec<Back>) -> Option<usize> {
        if let (Some(clock), Some(starts)) = (&self.clock, &self.starts) {
            starts.add_shared(clock.cycles_to_ns(clock.cycles().wrapping_sub(item.queued)));
        }
        let work = self.work.of(item.slot);
        let blocks = matches!(work, Work::Sleep(_)) && !self.stepped;
        if blocks {
            self.blocked(at);
        }
        perform(work);
        if blocks {
            self.lock(&self.shards[at]).0.running += 1;
        }
        if item.client as usize >= backs.len() {
            backs.clone_from(&self.backs.lock().unwrap_or_else(PoisonError::into_inner));
        }
        backs[item.client as usize].finish([item.slot]);
        hash
    }

    /// A worker is about to sleep in its item: if it was the last one that ran, the work that waits needs another.
    fn blocked(self: &Arc<Self>, at: usize) {
        let (mut list, since) = self.lock(&self.shards[at]);
        list.running -= 1;
        let alone = list.running == 0 && !list.items.is_empty();
        let ask = if alone { self.ask(&mut list) } else { Ask::Nothing };
        self.unlock_times(&mut list, since);
        drop(list);
        self.answer(ask, at);
    }

    /// The first item that may run, and its hash.
    fn take(&self, list: &mut List) -> Option<Taken> {
        for at in 0..list.items.len() {
            let item = &list.items[at];
            crossing(item);
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

    /// Takes the lock by trying (O1); what is not contended was not waited for.
    fn lock<'a>(&self, shard: &'a Shard) -> (MutexGuard<'a, List>, u64) {
        let cycles = || self.clock.as_ref().map_or(0, Clock::cycles);
        let longest = self.clock.as_ref().map_or(0, |clock| clock.ns_to_cycles(PREEMPTED_NS));
        let (mut tries, mut waited, mut last) = (0, 0, 0);
        loop {
            let found = try_lock(&shard.list);
            let now = cycles();
            let spent = now.wrapping_sub(last);
            if tries > 0 && spent <= longest {
                waited += spent;
            }
            if let Some(mut list) = found {
                list.contended += u64::from(tries > 0);
                list.wait_cycles += waited;
                list.taken += 1;
                return (list, now);
            }
            (tries, last) = (tries + 1, now);
            if tries % SPINS == 0 {
                thread::yield_now();
            } else {
                hint::spin_loop();
            }
        }
    }

    fn unlock_times(&self, list: &mut List, since: u64) {
        if let Some(clock) = &self.clock {
            list.hold_cycles += clock.cycles().wrapping_sub(since);
        }
    }
}

/// One try of the lock.
#[cfg(not(sheave_mesi))]
fn try_lock(list: &Mutex<List>) -> Option<MutexGuard<'_, List>> {
    match list.try_lock() {
        Ok(list) => Some(list),
        Err(std::sync::TryLockError::Poisoned(list)) => Some(list.into_inner()),
        Err(std::sync::TryLockError::WouldBlock) => None,
    }
}

/// In the simulation waiters wait as those of the kernel's queued spinlock do, each at a word of its own.
#[cfg(sheave_mesi)]
fn try_lock(list: &Mutex<List>) -> Option<MutexGuard<'_, List>> {
    Some(list.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A submitter's way in.
pub struct OldClient {
    shared: Arc<Lists>,
    client: u32,
    /// Without threads: the ways back, whose hash still counts as running, by list, and where to look next.
    backs: Vec<Back>,
    left: Vec<Option<usize>>,
    at: usize,
    next: usize,
}

impl Client for OldClient {
    /// Like the kernel, item by item.
    fn queue(&mut self, slot: u32, hash: Option<u32>) {
        let shared = &self.shared;
        let flags = hash.map_or(0, |hash| HASHED | (hash % HASHES as u32) << HASH_SHIFT);
        let queued = shared.clock.as_ref().map_or(0, Clock::cycles);
        let item = Item { flags: AtomicU32::new(flags), slot, client: self.client, queued };
        // Items of a hash must meet in one list to keep their order.
        let at = hash.map_or(self.next, |hash| hash as usize) % shared.shards.len();
        self.next += 1;
        let (mut list, since) = shared.lock(&shared.shards[at]);
        if !shared.flags_once {
            // The account and the hash, each by a read of its own under the lock.
            let unbound = item.flags.load(Ordering::Relaxed) & UNBOUND;
            let hash = item.flags.load(Ordering::Relaxed) >> HASH_SHIFT;
            list.flag_reads += 2;
            std::hint::black_box((unbound, hash));
        }
        list.items.push_back(item);
        list.items.back().inspect(|item| crossing(*item));
        let ask = shared.ask(&mut list);
        shared.unlock_times(&mut list, since);
        drop(list);
        shared.answer(ask, at);
    }

    fn commit(&mut self) {}

    fn step(&mut self) -> bool {
        if !self.shared.stepped {
            return false;
        }
        for _ in 0..self.left.len() {
            let at = self.at;
            self.at = (at + 1) % self.left.len();
            let (mut list, since) = self.shared.lock(&self.shared.shards[at]);
            if let Some(hash) = self.left[at].take() {
                list.busy &= !(1_u64 << hash);
            }
            let work = self.shared.take(&mut list);
            self.shared.unlock_times(&mut list, since);
            drop(list);
            if let Some(work) = work {
                self.left[at] = self.shared.run(work, at, &mut self.backs);
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests;
