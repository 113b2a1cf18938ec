//! State that all threads of a pool share: settings, the two accounts, the client table, and the threads.
//!
//! Owns creating and joining threads, the limit of the workers in all pools of the process ([`PROCESS_WORKERS`]), and
//! refusing work for which no thread can be created. Does not own the worker's loop: the pool passes it as a function
//! pointer ([`Live`]), so that this module does not depend on `worker`, which depends on it to wake and create other
//! workers.
//!
//! Invariants:
//! - I1: a thread is created under the roster's lock, and counted before; if that fails it is uncounted under the same
//!   lock, so no other thread sees the failure. If no worker is left to run the queued items, they end with
//!   `WorkDone::NoThread`.
//! - I2: lock order: roster, shard, clients; a client's own lock is the last.

use std::io;
use std::time::Duration;

use sheave_base::parker::{Parker, Unparker};
use sheave_base::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use sheave_base::sync::{Arc, Mutex, MutexGuard, thread};

use super::acct::{Acct, IDLE, MAX_WORKERS, RUNNING, Roster, STANDBY, WORKER, WorkerRef};
use super::client::{Client, ClientTable};
#[cfg(sheave_lab)]
use super::measure::Starts;
use super::shard::Batch;
use super::work::{Source, WorkEntry};
use crate::work_done::WorkDone;

/// Default time after which an idle worker ends.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Default time that a worker without work polls before it sleeps: about the time that waking it takes.
pub const SPIN: Duration = Duration::from_micros(50);
/// Maximum number of workers in all pools of a process, not counting the exempt first worker of an account. Each ring
/// has its own pool unless it shares one, and a number of threads that is right for one pool (sixty, asleep in system
/// calls) is wrong for hundreds.
pub const PROCESS_WORKERS: u32 = 1024;

/// Called before each thread is created; tests make it fail.
pub(super) type SpawnGate = std::sync::Arc<dyn Fn() -> io::Result<()> + Send + Sync>;

/// Thread body of a worker: shared state, account, its handle and its parker.
pub(super) type Live<S> = fn(Arc<Shared<S>>, usize, WorkerRef, Parker);

/// Settings of a pool.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Maximum number of workers of the bound and of the unbound account.
    pub max_workers: [u32; 2],
    /// Prefix of the thread names; a dash and a number follow.
    pub name: String,
    /// Time after which an idle worker ends.
    pub idle_timeout: Duration,
    /// Time that a worker without work polls before it sleeps.
    pub spin: Duration,
    /// Measures lock times and the time from queue to start, with a few clock reads per item.
    #[cfg(sheave_lab)]
    pub measure: bool,
    /// Number of shards of each account's queue: a power of two up to 64.
    pub shards: usize,
    /// CPUs that workers run on; empty means all CPUs of the process.
    pub cpus: Vec<usize>,
    /// Lets a client run its own short items before it waits on the CPU of its workers.
    pub help: bool,
    /// Creates no threads: work runs in [`Pool::step`](super::Pool::step).
    pub stepped: bool,
}

/// Longest wait for sleeping workers to drop what they keep.
#[cfg(not(shuttle))]
const LET_GO: Duration = Duration::from_millis(100);

impl Default for PoolOptions {
    fn default() -> Self {
        let cpus = super::thread_state::cpus_of_process();
        PoolOptions {
            max_workers: [(4 * cpus as u32).min(MAX_WORKERS), MAX_UNBOUND],
            name: "sheave-wq".into(),
            idle_timeout: IDLE_TIMEOUT,
            // On one CPU a worker that polls keeps the submitter from queueing work.
            spin: if cpus > 1 { SPIN } else { Duration::ZERO },
            #[cfg(sheave_lab)]
            measure: false,
            shards: (2 * cpus).next_power_of_two().min(MOST_SHARDS),
            cpus: Vec::new(),
            help: true,
            stepped: false,
        }
    }
}

/// Default limit of shards per account. Small, because each ring has its own pool unless it shares one.
const MOST_SHARDS: usize = 16;
/// Default number of workers of the unbound account.
const MAX_UNBOUND: u32 = 256;

/// State that all threads of a pool share.
pub(super) struct Shared<S> {
    pub(super) accts: [Acct; 2],
    pub(super) options: PoolOptions,
    /// CPUs of the workers; empty means all CPUs of the process.
    cpus: Mutex<Vec<usize>>,
    clients: Mutex<ClientTable<S>>,
    /// Grows with every change of the client table, so that workers know when their copy is outdated.
    version: AtomicU32,
    pub(super) closed: AtomicBool,
    #[cfg(sheave_lab)]
    pub(super) starts: Option<Starts>,
    gate: Option<SpawnGate>,
    live: Live<S>,
    /// State of a stepped pool.
    steps: Mutex<Steps>,
}

