//! An account: the shards of one class of work, and the counts of its workers by state.
//!
//! Owns the decision to wake or create a worker, and the guarantee that no wake-up is lost. Does not own the worker's
//! loop (`worker`) nor the creation of threads (`shared`).
//!
//! A worker is in one of four states, counted in one word:
//!
//! | state | meaning |
//! |---|---|
//! | running | takes work, looks for it, or was called to do so; looks at every shard before it leaves this state |
//! | standby | woken or created because no worker ran; starts to run unless another worker does |
//! | idle | sleeps, on the idle stack |
//! | in a section | runs an item that may block: all workers in none of the other states |
//!
//! Invariants:
//! - I1: a thread that queues work reads the counts afterwards; a worker that leaves running or standby reads the
//!   shards afterwards; each with a SeqCst fence in between. So while work is queued, a worker is running or on
//!   standby, or the limit is reached and all workers are in sections, from which they return to running.
//! - I2: at most one worker is on standby, and none is put there while one runs: N items that do not block are served
//!   by one worker, and one wake-up serves a batch. Further workers are called only if items block (`wanted`).
//! - I3: workers <= limit whenever one is created; a lowered limit takes effect when workers next check it.
//! - I4: the counts of idle, standby and all workers change under the roster's lock; that of running changes anywhere.

use crossbeam_utils::CachePadded;
use sheave_base::parker::Unparker;
use sheave_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use sheave_base::sync::{Arc, thread};

use super::blocked::{Blocking, Seat};
use super::lock::Lock;
#[cfg(sheave_lab)]
use super::measure::{LockStats, Starts};
use super::nap::Nap;
use super::shard::{Batch, Shard};
use super::thread_state::NO_CPU;
use super::work::WorkEntry;

pub(super) const RUNNING: u64 = 1;
pub(super) const STANDBY: u64 = 1 << 16;
pub(super) const IDLE: u64 = 1 << 32;
pub(super) const WORKER: u64 = 1 << 48;

/// Largest limit of an account. Fits the 16 bits of a count.
pub(super) const MAX_WORKERS: u32 = 4096;

/// Number of workers in each state, 16 bits each.
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

    /// Returns the counts without one worker in the state `place`.
    pub(super) fn without(self, place: u64) -> Counts {
        Counts(self.0.wrapping_sub(place))
    }

    /// Returns true if no worker will look at the shards before one is woken.
    pub(super) fn nobody_looks(self) -> bool {
        self.running() == 0 && self.standby() == 0
    }
}

/// Handle through which the account wakes and inspects a worker.
#[derive(Clone, Debug)]
pub(super) struct WorkerRef {
    pub(super) id: u32,
    pub(super) unparker: Unparker,
    pub(super) seat: Arc<CachePadded<Seat>>,
}

/// Lists and counters of an account that are protected by the roster's lock.
#[derive(Debug, Default)]
pub(super) struct Roster {
    /// Sleeping workers. The last one slept for the shortest time, has the warmest caches, and is woken first.
    pub(super) idle: Vec<WorkerRef>,
    pub(super) threads: Vec<(u32, thread::JoinHandle<()>)>,
    /// All workers whose thread is not about to end.
    pub(super) workers: Vec<WorkerRef>,
    /// Ids of workers whose thread is about to end and can be joined.
    pub(super) ended: Vec<u32>,
    pub(super) next_id: u32,
    pub(super) created: u64,
    /// Threads that could not be created.
    pub(super) failed: u64,
    /// Set by shutdown: no more workers are created.
    pub(super) closed: bool,
    /// The worker that was put on standby last. It may have left that state since.
    pub(super) standby: Option<Unparker>,
}

