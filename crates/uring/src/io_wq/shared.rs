//! What all threads of a pool share: its settings, its two accounts, the table of its clients, and its threads.
//!
//! Owns the making and the joining of threads, and the refusal of work that no thread is left for. Does not own what a
//! worker does in its life: the pool says which function that is ([`Live`]), so that workers, who wake and make each
//! other, stand above this.
//!
//! Invariants:
//! - I1: a thread is made under the roster's lock, counted before and uncounted when that fails: a failure is seen
//!   by nobody but the one who tried. When no worker is left to run what is queued, it ends with `WorkDone::NoThread`.
//! - I2: locks are taken in the order roster, shard, clients; a client's own lock is the last.

use std::io;
use std::time::Duration;

use sheave_base::clock::Clock;
use sheave_base::parker::{Parker, Unparker};
use sheave_base::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use sheave_base::sync::{Arc, Mutex, MutexGuard, thread};

use super::acct::{Acct, IDLE, MAX_WORKERS, RUNNING, Roster, STANDBY, WORKER, WorkerRef};
use super::client::{Client, ClientTable};
use super::shard::Batch;
use super::starts::Starts;
use super::work::{Source, WorkEntry};
use crate::work_done::WorkDone;

/// A worker that nobody needs ends after this time, unless set.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// A worker without work looks for more so long before it sleeps, unless set: waking it takes as long.
pub const SPIN: Duration = Duration::from_micros(50);
/// Asked before each thread is made; tests fail here.
pub(super) type SpawnGate = std::sync::Arc<dyn Fn() -> io::Result<()> + Send + Sync>;

/// The life of a worker of one account, on its own thread.
pub(super) type Live<S> = fn(Arc<Shared<S>>, usize, WorkerRef, Parker);

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
    /// A client that is about to wait on the CPU of its workers runs its short items itself.
    pub help: bool,
    /// No threads: work runs in [`Pool::step`](super::Pool::step).
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
            help: true,
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
    live: Live<S>,
    /// For a pool without threads.
    steps: Mutex<Steps>,
}

/// The batches in hand, by account.
#[derive(Debug)]
struct Steps {
    batches: [Batch; 2],
    /// Items of each that were begun.
    at: [usize; 2],
    /// Items of each that have not ended.
    running: [usize; 2],
}

impl Steps {
    fn new() -> Steps {
        Steps { batches: [Batch::new(), Batch::new()], at: [0; 2], running: [0; 2] }
    }
}

