//! The pool: two accounts, their clients, and the threads.
//!
//! Owns registration of clients, limits, and shutdown. A [`Pool`] is a handle; dropping the last one shuts the pool
//! down. A [`Submitter`] queues the work of one client.
//!
//! Invariant I1: after `shutdown` every queued item has ended, once, every thread was joined, and items queued later
//! end with `WorkDone::NoThread`.

use sheave_base::sync::Arc;

use super::acct::{Acct, MAX_WORKERS};
use super::client::Client;
use super::item::{Cancelled, Items};
#[cfg(sheave_lab)]
use super::measure::{LockStats, Starts};
use super::shard::Batch;
use super::shared::{PoolOptions, Shared, SpawnGate};
use super::work::{MAX_CLIENTS, MAX_SLOTS, Source, WorkEntry, WorkFlags};
use super::worker;

/// Number of staged items at which a submitter commits by itself.
const STAGED: usize = 32;

/// The workers of one account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AcctCounts {
    /// All workers of the account.
    pub workers: u32,
    /// Workers that sleep.
    pub idle: u32,
    /// Workers inside an item that may block.
    pub in_section: u32,
    /// Maximum number of workers.
    pub limit: u32,
    /// Workers created since the pool was made.
    pub created: u64,
    /// Threads that could not be created.
    pub failed: u64,
    /// Items queued and not started.
    pub queued: usize,
    /// Items that a ring took back and ran itself before it waited.
    pub helped: u64,
}

struct Handle<S: Source> {
    shared: Arc<Shared<S>>,
}

impl<S: Source> Drop for Handle<S> {
    fn drop(&mut self) {
        self.shared.shutdown();
    }
}

/// Handle of a pool of workers. Clones share the pool; dropping the last one shuts it down.
pub struct Pool<S: Source> {
    handle: Arc<Handle<S>>,
}

impl<S: Source> Clone for Pool<S> {
    fn clone(&self) -> Self {
        Pool { handle: Arc::clone(&self.handle) }
    }
}

impl<S: Source> std::fmt::Debug for Pool<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("options", &self.handle.shared.options).finish_non_exhaustive()
    }
}

impl<S: Source> Pool<S> {
    /// Makes a pool without threads; workers are created when there is work.
    #[must_use]
    pub fn new(options: PoolOptions) -> Pool<S> {
        Pool::with_gate(options, None)
    }

    /// Makes a pool that calls `gate` before it creates each thread and fails if `gate` does.
    pub(super) fn with_gate(options: PoolOptions, gate: Option<SpawnGate>) -> Pool<S> {
        let shared = Shared::new(options, gate, worker::live);
        Pool { handle: Arc::new(Handle { shared: Arc::new(shared) }) }
    }

    pub(super) fn shared(&self) -> &Shared<S> {
        &self.handle.shared
    }

    pub(super) fn shared_arc(&self) -> &Arc<Shared<S>> {
        &self.handle.shared
    }

    /// Registers a client with `slots` slots. Returns `None` if `slots` exceeds `MAX_SLOTS` or the pool has
    /// `MAX_CLIENTS` clients.
    #[must_use]
    pub fn submitter(&self, source: S, slots: u32) -> Option<Submitter<S>> {
        let shared = &self.handle.shared;
        if slots > MAX_SLOTS {
            return None;
        }
        let (at, client, all) = {
            let mut table = shared.table();
            let (at, generation) = table.vacant();
            if at >= MAX_CLIENTS {
                return None;
            }
            let client = Arc::new(Client::new(source, slots, generation));
            let all = table.insert(at, Arc::clone(&client));
            (at, client, all)
        };
        shared.changed();
        for acct in &shared.accts {
            acct.reserve(at as usize, slots as usize, all);
        }
        let staged = [Vec::with_capacity(STAGED), Vec::with_capacity(STAGED)];
        Some(Submitter {
            pool: self.clone(),
            client,
            at,
            staged,
            hashed: Vec::with_capacity(STAGED),
            deferred: false,
            own: Batch::new(),
        })
    }