/// Batches in hand of a stepped pool, by account.
#[derive(Debug)]
struct Steps {
    batches: [Batch; 2],
    /// Number of items of each batch that were started.
    at: [usize; 2],
    /// Number of items of each account that were started and have not ended.
    running: [usize; 2],
}

impl Steps {
    fn new() -> Steps {
        Steps { batches: [Batch::new(), Batch::new()], at: [0; 2], running: [0; 2] }
    }
}

impl<S: Source> Shared<S> {
    /// Makes the state of a new pool whose workers run `live`.
    pub(super) fn new(options: PoolOptions, gate: Option<SpawnGate>, live: Live<S>) -> Shared<S> {
        // A stepped pool has one shard, so that its order is the same on every machine.
        let shards = if options.stepped { 1 } else { options.shards };
        let acct = |at: usize| Acct::new(shards, options.max_workers[at].clamp(1, MAX_WORKERS));
        let accts = [acct(0), acct(1)];
        #[cfg(sheave_lab)]
        let starts = options.measure.then(Starts::new);
        #[cfg(sheave_lab)]
        let accts = match &starts {
            Some(starts) => accts.map(|acct| acct.measured(starts)),
            None => accts,
        };
        let shared = Shared {
            accts,
            cpus: Mutex::new(options.cpus.clone()),
            clients: Mutex::new(ClientTable::new()),
            version: AtomicU32::new(1),
            closed: AtomicBool::new(false),
            #[cfg(sheave_lab)]
            starts,
            gate,
            live,
            steps: Mutex::new(Steps::new()),
            options,
        };
        shared.accts.iter().for_each(|acct| acct.set_cpus(shared.cpu_count()));
        shared
    }

    /// Wakes or creates a worker if work is queued in account `at` and no worker looks for it.
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
            // It may be napping; its wake-up ends the nap.
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
        // Only when newly starved: clients retry by themselves from then on, and a ring's retry that reported again
        // would wake the ring itself.
        if to_tell {
            let mut clients = Vec::new();
            self.table().copy_to(&mut clients);
            clients.iter().flatten().for_each(|client| client.source.starved());
        }
    }

    /// Makes up to `wanted` more workers run: wakes idle ones, else creates some; at the limit wakes the standby.
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
                // The standby checks by itself if another worker is wanted.
                let standby = roster.standby.take();
                drop(roster);
                standby.inspect(Unparker::unpark);
                return;
            }
        }
    }

    /// Creates a worker (I1) in the state `place`, `STANDBY` or `RUNNING`.
    fn spawn(self: &Arc<Self>, at: usize, roster: &mut Roster, place: u64) -> io::Result<()> {
        if let Some(gate) = &self.gate {
            gate()?;
        }
        let acct = &self.accts[at];
        // The first worker of an account is exempt from the process's limit: without it no work of the account would
        // run.
        let counted = Counted::new(acct.counts().all() == 0)?;
        let parker = Parker::without_fd();
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

    /// Returns the threads of ended workers, for the caller to join after it has released the lock: a thread's last
    /// acts may run foreign destructors, which take time.
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

    /// Ends all queued items of an account that has no worker and can get none, without running them.
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

    /// Moves the present and future workers to `cpus`.
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

    /// Returns the number of CPUs that workers may use.
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

    /// Updates a worker's copy of the client table if the table has changed since `version`.
    #[inline]
    pub(super) fn refresh(&self, version: &mut u32, copy: &mut Vec<Option<Arc<Client<S>>>>) {
        // Acquire pairs with the Release of `changed`. A worker finds an entry through a shard's lock, after its client
        // was registered.
        let now = self.version.load(Ordering::Acquire);
        if now != *version {
            // Clearing may drop the last reference to a client, so it is done outside the lock. The allocation is kept,
            // because a worker comes here each time it wakes.
            copy.clear();
            self.table().copy_to(copy);
            *version = now;
        }
    }

    /// Moves an item from `QUEUED` to `RUNNING`. Returns false if it was cancelled.
    #[inline]
    pub(super) fn start(&self, client: &Client<S>, entry: WorkEntry) -> bool {
        let started = client.items.start(entry.slot(), entry.generation());
        #[cfg(sheave_lab)]
        if started && let Some(starts) = &self.starts {
            starts.started(&client.stamps, entry.slot());
        }
        started
    }

    /// Returns the version of the table of clients.
    pub(super) fn version(&self) -> u32 {
        // Relaxed: a worker that misses a change lets go a little later.
        self.version.load(Ordering::Relaxed)
    }

    /// Has the sleeping workers drop what they keep of clients, and waits for that, but no longer than [`LET_GO`]: a
    /// client or one of its devices goes, and its caller may open the device again at once.
    pub(super) fn let_go(&self) {
        self.changed();
        for acct in &self.accts {
            acct.wake_idle();
        }
        #[cfg(not(shuttle))]
        {
            let until = std::time::Instant::now() + LET_GO;
            while self.accts.iter().any(Acct::keeps_clients) && std::time::Instant::now() < until {
                thread::yield_now();
            }
        }
    }

    pub(super) fn changed(&self) {
        // Release pairs with the Acquire of `refresh`.
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Returns true if the item of `entry` is still queued. Used by sweeps.
    pub(super) fn waits(&self, entry: WorkEntry) -> bool {
        let table = self.table();
        table.get(entry.client()).is_some_and(|client| client.items.is_queued(entry.slot(), entry.generation()))
    }

    pub(super) fn shutdown(&self) {
        // Release pairs with the Acquire of workers; for those that go to sleep the roster's lock orders it.
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
            // Entries that were queued after the last worker had ended.
            self.refuse(at);
        }
    }
}

