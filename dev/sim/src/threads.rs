//! Threads that run one at a time: blocking calls, executed step by step.
//!
//! Owns [`Threads`] and [`Call`]. A call has a thread of its own, but runs only while the simulator waits for it in
//! [`Threads::step`]. It runs until it would wait (for a grace period, a lock that is held over I/O, another thread's
//! work, the simulated disk); at that point it passes the turn back to the simulator. So a pool's blocking operations
//! overlap with each other and with all work of rings, in an order that the simulator draws from its seed and that
//! repeats to the byte.
//!
//! Does not own the points at which threads wait. Those are in [`sheave_base::wait`], and in the simulated disk, which
//! calls [`pause`] when it is polled.
//!
//! - I1: exactly one thread runs, the simulator's included. Only that thread passes the turn on.
//! - I2: a panic of a call becomes a panic of the step in which it happened.
//! - I3: a call that is given up unwinds from where it waits. All calls have ended when their `Threads` are dropped.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use sheave_base::rng::mix;
use sheave_base::sync::atomic::{AtomicU8, Ordering};
use sheave_base::sync::{Arc, Mutex, hint, thread};
use sheave_base::wait::{self, Step};

/// The day on which all pools of simulations were made, so that images repeat to the byte.
pub const MADE_AT: u64 = 1_700_000_000;
/// Largest number of calls that run at the same time.
pub const MAX_CALLS: usize = 12;
/// Largest number of turns that a call gets to unwind after it was given up.
const MAX_STEPS: u32 = 100_000;
/// Number of times that a thread reads `turn` before it sleeps.
const SPINS: u32 = 200;

/// The simulator's turn: the call waits.
const WAITS: u8 = 0;
/// The simulator's turn: the call has returned, or there is none.
const ENDED: u8 = 1;
/// The call's turn: it goes on.
const GO_ON: u8 = 2;
/// The call's turn: it goes on, and the time of its wait is up.
const TIME_UP: u8 = 3;
/// The call's turn: it is given up.
const GIVE_UP: u8 = 4;
/// The thread's turn: it ends.
const QUIT: u8 = 5;

type Job = Box<dyn FnOnce() + Send>;

/// The panic payload with which a call that is given up unwinds.
struct GivenUp;

/// The state that the simulator and one thread share.
struct Baton {
    /// The side whose turn it is and the reason: one of [`WAITS`] to [`QUIT`].
    turn: AtomicU8,
    job: Mutex<Option<Job>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    simulator: thread::Thread,
}

impl Baton {
    /// Waits for the caller's turn; `simulator` is true on the simulator's side. Returns the value of `turn`.
    fn wait_turn(&self, simulator: bool) -> u8 {
        let mut spins = 0;
        loop {
            // Acquire pairs with the Release in `pass`: the thread that has the turn sees all that was done before.
            let turn = self.turn.load(Ordering::Acquire);
            if (turn <= ENDED) == simulator {
                return turn;
            }
            spins += 1;
            if spins < SPINS { hint::spin_loop() } else { thread::park() }
        }
    }

    fn pass(&self, turn: u8, to: &thread::Thread) {
        // Release pairs with the Acquire in `wait_turn`.
        self.turn.store(turn, Ordering::Release);
        to.unpark();
    }

    /// Passes the turn to the simulator, and returns when it comes back.
    fn hand_over(&self) -> Step {
        if thread::panicking() {
            // The call unwinds already. Handing over could raise a second panic in one of its drops, which would abort
            // the process.
            return Step::Again;
        }
        self.pass(WAITS, &self.simulator);
        match self.wait_turn(false) {
            GO_ON => Step::Again,
            TIME_UP => Step::TimeUp,
            _ => resume_unwind(Box::new(GivenUp)),
        }
    }
}

/// The main function of a thread: it runs one call after another.
fn work(baton: &Arc<Baton>) {
    let mine = Arc::clone(baton);
    sheave_vol::made_at::fix(Some(MADE_AT));
    wait::set_stepper(Some(Rc::new(move || mine.hand_over())));
    loop {
        let turn = baton.wait_turn(false);
        let job = baton.job.lock().ok().and_then(|mut job| job.take());
        if turn == QUIT {
            wait::set_stepper(None);
            return;
        }
        if let Some(job) = job.filter(|_| turn != GIVE_UP)
            && let Err(panic) = catch_unwind(AssertUnwindSafe(job))
            && let Ok(mut place) = baton.panic.lock()
        {
            *place = Some(panic);
        }
        baton.pass(ENDED, &baton.simulator);
    }
}

struct Worker {
    baton: Arc<Baton>,
    handle: thread::JoinHandle<()>,
    /// True while this thread has a call that has not ended. Shared with the [`Call`] of its current or last call. The
    /// next call gets a new cell, so that the `Call` of an ended one remains ended.
    busy: Rc<Cell<bool>>,
}

