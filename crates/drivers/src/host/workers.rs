//! Threads that execute requests of a file by blocking system calls.
//!
//! All requests of the sync engine go to these threads. Flushes, discards and write-zeroes of a kernel ring that polls
//! go to them too, because such a ring cannot do them. All rings that use the file share its threads. Owns the threads
//! and the queue; the calls are in `calls`.
//!
//! A thread is started when a request finds no sleeping thread, up to [`MOST_THREADS`], and ends after [`LINGER`]
//! without work. One sleeping thread is woken at a time. It wakes the next one if more work waits after it has taken
//! its own. Threads that finish a request in the meantime take the waiting work, which saves a wake-up. Writes into the
//! page cache take one lock of the file: they are executed one at a time, in order, so that no second thread waits for
//! that lock.
//!
//! Invariants:
//! - W1: a request that was sent ends once: a thread executes it, or its queue takes it back before one has begun.
//! - W2: a queue that waits in [`Way::finish`] continues only when no thread has a request of it.
//! - W3: threads that were woken or started and have not checked for work yet are counted as such, and not as idle. So
//!   a wake-up is never counted for two requests, and none starts a second thread. While a woken thread has not
//!   checked, no other is woken; it wakes the next one when it has.
//! - W4: the queue has room for all tags of all rings that are attached: sending allocates nothing.
//!
//! Called by `queue` and `sync` on rings' threads.

use std::collections::VecDeque;
use std::thread::JoinHandle;
use std::time::Duration;

use sheave_base::status::Status;
use sheave_base::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use sheave_base::sync::{Arc, Condvar, Mutex, MutexGuard};
use sheave_blk::driver::{HctxOpen, Remote, RemoteRq};
use sheave_blk::limits::Capacity;
use sheave_blk::request::Rq;

use super::calls::Ask;
use super::recover::Judge;
use super::shared::HostShared;

/// Largest number of threads of a file, and so of its requests that can wait in the kernel at a time.
const MOST_THREADS: usize = 64;
/// Largest number of serialised writes that a thread takes each time it holds the lock of the queue.
const MOST_WRITES: usize = 32;
/// Time after which a thread without work ends. In tests longer than any test, so that no thread finds its work only
/// because it woke up by itself.
const LINGER: Duration = Duration::from_secs(if cfg!(test) { 600 } else { 5 });

/// The threads of a file.
#[derive(Debug)]
pub(super) struct Workers {
    crew: Arc<Crew>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// State shared by the threads and the rings.
#[derive(Debug)]
struct Crew {
    shared: Arc<HostShared>,
    state: Mutex<State>,
    /// Threads without work wait here.
    work: Condvar,
    /// Queues that shut down wait here.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Writes into the page cache, executed one at a time.
    writes: VecDeque<Job>,
    /// True while a thread executes requests of `writes`.
    writing: bool,
    /// Capacity that the rings need (W4).
    room: usize,
    /// Number of requests sent whose end the rings had not seen at their last send. It bounds the number of useful
    /// threads.
    in_flight: usize,
    /// Number of threads, including those that are being started.
    threads: usize,
    /// Number of threads that sleep and were not woken.
    idle: usize,
    /// Number of threads that were woken and have not checked for work yet.
    signalled: usize,
    /// Number of threads that were started and have not checked for work yet.
    starting: usize,
    closing: bool,
}

/// A request that was sent.
#[derive(Debug)]
struct Job {
    ask: Ask,
    rq: RemoteRq,
    of: Arc<Origin>,
}

/// The queue that a request comes from.
#[derive(Debug)]
struct Origin {
    capacity: Capacity,
    block: u32,
    ending: AtomicBool,
    /// Number of requests sent and not ended. Only changed while `state` is locked.
    out: AtomicU32,
}

/// Access of one hardware queue to the threads.
#[derive(Debug)]
pub(super) struct Way {
    workers: Arc<Workers>,
    of: Arc<Origin>,
    remote: Remote,
    room: usize,
    /// Number of requests whose end the ring has not seen.
    held: u32,
    /// Number of requests whose end the ring has seen since its last send.
    seen: u32,
    /// Requests of the next send.
    batch: Vec<Job>,
    /// Writes of the next send that are to be executed one at a time.
    writes: Vec<Job>,
}

impl Workers {
    pub(super) fn new(shared: Arc<HostShared>) -> Arc<Workers> {
        let (state, work, ended) = (Mutex::default(), Condvar::new(), Condvar::new());
        Arc::new(Workers { crew: Arc::new(Crew { shared, state, work, ended }), threads: Mutex::default() })
    }

