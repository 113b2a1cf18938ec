//! The pool: two accounts, their clients, and the threads.
//!
//! Owns the registering of clients, limits, and the end. A [`Pool`] is a handle; the last one to go shuts the pool
//! down. A [`Submitter`] is how one client queues work.
//!
//! Invariant I1: after `shutdown` every item that was queued has ended, once, every thread was joined, and what is
//! queued later ends with `WorkDone::NoThread`.

use sheave_base::sync::Arc;

use super::acct::{Acct, MAX_WORKERS};
use super::client::Client;
use super::item::{Cancelled, Items};
use super::lock::LockStats;
use super::shard::Batch;
use super::shared::{PoolOptions, Shared, SpawnGate};
use super::work::{MAX_CLIENTS, MAX_SLOTS, Source, WorkEntry, WorkFlags};
use super::worker;

/// Items that a submitter gathers before it hands them over without being told.
const STAGED: usize = 32;

/// The workers of one account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AcctCounts {
    /// Workers, whatever they do.
    pub workers: u32,
    /// Of these, asleep.
    pub idle: u32,
    /// Of these, inside an item that may block.
    pub in_section: u32,
    /// Most there may be.
    pub limit: u32,
    /// Workers made since the pool began.
    pub created: u64,
    /// Threads that could not be made.
    pub failed: u64,
    /// Items that wait.
    pub queued: usize,
    /// Items that no worker ran: their rings did, before they waited.
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

/// A pool of workers. A clone is the same pool; the last one shuts it down.
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
    /// A pool without workers; they come with the work.
    #[must_use]
    pub fn new(options: PoolOptions) -> Pool<S> {
        Pool::with_gate(options, None)
    }

    /// A pool without workers, in which `gate` has a say in whether threads can be made.
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

    /// Registers a client with so many slots. `None` when it has too many, or the pool has too many clients.
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
            let client = Arc::new(Client::new(source, slots, generation, shared.options.measure));
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

    /// The workers of the bound and of the unbound account.
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

    /// Sets the most workers of the bound and the unbound account; at least one each. Workers above a lowered limit
    /// end as soon as they have run what they are at.
    pub fn set_max_workers(&self, max_workers: [u32; 2]) {
        let shared = &self.handle.shared;
        for (at, limit) in max_workers.into_iter().enumerate() {
            shared.accts[at].set_limit(limit.clamp(1, MAX_WORKERS));
            // What waits for those that are blocked may have a worker of its own now.
            if shared.accts[at].wants_worker() {
                shared.wake(at);
            }
        }
    }

    /// Moves the workers, those that are there and those to come, to these CPUs; none for those of the process.
    pub fn set_cpus(&self, cpus: &[usize]) {
        self.handle.shared.set_cpus(cpus);
    }

    /// What the locks of the pool have seen.
    #[must_use]
    pub fn lock_stats(&self) -> LockStats {
        let mut sum = LockStats::default();
        for acct in &self.handle.shared.accts {
            sum += acct.lock_stats();
        }
        sum
    }

    /// The times from queue to start, when they are measured.
    #[must_use]
    pub fn starts(&self) -> Vec<(u64, u64)> {
        self.handle.shared.starts.snapshot()
    }

    /// Ends the pool: bound work is run, unbound work that has not started ends with [`CANCELLED`](super::CANCELLED),
    /// all threads are joined. What is queued later ends with [`WorkDone::NoThread`](crate::WorkDone::NoThread). Not to
    /// be called by a worker.
    pub fn shutdown(&self) {
        self.handle.shared.shutdown();
    }
}

/// The way of one client into a pool. It belongs to the client's thread.
pub struct Submitter<S: Source> {
    pool: Pool<S>,
    client: Arc<Client<S>>,
    at: u32,
    /// Queued and not handed over, a list an account.
    staged: [Vec<WorkEntry>; 2],
    hashed: Vec<(u32, WorkEntry)>,
    /// A worker that naps was not woken (I1 of `nap`).
    pub(super) deferred: bool,
    /// Room for what is taken back.
    pub(super) own: Batch,
}

impl<S: Source> std::fmt::Debug for Submitter<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Submitter").field("client", &self.at).finish_non_exhaustive()
    }
}

impl<S: Source> Submitter<S> {
    /// Queues a slot; it is handed over by [`commit`](Self::commit). False when the slot is queued or runs already.
    #[inline]
    pub fn queue(&mut self, slot: u32, flags: WorkFlags) -> bool {
        let Some(generation) = self.client.items.queue(slot) else { return false };
        let entry = WorkEntry::new(self.at, slot, generation, flags);
        if let Some(clock) = &self.pool.handle.shared.clock {
            self.client.stamp(slot, clock);
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

    /// Hands over what was queued: one lock and at most one wake-up an account, and a lock for each run of
    /// items of one hash.
    #[inline]
    pub fn commit(&mut self) {
        if self.has_staged() {
            self.commit_staged();
        }
    }

    /// Whether something was queued and not handed over: no worker knows of it.
    #[inline]
    #[must_use]
    pub fn has_staged(&self) -> bool {
        !(self.staged[0].is_empty() && self.staged[1].is_empty() && self.hashed.is_empty())
    }

    /// The one entry that was queued and not handed over, if it is short; it is queued no more.
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

    /// Takes an item back; see [`Cancelled`].
    pub fn cancel(&self, slot: u32) -> Cancelled {
        self.client.items.cancel(slot)
    }

    /// Cancels the items that `cancel` names and have not started, and waits until the others have ended.
    pub fn close(&mut self, cancel: impl Fn(u32) -> bool) {
        self.commit();
        self.client.close(cancel);
    }

    /// Waits until the item of a slot, which was handed over, has ended; its result comes very soon.
    pub fn wait_for(&self, slot: u32) {
        self.client.wait_for(slot..slot + 1);
    }

    /// Whether a worker was wanted and no thread could be had: [`retry`](Self::retry) soon.
    #[inline]
    pub fn is_starved(&self) -> bool {
        self.pool.handle.shared.accts.iter().any(Acct::is_starved)
    }

    /// Tries again to make a worker that could not be made.
    pub fn retry(&self) {
        let shared = &self.pool.handle.shared;
        for (at, acct) in shared.accts.iter().enumerate() {
            if acct.is_starved() {
                shared.wake(at);
            }
        }
    }

    /// Whether polling for results keeps a worker from this CPU.
    pub fn is_in_the_way(&self) -> bool {
        self.pool.handle.shared.accts.iter().any(Acct::is_in_workers_way)
    }

    pub(super) fn at(&self) -> usize {
        self.at as usize
    }

    pub(super) fn items(&self) -> &Items {
        &self.client.items
    }

    /// The source of this client.
    pub fn source(&self) -> &S {
        &self.client.source
    }

    /// The pool.
    pub fn pool(&self) -> &Pool<S> {
        &self.pool
    }
}

impl<S: Source> Drop for Submitter<S> {
    fn drop(&mut self) {
        self.close(|_| true);
        let shared = &self.pool.handle.shared;
        // Of its source there may be more than this: not under the lock.
        let client = shared.table().remove(self.at);
        drop(client);
        shared.changed();
        for acct in &shared.accts {
            acct.sweep(&|entry| shared.waits(entry));
        }
    }
}
