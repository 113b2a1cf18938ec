//! An account: the shards of one class of work, and how many workers it has doing what.
//!
//! Owns the decision to wake or create a worker, and the promise that no wake-up is lost. Does not own what workers
//! do (`worker`), nor how a thread is made (`pool`).
//!
//! A worker is in one of four places, counted in one word:
//!
//! | place | meaning |
//! |---|---|
//! | running | takes work, looks for some, or was called to do so; looks at every shard before it leaves |
//! | standby | was woken or made because nobody ran; becomes running unless somebody does |
//! | idle | sleeps, on the idle stack |
//! | in a section | runs an item that may block: all the others |
//!
//! Invariants:
//! - I1: whoever queues work looks at the counts afterwards; whoever leaves running or standby looks at the shards
//!   afterwards; each with a SeqCst fence in between. So if work is queued, somebody is running or on standby, or the
//!   limit is reached and all are in sections, from which they come back to running.
//! - I2: one standby at most, and none is made while somebody runs: N items that do not block are served by one
//!   worker, and one wake-up serves a batch. A worker is called past the standby only where items block (`wanted`).
//! - I3: workers <= limit when one is made; a limit that was lowered is reached as workers come by.
//! - I4: idle, standby and all change under the roster's lock; running changes anywhere.

use crossbeam_utils::CachePadded;
use sheave_base::clock::Clock;
use sheave_base::parker::Unparker;
use sheave_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use sheave_base::sync::{Arc, thread};

use super::blocked::{Blocking, Seat};
use super::lock::{Lock, LockStats};
use super::nap::Nap;
use super::shard::{Batch, Shard};
use super::thread_state::NO_CPU;
use super::work::WorkEntry;

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
    pub(super) seat: Arc<CachePadded<Seat>>,
}

/// What changes under the roster's lock.
#[derive(Debug, Default)]
pub(super) struct Roster {
    /// Sleeping workers; the last one is the warmest and goes first.
    pub(super) idle: Vec<WorkerRef>,
    pub(super) threads: Vec<(u32, thread::JoinHandle<()>)>,
    /// All workers, until their thread is about to end.
    pub(super) workers: Vec<WorkerRef>,
    /// Workers whose thread is about to end.
    pub(super) ended: Vec<u32>,
    pub(super) next_id: u32,
    /// Workers made.
    pub(super) created: u64,
    /// Threads that could not be made.
    pub(super) failed: u64,
    /// No more workers are made.
    pub(super) closed: bool,
    /// The last one that was put on standby: it may have left that meanwhile.
    pub(super) standby: Option<Unparker>,
}

#[derive(Debug)]
pub(super) struct Acct {
    shards: Box<[CachePadded<Shard>]>,
    /// A bit a shard, set while it has entries (I2 of `shard`).
    nonempty: CachePadded<AtomicU64>,
    counts: CachePadded<AtomicU64>,
    pub(super) blocking: CachePadded<Blocking>,
    limit: AtomicU32,
    /// CPUs that workers have.
    cpus: AtomicU32,
    /// The CPUs on which work was queued last, and on which a worker took some last. Threads that share a CPU must not
    /// poll for each other.
    queued_on: AtomicU32,
    taken_on: AtomicU32,
    /// The shard that is looked at first: the one behind that of the last batch. So a worker that takes has looked at
    /// all other shards since it was in this one.
    turn: CachePadded<AtomicU32>,
    /// A worker was wanted, and no thread could be had.
    starved: AtomicBool,
    pub(super) nap: CachePadded<Nap>,
    pub(super) roster: Lock<Roster>,
}

