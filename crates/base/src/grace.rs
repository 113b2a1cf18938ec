//! Grace periods: when space that a file has unmapped is certainly no longer read or written.
//!
//! Owns the protocol between rings, which look mappings up and do I/O to them, and a file (or a pool of files), which
//! changes mappings and then must not use the old space again while an I/O could still be under way to it. Like
//! sleepable RCU: readers pay a few plain stores, the writer waits. Does not own what is freed.
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
//! A section covers the time from a mapping's lookup to the count of the I/O that uses it; it never spans more than a
//! batch, and nothing in it waits. What waits in `map_blocking` is neither in a section nor counted, so a file may wait
//! for a grace there and does not wait for itself.
//!
//! A grace period has two steps, so that it ends while new I/O goes on: it waits until nothing is left of the phase
//! that is not current (stragglers of the last period), makes that one current, and waits until nothing is left of
//! the other. Whoever asks about a ticket moves it along; there is no thread.
//!
//! Invariants:
//! - I1: a seat is written by one thread, the one that holds its [`Seat`]; everybody may read it.
//! - I2: a ticket is over only after every section that might have begun before [`Grace::start`] was left, and every
//!   I/O counted in it was uncounted. What those I/Os wrote is visible to whoever learned that.
//! - I3: a seat that is dropped has no I/O any more: it is taken out and holds nothing up.
//!
//! - I4: who waits runs the rings of its own thread ([`own`]), so that nobody waits for itself.
//! - I5: who holds a period up, and for how long at least, can be told: the first look that finds a seat in the way
//!   notes the time. I/O pays nothing for that.
//!
//! Called by rings ([`Seat`]) and by files that give space back ([`Grace`]).

pub mod own;

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use crate::sync::atomic::{AtomicU64, Ordering, fence};
use crate::sync::{Arc, Mutex, MutexGuard};

/// A seat is in no section.
const OUTSIDE: u64 = 0;

/// Which of two sets of counters an I/O is counted in; see [`Seat::phase`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase(u8);

impl Phase {
    /// The phase as one bit, for callers that keep it among flags.
    #[inline(always)]
    #[must_use]
    pub fn bit(self) -> bool {
        self.0 != 0
    }

    /// From the bit.
    #[inline(always)]
    #[must_use]
    pub fn from_bit(bit: bool) -> Phase {
        Phase(u8::from(bit))
    }
}

/// What a seat shows, on a cache line of its own (two: the prefetcher takes pairs).
#[derive(Debug)]
#[repr(align(128))]
struct Line {
    /// [`OUTSIDE`], or the section's phase plus one.
    section: AtomicU64,
    /// I/Os that were counted and have not ended, by phase.
    in_flight: [AtomicU64; 2],
}

impl Line {
    /// Whether nothing of a phase is left here.
    fn is_quiet(&self, phase: u64) -> bool {
        // Acquire pairs with the Release of `enter` and `leave`: who sees a section left, or a later one, sees its
        // counts.
        if self.section.load(Ordering::Acquire) == phase + 1 {
            return false;
        }
        // Acquire pairs with the Release of `uncount`: what the I/O did comes before the end of the grace (I2).
        self.in_flight[phase as usize].load(Ordering::Acquire) == 0
    }
}

/// Names a grace period to wait for; see [`Grace::start`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// No period runs.
    Idle,
    /// Waits for the phase that is not current.
    Stragglers,
    /// Waits for the phase that was current when it began.
    Readers,
}

/// A seat as those who wait have it.
#[derive(Debug)]
struct Taken {
    line: Arc<Line>,
    /// The thread that took it.
    thread: String,
    /// When it was first seen in the way of the step that runs (I5).
    since: Option<Instant>,
}

/// Who holds a grace up; see [`Grace::holders`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The thread that took the seat: the ring's.
    pub thread: String,
    /// I/Os that have not ended, or whose completions nobody has reaped; 0 when a batch is just being submitted.
    pub ios: u64,
    /// How long they have been in the way at least.
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
    /// The last period that somebody has a ticket for.
    wanted: u64,
}

