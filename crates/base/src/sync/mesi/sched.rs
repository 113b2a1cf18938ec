//! Threads of a simulated machine, one of which runs at a time: the next one is drawn from a seed at every access that
//! another one could see.
//!
//! Owns the order. A simulated thread is a thread of the system that waits for its turn; each has a processor of its
//! own. A thread outside of the simulation is not counted, and waits in the usual way.
//!
//! * I1: one simulated thread runs at a time and the others wait for their turn, so that nothing depends on the system.
//! * I2: each thread that can run is drawn with the same probability (so none starves), from a generator that only the
//!   order of accesses advances. The same seed gives the same run.
//! * I3: a waiting thread is not drawn until its key is woken. Threads that wait with a timeout time out when no other
//!   thread can run.

use std::cell::Cell;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::machine::{Access, Counts, Machine, Topology};
use crate::rng::mix;

/// Simulated ns of one read of the clock, so that loops that wait for a time to pass end.
const LOOK_NS: u64 = 20;

/// Number of accesses invisible to other threads after which another thread is drawn all the same.
const UNSEEN: u32 = 32;

thread_local! {
    static ME: Cell<Option<Me>> = const { Cell::new(None) };
}

/// A simulated thread: its number, and its simulation, which outlives it.
#[derive(Clone, Copy)]
struct Me {
    cpu: usize,
    run: &'static Run,
}

/// A running simulation. Never freed: threads of the system may still refer to it when it is over.
struct Run {
    state: Mutex<State>,
    /// One condition variable for each thread, on which it waits for its turn.
    turns: Vec<Condvar>,
    /// Notified when a thread has arrived in the simulation.
    arrivals: Condvar,
}

struct State {
    machine: Machine,
    seed: u64,
    draws: u64,
    now_ns: u64,
    current: usize,
    threads: Vec<Thread>,
    /// Number of system threads that have arrived in the simulation.
    arrived: usize,
    /// Number of bodies that have reached [`measure`].
    ready: usize,
    /// Number of bodies.
    bodies: usize,
    done: usize,
    result: Option<Counts>,
    steps: Vec<u64>,
    /// Number of accesses since the last draw.
    unseen: u32,
    /// True if all remaining threads wait for each other. Each of them then panics.
    stuck: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Thread {
    Runs,
    /// Waits for `key`. `since` is a logical time: the thread that has waited longest is woken first.
    Waits {
        key: usize,
        timed: bool,
        since: u64,
    },
    TimedOut,
    Ended,
}

impl Run {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until this thread is drawn (I1).
    fn wait<'a>(&'a self, cpu: usize, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        while state.current != cpu {
            assert!(!state.stuck, "every simulated thread waits for another one");
            state = self.turns[cpu].wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        assert!(!state.stuck, "every simulated thread waits for another one");
        state
    }

    /// Draws the next thread (I2), and waits for this thread's turn.
    fn switch<'a>(&'a self, cpu: usize, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.draw();
        if state.current == cpu || state.stuck {
            return self.wait(cpu, state);
        }
        self.turns[state.current].notify_one();
        self.wait(cpu, state)
    }
}

impl State {
    fn draw(&mut self) {
        let runs = |thread: &Thread| matches!(thread, Thread::Runs | Thread::TimedOut);
        let mut count = self.threads.iter().filter(|thread| runs(thread)).count();
        if count == 0 {
            let timed = |thread: &&mut Thread| matches!(thread, Thread::Waits { timed: true, .. });
            match self.threads.iter_mut().find(timed) {
                Some(thread) => *thread = Thread::TimedOut, // I3
                None => {
                    self.stuck = self.threads.iter().any(|thread| matches!(thread, Thread::Waits { .. }));
                    return;
                }
            }
            count = 1;
        }
        self.draws += 1;
        let at = (mix(self.seed ^ mix(self.draws)) % count as u64) as usize;
        let mut able = self.threads.iter().enumerate().filter(|(_, thread)| runs(thread));
        self.current = able.nth(at).map_or(self.current, |(cpu, _)| cpu);
        self.steps[self.current] += 1;
    }
}

/// Reports an access of this thread's processor to memory; switches threads if another one could see it.
pub fn touch(address: usize, bytes: usize, access: Access) {
    if let Some(Me { cpu, run }) = ME.get() {
        let mut state = run.state();
        state.now_ns += 1;
        state.unseen += 1;
        if state.machine.touch(cpu, address, bytes, access) || state.unseen >= UNSEEN {
            state.unseen = 0;
            drop(run.switch(cpu, state));
        }
    }
}

