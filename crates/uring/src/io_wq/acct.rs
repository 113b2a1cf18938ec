//! An account: the shards of one class of work, and how many workers it has doing what.
//!
//! Owns the decision to wake or create a worker, and the promise that no wake-up is lost. Does not own what workers
//! do (`worker`), nor how a thread is made (`pool`).
//!
//! A worker is in one of four places, counted in one word:
//!
//! | place | meaning |
//! |---|---|
//! | running | takes work, or looks for some; looks at every shard before it leaves |
//! | standby | was woken or made because nobody ran; becomes running unless somebody does |
//! | idle | sleeps, on the idle stack |
//! | in a section | runs an item that may block: all the others |
//!
//! Invariants:
//! - I1: whoever queues work looks at the counts afterwards; whoever leaves running or standby looks at the shards
//!   afterwards; each with a SeqCst fence in between. So if work is queued, somebody is running or on standby, or the
//!   limit is reached and all are in sections, from which they come back to running.
//! - I2: one standby at most, and none is made while somebody runs: N items that do not block are served by one
//!   worker, and one wake-up serves a batch.
//! - I3: workers <= limit when one is made; a limit that was lowered is reached as workers come by.
//! - I4: idle, standby and all change under the roster's lock; running changes anywhere.

use crossbeam_utils::CachePadded;
use sheave_base::clock::Clock;
use sheave_base::parker::Unparker;
use sheave_base::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use sheave_base::sync::thread;

use super::lock::{Lock, LockStats};
use super::shard::{Batch, Shard};
use super::thread_state::NO_CPU;
use super::work::Entry;

pub(super) const RUNNING: u64 = 1;
pub(super) const STANDBY: u64 = 1 << 16;
pub(super) const IDLE: u64 = 1 << 32;
pub(super) const WORKER: u64 = 1 << 48;

/// Workers of one account at most: a count has 16 bits.
pub(super) const MAX_WORKERS: u32 = 4096;

/// Workers in each place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counts(pub(super) u64);

impl Counts {
    pub(super) fn running(self) -> u32 {
        self.0 as u16 as u32
    }

    pub(super) fn standby(self) -> u32 {
        (self.0 >> 16) as u16 as u32
    }

    pub(super) fn idle(self) -> u32 {
        (self.0 >> 32) as u16 as u32
    }

    pub(super) fn all(self) -> u32 {
        (self.0 >> 48) as u16 as u32
    }

    pub(super) fn in_section(self) -> u32 {
        self.all().saturating_sub(self.running() + self.standby() + self.idle())
    }

    /// Without a worker in this place.
    pub(super) fn without(self, place: u64) -> Counts {
        Counts(self.0.wrapping_sub(place))
    }

    /// Whether nobody will look at the shards without being told.
    pub(super) fn nobody_looks(self) -> bool {
        self.running() == 0 && self.standby() == 0
    }
}

/// How the account reaches one of its workers.
#[derive(Clone, Debug)]
pub(super) struct WorkerRef {
    pub(super) id: u32,
    pub(super) unparker: Unparker,
}

/// What changes under the roster's lock.
#[derive(Debug, Default)]
pub(super) struct Roster {
    /// Sleeping workers; the last one is the warmest and goes first.
    pub(super) idle: Vec<WorkerRef>,
    pub(super) threads: Vec<(u32, thread::JoinHandle<()>)>,
    /// Thread ids of workers, for the kernel.
    pub(super) tids: Vec<(u32, u32)>,
    /// Workers whose thread is about to end.
    pub(super) ended: Vec<u32>,
    pub(super) next_id: u32,
    /// Workers made.
    pub(super) created: u64,
    /// Threads that could not be made.
    pub(super) failed: u64,
    /// No more workers are made.
    pub(super) closed: bool,
}

#[derive(Debug)]
pub(super) struct Acct {
    shards: Box<[CachePadded<Shard>]>,
    /// A bit a shard, set while it has entries (I2 of `shard`).
    nonempty: CachePadded<AtomicU64>,
    counts: CachePadded<AtomicU64>,
    /// Items that may block and have ended: how a standby sees that somebody makes progress.
    pub(super) progress: CachePadded<AtomicU64>,
    limit: AtomicU32,
    /// The CPUs on which work was queued last, and on which a worker took some last. Threads that share a CPU must not
    /// poll for each other.
    queued_on: AtomicU32,
    taken_on: AtomicU32,
    /// Standbys that may become running without watching first.
    pub(super) trust: AtomicU32,
    /// The thread id of the worker that entered a section last.
    pub(super) last_section: AtomicU32,
    pub(super) roster: Lock<Roster>,
}