#[derive(Debug)]
pub(super) struct Acct {
    shards: Box<[CachePadded<Shard>]>,
    /// One bit per shard, set while the shard has entries (I2 of `shard`).
    nonempty: CachePadded<AtomicU64>,
    counts: CachePadded<AtomicU64>,
    pub(super) blocking: CachePadded<Blocking>,
    limit: AtomicU32,
    /// Number of CPUs that workers may use.
    cpus: AtomicU32,
    /// CPUs on which work was queued last and (`taken_on`) on which a worker took some last. Threads that share a CPU
    /// must not poll for each other.
    queued_on: AtomicU32,
    taken_on: AtomicU32,
    /// Shard that the next `take` begins with: the one behind the last batch's. So all other shards are visited before
    /// the same one is visited again.
    turn: CachePadded<AtomicU32>,
    /// A worker was needed and no thread could be created.
    starved: AtomicBool,
    pub(super) nap: CachePadded<Nap>,
    pub(super) roster: Lock<Roster>,
}

impl Acct {
    pub(super) fn new(shards: usize, limit: u32) -> Acct {
        debug_assert!((1..=64).contains(&shards) && shards.is_power_of_two());
        Acct {
            shards: (0..shards).map(|_| CachePadded::new(Shard::new())).collect(),
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
            roster: Lock::new(Roster::default()),
        }
    }

    pub(super) fn counts(&self) -> Counts {
        // SeqCst pairs with the fences of I1, and with the SeqCst of `move_counts`: all changes have one order.
        Counts(self.counts.load(Ordering::SeqCst))
    }

    /// Moves workers between states: `add` and `sub` are sums of the constants above.
    pub(super) fn move_counts(&self, add: u64, sub: u64) {
        // SeqCst pairs with `counts`.
        self.counts.fetch_add(add.wrapping_sub(sub), Ordering::SeqCst);
    }

    pub(super) fn limit(&self) -> u32 {
        // Relaxed: a limit that is seen late is as good as one that was set later.
        self.limit.load(Ordering::Relaxed)
    }

    pub(super) fn set_limit(&self, limit: u32) {
        // Relaxed: as above; idle workers are woken, and the surplus ones end.
        self.limit.store(limit, Ordering::Relaxed);
        self.wake_idle();
    }

    /// Wakes the idle workers, to look at what has changed; they stay idle.
    pub(super) fn wake_idle(&self) {
        for worker in &self.roster.lock().idle {
            worker.unparker.unpark();
        }
    }

    /// Returns true if an idle worker keeps references to clients.
    #[cfg(not(shuttle))]
    pub(super) fn keeps_clients(&self) -> bool {
        // Acquire pairs with the Release of `Worker::let_go`.
        self.roster.lock().idle.iter().any(|worker| worker.seat.keeps.load(Ordering::Acquire))
    }

    /// Binds all existing workers to `cpus`.
    pub(super) fn place(&self, cpus: &[usize]) {
        for worker in &self.roster.lock().workers {
            // Relaxed: written under the roster's lock. A worker without a tid yet reads the list of CPUs itself.
            let tid = worker.seat.tid.load(Ordering::Relaxed);
            if tid != 0 {
                super::thread_state::settle(Some(tid), cpus);
            }
        }
    }

    /// Called by a worker that enters a section.
    pub(super) fn enter(&self, seat: &Seat, now: u64) {
        seat.enter(now);
        self.move_counts(0, RUNNING);
    }

    /// Called by a worker that leaves its section.
    pub(super) fn leave(&self, seat: &Seat) {
        seat.leave();
        self.move_counts(RUNNING, 0);
    }

    /// Number of sections that the present workers have left. Only a change of the number has a meaning: workers that
    /// end take their share with them.
    pub(super) fn left(&self) -> u64 {
        self.roster.lock().workers.iter().fold(0, |sum, worker| sum.wrapping_add(worker.seat.left()))
    }

    /// Returns the number of workers to call now. If items block, one worker besides those in sections must be running
    /// or about to run: it has their CPU while they sleep in their items, without anyone detecting that they sleep. If
    /// most items block, as many workers as CPUs are called, because each blocks in turn. Returns 0 if no more can be
    /// had or no work is queued.
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

    pub(super) fn set_cpus(&self, cpus: usize) {
        // Relaxed: as in `limit`.
        self.cpus.store(cpus as u32, Ordering::Relaxed);
    }