/// The grace periods of one file, or of all files that share their space.
#[derive(Debug)]
pub struct Grace {
    /// The current phase is its lowest bit.
    phase: AtomicU64,
    /// Periods that are over.
    over: AtomicU64,
    state: Mutex<GraceState>,
}

impl Default for Grace {
    fn default() -> Self {
        Grace::new()
    }
}

impl Grace {
    /// Without seats.
    #[must_use]
    pub fn new() -> Grace {
        let state = GraceState { seats: Vec::new(), step: Step::Idle, wanted: 0 };
        Grace { phase: AtomicU64::new(0), over: AtomicU64::new(0), state: Mutex::new(state) }
    }

    /// A seat in `grace` for a thread that looks mappings up.
    #[doc(hidden)]
    #[must_use]
    pub fn seat(grace: &Arc<Grace>) -> Seat {
        let line = Line { section: AtomicU64::new(OUTSIDE), in_flight: [AtomicU64::new(0), AtomicU64::new(0)] };
        let line = Arc::new(line);
        let taken = Taken { line: Arc::clone(&line), thread: clock::thread(), since: None };
        grace.state().seats.push(taken);
        Seat { grace: Arc::clone(grace), line, own: PhantomData }
    }

    /// A ticket that is over when every I/O that might use a mapping as it was before this call has ended. Never
    /// blocks for long. Many calls before the next look share one period.
    #[must_use]
    pub fn start(&self) -> Ticket {
        let mut state = self.state();
        // A period that runs already began too early to count.
        // Relaxed: written under the lock.
        let period = self.over.load(Ordering::Relaxed) + 1 + u64::from(state.step != Step::Idle);
        state.wanted = state.wanted.max(period);
        Ticket(period)
    }

    /// Whether it is over; moves it along, as far as that goes without waiting.
    #[must_use]
    pub fn is_over(&self, ticket: Ticket) -> bool {
        self.has_passed(ticket) || {
            self.advance(&mut self.state());
            self.has_passed(ticket)
        }
    }

    /// Waits until it is over; false when the time is up before. Runs this thread's own rings meanwhile (I4), but for
    /// one that it is called from: then only that call's end can end the I/O, and the time is up before.
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

