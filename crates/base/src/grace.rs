//! Grace periods: the time until space that a file has unmapped is certainly no longer read or written.
//!
//! Owns the protocol between two sides. Rings look up mappings and do I/O to them. A file, or a pool of files, changes
//! mappings and must not reuse the old space while an I/O could still use it. As in sleepable RCU, readers execute a
//! few plain stores, and the writer waits. Does not own the space that is freed.
//!
//! ```text
//!   ring, a batch                          file
//!   enter()      section = phase           change the mapping
//!                fence                     start() -> ticket
//!   map(), submit, count()   per I/O       is_over(ticket)?   fence, look at all seats
//!   leave()      section = none            yes: the old space is free
//!   ...
//!   I/O ended for good: uncount()
//! ```
//!
//! A section lasts from the lookup of a mapping to the count of the I/O that uses it. It never spans more than one
//! batch, and no thread waits inside it. A worker in `map_blocking` is neither in a section nor counted, so a file may
//! wait for a grace there without waiting for itself.
//!
//! A grace period has two steps, so that it ends even if new I/O never stops. It waits until the phase that is not
//! current is empty (stragglers of the last period), makes that phase current, and waits until the other phase is
//! empty. A check of a ticket advances the period; there is no thread.
//!
//! Invariants:
//! - I1: a seat is written by one thread, the holder of its [`Seat`]; every thread may read it.
//! - I2: a ticket is over only after every section that may have begun before [`Grace::start`] was left, and every I/O
//!   counted in it was uncounted. The writes of those I/Os are visible to a thread that has found the ticket over.
//! - I3: a dropped seat has no I/O any more: it is removed and holds no period up.
//!
//! - I4: a waiting thread runs its own rings ([`own`]), so that it does not wait for itself.
//! - I5: the seats that hold a period up can be listed, with a lower bound of the time for which they have done so: the
//!   first check that finds a seat busy records the time. I/O needs no extra work for that.
//!
//! Called by rings ([`Seat`]) and by files that give space back ([`Grace`]).

pub mod own;

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use crate::sync::atomic::{AtomicU64, Ordering, fence};
use crate::sync::{Arc, Mutex, MutexGuard};

/// Value of `section` outside of any section.
const OUTSIDE: u64 = 0;

/// One of two sets of counters in which an I/O is counted; see [`Seat::phase`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase(u8);

impl Phase {
    /// Returns the phase as one bit, for callers that store it among flags.
    #[inline(always)]
    #[must_use]
    pub fn bit(self) -> bool {
        self.0 != 0
    }

    /// Returns the phase that [`Phase::bit`] has encoded.
    #[inline(always)]
    #[must_use]
    pub fn from_bit(bit: bool) -> Phase {
        Phase(u8::from(bit))
    }
}

/// State of a seat, on two cache lines of its own (the prefetcher fetches pairs).
#[derive(Debug)]
#[repr(align(128))]
struct Line {
    /// Phase of the section plus one, or [`OUTSIDE`].
    section: AtomicU64,
    /// I/Os that were counted and have not ended, by phase.
    in_flight: [AtomicU64; 2],
}

impl Line {
    /// Returns true if the seat has no section and no I/O of `phase`.
    fn is_quiet(&self, phase: u64) -> bool {
        // Acquire pairs with the Release of `enter` and `leave`: a thread that sees the section left, or a later
        // section, sees the section's counts.
        if self.section.load(Ordering::Acquire) == phase + 1 {
            return false;
        }
        // Acquire pairs with the Release of `uncount`: the I/O's writes come before the end of the grace (I2).
        self.in_flight[phase as usize].load(Ordering::Acquire) == 0
    }
}

/// Handle of a grace period; see [`Grace::start`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// No period runs.
    Idle,
    /// Waits until the phase that is not current is empty.
    Stragglers,
    /// Waits until the phase that was current at the beginning of the period is empty.
    Readers,
}

/// A seat in the list that waiters look through.
#[derive(Debug)]
struct Taken {
    line: Arc<Line>,
    /// Name of the thread that took the seat.
    thread: String,
    /// Time of the first check that found the seat busy in the current step (I5).
    since: Option<Instant>,
}