    /// Returns the number of workers in sections that compute according to the kernel, counting up to `most` and
    /// inspecting at most four times as many threads. Those that entered last are inspected first, as the likeliest to
    /// compute.
    pub(super) fn computing(&self, most: usize) -> usize {
        let in_section = |worker: &WorkerRef| {
            // Relaxed: a hint.
            worker.seat.since().map(|since| (since, worker.seat.tid.load(Ordering::Relaxed)))
        };
        let mut seen: Vec<_> = self.roster.lock().workers.iter().filter_map(in_section).collect();
        seen.sort_unstable_by_key(|&(since, _)| std::cmp::Reverse(since));
        seen.iter().take(4 * most).filter(|&&(_, tid)| super::thread_state::computes(tid)).take(most).count()
    }

    /// Sets or clears the mark that no thread can be created for a needed worker. Returns true if it was newly set.
    /// Called under the roster's lock.
    pub(super) fn set_starved(&self, starved: bool) -> bool {
        // Relaxed, both: a thread that sees the mark only tries again.
        let was = self.is_starved();
        if was != starved {
            self.starved.store(starved, Ordering::Relaxed);
        }
        starved && !was
    }

    /// Returns true if a client should try again to create a worker.
    #[inline]
    pub(super) fn is_starved(&self) -> bool {
        // Relaxed: as above.
        self.starved.load(Ordering::Relaxed)
    }

    /// Records this CPU as the one on which work was queued last.
    #[inline]
    pub(super) fn note_queued(&self) {
        note(&self.queued_on);
    }

    /// Records this CPU as the one on which a worker took work last.
    #[inline]
    pub(super) fn note_taken(&self) {
        note(&self.taken_on);
    }

    /// Returns true if a worker that polled on this CPU would keep the submitter from it.
    pub(super) fn is_in_submitters_way(&self) -> bool {
        // Relaxed: a guess from a value that may be outdated.
        self.queued_on.load(Ordering::Relaxed) == super::thread_state::cpu()
    }

    /// Returns true if a submitter that polled on this CPU would keep the worker from it.
    pub(super) fn is_in_workers_way(&self) -> bool {
        // Relaxed: as above.
        self.taken_on.load(Ordering::Relaxed) == super::thread_state::cpu()
    }

    /// Begins a nap of `worker` if it is on the CPU of the thread that queued last. Returns true if it naps.
    pub(super) fn begin_nap(&self, worker: u32) -> bool {
        self.is_in_submitters_way() && self.nap.begin(worker)
    }

    /// Ends the nap of `worker`. Returns true if a wake-up was put off during it; a look at the shards after this call
    /// sees the work that it was put off for (I1).
    pub(super) fn end_nap(&self, worker: u32) -> bool {
        let relied = self.nap.end(worker);
        // SeqCst pairs with the fence in `wants_worker` of the submitter that relies on the nap.
        fence(Ordering::SeqCst);
        relied
    }

    #[inline]
    pub(super) fn has_work(&self) -> bool {
        // Relaxed: ordered by the fences of I1.
        self.nonempty.load(Ordering::Relaxed) != 0
    }

    /// Makes room for a client with `slots` slots; `all` is the number of slots of all clients.
    pub(super) fn reserve(&self, client: usize, slots: usize, all: usize) {
        let (home, row) = self.home(client);
        self.shards[home].lock().reserve(row, slots);
        for shard in &self.shards {
            shard.lock().reserve_hashed(all);
        }
    }

    /// Returns the home shard of a client, and the client's row there.
    #[inline]
    fn home(&self, client: usize) -> (usize, usize) {
        (client & (self.shards.len() - 1), client >> self.shards.len().ilog2())
    }

    /// Returns the shard of a bucket, which has every item of its hashes.
    fn shard_of(&self, bucket: u32) -> usize {
        bucket as usize & (self.shards.len() - 1)
    }

    /// Queues a client's entries without a hash, in order. `waits` decides which entries a sweep keeps if the room is
    /// used up.
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

    /// Queues entries of one bucket behind those already there, in order. `run` has (bucket, entry) pairs of the same
    /// bucket.
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