impl Acct {
    pub(super) fn new(shards: usize, limit: u32, clock: Option<&Clock>) -> Acct {
        debug_assert!((1..=64).contains(&shards) && shards.is_power_of_two());
        Acct {
            shards: (0..shards).map(|_| CachePadded::new(Shard::new(clock.cloned()))).collect(),
            nonempty: CachePadded::new(AtomicU64::new(0)),
            counts: CachePadded::new(AtomicU64::new(0)),
            progress: CachePadded::new(AtomicU64::new(0)),
            limit: AtomicU32::new(limit),
            queued_on: AtomicU32::new(NO_CPU),
            taken_on: AtomicU32::new(NO_CPU),
            trust: AtomicU32::new(0),
            last_section: AtomicU32::new(0),
            roster: Lock::new(Roster::default(), clock.cloned()),
        }
    }

    pub(super) fn counts(&self) -> Counts {
        // SeqCst pairs with the fences of I1, and with itself: one order of all changes.
        Counts(self.counts.load(Ordering::SeqCst))
    }

    /// Moves workers between places: `add` and `sub` are made of the constants above.
    pub(super) fn move_counts(&self, add: u64, sub: u64) {
        // SeqCst pairs with `counts`.
        self.counts.fetch_add(add.wrapping_sub(sub), Ordering::SeqCst);
    }

    pub(super) fn limit(&self) -> u32 {
        // Relaxed: a limit that comes late is a limit that was set later.
        self.limit.load(Ordering::Relaxed)
    }

    pub(super) fn set_limit(&self, limit: u32) {
        // Relaxed: as above; the idle are woken through their parkers.
        self.limit.store(limit, Ordering::Relaxed);
        for worker in &self.roster.lock().idle {
            worker.unparker.unpark();
        }
    }

    /// Binds the workers that are there to CPUs.
    pub(super) fn place(&self, cpus: &[usize]) {
        for &(_, tid) in &self.roster.lock().tids {
            super::thread_state::settle(Some(tid), cpus);
        }
    }

    /// Work was queued here.
    #[inline]
    pub(super) fn note_queued(&self) {
        note(&self.queued_on);
    }

    /// A worker takes work here.
    #[inline]
    pub(super) fn note_taken(&self) {
        note(&self.taken_on);
    }

    /// Whether a worker that polled here would keep the submitter from its CPU.
    pub(super) fn is_in_submitters_way(&self) -> bool {
        // Relaxed: a guess, by a value that is old already.
        self.queued_on.load(Ordering::Relaxed) == super::thread_state::cpu()
    }

    /// Whether a submitter that polled here would keep the worker from its CPU.
    pub(super) fn is_in_workers_way(&self) -> bool {
        // Relaxed: as above.
        self.taken_on.load(Ordering::Relaxed) == super::thread_state::cpu()
    }

    #[inline]
    pub(super) fn has_work(&self) -> bool {
        // Relaxed: ordered by the fences of I1.
        self.nonempty.load(Ordering::Relaxed) != 0
    }

    pub(super) fn reserve(&self, slots: usize) {
        for shard in &self.shards {
            shard.lock().reserve(slots);
        }
    }

    /// The shard of a bucket: every item of a hash is there.
    fn shard_of(&self, bucket: u32) -> usize {
        bucket as usize & (self.shards.len() - 1)
    }

    /// Queues entries without a hash in a shard, in order.
    pub(super) fn push(&self, home: usize, entries: &[Entry], waits: &dyn Fn(Entry) -> bool) {
        let at = home & (self.shards.len() - 1);
        let mut queue = self.shards[at].lock();
        let was_empty = queue.is_empty();
        for &entry in entries {
            if queue.is_full() {
                queue.sweep(waits);
            }
            queue.push(entry);
        }
        if was_empty {
            self.mark(at);
        }
    }