/// A thread that holds a grace up; see [`Grace::holders`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Name of the thread that took the seat: the ring's.
    pub thread: String,
    /// Number of I/Os that have not ended, or whose completions are not reaped; 0 while a batch is being submitted.
    pub ios: u64,
    /// Shortest time for which the thread has held the period up.
    pub held: Duration,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Holder { thread, ios, held } = self;
        write!(
            f,
            "{thread} has {ios} I/Os that have not ended, or that it has not reaped, for {:.1} s",
            held.as_secs_f64()
        )
    }
}

#[derive(Debug)]
struct GraceState {
    seats: Vec<Taken>,
    step: Step,
    /// Last period for which a ticket was given.
    wanted: u64,
}

/// The grace periods of one file, or of all files that share their space.
#[derive(Debug)]
pub struct Grace {
    /// The lowest bit is the current phase.
    phase: AtomicU64,
    /// Number of periods that are over.
    over: AtomicU64,
    state: Mutex<GraceState>,
}

impl Default for Grace {
    fn default() -> Self {
        Grace::new()
    }
}

impl Grace {
    /// Makes a grace without seats.
    #[must_use]
    pub fn new() -> Grace {
        let state = GraceState { seats: Vec::new(), step: Step::Idle, wanted: 0 };
        Grace { phase: AtomicU64::new(0), over: AtomicU64::new(0), state: Mutex::new(state) }
    }

    /// Takes a seat in `grace`, for a thread that looks up mappings.
    #[doc(hidden)]
    #[must_use]
    pub fn seat(grace: &Arc<Grace>) -> Seat {
        let line = Line { section: AtomicU64::new(OUTSIDE), in_flight: [AtomicU64::new(0), AtomicU64::new(0)] };
        let line = Arc::new(line);
        let taken = Taken { line: Arc::clone(&line), thread: clock::thread(), since: None };
        grace.state().seats.push(taken);
        Seat { grace: Arc::clone(grace), line, own: PhantomData }
    }

    /// Returns a ticket that is over when every I/O has ended that may use a mapping as it was before this call. Does
    /// not wait for I/O. All calls until the next grace period begins get the same one.
    #[must_use]
    pub fn start(&self) -> Ticket {
        let mut state = self.state();
        // A period that is running began too early: it may have checked some seats already.
        // Relaxed: written under the lock.
        let period = self.over.load(Ordering::Relaxed) + 1 + u64::from(state.step != Step::Idle);
        state.wanted = state.wanted.max(period);
        Ticket(period)
    }

    /// Returns true if `ticket` is over, after advancing the periods as far as possible without waiting.
    #[must_use]
    pub fn is_over(&self, ticket: Ticket) -> bool {
        self.has_passed(ticket) || {
            self.advance(&mut self.state());
            self.has_passed(ticket)
        }
    }

    /// Waits until `ticket` is over; returns false if `timeout` passes first. Runs this thread's own rings meanwhile
    /// (I4). A ring from whose call this runs is not among them: if the period needs that ring's I/O, the wait times
    /// out.
    #[must_use]
    pub fn wait(&self, ticket: Ticket, timeout: Duration) -> bool {
        let mut patience = Patience::new(timeout);
        loop {
            if self.is_over(ticket) {
                return true;
            }
            own::complete_own();
            if !patience.nap() {
                return self.is_over(ticket);
            }
        }
    }

    /// Returns the threads that hold up the current period, the longest first. Empty if no period is running.
    #[must_use]
    pub fn holders(&self) -> Vec<Holder> {
        let mut state = self.state();
        self.advance(&mut state);
        if state.step == Step::Idle {
            return Vec::new();
        }
        // Relaxed: written under the lock.
        let phase = self.phase.load(Ordering::Relaxed) & 1 ^ 1;
        let in_the_way = state.seats.iter().filter(|taken| !taken.line.is_quiet(phase));
        let mut holders: Vec<Holder> = in_the_way
            .map(|taken| Holder {
                thread: taken.thread.clone(),
                // Relaxed: a number for a report.
                ios: taken.line.in_flight[phase as usize].load(Ordering::Relaxed),
                held: taken.since.map_or(Duration::ZERO, |since| since.elapsed()),
            })
            .collect();
        holders.sort_by_key(|holder| std::cmp::Reverse(holder.held));
        holders
    }