/// Switches threads. Returns false outside of a simulation.
pub fn step() -> bool {
    let Some(Me { cpu, run }) = ME.get() else { return false };
    drop(run.switch(cpu, run.state()));
    true
}

/// Waits until [`wake_all`] or [`wake_one`] wakes `key`; may end earlier. Returns `None` outside of a simulation,
/// otherwise true after a timeout: with `timed` the wait also ends when no other thread can run.
pub fn wait_for(key: usize, timed: bool) -> Option<bool> {
    let Me { cpu, run } = ME.get()?;
    let mut state = run.state();
    state.threads[cpu] = Thread::Waits { key, timed, since: state.now_ns };
    let mut state = run.switch(cpu, state);
    let timed_out = state.threads[cpu] == Thread::TimedOut;
    state.threads[cpu] = Thread::Runs;
    Some(timed_out)
}

/// Wakes all threads that wait for this key.
pub fn wake_all(wanted: usize) {
    if let Some(Me { run, .. }) = ME.get() {
        for thread in &mut run.state().threads {
            if matches!(thread, Thread::Waits { key, .. } if *key == wanted) {
                *thread = Thread::Runs;
            }
        }
    }
}

/// Wakes the thread that has waited longest for this key.
pub fn wake_one(wanted: usize) {
    if let Some(Me { run, .. }) = ME.get() {
        let mut state = run.state();
        let waits = |thread: &Thread| match thread {
            Thread::Waits { key, since, .. } if *key == wanted => Some(*since),
            _ => None,
        };
        let first = (0..state.threads.len()).filter_map(|cpu| Some((waits(&state.threads[cpu])?, cpu))).min();
        if let Some((_, cpu)) = first {
            state.threads[cpu] = Thread::Runs;
        }
    }
}

/// Calls `tell` with this thread's processor and the machine; does nothing outside of a simulation.
pub fn with_machine(tell: impl FnOnce(usize, &mut Machine)) {
    if let Some(Me { cpu, run }) = ME.get() {
        tell(cpu, &mut run.state().machine);
    }
}

/// Returns the simulation's clock; `None` outside of one.
#[must_use]
pub fn now_ns() -> Option<u64> {
    let Me { run, .. } = ME.get()?;
    let mut state = run.state();
    state.now_ns += LOOK_NS;
    Some(state.now_ns)
}

/// Starts counting: called once by each body of [`simulate`]; all wait here for the last one.
pub fn measure() {
    gather(|state| &mut state.ready, |state| state.machine.reset());
}

/// Ends counting: called once by each body; all wait here for the last one, so that the end of no body is counted.
pub fn measured() {
    gather(|state| &mut state.done, |state| state.result = Some(state.machine.counts()));
}

/// Waits for all bodies; the last one calls `last`.
fn gather(count: fn(&mut State) -> &mut usize, last: fn(&mut State)) {
    let Some(Me { cpu, run }) = ME.get() else { return };
    let key = std::ptr::from_ref(run) as usize;
    let mut state = run.state();
    *count(&mut state) += 1;
    if *count(&mut state) == state.bodies {
        last(&mut state);
        drop(state);
        wake_all(key);
        step();
    } else {
        state.threads[cpu] = Thread::Waits { key, timed: false, since: state.now_ns };
        let mut state = run.switch(cpu, state);
        state.threads[cpu] = Thread::Runs;
    }
}

/// The processor of a new simulated thread, passed to it by the thread that starts it.
#[derive(Debug)]
pub struct Ticket {
    cpu: usize,
    run: &'static Run,
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run").finish_non_exhaustive()
    }
}

impl Ticket {
    /// Reserves a processor for one more thread; `None` outside of a simulation.
    ///
    /// # Panics
    /// If the simulated machine has no processor left.
    #[must_use]
    pub fn take() -> Option<Ticket> {
        let Me { run, .. } = ME.get()?;
        Some(Ticket::of(run))
    }

    fn of(run: &'static Run) -> Ticket {
        let mut state = run.state();
        let cpu = state.threads.len();
        assert!(cpu < run.turns.len(), "a simulated machine of {cpu} processors has no more of them");
        state.threads.push(Thread::Runs);
        state.steps.push(0);
        Ticket { cpu, run }
    }

    /// Returns the key that is woken at the end of the thread.
    #[must_use]
    pub fn end_key(&self) -> usize {
        std::ptr::from_ref(&self.run.turns[self.cpu]) as usize
    }