    /// Who holds the period up that runs, the longest in the way first. None when none runs.
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
                // Relaxed: for people.
                ios: taken.line.in_flight[phase as usize].load(Ordering::Relaxed),
                held: taken.since.map_or(Duration::ZERO, |since| since.elapsed()),
            })
            .collect();
        holders.sort_by_key(|holder| std::cmp::Reverse(holder.held));
        holders
    }

    /// Seats taken.
    #[doc(hidden)]
    #[must_use]
    pub fn seats(&self) -> usize {
        self.state().seats.len()
    }

    fn has_passed(&self, ticket: Ticket) -> bool {
        // Acquire pairs with the Release in `advance`: who learns it here sees what its I/Os wrote (I2).
        self.over.load(Ordering::Acquire) >= ticket.0
    }

    fn state(&self) -> MutexGuard<'_, GraceState> {
        self.state.lock().expect("invariant: no panic under this lock")
    }

    /// Takes the periods that are wanted as many steps along as can be without waiting.
    fn advance(&self, state: &mut GraceState) {
        loop {
            // Relaxed, both: written under the lock.
            let current = self.phase.load(Ordering::Relaxed) & 1;
            let over = self.over.load(Ordering::Relaxed);
            let step = state.step;
            match step {
                Step::Idle if over >= state.wanted => return,
                Step::Idle => {
                    // SeqCst pairs with the fence in `enter`. Whoever's fence comes later: a section that is not seen
                    // by the looks below sees, in its lookups, what was changed before `start`.
                    fence(Ordering::SeqCst);
                    state.step = Step::Stragglers;
                }
                // Both steps wait for the phase that is not current.
                Step::Stragglers | Step::Readers if !state.quiets(current ^ 1) => return,
                Step::Stragglers => {
                    // Relaxed: whichever phase a section has, one of the two looks finds it. Only the end of the
                    // period depends on new sections seeing this, soon.
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
    /// Whether nothing of a phase is left anywhere; notes who is in the way (I5).
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

/// The place of one thread in a grace: where it says which mappings it may still use. It may move to another thread,
/// but is never used by two (I1).
#[derive(Debug)]
pub struct Seat {
    grace: Arc<Grace>,
    line: Arc<Line>,
    own: PhantomData<Cell<()>>,
}

impl Seat {
    /// Begins a section: mappings looked up from here on stay good until the I/O counted for them has ended. One fence.
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

    /// Whether a section has begun.
    #[inline(always)]
    #[must_use]
    pub fn is_inside(&self) -> bool {
        // Relaxed: our own (I1).
        self.line.section.load(Ordering::Relaxed) != OUTSIDE
    }

    /// Ends the section. Mappings that no I/O was counted for are not to be used any more.
    #[inline]
    pub fn leave(&self) {
        // Release pairs with the Acquire in `Line::is_quiet`: whoever sees it left sees what it counted.
        self.line.section.store(OUTSIDE, Ordering::Release);
    }

    /// The phase of the section, in which its I/Os are counted.
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

    /// Counts so many at once, each to be uncounted in the section's [`Seat::phase`].
    #[inline(always)]
    pub fn count_many(&self, ios: u64) {
        let count = &self.line.in_flight[usize::from(self.phase().0)];
        // Relaxed, both: our own (I1); published by `leave`.
        count.store(count.load(Ordering::Relaxed) + ios, Ordering::Relaxed);
    }

    /// An I/O has ended for good: the device, and the file's completion work too.
    #[inline(always)]
    pub fn uncount(&self, phase: Phase) {
        self.uncount_many(phase, 1);
    }

    /// So many I/Os of one phase have ended for good. The first ones were only counted for a little longer than by
    /// [`uncount`](Self::uncount).
    #[inline(always)]
    pub fn uncount_many(&self, phase: Phase, ios: u64) {
        let count = &self.line.in_flight[usize::from(phase.0 & 1)];
        // Relaxed: our own (I1).
        let left = count.load(Ordering::Relaxed);
        debug_assert!(left >= ios, "an I/O is uncounted once");
        // Release pairs with the Acquire in `Line::is_quiet` (I2).
        count.store(left.wrapping_sub(ios), Ordering::Release);
    }

    /// I/Os counted and not ended.
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

    /// The first nap; each is twice as long as the one before.
    const SHORTEST: Duration = Duration::from_micros(20);
    const LONGEST: Duration = Duration::from_millis(1);

    /// Waits in naps until its time is up. I/O tells nobody that it has ended, so that it pays nothing for those who
    /// wait, who are few.
    pub(super) struct Patience {
        /// None when it is further away than the clock can say.
        until: Option<Instant>,
        next: Duration,
    }

    impl Patience {
        pub(super) fn new(timeout: Duration) -> Patience {
            Patience { until: Instant::now().checked_add(timeout), next: SHORTEST }
        }

        /// False when the time is up.
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

/// What is told of who holds a grace up.
#[cfg(not(any(shuttle, loom)))]
mod clock {
    use std::time::Instant;

    pub(super) fn now() -> Option<Instant> {
        Some(Instant::now())
    }

    /// This thread, as tools of the system name it too.
    pub(super) fn thread() -> String {
        let tid = rustix::thread::gettid().as_raw_nonzero();
        match std::thread::current().name() {
            Some(name) => format!("thread '{name}' ({tid})"),
            None => format!("thread {tid}"),
        }
    }
}

/// Nothing that differs from run to run.
#[cfg(any(shuttle, loom))]
mod clock {
    pub(super) fn now() -> Option<std::time::Instant> {
        None
    }

    pub(super) fn thread() -> String {
        String::new()
    }
}

/// In a model a wait that does not end is what the checker is to find: the time is never up.
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