    /// Returns the number of seats.
    #[doc(hidden)]
    #[must_use]
    pub fn seats(&self) -> usize {
        self.state().seats.len()
    }

    fn has_passed(&self, ticket: Ticket) -> bool {
        // Acquire pairs with the Release in `advance`: a thread that finds the ticket over here sees its I/Os' writes
        // (I2).
        self.over.load(Ordering::Acquire) >= ticket.0
    }

    fn state(&self) -> MutexGuard<'_, GraceState> {
        self.state.lock().expect("invariant: no panic under this lock")
    }

    /// Advances the wanted periods as far as possible without waiting.
    fn advance(&self, state: &mut GraceState) {
        loop {
            // Relaxed, both: written under the lock.
            let current = self.phase.load(Ordering::Relaxed) & 1;
            let over = self.over.load(Ordering::Relaxed);
            let step = state.step;
            match step {
                Step::Idle if over >= state.wanted => return,
                Step::Idle => {
                    // SeqCst pairs with the fence in `enter`. A section that the checks below miss has its fence after
                    // this one, so its lookups see the changes made before `start`.
                    fence(Ordering::SeqCst);
                    state.step = Step::Stragglers;
                }
                // Both steps wait for the phase that is not current.
                Step::Stragglers | Step::Readers if !state.quiets(current ^ 1) => return,
                Step::Stragglers => {
                    // Relaxed: whichever phase a new section has, one of the two steps waits for it. New sections must
                    // see this store only for the period to end, and they soon do.
                    self.phase.store(current ^ 1, Ordering::Relaxed);
                    state.step = Step::Readers;
                }
                Step::Readers => {
                    state.step = Step::Idle;
                    // Release pairs with the Acquire in `has_passed`.
                    self.over.store(over + 1, Ordering::Release);
                }
            }
        }
    }
}

impl GraceState {
    /// Returns true if no seat has a section or I/O of `phase`. Records for each busy seat when it was first found busy
    /// (I5).
    fn quiets(&mut self, phase: u64) -> bool {
        let mut quiet = true;
        for taken in &mut self.seats {
            if !taken.line.is_quiet(phase) {
                quiet = false;
                taken.since = taken.since.or_else(clock::now);
            } else {
                taken.since = None;
            }
        }
        quiet
    }
}

/// The place of one thread in a grace, in which it marks its sections and counts its I/O. May move to another thread,
/// but is never used by two (I1).
#[derive(Debug)]
pub struct Seat {
    grace: Arc<Grace>,
    line: Arc<Line>,
    own: PhantomData<Cell<()>>,
}

impl Seat {
    /// Begins a section: mappings looked up from here on stay valid until the I/O counted for them has ended. Costs one
    /// fence.
    #[inline]
    pub fn enter(&self) {
        debug_assert!(!self.is_inside(), "sections do not nest");
        // Relaxed: see `advance`.
        let phase = self.grace.phase.load(Ordering::Relaxed) & 1;
        // Release pairs with the Acquire in `Line::is_quiet`, for the counts of the section before.
        self.line.section.store(phase + 1, Ordering::Release);
        // SeqCst pairs with the fence in `Grace::advance`.
        fence(Ordering::SeqCst);
    }

    /// Returns true inside a section.
    #[inline(always)]
    #[must_use]
    pub fn is_inside(&self) -> bool {
        // Relaxed: our own (I1).
        self.line.section.load(Ordering::Relaxed) != OUTSIDE
    }

    /// Ends the section. Mappings without a counted I/O must not be used any more.
    #[inline]
    pub fn leave(&self) {
        // Release pairs with the Acquire in `Line::is_quiet`: a thread that sees the section left sees its counts.
        self.line.section.store(OUTSIDE, Ordering::Release);
    }

    /// Returns the phase of the section, in which its I/Os are counted.
    #[inline(always)]
    #[must_use]
    pub fn phase(&self) -> Phase {
        debug_assert!(self.is_inside(), "an I/O is counted in the section of its mapping");
        // Relaxed: our own (I1).
        Phase(self.line.section.load(Ordering::Relaxed).wrapping_sub(1) as u8 & 1)
    }

