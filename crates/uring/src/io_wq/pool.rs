//! The pool: two accounts, their clients, and the threads.
//!
//! Owns the making and the joining of threads, the table of clients, limits, and the end. A [`Pool`] is a handle; the
//! last one to go shuts the pool down. A [`Submitter`] is how one client queues work.
//!
//! Invariants:
//! - I1: a thread is made under the roster's lock, counted before and uncounted when that fails: a failure is seen
//!   by nobody but the one who tried. When no worker is left to run what is queued, it ends with `WorkDone::NoThread`.
//! - I2: after `shutdown` every item that was queued has ended, once, every thread was joined, and what is queued
//!   later ends with `WorkDone::NoThread`.
//! - I3: locks are taken in the order roster, shard, clients; a client's own lock is the last.

use std::io;
use std::time::Duration;

use sheave_base::clock::Clock;
use sheave_base::parker::Parker;
use sheave_base::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use sheave_base::sync::{Arc, Mutex, thread};

use super::acct::{Acct, MAX_WORKERS, Roster, STANDBY, WORKER, WorkerRef};
use super::cancel::Cancelled;
use super::client::{Client, ClientTable};
use super::lock::LockStats;
use super::shard::Batch;
use super::starts::Starts;
use super::step::Steps;
use super::work::{Entry, MAX_CLIENTS, MAX_SLOTS, Source, WorkFlags};
use super::worker::Worker;
use crate::work_done::WorkDone;

/// A worker that nobody needs ends after this time, unless set.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// A worker without work looks for more so long before it sleeps, unless set: waking it takes as long.
pub const SPIN: Duration = Duration::from_micros(50);
/// Items that a submitter gathers before it hands them over without being told.
const STAGED: usize = 32;

/// Asked before each thread is made; tests fail here.
pub(super) type SpawnGate = std::sync::Arc<dyn Fn() -> io::Result<()> + Send + Sync>;

/// Settings of a pool.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Most workers of the bound and of the unbound account.
    pub max_workers: [u32; 2],
    /// Name of the threads; a dash and a number follow.
    pub name: String,
    /// A worker that has nothing to do ends after this time.
    pub idle_timeout: Duration,
    /// How long a worker looks for more work before it sleeps.
    pub spin: Duration,
    /// Measure lock times and the time from queue to start: a few clock reads an item.
    pub measure: bool,
    /// Shards of each account's queue: a power of two up to 64.
    pub shards: usize,
    /// CPUs that workers run on; all of the process when empty.
    pub cpus: Vec<usize>,
    /// No threads: work runs in [`Pool::step`].
    pub stepped: bool,
}

impl Default for PoolOptions {
    fn default() -> Self {
        let cpus = super::thread_state::cpus_of_process();
        PoolOptions {
            max_workers: [(4 * cpus as u32).min(MAX_WORKERS), MAX_UNBOUND],
            name: "sheave-wq".into(),
            idle_timeout: IDLE_TIMEOUT,
            // On one CPU whoever looks for work keeps the other from making some.
            spin: if cpus > 1 { SPIN } else { Duration::ZERO },
            measure: false,
            shards: (2 * cpus).next_power_of_two().min(MOST_SHARDS),
            cpus: Vec::new(),
            stepped: false,
        }
    }
}

/// Shards of an account, unless set: each ring has a pool unless it shares one, so they must stay small.
const MOST_SHARDS: usize = 16;
/// Workers of the unbound account, unless set.
const MAX_UNBOUND: u32 = 256;

/// What all threads of a pool share.
pub(super) struct Shared<S> {
    pub(super) accts: [Acct; 2],
    pub(super) options: PoolOptions,
    /// CPUs of workers; none for those of the process.
    cpus: Mutex<Vec<usize>>,
    clients: Mutex<ClientTable<S>>,
    /// Grows with every change of the table.
    version: AtomicU32,
    pub(super) closed: AtomicBool,
    pub(super) clock: Option<Clock>,
    pub(super) starts: Starts,
    gate: Option<SpawnGate>,
    /// For a pool without threads.
    pub(super) steps: Mutex<Steps>,
}

/// The workers of one account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
}