    /// Returns the counts of the bound and of the unbound account.
    #[must_use]
    pub fn counts(&self) -> [AcctCounts; 2] {
        [0, 1].map(|at| {
            let acct = &self.handle.shared.accts[at];
            let counts = acct.counts();
            let queued = acct.queued();
            let roster = acct.roster.lock();
            AcctCounts {
                workers: counts.all(),
                idle: counts.idle(),
                in_section: counts.in_section(),
                limit: acct.limit(),
                created: roster.created,
                failed: roster.failed,
                queued,
                helped: acct.nap.helped(),
            }
        })
    }

    /// Sets the maximum number of workers of the bound and the unbound account, at least one each. Workers above a
    /// lowered limit end after the item or batch they are running.
    pub fn set_max_workers(&self, max_workers: [u32; 2]) {
        let shared = &self.handle.shared;
        for (at, limit) in max_workers.into_iter().enumerate() {
            shared.accts[at].set_limit(limit.clamp(1, MAX_WORKERS));
            // Work that waited because all workers were blocked at the old limit may now get another worker.
            if shared.accts[at].wants_worker() {
                shared.wake(at);
            }
        }
    }

    /// Moves the present and future workers to `cpus`; an empty list means all CPUs of the process.
    pub fn set_cpus(&self, cpus: &[usize]) {
        self.handle.shared.set_cpus(cpus);
    }

    /// Returns the statistics of all locks of the pool.
    #[cfg(sheave_lab)]
    #[must_use]
    pub fn lock_stats(&self) -> LockStats {
        let mut sum = LockStats::default();
        for acct in &self.handle.shared.accts {
            sum += acct.lock_stats();
        }
        sum
    }

    /// Returns the histogram of the times from queue to start, if measured: upper bounds in ns, each with its number of
    /// items.
    #[cfg(sheave_lab)]
    #[must_use]
    pub fn starts(&self) -> Vec<(u64, u64)> {
        self.handle.shared.starts.as_ref().map_or_else(Vec::new, Starts::snapshot)
    }

    /// Shuts the pool down: runs bound work, ends unbound work that has not started with
    /// [`CANCELLED`](super::CANCELLED), and joins all threads. Items queued later end with
    /// [`WorkDone::NoThread`](crate::WorkDone::NoThread). Must not be called on a worker.
    pub fn shutdown(&self) {
        self.handle.shared.shutdown();
    }
}

/// Queues the work of one client. Belongs to the client's thread.
pub struct Submitter<S: Source> {
    pool: Pool<S>,
    client: Arc<Client<S>>,
    at: u32,
    /// Queued entries that are not committed yet, one list per account.
    staged: [Vec<WorkEntry>; 2],
    hashed: Vec<(u32, WorkEntry)>,
    /// The wake-up of a napping worker was put off (I1 of `nap`).
    pub(super) deferred: bool,
    /// Buffer for items that are taken back.
    pub(super) own: Batch,
}

impl<S: Source> std::fmt::Debug for Submitter<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Submitter").field("client", &self.at).finish_non_exhaustive()
    }
}

impl<S: Source> Submitter<S> {
    /// Stages an item for a slot; [`commit`](Self::commit) makes it visible to workers. Returns false if the slot is in
    /// use.
    #[inline]
    pub fn queue(&mut self, slot: u32, flags: WorkFlags) -> bool {
        let Some(generation) = self.client.items.queue(slot) else { return false };
        let entry = WorkEntry::new(self.at, slot, generation, flags);
        #[cfg(sheave_lab)]
        if let Some(starts) = &self.pool.handle.shared.starts {
            starts.queued(&self.client.stamps, slot);
        }
        match flags.bucket() {
            Some(bucket) => self.hashed.push((bucket, entry)),
            None => self.staged[flags.acct()].push(entry),
        }
        if self.staged[0].len() + self.staged[1].len() + self.hashed.len() >= STAGED {
            self.commit();
        }
        true
    }

    /// Makes staged items visible to workers. Takes one lock and sends at most one wake-up per account, and takes one
    /// lock for each run of items of one hash.
    #[inline]
    pub fn commit(&mut self) {
        if self.has_staged() {
            self.commit_staged();
        }
    }