    /// Counts an I/O that uses mappings of this section, until [`Seat::uncount`].
    #[inline(always)]
    #[must_use]
    pub fn count(&self) -> Phase {
        self.count_many(1);
        self.phase()
    }

    /// Counts `ios` I/Os at once, each to be uncounted in the section's [`Seat::phase`].
    #[inline(always)]
    pub fn count_many(&self, ios: u64) {
        let count = &self.line.in_flight[usize::from(self.phase().0)];
        // Relaxed, both: our own (I1); published by `leave`.
        count.store(count.load(Ordering::Relaxed) + ios, Ordering::Relaxed);
    }

    /// Uncounts an I/O after the device and the file's completion work are done with it.
    #[inline(always)]
    pub fn uncount(&self, phase: Phase) {
        self.uncount_many(phase, 1);
    }

    /// Uncounts `ios` I/Os of one phase. Compared with [`uncount`](Self::uncount) for each, the earlier ones are
    /// counted slightly too long, which is harmless.
    #[inline(always)]
    pub fn uncount_many(&self, phase: Phase, ios: u64) {
        let count = &self.line.in_flight[usize::from(phase.0 & 1)];
        // Relaxed: our own (I1).
        let left = count.load(Ordering::Relaxed);
        debug_assert!(left >= ios, "an I/O is uncounted once");
        // Release pairs with the Acquire in `Line::is_quiet` (I2).
        count.store(left.wrapping_sub(ios), Ordering::Release);
    }

    /// Returns the number of I/Os that are counted.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        // Relaxed: our own (I1).
        self.line.in_flight.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.grace.state().seats.retain(|taken| !Arc::ptr_eq(&taken.line, &self.line));
    }
}

#[cfg(not(any(shuttle, loom)))]
mod patience {
    use std::time::{Duration, Instant};

    use crate::wait::{self, Step};

    /// First sleep; each following one is twice as long.
    const SHORTEST: Duration = Duration::from_micros(20);
    const LONGEST: Duration = Duration::from_millis(1);

    /// Waits in short sleeps until the timeout. There is no wake-up: I/O would have to pay for it each time, and waits
    /// are rare.
    pub(super) struct Patience {
        /// Deadline; `None` if it is beyond the range of the clock.
        until: Option<Instant>,
        next: Duration,
    }

    impl Patience {
        pub(super) fn new(timeout: Duration) -> Patience {
            Patience { until: Instant::now().checked_add(timeout), next: SHORTEST }
        }

        /// Sleeps once. Returns false when the timeout has passed.
        pub(super) fn nap(&mut self) -> bool {
            if let Some(step) = wait::step() {
                return step == Step::Again;
            }
            let left = self.until.map_or(LONGEST, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return false;
            }
            std::thread::sleep(self.next.min(left));
            self.next = (self.next * 2).min(LONGEST);
            true
        }
    }
}

/// Sources of the facts in a [`Holder`].
#[cfg(not(any(shuttle, loom)))]
mod clock {
    use std::time::Instant;

    pub(super) fn now() -> Option<Instant> {
        Some(Instant::now())
    }

    /// Returns the name of this thread and its number in system tools.
    pub(super) fn thread() -> String {
        let tid = rustix::thread::gettid().as_raw_nonzero();
        match std::thread::current().name() {
            Some(name) => format!("thread '{name}' ({tid})"),
            None => format!("thread {tid}"),
        }
    }
}

/// Constants, because a model must not differ from run to run.
#[cfg(any(shuttle, loom))]
mod clock {
    pub(super) fn now() -> Option<std::time::Instant> {
        None
    }

    pub(super) fn thread() -> String {
        String::new()
    }
}

/// Never times out in a model, so that the checker finds a wait without end.
#[cfg(any(shuttle, loom))]
mod patience {
    pub(super) struct Patience;

    impl Patience {
        pub(super) fn new(_: std::time::Duration) -> Patience {
            Patience
        }

        pub(super) fn nap(&mut self) -> bool {
            crate::sync::thread::yield_now();
            true
        }
    }
}

use patience::Patience;

#[cfg(all(test, any(shuttle, loom)))]
mod model;
#[cfg(all(test, not(any(shuttle, loom))))]
mod tests;