impl Acct {
    pub(super) fn new(shards: usize, limit: u32, clock: Option<&Clock>) -> Acct {
        debug_assert!((1..=64).contains(&shards) && shards.is_power_of_two());
        Acct {
            shards: (0..shards).map(|_| CachePadded::new(Shard::new(clock.cloned()))).collect(),
            nonempty: CachePadded::new(AtomicU64::new(0)),
            counts: CachePadded::new(AtomicU64::new(0)),
            blocking: CachePadded::new(Blocking::new()),
            limit: AtomicU32::new(limit),
            cpus: AtomicU32::new(1),
            queued_on: AtomicU32::new(NO_CPU),
            taken_on: AtomicU32::new(NO_CPU),
            turn: CachePadded::new(AtomicU32::new(0)),
            starved: AtomicBool::new(false),
            nap: CachePadded::new(Nap::new()),
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
        for worker in &self.roster.lock().workers {
            // Relaxed: written under the roster's lock. Who has none yet looks at the list of CPUs itself.
            let tid = worker.seat.tid.load(Ordering::Relaxed);
            if tid != 0 {
                super::thread_state::settle(Some(tid), cpus);
            }
        }
    }

    /// A worker enters a section.
    pub(super) fn enter(&self, seat: &Seat, now: u64) {
        seat.enter(now);
        self.move_counts(0, RUNNING);
    }

    /// A worker leaves its section.
    pub(super) fn leave(&self, seat: &Seat) {
        seat.leave();
        self.move_counts(RUNNING, 0);
    }

    /// Sections that workers have left: a change is all that counts.
    pub(super) fn left(&self) -> u64 {
        self.roster.lock().workers.iter().fold(0, |sum, worker| sum.wrapping_add(worker.seat.left()))
    }

    /// Returns how many more workers are to be called. Where items block, one is to be there that takes work or is
    /// about to: when the others sleep in their items it has their CPU, and nobody has to notice. Where most block, as
    /// many as there are CPUs are called, for each calls the next. 0 where there can be no more, or nothing waits.
    #[inline]
    pub(super) fn wanted(&self) -> u32 {
        if !self.blocking.is_likely() || !self.has_work() {
            return 0;
        }
        let counts = self.counts();
        if counts.idle() + counts.standby() == 0 && counts.all() >= self.limit() {
            return 0;
        }
        // Relaxed: as in `limit`.
        let ready = if self.blocking.is_the_rule() { self.cpus.load(Ordering::Relaxed) } else { 1 };
        ready.saturating_sub(counts.running())
    }

    /// Workers have so many CPUs.
    pub(super) fn set_cpus(&self, cpus: usize) {
        // Relaxed: as in `limit`.
        self.cpus.store(cpus as u32, Ordering::Relaxed);
    }

    /// How many workers in sections compute, as far as the kernel knows; it is asked no further than up to `most`, nor
    /// about more than four times as many. Those who entered last are asked about first: they compute, if any do.
    pub(super) fn computing(&self, most: usize) -> usize {
        let in_section = |worker: &WorkerRef| {
            // Relaxed: a hint.
            worker.seat.since().map(|since| (since, worker.seat.tid.load(Ordering::Relaxed)))
        };
        let mut seen: Vec<_> = self.roster.lock().workers.iter().filter_map(in_section).collect();
        seen.sort_unstable_by_key(|&(since, _)| std::cmp::Reverse(since));
        seen.iter().take(4 * most).filter(|&&(_, tid)| super::thread_state::computes(tid)).take(most).count()
    }

    /// Whether no thread can be had for a worker that is wanted, from now on; true when that is new. Under the roster's
    /// lock.
    pub(super) fn set_starved(&self, starved: bool) -> bool {
        // Relaxed, both: whoever sees it tries again.
        let was = self.is_starved();
        if was != starved {
            self.starved.store(starved, Ordering::Relaxed);
        }
        starved && !was
    }

    /// Whether somebody is to try again.
    #[inline]
    pub(super) fn is_starved(&self) -> bool {
        // Relaxed: as above.
        self.starved.load(Ordering::Relaxed)
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

    /// Whether a worker that sleeps now had better nap: it is on the CPU of whoever queued last.
    pub(super) fn begin_nap(&self, worker: u32) -> bool {
        self.is_in_submitters_way() && self.nap.begin(worker)
    }

    /// The nap of a worker is over; whether somebody relied on it. What was put off for it is seen from here on (I1).
    pub(super) fn end_nap(&self, worker: u32) -> bool {
        let relied = self.nap.end(worker);
        // SeqCst pairs with the fence in `wants_worker` of whoever relies on the nap.
        fence(Ordering::SeqCst);
        relied
    }

    #[inline]
    pub(super) fn has_work(&self) -> bool {
        // Relaxed: ordered by the fences of I1.
        self.nonempty.load(Ordering::Relaxed) != 0
    }

    /// Makes room for a client with so many slots; `all` clients have so many.
    pub(super) fn reserve(&self, client: usize, slots: usize, all: usize) {
        let (home, row) = self.home(client);
        self.shards[home].lock().reserve(row, slots);
        for shard in &self.shards {
            shard.lock().reserve_hashed(all);
        }
    }

    /// The shard of a client, and its row there.
    #[inline]
    fn home(&self, client: usize) -> (usize, usize) {
        (client & (self.shards.len() - 1), client >> self.shards.len().ilog2())
    }

    /// The shard of a bucket: every item of a hash is there.
    fn shard_of(&self, bucket: u32) -> usize {
        bucket as usize & (self.shards.len() - 1)
    }

    /// Queues a client's entries without a hash, in order.
    pub(super) fn push(&self, client: usize, entries: &[WorkEntry], waits: &dyn Fn(WorkEntry) -> bool) {
        let (at, row) = self.home(client);
        let mut queue = self.shards[at].lock();
        let was_empty = queue.is_empty();
        for &entry in entries {
            if queue.is_full(row) {
                queue.sweep(waits);
            }
            queue.push(row, entry);
        }
        if was_empty {
            self.mark(at);
        }
    }

    /// Queues entries of one bucket behind the others there, in order. Each comes with its bucket.
    pub(super) fn push_hashed(&self, run: &[(u32, WorkEntry)], waits: &dyn Fn(WorkEntry) -> bool) {
        let Some(&(bucket, _)) = run.first() else { return };
        let at = self.shard_of(bucket);
        let mut queue = self.shards[at].lock();
        let was_empty = queue.is_empty();
        for &(_, entry) in run {
            if queue.is_full_of_hashed() {
                queue.sweep(waits);
            }
            queue.push_hashed(bucket, entry);
        }
        self.remark(at, was_empty, queue.is_empty());
    }

    /// Takes the next batch, of the shard whose turn it is or of the next that has some. Releases the bucket of the
    /// batch before, unless that has more and nothing else waits.
    pub(super) fn take(&self, batch: &mut Batch) -> bool {
        batch.entries.clear();
        if let Some((at, bucket)) = batch.claim {
            // What comes in this moment waits for one item more.
            if !self.has_work() && self.shards[at].lock().take_more(bucket, batch) {
                return true;
            }
            batch.claim = None;
            self.release((at, bucket));
        }
        loop {
            // Relaxed: a bit that is not seen yet is looked for again before a worker sleeps (I1).
            let bits = self.nonempty.load(Ordering::Relaxed);
            if bits == 0 {
                return false;
            }
            // Relaxed: two workers that see the same turn take one batch each.
            let start = self.turn.load(Ordering::Relaxed) as usize & (self.shards.len() - 1);
            // The first set bit from `start` on, going round.
            let ahead = bits >> start;
            let at = if ahead != 0 { start + ahead.trailing_zeros() as usize } else { bits.trailing_zeros() as usize };
            if at + 1 != start {
                // Relaxed: as above.
                self.turn.store(at as u32 + 1, Ordering::Relaxed);
            }
            let mut queue = self.shards[at].lock();
            let was_empty = queue.is_empty();
            let any = queue.take(at, batch);
            self.remark(at, was_empty, queue.is_empty());
            if any {
                return true;
            }
        }
    }

    /// Takes short items of a client from the head of its row; none where others come first.
    pub(super) fn take_own(&self, client: usize, batch: &mut Batch) {
        let (at, row) = self.home(client);
        let mut queue = self.shards[at].lock();
        let was_empty = queue.is_empty();
        queue.take_own(row, batch);
        self.remark(at, was_empty, queue.is_empty());
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
        let counts = Counts(self.counts.load(Ordering::Relaxed));
        // At the limit the first that leaves its section looks. Whoever raises the limit looks after that.
        counts.nobody_looks() && self.has_work() && (counts.idle() > 0 || counts.all() < self.limit())
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
    pub(super) fn sweep(&self, waits: &dyn Fn(WorkEntry) -> bool) {
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

#[cfg(all(test, not(shuttle)))]
mod tests;