impl Worker {
    fn new(number: usize) -> Worker {
        let (job, panic, simulator) = (Mutex::new(None), Mutex::new(None), thread::current());
        let baton = Arc::new(Baton { turn: AtomicU8::new(ENDED), job, panic, simulator });
        let theirs = Arc::clone(&baton);
        let handle = thread::Builder::new().name(format!("sim-call-{number}")).spawn(move || work(&theirs));
        let handle = handle.expect("the machine has room for a thread");
        Worker { baton, handle, busy: Rc::new(Cell::new(false)) }
    }

    /// Lets the thread run until it hands over. Returns the panic that ended its call, if one did.
    fn tell(&self, turn: u8) -> Option<Box<dyn Any + Send>> {
        self.baton.pass(turn, self.handle.thread());
        if self.baton.wait_turn(true) == ENDED {
            self.busy.set(false);
        }
        let panic = self.baton.panic.lock().ok()?.take();
        panic.filter(|panic| !panic.is::<GivenUp>())
    }

    fn give_up(&self) {
        for _ in 0..MAX_STEPS {
            if !self.busy.get() {
                return;
            }
            self.tell(GIVE_UP);
        }
    }
}

/// All threads; they end with it.
#[derive(Default)]
struct Workers {
    all: RefCell<Vec<Worker>>,
    /// Parameters of the gaps that the next call makes between two holds of a pool's lock: the seed, the percentage of
    /// gaps in which the call hands over, and the percentage of those in which it does so for long.
    gaps: Cell<(u64, (u64, u64))>,
}

impl Drop for Workers {
    fn drop(&mut self) {
        let workers = std::mem::take(&mut *self.all.borrow_mut());
        workers.iter().for_each(Worker::give_up); // I3
        for worker in workers.into_iter().filter(|worker| !worker.busy.get()) {
            worker.baton.pass(QUIT, worker.handle.thread());
            let _ = worker.handle.join();
        }
    }
}

/// The threads of a simulation. Clones share them.
#[derive(Clone, Default)]
pub struct Threads(Rc<Workers>);

pub struct Call<T> {
    number: usize,
    result: Arc<Mutex<Option<T>>>,
    busy: Rc<Cell<bool>>,
}

impl<T> Call<T> {
    /// Returns the call's result, once, after it has returned.
    #[must_use]
    pub fn take(&self) -> Option<T> {
        if self.has_ended() { self.result.lock().ok()?.take() } else { None }
    }

    /// Returns true if the call has returned or was given up.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        !self.busy.get()
    }

    /// Returns the number by which [`Threads::step`] identifies the call.
    #[must_use]
    pub fn number(&self) -> usize {
        self.number
    }
}

/// Lets other threads run at a point where a call would wait. Returns at once on the simulator's own thread.
pub fn pause() {
    wait::step();
}

impl Threads {
    /// Returns an empty set. Threads are started with the calls, and kept.
    #[must_use]
    pub fn new() -> Threads {
        Threads::default()
    }

    /// Sets the gaps of the calls started from now on. The first percentage is that of releases of a pool's lock at
    /// which a call hands over although nothing makes it wait. The second is that of those gaps in which other threads
    /// run for long.
    pub fn set_gaps(&self, seed: u64, percents: (u64, u64)) {
        self.0.gaps.set((seed, percents));
    }

    /// Returns the numbers of the calls that have not returned.
    #[must_use]
    pub fn running(&self) -> Vec<usize> {
        let workers = self.0.all.borrow();
        (0..workers.len()).filter(|&at| workers[at].busy.get()).collect()
    }

    /// Prepares a call, which begins with its first step. Returns `None` if [`MAX_CALLS`] calls run already.
    pub fn start<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Option<Call<T>> {
        let mut workers = self.0.all.borrow_mut();
        let idle = workers.iter().position(|worker| !worker.busy.get());
        let number = match idle {
            Some(at) => at,
            None if workers.len() == MAX_CALLS => return None,
            None => {
                let number = workers.len();
                workers.push(Worker::new(number));
                number
            }
        };
        let result = Arc::new(Mutex::new(None));
        let out = Arc::clone(&result);
        let (seed, percents) = self.0.gaps.get();
        self.0.gaps.set((mix(seed), percents));
        let job = move || {
            wait::set_gaps(mix(!seed), percents);
            let returned = job();
            if let Ok(mut out) = out.lock() {
                *out = Some(returned);
            }
        };
        let worker = &mut workers[number];
        *worker.baton.job.lock().ok()? = Some(Box::new(job));
        worker.busy = Rc::new(Cell::new(true));
        Some(Call { number, result, busy: Rc::clone(&worker.busy) })
    }