    /// Returns true if items are staged that no worker can see yet.
    #[inline]
    #[must_use]
    pub fn has_staged(&self) -> bool {
        !(self.staged[0].is_empty() && self.staged[1].is_empty() && self.hashed.is_empty())
    }

    /// Removes the staged entry if it is the only one and short.
    pub(super) fn pop_staged_alone(&mut self) -> Option<WorkEntry> {
        let [bound, unbound] = &mut self.staged;
        let alone = bound.len() == 1 && unbound.is_empty() && self.hashed.is_empty();
        bound.pop_if(|entry| alone && !entry.may_block())
    }

    #[inline(never)]
    fn commit_staged(&mut self) {
        let shared = &self.pool.handle.shared;
        let waits = |entry| shared.waits(entry);
        let mut touched = [!self.hashed.is_empty(), false];
        let short = !touched[0] && self.staged[1].is_empty() && !self.staged[0].iter().any(|entry| entry.may_block());
        for (at, staged) in self.staged.iter_mut().enumerate() {
            if !staged.is_empty() {
                shared.accts[at].push(self.at as usize, staged, &waits);
                staged.clear();
                touched[at] = true;
            }
        }
        for run in self.hashed.chunk_by(|one, next| one.0 == next.0) {
            shared.accts[0].push_hashed(run, &waits);
        }
        self.hashed.clear();
        for (at, touched) in touched.into_iter().enumerate() {
            if touched {
                shared.accts[at].note_queued();
            }
            // Short items do not block, so they call no further workers (I2 of `acct`).
            if touched && !short {
                let wanted = shared.accts[at].wanted();
                if wanted > 0 {
                    shared.call(at, wanted);
                }
            }
            if touched && shared.accts[at].wants_worker() {
                if short && shared.accts[at].is_in_workers_way() && shared.accts[at].nap.rely() {
                    self.deferred = true;
                } else {
                    shared.wake(at);
                }
            }
        }
    }

    /// Cancels an item; see [`Cancelled`].
    pub fn cancel(&self, slot: u32) -> Cancelled {
        self.client.items.cancel(slot)
    }

    /// Cancels the items for which `cancel` returns true and that have not started, and waits until all items have
    /// ended.
    pub fn close(&mut self, cancel: impl Fn(u32) -> bool) {
        self.commit();
        self.client.close(cancel);
    }

    /// Waits until the committed item of a slot has ended. The worker delivers the result right after that.
    pub fn wait_for(&self, slot: u32) {
        self.client.wait_for(slot..slot + 1);
    }

    /// Returns true if a needed thread could not be created; the client should call [`retry`](Self::retry) soon.
    #[inline]
    pub fn is_starved(&self) -> bool {
        self.pool.handle.shared.accts.iter().any(Acct::is_starved)
    }

    /// Has sleeping workers drop what they keep of clients.
    pub(super) fn let_go(&self) {
        self.pool.handle.shared.let_go();
    }

    /// Tries again to create the missing worker.
    pub fn retry(&self) {
        let shared = &self.pool.handle.shared;
        for (at, acct) in shared.accts.iter().enumerate() {
            if acct.is_starved() {
                shared.wake(at);
            }
        }
    }

    /// Returns true if polling for results keeps a worker from this CPU.
    pub fn is_in_the_way(&self) -> bool {
        self.pool.handle.shared.accts.iter().any(Acct::is_in_workers_way)
    }

    pub(super) fn at(&self) -> usize {
        self.at as usize
    }

    pub(super) fn items(&self) -> &Items {
        &self.client.items
    }

    /// Returns the source that the client was registered with.
    pub fn source(&self) -> &S {
        &self.client.source
    }

    /// Returns the pool that the client is registered in.
    pub fn pool(&self) -> &Pool<S> {
        &self.pool
    }
}

impl<S: Source> Drop for Submitter<S> {
    fn drop(&mut self) {
        self.close(|_| true);
        let shared = &self.pool.handle.shared;
        // Dropped outside the table's lock: the client holds its source, whose destructor is not ours.
        let client = shared.table().remove(self.at);
        drop(client);
        shared.let_go();
        for acct in &shared.accts {
            acct.sweep(&|entry| shared.waits(entry));
        }
    }
}