    /// Takes the next batch, beginning with the shard whose turn it is. Releases the bucket of the batch before, unless
    /// that bucket has more items and no other work is queued.
    pub(super) fn take(&self, batch: &mut Batch) -> bool {
        batch.entries.clear();
        if let Some((at, bucket)) = batch.claim {
            // Work that is queued at this moment waits for one more item of the bucket.
            if !self.has_work() && self.shards[at].lock().take_more(bucket, batch) {
                return true;
            }
            batch.claim = None;
            self.release((at, bucket));
        }
        loop {
            // Relaxed: a worker looks again for a bit that it missed, before it sleeps (I1).
            let bits = self.nonempty.load(Ordering::Relaxed);
            if bits == 0 {
                return false;
            }
            // Relaxed: two workers that see the same turn take one batch each.
            let start = self.turn.load(Ordering::Relaxed) as usize & (self.shards.len() - 1);
            // First set bit from `start` on, wrapping around.
            let ahead = bits >> start;
            let at = if ahead != 0 { start + ahead.trailing_zeros() as usize } else { bits.trailing_zeros() as usize };
            // Skips the store if it would change nothing: all workers share the cache line.
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

    /// Takes short items from the head of a client's row into `batch`. Takes none if the first may block.
    pub(super) fn take_own(&self, client: usize, batch: &mut Batch) {
        let (at, row) = self.home(client);
        let mut queue = self.shards[at].lock();
        let was_empty = queue.is_empty();
        queue.take_own(row, batch);
        self.remark(at, was_empty, queue.is_empty());
    }

    /// Releases a claimed bucket without taking other work.
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

    /// Returns true if a worker must be woken or created: work is queued and no worker looks (I1). Must be called after
    /// queueing, and after leaving running.
    #[inline]
    pub(super) fn wants_worker(&self) -> bool {
        // SeqCst pairs with the fence of the other side: of a thread that queues and a worker that leaves, one sees the
        // other.
        fence(Ordering::SeqCst);
        // Relaxed: after the fence.
        let counts = Counts(self.counts.load(Ordering::Relaxed));
        // At the limit the first worker that leaves its section looks. The thread that raises the limit calls this
        // afterwards.
        counts.nobody_looks() && self.has_work() && (counts.idle() > 0 || counts.all() < self.limit())
    }

    /// Number of queued entries, including hashed ones and those of cancelled items.
    pub(super) fn queued(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Measures the times of all locks from now on.
    #[cfg(sheave_lab)]
    pub(super) fn measured(mut self, starts: &Starts) -> Acct {
        self.roster.measure(starts);
        self.shards.iter_mut().for_each(|shard| shard.measure(starts));
        self
    }

    /// Returns the sum of the lock statistics of the roster and all shards.
    #[cfg(sheave_lab)]
    pub(super) fn lock_stats(&self) -> LockStats {
        let mut sum = self.roster.stats();
        for shard in &self.shards {
            sum += shard.stats();
        }
        sum
    }

    /// Drops the entries whose item is no longer queued. Called when a client has left.
    pub(super) fn sweep(&self, waits: &dyn Fn(WorkEntry) -> bool) {
        for (at, shard) in self.shards.iter().enumerate() {
            let mut queue = shard.lock();
            let was_empty = queue.is_empty();
            queue.sweep(waits);
            self.remark(at, was_empty, queue.is_empty());
        }
    }
}

/// Stores this CPU's number, only if it differs, so that the cache line stays shared while nothing changes.
#[inline]
fn note(at: &AtomicU32) {
    let cpu = super::thread_state::cpu();
    // Relaxed, both: a hint.
    if cpu != NO_CPU && at.load(Ordering::Relaxed) != cpu {
        at.store(cpu, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::super::work::WorkFlags;
    use super::*;

    fn entry(client: u32, slot: u32) -> WorkEntry {
        WorkEntry::new(client, slot, 1, WorkFlags::SHORT)
    }

    #[test]
    fn clients_have_different_shards_as_long_as_there_are_some() {
        let acct = Acct::new(4, 1);
        for client in 0..8 {
            acct.reserve(client, 4, 4 * (client + 1));
            acct.push(client, &[entry(client as u32, 0)], &|_| true);
        }
        let lengths: Vec<_> = acct.shards.iter().map(|shard| shard.lock().len()).collect();
        assert_eq!(lengths, [2; 4]);
        // Round-robin, whichever worker takes.
        let mut batch = Batch::new();
        let takes = std::iter::from_fn(|| acct.take(&mut batch).then(|| batch.entries[0].client()));
        assert_eq!(takes.collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
        assert!(!acct.has_work());
    }

    #[test]
    fn a_shard_that_a_hashed_push_sweeps_empty_is_not_marked() {
        let acct = Acct::new(1, 1);
        acct.reserve(0, 4, 4);
        let mut batch = Batch::new();
        // A worker has claimed the bucket; items queued behind it have no turn yet.
        acct.push_hashed(&[(0, entry(0, 0))], &|_| true);
        assert!(acct.take(&mut batch) && batch.claim.is_some());
        acct.push(0, &[entry(0, 1)], &|_| true);
        let mut pushed = 0;
        while !acct.shards[0].lock().is_full_of_hashed() {
            acct.push_hashed(&[(0, entry(0, 2))], &|_| true);
            pushed += 1;
        }
        assert!(acct.has_work() && pushed > 0);
        // All were cancelled meanwhile, including the one without a hash.
        acct.push_hashed(&[(0, entry(0, 3))], &|_| false);
        assert!(!acct.has_work(), "nothing can be taken");
        acct.release((0, 0));
        assert!(acct.has_work(), "the last one is due");
    }

    #[test]
    fn an_item_that_has_ended_is_progress_and_its_worker_is_in_no_section() {
        let acct = Acct::new(1, 1);
        let seat = Seat::default();
        acct.move_counts(WORKER + RUNNING, 0);
        for ended in 0..3 {
            assert_eq!(seat.left(), ended, "what a standby looks at");
            acct.enter(&seat, 7);
            assert_eq!((acct.counts().in_section(), acct.counts().running()), (1, 0));
            assert_eq!(seat.since(), Some(7));
            acct.leave(&seat);
            assert_eq!((acct.counts().in_section(), acct.counts().running()), (0, 1));
            assert_eq!(seat.since(), None);
        }
    }

    #[test]
    fn a_worker_is_called_where_items_block_nobody_takes_work_and_there_may_be_one() {
        let acct = Acct::new(1, 4);
        acct.set_cpus(2);
        acct.reserve(0, 4, 4);
        acct.push(0, &[entry(0, 0)], &|_| true);
        // Three workers of at most four, all in sections.
        acct.move_counts(3 * WORKER, 0);
        assert_eq!(acct.wanted(), 0, "a standby watches as long as nothing has blocked");
        acct.blocking.found_blocked();
        assert_eq!(acct.wanted(), 2, "one a CPU, for most block");
        acct.move_counts(RUNNING, 0);
        assert_eq!(acct.wanted(), 1);
        acct.blocking.forget_some();
        assert_eq!(acct.wanted(), 0, "where some block, one that takes work is enough");
        acct.move_counts(0, RUNNING);
        assert_eq!(acct.wanted(), 1);
        acct.move_counts(WORKER, 0);
        assert_eq!(acct.wanted(), 0, "all that may be are in sections");
        acct.move_counts(STANDBY, 0);
        assert_eq!(acct.wanted(), 1, "but for the one that watches");
        acct.move_counts(0, STANDBY);
        acct.set_limit(5);
        assert_eq!(acct.wanted(), 1);
        assert!(acct.take(&mut Batch::new()));
        assert_eq!(acct.wanted(), 0, "nothing waits");
    }

    #[test]
    fn at_the_limit_nobody_is_woken_until_it_is_raised() {
        let acct = Acct::new(1, 2);
        acct.reserve(0, 4, 4);
        acct.push(0, &[entry(0, 0)], &|_| true);
        acct.move_counts(WORKER, 0);
        assert!(acct.wants_worker());
        acct.move_counts(WORKER, 0);
        assert!(!acct.wants_worker(), "nobody can be woken or made");
        acct.move_counts(IDLE, 0);
        assert!(acct.wants_worker());
        acct.move_counts(0, IDLE);
        acct.set_limit(3);
        assert!(acct.wants_worker());
    }
}