    /// Lets a call run until it waits or returns. With `time_up` true, the wait in which the call is now times out, if
    /// it has a timeout.
    ///
    /// # Panics
    /// Panics if the call did (I2).
    pub fn step(&self, call: usize, time_up: bool) {
        let workers = self.0.all.borrow();
        let Some(worker) = workers.get(call).filter(|worker| worker.busy.get()) else { return };
        let panic = worker.tell(if time_up { TIME_UP } else { GO_ON });
        drop(workers);
        if let Some(panic) = panic {
            resume_unwind(panic); // I2
        }
    }

    /// Gives up the calls that have not returned (I3).
    pub fn give_up(&self) {
        self.0.all.borrow().iter().for_each(Worker::give_up);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use sheave_base::grace::Grace;

    use super::*;

    #[test]
    fn a_call_goes_on_only_when_it_is_told_to() {
        let threads = Threads::new();
        let at = Arc::new(AtomicU32::new(0));
        let theirs = Arc::clone(&at);
        let call = threads.start(move || {
            for step in 1..4 {
                theirs.store(step, Ordering::Relaxed);
                pause();
            }
            "done"
        });
        let call = call.expect("there is room");
        assert_eq!((at.load(Ordering::Relaxed), call.take()), (0, None));
        for step in 1..4 {
            threads.step(call.number(), false);
            assert_eq!((at.load(Ordering::Relaxed), call.has_ended()), (step, false));
        }
        threads.step(call.number(), false);
        assert!(call.has_ended() && threads.running().is_empty());
        assert_eq!((call.take(), call.take()), (Some("done"), None));
    }

    #[test]
    fn a_call_that_has_ended_is_over_also_when_its_thread_has_another() {
        let threads = Threads::new();
        let first = threads.start(|| 1).expect("there is room");
        threads.step(first.number(), false);
        let second = threads.start(|| 2).expect("there is room");
        assert_eq!((first.number(), second.has_ended()), (second.number(), false));
        assert_eq!((first.take(), second.take()), (Some(1), None));
    }

    #[test]
    fn two_calls_share_a_lock_that_is_held_over_waits() {
        let threads = Threads::new();
        let lock = Arc::new(Mutex::new(Vec::new()));
        let calls = ["a", "b"].map(|name| {
            let lock = Arc::clone(&lock);
            threads.start(move || {
                let mut list = wait::lock(&lock);
                list.push(name);
                pause();
                list.push(name);
            })
        });
        let [a, b] = calls.map(|call| call.expect("there is room").number());
        threads.step(b, false);
        threads.step(a, false);
        threads.step(a, false);
        assert_eq!(threads.running(), [a, b]);
        while !threads.running().is_empty() {
            threads.step(b, false);
            threads.step(a, false);
        }
        assert_eq!(*lock.lock().expect("nobody panicked"), ["b", "b", "a", "a"]);
    }

    #[test]
    fn a_wait_for_a_grace_is_over_when_its_time_is() {
        let threads = Threads::new();
        let grace = Arc::new(Grace::new());
        let seat = Grace::seat(&grace);
        seat.enter();
        let phase = seat.count();
        seat.leave();
        let theirs = Arc::clone(&grace);
        let call = threads.start(move || theirs.wait(theirs.start(), std::time::Duration::MAX)).expect("there is room");
        (0..10).for_each(|_| threads.step(call.number(), false));
        assert!(!call.has_ended(), "the I/O has not ended");
        threads.step(call.number(), true);
        assert_eq!(call.take(), Some(false));
        seat.uncount(phase);
    }

    #[test]
    fn a_panic_comes_out_of_the_step() {
        let threads = Threads::new();
        let call = threads.start(|| resume_unwind(Box::new("told")));
        let call: Call<()> = call.expect("there is room");
        let panic = catch_unwind(AssertUnwindSafe(|| threads.step(call.number(), false))).expect_err("it panicked");
        assert_eq!(panic.downcast_ref(), Some(&"told"));
        assert!(call.has_ended() && call.take().is_none());
    }

    #[test]
    fn calls_that_are_given_up_unwind() {
        let dropped = Arc::new(AtomicU32::new(0));
        struct Guard(Arc<AtomicU32>);
        impl Drop for Guard {
            fn drop(&mut self) {
                pause();
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let threads = Threads::new();
        for _ in 0..MAX_CALLS {
            let guard = Guard(Arc::clone(&dropped));
            let call = threads.start(move || {
                let _guard = guard;
                loop {
                    pause();
                }
            });
            let call: Call<()> = call.expect("there is room");
            threads.step(call.number(), false);
        }
        assert!(threads.start(|| ()).is_none(), "as many as there may be");
        drop(threads);
        assert_eq!(dropped.load(Ordering::Relaxed), MAX_CALLS as u32);
    }
}