    /// Returns true if the thread has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.run.state().threads[self.cpu] == Thread::Ended
    }

    /// Runs `body` as this thread, from its first turn to its end.
    pub fn live<T>(&self, body: impl FnOnce() -> T) -> T {
        let Ticket { cpu, run } = *self;
        let mut state = run.state();
        state.arrived += 1;
        run.arrivals.notify_all();
        drop(run.wait(cpu, state));
        ME.set(Some(Me { cpu, run }));
        let _end = End { cpu, run };
        body()
    }

    /// Waits until the thread has arrived, so that the speed of its start in the system changes nothing, not even the
    /// memory that the allocator returns.
    pub fn await_start(&self) {
        let mut state = self.run.state();
        while state.arrived < state.threads.len() {
            state = self.run.arrivals.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns a second ticket for the same simulated thread, for the thread that joins it.
    #[must_use]
    pub fn beside(&self) -> Ticket {
        Ticket { cpu: self.cpu, run: self.run }
    }
}

/// Ends a thread when dropped, also after a panic.
struct End {
    cpu: usize,
    run: &'static Run,
}

impl Drop for End {
    fn drop(&mut self) {
        wake_all(std::ptr::from_ref(&self.run.turns[self.cpu]) as usize);
        ME.set(None);
        let mut state = self.run.state();
        state.threads[self.cpu] = Thread::Ended;
        state.draw();
        if state.stuck {
            self.run.turns.iter().for_each(Condvar::notify_one);
        }
        self.run.turns[state.current].notify_one();
    }
}

/// Result of a simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Counts between [`measure`] and [`measured`].
    pub counts: Counts,
    /// Number of draws of each thread, those of the bodies first.
    pub steps: Vec<u64>,
}

/// All simulations of the process, kept because a thread that outlives its simulation refers to it.
static RUNS: Mutex<Vec<&'static Run>> = Mutex::new(Vec::new());

