//! Earlier designs of the worker pool, kept for comparison with Sheave's.
//!
//! | arm | queue | a worker takes | workers |
//! |---|---|---|---|
//! | one-list | one list, one spinlock; flags are read at each use | one item | made if an item finds none free |
//! | flags-once | the same; flags are read once | one item | the same |
//! | sharded | a list and a spinlock for each worker, filled round-robin | one item of its own list | one per list |
//!
//! The designs follow the kernel's io-wq. An item is part of its request and is not allocated. A submitter wakes a free
//! worker, or makes another one if none is free and the maximum allows: each item has `IOSQE_ASYNC`, which the kernel
//! takes as the wish to run in parallel with the others (`IO_WQ_WORK_CONCURRENT`). A worker takes items until its list
//! is empty. A worker that is about to block wakes or makes another one if none runs and items are queued. Hashed work
//! is handled like in the kernel of the time: the list is searched from the front for an item whose hash no worker
//! runs.
//!
//! The lock spins, and yields its CPU after a while. Unlike a lock holder in the kernel, a thread here can be preempted
//! while it holds the lock, and others would spin during all that time. Waiting counts only the time spent trying, on a
//! CPU.
//!
//! * O1. A list's lock is taken only with `try_lock`, so that no thread ever sleeps for it.
//! * O2. `running` counts the workers that are neither free nor blocked, and changes under the lock. A worker that is
//!   woken counts as running from the moment it is removed from the free ones.

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

/// Flag of an item with a hash. The hash is in the bits from `HASH_SHIFT` on.
const HASHED: u32 = 1;
const UNBOUND: u32 = 2;
const HASH_SHIFT: u32 = 24;
const HASHES: usize = u64::BITS as usize;
/// Number of failed tries of the lock after which the CPU is yielded.
const SPINS: u32 = 1000;
/// Duration of a try in ns above which the thread was preempted; the time of such a try does not count as waiting.
const PREEMPTED_NS: u64 = 2000;

/// An item, which is part of its request like in the kernel. Its flags are atomic because others may change them.
struct Item {
    flags: AtomicU32,
    slot: u32,
    /// Index of the item's submitter in [`Lists::backs`].
    client: u32,
    queued: u64,
}

/// An item that was taken, and its hash. No other worker may run an item with this hash now.
type Taken = (Item, Option<usize>);

#[derive(Default)]
struct List {
    items: VecDeque<Item>,
    /// Bit set of the hashes that workers are running.
    busy: u64,
    /// Free workers. The last one to become free is woken first.
    free: Vec<Unparker>,
    /// Number of workers that run (O2), and below it the number of workers made.
    running: u32,
    made: u32,
    ends: bool,
    /// Number of acquisitions of the lock, and below it of those whose first try failed.
    taken: u64,
    contended: u64,
    /// Number of reads of items' flag words.
    flag_reads: u64,
    wait_cycles: u64,
    hold_cycles: u64,
}

/// The step that queued items need once the lock is released.
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

/// A pool of one of these designs, with its threads.
pub struct OldPool {
    shared: Arc<Lists>,
}

impl OldPool {
    /// Makes a pool with one list, or with one list for each worker if `sharded` is true.
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

    /// Registers a submitter. `first` is the index of the list that gets its first item.
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

    /// Returns the counts of all lists. If they were measured, includes times and start latencies.
    pub fn figures(&self) -> PoolFigures {
        let mut figures = PoolFigures::default();
        for shard in &self.shared.shards {
            let list = self.shared.lock(shard).0;
            let ns = |cycles| self.shared.clock.as_ref().map_or(0, |clock| clock.cycles_to_ns(cycles));
            figures.created += u64::from(list.made);
            figures.hold_ns += ns(list.hold_cycles);
            figures.wait_ns += ns(list.wait_cycles);
            // Who waits for a spinlock does not sleep.
            figures.wait_cpu_ns += ns(list.wait_cycles);
            // Without the acquisition of this call.
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
        // `answer` holds this lock from before it spawns a thread until the handle is stored, so a thread that is being
        // made is not missed.
        let threads = std::mem::take(&mut *self.shared.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A panic of the worker was already printed.
            let _ = thread.join();
        }
    }
}

impl Lists {
    /// Main loop of a worker: takes items until the list is empty, then parks as a free worker.
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