impl<S: Source> Shared<S> {
    /// Wakes or makes a worker if nobody looks after the account's work.
    #[cold]
    pub(super) fn wake(self: &Arc<Self>, at: usize) {
        if self.options.stepped {
            return;
        }
        let acct = &self.accts[at];
        let mut roster = acct.roster.lock();
        let counts = acct.counts();
        if !counts.nobody_looks() || !acct.has_work() {
            return;
        }
        if let Some(worker) = roster.idle.pop() {
            acct.move_counts(STANDBY, super::acct::IDLE);
            drop(roster);
            worker.unparker.unpark();
            return;
        }
        let mut alone = counts.all() == 0;
        if !roster.closed && counts.all() < acct.limit() {
            if self.spawn(at, &mut roster).is_ok() {
                alone = false;
            } else {
                roster.failed += 1;
            }
        }
        let ended = self.ended(&mut roster);
        drop(roster);
        if alone {
            self.refuse(at);
        }
        join(ended);
    }

    /// Makes a worker (I1).
    fn spawn(self: &Arc<Self>, at: usize, roster: &mut Roster) -> io::Result<()> {
        if let Some(gate) = &self.gate {
            gate()?;
        }
        let parker = Parker::new()?;
        let id = roster.next_id;
        roster.next_id += 1;
        let me = WorkerRef { id, unparker: parker.unparker() };
        let acct = &self.accts[at];
        acct.move_counts(WORKER + STANDBY, 0);
        let shared = Arc::clone(self);
        let kind = if at == 0 { "" } else { "u" };
        let thread = thread::Builder::new()
            .name(format!("{}-{kind}{id}", self.options.name))
            .spawn(move || Worker::new(shared, at, me, parker).live());
        match thread {
            Ok(thread) => {
                roster.threads.push((id, thread));
                roster.created += 1;
                Ok(())
            }
            Err(error) => {
                acct.move_counts(0, WORKER + STANDBY);
                Err(error)
            }
        }
    }

    /// The threads of workers that have ended, to be joined without the lock.
    fn ended(&self, roster: &mut Roster) -> Vec<thread::JoinHandle<()>> {
        let Roster { threads, ended, .. } = roster;
        let mut handles = Vec::new();
        for id in ended.drain(..) {
            if let Some(at) = threads.iter().position(|(thread, _)| *thread == id) {
                handles.push(threads.swap_remove(at).1);
            }
        }
        handles
    }

    /// Ends all that is queued without running it: there is no worker, and none can be had.
    #[cold]
    fn refuse(&self, at: usize) {
        let mut batch = Batch::new();
        while self.accts[at].take(0, &mut batch) {
            for entry in &batch.entries {
                let Some(client) = self.client(entry.client()) else { continue };
                if client.items.start(entry.slot(), entry.generation()) {
                    client.items.end(entry.slot(), entry.generation());
                    client.finish(&[(entry.slot(), WorkDone::NoThread)]);
                }
            }
        }
    }

    pub(super) fn cpus(&self) -> Vec<usize> {
        self.cpus.lock().expect("invariant: no panic under this lock").clone()
    }

    pub(super) fn client(&self, at: u32) -> Option<Arc<Client<S>>> {
        self.table().get(at).cloned()
    }

    fn table(&self) -> sheave_base::sync::MutexGuard<'_, ClientTable<S>> {
        self.clients.lock().expect("invariant: no panic under this lock")
    }

    /// A copy of the table for a worker, when it has changed.
    #[inline]
    pub(super) fn refresh(&self, version: &mut u32, copy: &mut Vec<Option<Arc<Client<S>>>>) {
        // Acquire pairs with the Release of `changed`. A worker learned of an entry through a shard's lock, after its
        // client was registered.
        let now = self.version.load(Ordering::Acquire);
        if now != *version {
            self.table().copy_to(copy);
            *version = now;
        }
    }

    fn changed(&self) {
        // Release pairs with the Acquire of `refresh`.
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Whether an entry's item still waits, for sweeps.
    fn waits(&self, entry: Entry) -> bool {
        let table = self.table();
        table.get(entry.client()).is_some_and(|client| client.items.is_queued(entry.slot(), entry.generation()))
    }

    fn shutdown(&self) {
        // Release pairs with the Acquire of workers; the roster's lock orders it for those that go to sleep.
        self.closed.store(true, Ordering::Release);
        for at in 0..self.accts.len() {
            let acct = &self.accts[at];
            let threads = {
                let mut roster = acct.roster.lock();
                roster.closed = true;
                for worker in &roster.idle {
                    worker.unparker.unpark();
                }
                std::mem::take(&mut roster.threads)
            };
            join(threads.into_iter().map(|(_, thread)| thread));
            self.refuse(at);
        }
    }
}