/// Runs `bodies` on a simulated machine, each on a processor of its own. Threads that they start get the processors
/// behind; `most` is the number of all.
///
/// # Panics
/// If a body panics, or if all threads wait for each other.
pub fn simulate(seed: u64, topology: Topology, most: usize, bodies: Vec<Box<dyn FnOnce() + Send>>) -> Outcome {
    let most = most.max(bodies.len()).max(1);
    let state = State {
        machine: Machine::new(topology, most),
        seed,
        draws: 0,
        now_ns: 1,
        current: usize::MAX,
        threads: Vec::new(),
        arrived: 0,
        ready: 0,
        bodies: bodies.len(),
        done: 0,
        result: None,
        steps: Vec::new(),
        unseen: 0,
        stuck: false,
    };
    let turns = (0..most).map(|_| Condvar::new()).collect();
    let run: &'static Run = Box::leak(Box::new(Run { state: Mutex::new(state), turns, arrivals: Condvar::new() }));
    RUNS.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(run);
    let mut threads = Vec::new();
    for body in bodies {
        let ticket = Ticket::of(run);
        let own = ticket.beside();
        threads.push(std::thread::spawn(move || own.live(body)));
        ticket.await_start();
    }
    let mut state = run.state();
    state.draw();
    if let Some(turn) = run.turns.get(state.current) {
        turn.notify_one();
    }
    drop(state);
    for thread in threads {
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    }
    let mut state = run.state();
    let counts = state.result.take().unwrap_or_else(|| state.machine.counts());
    Outcome { counts, steps: state.steps.clone() }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::sync::atomic::{AtomicU64, Ordering};
    use super::super::sync::{Condvar, Mutex};
    use super::super::{hint, thread};
    use super::*;

    const NEAR: Topology = Topology { complex: 64, socket: 64 };

    /// Simulates `threads` threads, each of which adds 1 to one counter `times` times. Returns the outcome and the
    /// counter.
    fn adding(seed: u64, threads: usize, times: u64) -> (Outcome, u64) {
        let counter = Arc::new(AtomicU64::new(0));
        let bodies = (0..threads).map(|_| {
            let counter = Arc::clone(&counter);
            Box::new(move || {
                measure();
                for _ in 0..times {
                    let seen = counter.load(Ordering::Relaxed);
                    counter.store(seen + 1, Ordering::Relaxed);
                }
                measured();
            }) as Box<dyn FnOnce() + Send>
        });
        let outcome = simulate(seed, NEAR, threads, bodies.collect());
        (outcome, counter.load(Ordering::Relaxed))
    }

    #[test]
    fn a_seed_repeats_to_the_digit_and_another_does_not() {
        let first = adding(7, 4, 200);
        assert_eq!(first, adding(7, 4, 200));
        assert_ne!(first.0.steps, adding(8, 4, 200).0.steps);
    }

    #[test]
    fn another_thread_may_come_between_a_load_and_its_store() {
        let (outcome, sum) = adding(7, 4, 200);
        assert!(sum < 800, "{sum}: no addition was lost, so nobody ever came between");
        assert!(outcome.counts.transfers > 400, "{outcome:?}");
    }

    #[test]
    fn alone_nothing_is_fetched() {
        let (outcome, sum) = adding(7, 1, 200);
        assert_eq!((sum, outcome.counts.transfers, outcome.counts.upgrades), (200, 0, 0));
        assert_eq!(outcome.counts.accesses, 400);
    }

    #[test]
    fn no_simulated_thread_starves() {
        let (outcome, _) = adding(3, 8, 500);
        let (least, most) = (outcome.steps.iter().min().copied(), outcome.steps.iter().max().copied());
        assert!(least > Some(0) && least.map(|least| 2 * least) > most, "{:?}", outcome.steps);
    }

    /// Among threads that can all run, each gets its share of the first draws, which a scheduler that prefers one would
    /// break.
    #[test]
    fn each_thread_is_drawn_with_the_same_chance() {
        let drawn = Arc::new(Mutex::new(Vec::new()));
        let bodies = (0..4_usize).map(|me| {
            let drawn = Arc::clone(&drawn);
            Box::new(move || {
                measure();
                while drawn.lock().is_ok_and(|drawn| drawn.len() < 4000) {
                    if let Ok(mut drawn) = drawn.lock() {
                        drawn.push(me);
                    }
                    hint::spin_loop();
                }
            }) as Box<dyn FnOnce() + Send>
        });
        simulate(11, NEAR, 4, bodies.collect());
        let drawn = drawn.lock().expect("nobody panicked");
        for me in 0..4 {
            let share = drawn.iter().filter(|&&who| who == me).count();
            assert!((850..1150).contains(&share), "thread {me} had {share} of 4000 turns");
        }
    }

    #[test]
    fn a_lock_keeps_others_out_and_its_waiters_are_counted() {
        let sum = Arc::new(Mutex::new(0_u64));
        let bodies = (0..4).map(|_| {
            let sum = Arc::clone(&sum);
            Box::new(move || {
                measure();
                for _ in 0..100 {
                    let mut sum = sum.lock().expect("nobody panics");
                    let seen = *sum;
                    hint::spin_loop();
                    *sum = seen + 1;
                }
                measured();
            }) as Box<dyn FnOnce() + Send>
        });
        let outcome = simulate(5, NEAR, 4, bodies.collect());
        assert_eq!(*sum.lock().expect("nobody panicked"), 400, "one at a time");
        assert!(outcome.counts.lock_waits > 100, "{outcome:?}");
        // The lines that the holders fetched cost at least as many hops as the lock's own line.
        assert!(outcome.counts.busiest[0].iter().sum::<u64>() >= outcome.counts.busiest[1].iter().sum());
    }

    #[test]
    fn threads_that_a_body_starts_are_of_the_machine_too() {
        let body = || {
            let (sent, told) = (Arc::new((Mutex::new(false), Condvar::new())), Arc::new(AtomicU64::new(0)));
            let (there, seen) = (Arc::clone(&sent), Arc::clone(&told));
            let child = thread::spawn(move || {
                let mut ready = there.0.lock().expect("nobody panics");
                while !*ready {
                    ready = there.1.wait(ready).expect("nobody panics");
                }
                seen.store(9, Ordering::Relaxed);
            });
            *sent.0.lock().expect("nobody panics") = true;
            sent.1.notify_all();
            assert!(child.join().is_ok());
            assert_eq!(told.load(Ordering::Relaxed), 9);
        };
        let outcome = simulate(1, NEAR, 2, vec![Box::new(body)]);
        assert_eq!(outcome.steps.len(), 2);
        assert!(outcome.counts.transfers > 0, "what it stored was fetched");
    }

    #[test]
    #[should_panic(expected = "waits for another one")]
    fn threads_that_wait_for_each_other_are_told_of() {
        let body = || {
            let lock = Mutex::new(());
            let _held = lock.lock();
            drop(lock.lock());
        };
        simulate(1, NEAR, 1, vec![Box::new(body)]);
    }

    #[test]
    fn who_waits_with_a_timeout_goes_on_when_nobody_else_can() {
        let body = || assert_eq!(wait_for(64, true), Some(true));
        simulate(1, NEAR, 1, vec![Box::new(body)]);
        assert_eq!(wait_for(64, true), None, "outside of a simulation the system waits");
    }
}