impl<S: Source> Shared<S> {
    /// What a new pool shares, whose workers live this life.
    pub(super) fn new(options: PoolOptions, gate: Option<SpawnGate>, live: Live<S>) -> Shared<S> {
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
            live,
            steps: Mutex::new(Steps::new()),
            options,
        };
        shared.accts.iter().for_each(|acct| acct.set_cpus(shared.cpu_count()));
        shared
    }

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
            acct.set_starved(false);
            return;
        }
        if let Some(worker) = roster.idle.pop() {
            acct.set_starved(false);
            acct.nap.end(worker.id);
            acct.move_counts(STANDBY, IDLE);
            roster.standby = Some(worker.unparker.clone());
            drop(roster);
            worker.unparker.unpark();
            return;
        }
        let (mut alone, mut starved) = (counts.all() == 0, false);
        if !roster.closed && counts.all() < acct.limit() {
            if self.spawn(at, &mut roster, STANDBY).is_ok() {
                alone = false;
            } else {
                roster.failed += 1;
                starved = !alone;
            }
        }
        let to_tell = acct.set_starved(starved);
        drop(roster);
        if alone {
            self.refuse(at);
        }
        // Once: who waits tries again by itself from now on, and a ring would wake itself with each try.
        if to_tell {
            let mut clients = Vec::new();
            self.table().copy_to(&mut clients);
            clients.iter().flatten().for_each(|client| client.source.starved());
        }
    }

    /// Has so many more workers run, as far as there can be: an idle one, or one that is made, or else the standby.
    #[cold]
    pub(super) fn call(self: &Arc<Self>, at: usize, wanted: u32) {
        let acct = &self.accts[at];
        for _ in 0..wanted {
            let mut roster = acct.roster.lock();
            if roster.closed || !acct.has_work() {
                return;
            }
            if let Some(worker) = roster.idle.pop() {
                acct.nap.end(worker.id);
                // Relaxed: under the roster's lock.
                worker.seat.called.store(true, Ordering::Relaxed);
                acct.move_counts(RUNNING, IDLE);
                drop(roster);
                worker.unparker.unpark();
            } else if acct.counts().all() < acct.limit() {
                if self.spawn(at, &mut roster, RUNNING).is_err() {
                    roster.failed += 1;
                    return;
                }
            } else {
                // It looks for itself whether it is wanted.
                let standby = roster.standby.take();
                drop(roster);
                standby.inspect(Unparker::unpark);
                return;
            }
        }
    }

    /// Makes a worker (I1), which begins in this place.
    fn spawn(self: &Arc<Self>, at: usize, roster: &mut Roster, place: u64) -> io::Result<()> {
        if let Some(gate) = &self.gate {
            gate()?;
        }
        let acct = &self.accts[at];
        // The first of an account always: without it nothing would be done.
        let counted = super::census::Counted::new(acct.counts().all() == 0)?;
        let parker = Parker::new()?;
        let id = roster.next_id;
        roster.next_id += 1;
        let me = WorkerRef { id, unparker: parker.unparker(), seat: Arc::default() };
        roster.workers.push(me.clone());
        if place == STANDBY {
            roster.standby = Some(me.unparker.clone());
        } else {
            // Relaxed: under the roster's lock, and before there is a thread.
            me.seat.called.store(true, Ordering::Relaxed);
        }
        acct.move_counts(WORKER + place, 0);
        let (shared, live) = (Arc::clone(self), self.live);
        let kind = if at == 0 { "" } else { "u" };
        let thread = thread::Builder::new().name(format!("{}-{kind}{id}", self.options.name)).spawn(move || {
            live(shared, at, me, parker);
            drop(counted);
        });
        match thread {
            Ok(thread) => {
                roster.threads.push((id, thread));
                roster.created += 1;
                Ok(())
            }
            Err(error) => {
                roster.workers.pop();
                acct.move_counts(0, WORKER + place);
                Err(error)
            }
        }
    }

    /// The threads of workers that have ended, to be joined without the lock, and by a worker that ends itself: a
    /// thread's last acts may be foreign ones, and take their time.
    pub(super) fn ended(&self, roster: &mut Roster) -> Vec<thread::JoinHandle<()>> {
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
        while self.accts[at].take(&mut batch) {
            for entry in &batch.entries {
                let Some(client) = self.client(entry.client()) else { continue };
                if client.items.start(entry.slot(), entry.generation()) {
                    client.items.end(entry.slot(), entry.generation());
                    client.source.not_run(entry.slot());
                    client.finish(&[(entry.slot(), WorkDone::NoThread)]);
                }
            }
        }
    }

    /// Moves the workers, those that are there and those to come, to these CPUs.
    pub(super) fn set_cpus(&self, cpus: &[usize]) {
        cpus.clone_into(&mut self.cpus.lock().expect("invariant: no panic under this lock"));
        for acct in &self.accts {
            acct.set_cpus(self.cpu_count());
            acct.place(cpus);
        }
    }

    pub(super) fn cpus(&self) -> Vec<usize> {
        self.cpus.lock().expect("invariant: no panic under this lock").clone()
    }

    /// How many CPUs workers run on.
    pub(super) fn cpu_count(&self) -> usize {
        let set = self.cpus.lock().expect("invariant: no panic under this lock").len();
        if set > 0 { set } else { super::thread_state::cpus_of_process() }
    }

    pub(super) fn client(&self, at: u32) -> Option<Arc<Client<S>>> {
        self.table().get(at).cloned()
    }

    pub(super) fn table(&self) -> MutexGuard<'_, ClientTable<S>> {
        self.clients.lock().expect("invariant: no panic under this lock")
    }

    /// A copy of the table for a worker, when it has changed.
    #[inline]
    pub(super) fn refresh(&self, version: &mut u32, copy: &mut Vec<Option<Arc<Client<S>>>>) {
        // Acquire pairs with the Release of `changed`. A worker learned of an entry through a shard's lock, after its
        // client was registered.
        let now = self.version.load(Ordering::Acquire);
        if now != *version {
            // What is let go of may be the last of a client: not under the lock. The room is kept: a worker comes here
            // each time it wakes.
            copy.clear();
            self.table().copy_to(copy);
            *version = now;
        }
    }

    pub(super) fn changed(&self) {
        // Release pairs with the Acquire of `refresh`.
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Whether an entry's item still waits, for sweeps.
    pub(super) fn waits(&self, entry: WorkEntry) -> bool {
        let table = self.table();
        table.get(entry.client()).is_some_and(|client| client.items.is_queued(entry.slot(), entry.generation()))
    }

    pub(super) fn shutdown(&self) {
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

/// Waits for the ends of threads.
pub(super) fn join(threads: impl IntoIterator<Item = thread::JoinHandle<()>>) {
    for thread in threads {
        // A worker that panicked has said so; there is nothing left to join.
        let _ = thread.join();
    }
}

impl<S: Source> Shared<S> {
    /// The next entry of an account. The lock is not held while its item runs.
    pub(super) fn next_entry(&self, acct: usize) -> Option<WorkEntry> {
        let mut steps = self.steps();
        let Steps { batches, at, running } = &mut *steps;
        let (batch, at, running) = (&mut batches[acct], &mut at[acct], &mut running[acct]);
        if *at >= batch.entries.len() {
            if batch.claim.is_some() && *running > 0 {
                return None;
            }
            // Releases the bucket of the batch before (I2).
            *at = 0;
            if !self.accts[acct].take(batch) {
                return None;
            }
        }
        *at += 1;
        *running += 1;
        Some(batch.entries[*at - 1])
    }

    /// An item of an account has ended that [`Shared::next_entry`] gave out.
    pub(super) fn entry_ended(&self, acct: usize) {
        self.steps().running[acct] -= 1;
    }

    fn steps(&self) -> MutexGuard<'_, Steps> {
        self.steps.lock().expect("invariant: no panic under this lock")
    }
}