fn join(threads: impl IntoIterator<Item = thread::JoinHandle<()>>) {
    for thread in threads {
        // A worker that panicked has said so; there is nothing left to join.
        let _ = thread.join();
    }
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

    /// The same with a say in whether threads can be made.
    pub(super) fn with_gate(options: PoolOptions, gate: Option<SpawnGate>) -> Pool<S> {
        let clock = options.measure.then(Clock::real);
        // Without threads one shard does, and the order is the same on every machine.
        let shards = if options.stepped { 1 } else { options.shards };
        let acct = |at: usize| Acct::new(shards, options.max_workers[at].clamp(1, MAX_WORKERS), clock.as_ref());
        let shared = Shared {
            accts: [acct(0), acct(1)],
            cpus: Mutex::new(options.cpus.clone()),
            clients: Mutex::new(ClientTable::new()),
            version: AtomicU32::new(1),
            closed: AtomicBool::new(false),
            starts: Starts::new(options.measure),
            clock,
            gate,
            steps: Mutex::new(Steps::new()),
            options,
        };
        Pool { handle: Arc::new(Handle { shared: Arc::new(shared) }) }
    }

    pub(super) fn shared(&self) -> &Shared<S> {
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
            acct.reserve(all);
        }
        let staged = [Vec::with_capacity(STAGED), Vec::with_capacity(STAGED)];
        Some(Submitter { pool: self.clone(), client, at, staged, hashed: Vec::with_capacity(STAGED) })
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
            }
        })
    }

    /// Sets the most workers of the bound and the unbound account; at least one each. Workers above a lowered limit
    /// end as soon as they have run what they are at.
    pub fn set_max_workers(&self, max_workers: [u32; 2]) {
        for (acct, limit) in self.handle.shared.accts.iter().zip(max_workers) {
            acct.set_limit(limit.clamp(1, MAX_WORKERS));
        }
    }

    /// Moves the workers, those that are there and those to come, to these CPUs; none for those of the process.
    pub fn set_cpus(&self, cpus: &[usize]) {
        let shared = &self.handle.shared;
        cpus.clone_into(&mut shared.cpus.lock().expect("invariant: no panic under this lock"));
        for acct in &shared.accts {
            acct.place(cpus);
        }
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
    /// all threads are joined. What is queued later ends with [`WorkDone::NoThread`]. Not to be called by a worker.
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
    staged: [Vec<Entry>; 2],
    hashed: Vec<(u32, Entry)>,
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
        let entry = Entry::new(self.at, slot, generation, flags);
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

    /// Hands over what was queued: one lock and at most one wake-up an account, hashed items aside.
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

    #[inline(never)]
    fn commit_staged(&mut self) {
        let shared = &self.pool.handle.shared;
        let waits = |entry| shared.waits(entry);
        let mut touched = [!self.hashed.is_empty(), false];
        for (at, staged) in self.staged.iter_mut().enumerate() {
            if !staged.is_empty() {
                shared.accts[at].push(self.at as usize, staged, &waits);
                staged.clear();
                touched[at] = true;
            }
        }
        for (bucket, entry) in self.hashed.drain(..) {
            shared.accts[0].push_hashed(bucket, entry, &waits);
        }
        for (at, touched) in touched.into_iter().enumerate() {
            if touched {
                shared.accts[at].note_queued();
            }
            if touched && shared.accts[at].wants_worker() {
                shared.wake(at);
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

    /// Whether polling for results keeps a worker from this CPU.
    pub fn is_in_the_way(&self) -> bool {
        self.pool.handle.shared.accts.iter().any(Acct::is_in_workers_way)
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
        shared.table().remove(self.at);
        shared.changed();
        for acct in &shared.accts {
            acct.sweep(&|entry| shared.waits(entry));
        }
    }
}