    /// Queues an entry behind the others of its bucket.
    pub(super) fn push_hashed(&self, bucket: u32, entry: Entry, waits: &dyn Fn(Entry) -> bool) {
        let at = self.shard_of(bucket);
        let mut queue = self.shards[at].lock();
        let was_empty = queue.is_empty();
        if queue.is_full() {
            queue.sweep(waits);
        }
        queue.push_hashed(bucket, entry);
        if was_empty && !queue.is_empty() {
            self.mark(at);
        } else if queue.is_empty() {
            self.unmark(at);
        }
    }

    /// Takes the next batch: of the home shard, or else of another that has some. Releases the bucket of the batch
    /// before.
    pub(super) fn take(&self, home: usize, batch: &mut Batch) -> bool {
        batch.entries.clear();
        let mut start = home & (self.shards.len() - 1);
        if let Some((at, bucket)) = batch.claim.take() {
            let mut queue = self.shards[at].lock();
            let was_empty = queue.is_empty();
            queue.release(bucket);
            if queue.take(at, batch) {
                // What was released may be all there is, and is taken again; or it waits behind what was taken.
                self.remark(at, was_empty, queue.is_empty());
                return true;
            }
            self.remark(at, was_empty, queue.is_empty());
            start = at;
        }
        loop {
            // Relaxed: a bit that is not seen yet is looked for again before a worker sleeps (I1).
            let bits = self.nonempty.load(Ordering::Relaxed);
            if bits == 0 {
                return false;
            }
            // The first set bit from `start` on, going round.
            let ahead = bits >> start;
            let at = if ahead != 0 { start + ahead.trailing_zeros() as usize } else { bits.trailing_zeros() as usize };
            let mut queue = self.shards[at].lock();
            let was_empty = queue.is_empty();
            let any = queue.take(at, batch);
            self.remark(at, was_empty, queue.is_empty());
            if any {
                return true;
            }
        }
    }

    /// Releases a bucket without taking other work.
    pub(super) fn release(&self, (at, bucket): (usize, u32)) {
        let mut queue = self.shards[at].lock();
        let was_empty = queue.is_empty();
        queue.release(bucket);
        self.remark(at, was_empty, queue.is_empty());
    }

    fn remark(&self, at: usize, was_empty: bool, is_empty: bool) {
        match (was_empty, is_empty) {
            (true, false) => self.mark(at),
            (false, true) => self.unmark(at),
            _ => {}
        }
    }

    fn mark(&self, at: usize) {
        // Relaxed: ordered by the shard's lock, and by the fences of I1.
        self.nonempty.fetch_or(1 << at, Ordering::Relaxed);
    }

    fn unmark(&self, at: usize) {
        // Relaxed: as above.
        self.nonempty.fetch_and(!(1 << at), Ordering::Relaxed);
    }

    /// Whether somebody must be woken or made: work is queued and nobody looks (I1). Call it after queueing, and after
    /// leaving running.
    #[inline]
    pub(super) fn wants_worker(&self) -> bool {
        // SeqCst pairs with the fence of the other side: of queueing and leaving, one sees the other.
        fence(Ordering::SeqCst);
        // Relaxed: after the fence.
        Counts(self.counts.load(Ordering::Relaxed)).nobody_looks() && self.has_work()
    }

    /// Entries queued, hashed ones included, the cancelled too.
    pub(super) fn queued(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Of all shards and the roster.
    pub(super) fn lock_stats(&self) -> LockStats {
        let mut sum = self.roster.stats();
        for shard in &self.shards {
            sum += shard.stats();
        }
        sum
    }

    /// Lets go of entries of a client that is gone.
    pub(super) fn sweep(&self, waits: &dyn Fn(Entry) -> bool) {
        for (at, shard) in self.shards.iter().enumerate() {
            let mut queue = shard.lock();
            let was_empty = queue.is_empty();
            queue.sweep(waits);
            self.remark(at, was_empty, queue.is_empty());
        }
    }
}

/// Writes the line only when something has changed.
#[inline]
fn note(at: &AtomicU32) {
    let cpu = super::thread_state::cpu();
    // Relaxed, both: a hint.
    if cpu != NO_CPU && at.load(Ordering::Relaxed) != cpu {
        at.store(cpu, Ordering::Relaxed);
    }
}