#[cfg(not(shuttle))]
static WORKERS: AtomicU32 = AtomicU32::new(0);

/// Counts one worker until dropped.
#[derive(Debug)]
pub(super) struct Counted;

impl Counted {
    /// Counts another worker. Fails at the limit unless the worker is the `first` of its account.
    #[cfg(not(shuttle))]
    pub(super) fn new(first: bool) -> io::Result<Counted> {
        Counted::in_count(&WORKERS, PROCESS_WORKERS, first)
    }

    /// A model counts nothing: a static would outlive its executions.
    #[cfg(shuttle)]
    pub(super) fn new(_: bool) -> io::Result<Counted> {
        Ok(Counted)
    }

    #[cfg_attr(shuttle, allow(dead_code))]
    fn in_count(count: &AtomicU32, most: u32, first: bool) -> io::Result<Counted> {
        // Relaxed: a count that publishes no other data.
        let before = count.fetch_add(1, Ordering::Relaxed);
        if before >= most && !first {
            // Relaxed: as above.
            count.fetch_sub(1, Ordering::Relaxed);
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        Ok(Counted)
    }
}

#[cfg(not(shuttle))]
impl Drop for Counted {
    fn drop(&mut self) {
        // Relaxed: as above.
        WORKERS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Joins the threads.
pub(super) fn join(threads: impl IntoIterator<Item = thread::JoinHandle<()>>) {
    for thread in threads {
        // A worker's panic has been reported by its own thread.
        let _ = thread.join();
    }
}

impl<S: Source> Shared<S> {
    /// Stepped pool: returns the next entry of an account. The lock is not held while its item runs. Returns `None` if
    /// none is queued, or if the items of a claimed bucket have not ended.
    pub(super) fn next_entry(&self, acct: usize) -> Option<WorkEntry> {
        let mut steps = self.steps();
        let Steps { batches, at, running } = &mut *steps;
        let (batch, at, running) = (&mut batches[acct], &mut at[acct], &mut running[acct]);
        if *at >= batch.entries.len() {
            if batch.claim.is_some() && *running > 0 {
                return None;
            }
            // `take` releases the bucket of the batch before (I2 of `step`).
            *at = 0;
            if !self.accts[acct].take(batch) {
                return None;
            }
        }
        *at += 1;
        *running += 1;
        Some(batch.entries[*at - 1])
    }

    /// Called when an item that [`Shared::next_entry`] returned has ended.
    pub(super) fn entry_ended(&self, acct: usize) {
        self.steps().running[acct] -= 1;
    }

    fn steps(&self) -> MutexGuard<'_, Steps> {
        self.steps.lock().expect("invariant: no panic under this lock")
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn beyond_the_bound_only_the_first_of_an_account_is_made() {
        let count = AtomicU32::new(0);
        let made = |first| Counted::in_count(&count, 2, first).map(std::mem::forget).is_ok();
        assert_eq!([made(false), made(false), made(false), made(true), made(false)], [true, true, false, true, false]);
        assert_eq!(count.load(Ordering::Relaxed), 3, "who is refused is not counted");
    }
}