    /// Starts `wanted` threads.
    fn start(&self, wanted: usize) {
        let mut threads = self.threads.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        threads.retain(|thread| !thread.is_finished());
        for _ in 0..wanted {
            let crew = Arc::clone(&self.crew);
            let run = move || crew.run();
            match std::thread::Builder::new().name("sheave-file".into()).spawn(run) {
                Ok(thread) => threads.push(thread),
                Err(_) => self.crew.no_thread(),
            }
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.crew.lock().closing = true;
        self.crew.work.notify_all();
        let threads = self.threads.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        for thread in threads.drain(..) {
            let ended = thread.join();
            debug_assert!(ended.is_ok(), "the thread does not panic");
        }
    }
}

impl Crew {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Main function of a thread.
    fn run(&self) {
        let (mut mine, mut ended) = (Vec::with_capacity(MOST_WRITES), Vec::with_capacity(MOST_WRITES));
        let mut state = self.lock();
        state.starting -= 1;
        loop {
            let are_writes = state.take(&mut mine);
            if mine.is_empty() {
                let (next, goes_on) = self.wait(state);
                state = next;
                if !goes_on {
                    return;
                }
                continue;
            }
            let next = state.wake_one();
            drop(state);
            if next {
                self.work.notify_one();
            }
            let origins = mine.drain(..).map(|job| job.carry_out(&self.shared));
            ended.extend(origins);
            state = self.lock();
            state.writing &= !are_writes;
            ended.drain(..).for_each(|of| self.ended(&of));
        }
    }

    /// Waits for work; returns false if the thread must end.
    fn wait<'a>(&'a self, mut state: MutexGuard<'a, State>) -> (MutexGuard<'a, State>, bool) {
        if state.closing {
            state.threads -= 1;
            return (state, false);
        }
        state.idle += 1;
        let (mut state, waited) =
            self.work.wait_timeout(state, LINGER).unwrap_or_else(|poisoned| poisoned.into_inner());
        let was_woken = state.signalled > 0;
        if was_woken {
            state.signalled -= 1; // W3
        } else {
            state.idle -= 1;
        }
        let leaves = waited.timed_out() && !was_woken && !state.has_work();
        state.threads -= usize::from(leaves);
        (state, !leaves)
    }

    /// Counts the end of a request. Called with `state` locked.
    fn ended(&self, of: &Origin) {
        // Relaxed, both: changed and looked at under the lock alone.
        let left = of.out.load(Ordering::Relaxed) - 1;
        of.out.store(left, Ordering::Relaxed);
        if left == 0 && of.ending.load(Ordering::Relaxed) {
            self.ended.notify_all();
        }
    }

    /// Called when a thread could not be started. If there is no thread at all, waiting requests end with ENOMEM, and
    /// the caller may retry.
    fn no_thread(&self) {
        let mut state = self.lock();
        state.threads -= 1;
        state.starting -= 1;
        while state.threads == 0
            && let Some(job) = state.jobs.pop_front().or_else(|| state.writes.pop_front())
        {
            job.rq.complete(Status::NoMem);
            self.ended(&job.of);
        }
    }
}

impl State {
    fn has_work(&self) -> bool {
        !self.jobs.is_empty() || (!self.writing && !self.writes.is_empty())
    }

    /// Takes the next request for a thread, or several of the serialised writes. Returns true if it took serialised
    /// writes.
    fn take(&mut self, into: &mut Vec<Job>) -> bool {
        if !self.writing && !self.writes.is_empty() {
            self.writing = true;
            into.extend(self.writes.drain(..self.writes.len().min(MOST_WRITES)));
            return true;
        }
        into.extend(self.jobs.pop_front());
        false
    }

    /// Counts one sleeping thread as woken, if more requests wait than threads are about to check. Returns true if the
    /// caller must wake it.
    fn wake_one(&mut self) -> bool {
        let wakes = self.signalled == 0 && self.idle > 0 && self.without_thread() > 0;
        self.idle -= usize::from(wakes);
        self.signalled += usize::from(wakes);
        wakes
    }

    /// Returns the number of queued jobs beyond those that woken or starting threads will take.
    fn without_thread(&self) -> usize {
        let writer = usize::from(!self.writing && !self.writes.is_empty());
        (self.jobs.len() + writer).saturating_sub(self.signalled + self.starting)
    }