    /// Returns the step that queued items need: wake a free worker, or make one if none is free and the maximum allows.
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
                    // If the CPUs are refused, that was reported when the run was planned.
                    let _ = cpu::pin_to(&shared.cpus);
                    shared.serve(at, parker);
                };
                let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
                let thread = thread::Builder::new().name(format!("old-wq-{}", threads.len()));
                match Parker::new().and_then(|parker| thread.spawn(move || body(parker))) {
                    Ok(thread) => threads.push(thread),
                    // Like in the kernel, the next item or the next worker that blocks tries again.
                    Err(_) => {
                        let mut list = self.lock(&self.shards[at]).0;
                        list.running -= 1;
                        list.made -= 1;
                    }
                }
            }
        }
    }

    /// Runs an item. Returns its hash. The caller marks the hash as free when it takes the lock next.
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

    /// Called before a worker sleeps in its item. Wakes or makes another worker if this was the last running one and
    /// items are queued.
    fn blocked(self: &Arc<Self>, at: usize) {
        let (mut list, since) = self.lock(&self.shards[at]);
        list.running -= 1;
        let alone = list.running == 0 && !list.items.is_empty();
        let ask = if alone { self.ask(&mut list) } else { Ask::Nothing };
        self.unlock_times(&mut list, since);
        drop(list);
        self.answer(ask, at);
    }

    /// Removes the first item that may run, and marks its hash as busy.
    fn take(&self, list: &mut List) -> Option<Taken> {
        for at in 0..list.items.len() {
            let item = &list.items[at];
            crossing(item);
            // Relaxed: the flags order nothing else.
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

    /// Takes the lock by trying (O1). Returns the guard and the time of acquisition. Counts waiting only if the first
    /// try failed.
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

#[cfg(not(sheave_mesi))]
fn try_lock(list: &Mutex<List>) -> Option<MutexGuard<'_, List>> {
    match list.try_lock() {
        Ok(list) => Some(list),
        Err(std::sync::TryLockError::Poisoned(list)) => Some(list.into_inner()),
        Err(std::sync::TryLockError::WouldBlock) => None,
    }
}

/// In the simulation waiters queue like in the kernel's queued spinlock, where each spins on a word of its own.
#[cfg(sheave_mesi)]
fn try_lock(list: &Mutex<List>) -> Option<MutexGuard<'_, List>> {
    Some(list.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A submitter of the pool.
pub struct OldClient {
    shared: Arc<Lists>,
    client: u32,
    /// This field and the next two are used in pools without threads: the return paths, then for each list the hash
    /// that still counts as running, then the list to take from next.
    backs: Vec<Back>,
    left: Vec<Option<usize>>,
    at: usize,
    next: usize,
}

impl Client for OldClient {
    /// Queues an item under the lock at once, like the kernel does, and not in `commit`.
    fn queue(&mut self, slot: u32, hash: Option<u32>) {
        let shared = &self.shared;
        let flags = hash.map_or(0, |hash| HASHED | (hash % HASHES as u32) << HASH_SHIFT);
        let queued = shared.clock.as_ref().map_or(0, Clock::cycles);
        let item = Item { flags: AtomicU32::new(flags), slot, client: self.client, queued };
        // Items of a hash must go to one list to keep their order.
        let at = hash.map_or(self.next, |hash| hash as usize) % shared.shards.len();
        self.next += 1;
        let (mut list, since) = shared.lock(&shared.shards[at]);
        if !shared.flags_once {
            // The kernel reads the account and the hash from the flags under the lock, with a separate read for each.
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
mod tests {
    use super::super::Limit;
    use super::super::pool_engine::PoolEngine;
    use super::*;
    use sheave_load::engine::Engine;

    fn flood() -> Flood {
        Flood {
            depth: 64,
            batch: 8,
            workers: 3,
            submitters: 1,
            work: Work::Nop,
            hashed: 0,
            warm_up: Limit::Items(0),
            turn: Limit::Items(64),
            cpus: Vec::new(),
            worker_cpus: Vec::new(),
            stepped: false,
            stop: Arc::default(),
        }
    }

    #[test]
    fn each_arm_ends_every_item_once_whatever_its_hash() {
        for (sharded, flags_once, hashed) in [(false, false, 0), (false, true, 3), (true, true, 0), (true, true, 5)] {
            let pool = OldPool::new(&flood(), sharded, flags_once, true);
            let mut engine = PoolEngine::new(64, hashed, true, |back| Ok(pool.client(0, back))).expect("an engine");
            for slot in 0..64 {
                engine.prep(slot, false, 0);
            }
            engine.submit(64).expect("submitted");
            let mut seen = Vec::new();
            engine.reap(|slot, res| seen.push((slot, res)));
            seen.sort_unstable();
            assert_eq!(seen, (0..64).map(|slot| (slot, 0)).collect::<Vec<_>>());
            let figures = pool.figures();
            let made = if sharded && hashed == 0 { 3 } else { figures.created };
            assert_eq!((figures.created, figures.starts.iter().map(|&(_, count)| count).sum::<u64>()), (made, 64));
            assert!((1..=3).contains(&made), "{made} workers of at most 3");
            assert!(figures.hold_ns > 0);
        }
    }

    #[test]
    fn a_worker_is_made_for_each_item_that_finds_none_free_and_no_more_than_may_be() {
        let created = |items: u32, time| {
            let flood = Flood { work: Work::Spin(std::time::Duration::from_millis(time)), ..flood() };
            let pool = OldPool::new(&flood, false, true, false);
            let mut engine = PoolEngine::new(64, 0, true, |back| Ok(pool.client(0, back))).expect("an engine");
            (0..items).for_each(|slot| engine.prep(slot, false, 0));
            engine.submit(items).expect("submitted");
            pool.figures().created
        };
        for (items, made) in [(1, 1), (2, 2), (3, 3), (8, 3)] {
            // No item blocks, and none ends before the last one is queued, except on a busy machine. There they are
            // repeated and take longer.
            let (mut seen, mut times) = (0, [5, 50, 500].into_iter());
            while seen < made {
                let time = times.next().unwrap_or_else(|| panic!("{seen} workers for {items} items"));
                seen = created(items, time);
            }
            assert_eq!(seen, made, "{items} items");
        }
    }

    #[test]
    fn another_worker_comes_when_the_last_one_blocks() {
        let flood = Flood { work: Work::Sleep(std::time::Duration::from_millis(2)), workers: 4, ..flood() };
        let pool = OldPool::new(&flood, false, true, false);
        let mut engine = PoolEngine::new(64, 0, true, |back| Ok(pool.client(0, back))).expect("an engine");
        let mut rounds = 0;
        // On a busy machine the workers that have come may do all before the last one has begun.
        while rounds < 2 || (rounds < 1000 && pool.figures().created < 4) {
            (0..8).for_each(|slot| engine.prep(slot, false, 0));
            engine.submit(8).expect("submitted");
            assert_eq!(engine.reap(|_, _| ()), 8, "round {rounds}");
            rounds += 1;
        }
        assert_eq!(pool.figures().created, 4, "each that sleeps leaves work behind, up to the most there may be");
    }

    #[test]
    fn the_lock_counts_what_is_spent_trying() {
        let pool = OldPool::new(&flood(), false, true, true);
        // A waiter that starts late finds the lock free, and is followed by another.
        let met = (0..100).find_map(|_| {
            let held = pool.shared.lock(&pool.shared.shards[0]);
            let shared = pool.shared.clone();
            let waiter = std::thread::spawn(move || {
                let list = shared.lock(&shared.shards[0]).0;
                (list.contended, list.wait_cycles)
            });
            std::thread::sleep(std::time::Duration::from_millis(5));
            drop(held);
            Some(waiter.join().expect("no panic")).filter(|(contended, _)| *contended > 0)
        });
        let (contended, waited) = met.expect("a waiter that met the lock held");
        assert!(contended == 1 && waited > 0);
    }
}
