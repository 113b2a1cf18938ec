//! Threads of a simulated machine, one of which runs at a time: who goes on is drawn from a seed at every access that
//! another one could see.
//!
//! Owns the order. A simulated thread is a thread of the system that waits for its turn; each has a processor of its
//! own. A thread that does not belong to a simulation is not counted, and waits as it always does.
//!
//! * I1: one simulated thread runs at a time; the others wait for their turn, so that nothing depends on the system.
//! * I2: each thread that can go on is drawn with the same chance (so none is left behind), from a generator that
//!   nothing but the order of accesses moves. The same seed gives the same run.
//! * I3: a thread that waits for something is not drawn until somebody touches that thing. Those that wait with a
//!   timeout go on when nobody else can.

use std::cell::Cell;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::machine::{Access, Counts, Machine, Topology};
use crate::rng::mix;

/// What a look at the clock takes, in simulated ns: so that loops that wait for a time to pass end.
const LOOK_NS: u64 = 20;

/// After so many accesses that nobody else could see, others go on all the same.
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

/// A simulation that runs. Never freed: threads of the system may still have it when it is over.
struct Run {
    state: Mutex<State>,
    /// Each thread waits for its turn at its own.
    turns: Vec<Condvar>,
    /// Told of each thread that has come to its place.
    arrivals: Condvar,
}

struct State {
    machine: Machine,
    seed: u64,
    draws: u64,
    now_ns: u64,
    current: usize,
    threads: Vec<Thread>,
    /// Threads of the system that have come to their places.
    arrived: usize,
    /// Threads that have come to the line from which is counted.
    ready: usize,
    /// Those that have to.
    bodies: usize,
    done: usize,
    result: Option<Counts>,
    steps: Vec<u64>,
    /// Accesses since others could go on.
    unseen: u32,
    /// The threads that are left wait for each other: each panics.
    stuck: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Thread {
    Runs,
    /// Since a moment that only their order matters of.
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

    /// Draws who goes on (I2), and waits for this thread's turn.
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

/// A processor of the simulation touches memory; then others may go on, if they could see it.
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

/// Others may go on.
pub fn step() -> bool {
    let Some(Me { cpu, run }) = ME.get() else { return false };
    drop(run.switch(cpu, run.state()));
    true
}

/// Waits until somebody [wakes](wake_all) this address, or may have. False outside of a simulation. `timed`: it may
/// also end because nobody else can go on: then it says so.
pub fn wait_for(key: usize, timed: bool) -> Option<bool> {
    let Me { cpu, run } = ME.get()?;
    let mut state = run.state();
    state.threads[cpu] = Thread::Waits { key, timed, since: state.now_ns };
    let mut state = run.switch(cpu, state);
    let timed_out = state.threads[cpu] == Thread::TimedOut;
    state.threads[cpu] = Thread::Runs;
    Some(timed_out)
}

/// Whoever waits for this address may go on.
pub fn wake_all(wanted: usize) {
    if let Some(Me { run, .. }) = ME.get() {
        for thread in &mut run.state().threads {
            if matches!(thread, Thread::Waits { key, .. } if *key == wanted) {
                *thread = Thread::Runs;
            }
        }
    }
}

/// Whoever has waited longest for this address may go on.
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

/// Something about the machine, in a simulation.
pub fn with_machine(tell: impl FnOnce(usize, &mut Machine)) {
    if let Some(Me { cpu, run }) = ME.get() {
        tell(cpu, &mut run.state().machine);
    }
}

/// The simulation's clock; none outside of one.
#[must_use]
pub fn now_ns() -> Option<u64> {
    let Me { run, .. } = ME.get()?;
    let mut state = run.state();
    state.now_ns += LOOK_NS;
    Some(state.now_ns)
}

/// From here on everything counts: called once by each body of [`simulate`], which all wait here for the last one.
pub fn measure() {
    gather(|state| &mut state.ready, |state| state.machine.reset());
}

/// Up to here everything counts: called once by each body, which all wait here for the last one, so that nobody's end
/// is counted.
pub fn measured() {
    gather(|state| &mut state.done, |state| state.result = Some(state.machine.counts()));
}

/// Waits for all bodies; the last one does something.
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

/// What a simulated thread that starts another one hands to it.
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
    /// A processor for one more thread; none outside of a simulation.
    ///
    /// # Panics
    /// When the simulated machine has no processor left.
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

    /// What to wait for until the thread has ended.
    #[must_use]
    pub fn end_key(&self) -> usize {
        std::ptr::from_ref(&self.run.turns[self.cpu]) as usize
    }

    /// Whether it has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.run.state().threads[self.cpu] == Thread::Ended
    }

    /// Runs a body as this thread, from its first turn to its end.
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

    /// Waits until the thread has come to its place, so that how fast the system starts it decides nothing: not even
    /// what memory the allocator gives it.
    pub fn await_start(&self) {
        let mut state = self.run.state();
        while state.arrived < state.threads.len() {
            state = self.run.arrivals.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The same processor, for who waits for its end.
    #[must_use]
    pub fn beside(&self) -> Ticket {
        Ticket { cpu: self.cpu, run: self.run }
    }
}

/// Ends a thread, also when it panics.
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

/// What a simulation has given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Between [`measure`] and [`measured`].
    pub counts: Counts,
    /// How often each thread was drawn, the bodies first.
    pub steps: Vec<u64>,
}

/// All simulations of the process. They stay, for a thread that outlives its simulation looks at it.
static RUNS: Mutex<Vec<&'static Run>> = Mutex::new(Vec::new());

/// Runs these bodies on a simulated machine, each on a processor of its own; threads that they start come behind them,
/// `most` in all.
///
/// # Panics
/// When a body panics, or when all threads wait for each other.
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
mod tests;