    /// Returns the number of threads to start for the waiting requests, and counts them.
    fn start_more(&mut self) -> usize {
        // A thread that has ended a request and not checked again is not idle, but will take one of the waiting
        // requests.
        let most = self.in_flight.min(MOST_THREADS);
        let missing = self.without_thread().saturating_sub(self.idle);
        let started = missing.min(most.saturating_sub(self.threads));
        self.threads += started;
        self.starting += started;
        started
    }
}

impl Job {
    /// Executes the request and reports its end to the ring. Returns the queue that it came from.
    fn carry_out(mut self, shared: &HostShared) -> Arc<Origin> {
        let Origin { capacity, block, ending, .. } = &*self.of;
        // Relaxed: a request that does not see the end yet is tried a bounded number of times.
        let judge = Judge { shared, capacity, block: *block, ending: ending.load(Ordering::Relaxed) };
        let status = self.ask.carry_out(&judge);
        self.rq.complete(status);
        self.of
    }
}

impl Way {
    pub(super) fn new(workers: Arc<Workers>, open: &HctxOpen<'_>) -> Way {
        let room = usize::from(open.depth) + 1;
        let (ending, out) = (AtomicBool::new(false), AtomicU32::new(0));
        let of = Arc::new(Origin { capacity: open.capacity.clone(), block: open.limits.logical_block, ending, out });
        let mut state = workers.crew.lock();
        state.room += room;
        let wanted = state.room;
        let missing = |queue: &VecDeque<Job>| wanted - queue.len();
        let (jobs, writes) = (missing(&state.jobs), missing(&state.writes));
        state.jobs.reserve(jobs);
        state.writes.reserve(writes);
        drop(state);
        let (batch, writes) = (Vec::with_capacity(room), Vec::with_capacity(room));
        Way { workers, of, remote: open.remote.clone(), room, held: 0, seen: 0, batch, writes }
    }

    /// Adds a request to the next send. `one_at_a_time` is true for a write into the page cache.
    pub(super) fn add(&mut self, rq: Rq, ask: Ask, one_at_a_time: bool) {
        let job = Job { ask, rq: self.remote.send_out(rq), of: Arc::clone(&self.of) };
        if one_at_a_time { &mut self.writes } else { &mut self.batch }.push(job);
    }

    /// Sends the added requests to the threads.
    pub(super) fn send(&mut self) {
        let many = self.batch.len() + self.writes.len();
        if many == 0 {
            return;
        }
        self.held += many as u32;
        let mut state = self.workers.crew.lock();
        // Relaxed, both: changed and looked at under the lock alone.
        self.of.out.store(self.of.out.load(Ordering::Relaxed) + many as u32, Ordering::Relaxed);
        state.jobs.extend(self.batch.drain(..));
        state.writes.extend(self.writes.drain(..));
        state.in_flight = state.in_flight + many - std::mem::take(&mut self.seen) as usize;
        let started = state.start_more();
        let wakes = state.wake_one();
        drop(state);
        if wakes {
            self.workers.crew.work.notify_one();
        }
        if started > 0 {
            self.workers.start(started);
        }
    }

    /// Ends requests that no thread has begun: the one with this tag, or all of them if `tag` is `None`. They end with
    /// `status`. Returns true if there was such a request.
    pub(super) fn take_back(&self, tag: Option<u16>, status: Status) -> bool {
        let mut found = false;
        let mut state = self.workers.crew.lock();
        let State { jobs, writes, .. } = &mut *state;
        for queue in [jobs, writes] {
            for _ in 0..queue.len() {
                let Some(job) = queue.pop_front() else { break };
                if Arc::ptr_eq(&job.of, &self.of) && (tag.is_none() || job.rq.tag() == tag) {
                    found = true;
                    job.rq.complete(status);
                    self.workers.crew.ended(&job.of);
                } else {
                    queue.push_back(job);
                }
            }
        }
        found
    }

    /// Counts that the ring has seen the end of a request.
    pub(super) fn seen(&mut self) {
        self.held -= 1;
        self.seen += 1;
    }

    /// Returns true if the threads have a request whose end the ring has not seen.
    pub(super) fn is_busy(&self) -> bool {
        self.held > 0
    }

    /// Takes back the requests that no thread has begun, and waits until the threads have ended the rest (W2).
    pub(super) fn finish(&mut self) {
        // Relaxed: the lock below orders it for whoever looks under the lock.
        self.of.ending.store(true, Ordering::Relaxed);
        self.take_back(None, Status::Canceled);
        let crew = &self.workers.crew;
        let mut state = crew.lock();
        // Relaxed: changed and looked at under the lock alone.
        while self.of.out.load(Ordering::Relaxed) > 0 {
            state = crew.ended.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        let mut state = self.workers.crew.lock();
        state.room -= self.room;
        state.in_flight -= (self.held + self.seen) as usize;
    }
}
