//! The plug: what a ring gathers before it hands a batch to the drivers, and the cached time of that batch.
//!
//! Owns the hint, the list of hardware contexts with gathered requests, and the time cache. The requests themselves
//! wait in their [`hctx`](crate::hctx). A plug belongs to its ring and never leaves the ring's thread (a ring is not
//! `Send`), so no other thread can read its cached time.
//!
//! Invariants:
//! - I1: a cached time is never older than its batch: flush and sleep drop it, and so does a cycle-counter delta of
//!   more than its bound ([`MAX_AGE`] unless [`Plug::set_max_age`] said otherwise), which is looked at for each bio,
//!   for the first request of each lane, and for every [`CHECK_EVERY`]th request. So a stamp is older than the bound by
//!   no more than what its ring spends, within one lane, on gathering so many requests.
//! - I2: the cached time is a [`CoarseTs`]: statistics only. Deadlines take `PreciseTs`, which no plug caches.
//! - I3: 0 is a valid time; whether one is cached is said by its own flag.

use std::marker::PhantomData;
use std::time::Duration;

use sheave_base::clock::{Clock, CoarseTs};

use crate::request::PLUG_MAX;

/// A cached time older than this is read anew, unless the owner has set another bound.
pub const MAX_AGE: Duration = Duration::from_micros(50);
/// At most this many requests share a stamp between two looks at the cycle counter.
pub const CHECK_EVERY: usize = 16;

/// What the lab reads for each request of a run that shares a stamp with the one before, and throws away: what a
/// reading for each would cost, with nothing else changed.
#[cfg(sheave_lab)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EachRead {
    /// Nothing: the stamp is shared, and not read again.
    #[default]
    None,
    /// The coarse clock, which stamps are read from.
    Coarse,
    /// The system's clock.
    System,
}

/// A ring's plug. It stays on its thread, or another one would read a time that is not its own:
///
/// ```compile_fail,E0277
/// let plug = sheave_blk::plug::Plug::new(&sheave_base::clock::Clock::real());
/// std::thread::spawn(move || plug.is_open());
/// ```
#[derive(Debug)]
pub struct Plug {
    time: CoarseTs,
    cached: bool,
    /// The cycle counter when `time` was read.
    cycles: u64,
    /// The bound on the age of a cached time, in cycles.
    max_age: u64,
    /// Requests gathered, at which a lane asks for the time: those that have none of these bits.
    due_mask: u8,
    /// Nesting: only the outermost `finish` flushes.
    depth: u32,
    /// All bits, or none when times are not cached.
    keep: u32,
    /// How many I/Os the submitter has announced.
    hint: u32,
    /// Hardware contexts with gathered requests.
    pub(crate) dirty: u64,
    #[cfg(sheave_lab)]
    pub(crate) each: EachRead,
    /// Neither `Send` nor `Sync`.
    thread: PhantomData<*const ()>,
}

impl Plug {
    /// A closed plug of a ring with this clock.
    pub fn new(clock: &Clock) -> Plug {
        let mut plug = Plug {
            time: CoarseTs::default(),
            cached: false,
            cycles: 0,
            max_age: 0,
            due_mask: 0,
            depth: 0,
            keep: 0,
            hint: 0,
            dirty: 0,
            #[cfg(sheave_lab)]
            each: EachRead::None,
            thread: PhantomData,
        };
        plug.set_max_age(clock, MAX_AGE);
        plug
    }

    /// Sets how old a cached time may become: zero, and every request reads the clock; [`Duration::MAX`], and one
    /// reading serves until the plug is flushed, however long that takes.
    pub fn set_max_age(&mut self, clock: &Clock, max_age: Duration) {
        (self.due_mask, self.keep) = match max_age {
            Duration::ZERO => (0, 0),
            // The first of a batch has the only reading.
            Duration::MAX => (u8::MAX, u32::MAX),
            _ => (CHECK_EVERY as u8 - 1, u32::MAX),
        };
        self.max_age = clock.ns_to_cycles(u64::try_from(max_age.as_nanos()).unwrap_or(u64::MAX));
        self.invalidate();
    }

    /// Opens the plug for about `hint` I/Os. Plugs nest; the outermost counts.
    #[inline]
    pub fn start(&mut self, hint: u32) {
        if self.depth == 0 {
            self.hint = hint;
            self.invalidate();
        }
        self.depth += 1;
    }

    /// Closes the plug; true when it was the outermost, whose gathered requests must be flushed now.
    #[inline]
    pub fn finish(&mut self) -> bool {
        debug_assert!(self.depth > 0, "finish pairs with start");
        self.depth = self.depth.saturating_sub(1);
        if self.depth > 0 {
            return false;
        }
        // What was announced and did not come must not take tags ahead.
        self.hint = 0;
        true
    }

    /// Whether a plug is open.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.depth > 0
    }

    /// How many I/Os the submitter announced.
    #[inline]
    pub(crate) fn hint(&self) -> u32 {
        self.hint.max(1)
    }

    /// Whether a submitter that has gathered so many requests asks for the time again: for each of them without a cache
    /// of times, for every [`CHECK_EVERY`]th with one, for the first with one that has no bound.
    #[inline(always)]
    pub(crate) fn is_time_due(&self, gathered: usize) -> bool {
        gathered as u8 & self.due_mask == 0
    }

    /// How many requests a submitter that has gathered so many may gather until the time is due again.
    #[inline(always)]
    pub(crate) fn until_due(&self, gathered: usize) -> usize {
        usize::from(self.due_mask) + 1 - (gathered & usize::from(self.due_mask))
    }

    /// Reads for a request that shares its stamp.
    #[cfg(sheave_lab)]
    #[inline(always)]
    pub(crate) fn read_for_one(&self, clock: &Clock) {
        match self.each {
            EachRead::None => {}
            EachRead::Coarse => drop(std::hint::black_box(clock.coarse())),
            EachRead::System => drop(std::hint::black_box(clock.precise())),
        }
    }

    /// The time of the batch: cached while the plug is open, else read. Callers that gather many requests ask when
    /// [`Plug::is_time_due`], for even a look at the cycle counter is not free.
    #[inline]
    pub fn now(&mut self, clock: &Clock) -> CoarseTs {
        let unbounded = self.due_mask == u8::MAX;
        if self.cached && (unbounded || clock.cycles().wrapping_sub(self.cycles) <= self.max_age) {
            return self.time;
        }
        (self.time, self.cycles) = clock.coarse_with_cycles();
        self.cached = self.depth & self.keep != 0;
        self.time
    }

    /// Forgets the cached time: after a flush, before sleeping, and wherever the owner may have lost time.
    #[inline]
    pub fn invalidate(&mut self) {
        self.cached = false;
    }
}

const _: () = assert!(CHECK_EVERY.is_power_of_two() && CHECK_EVERY <= 256, "it makes a mask");
const _: () = assert!(PLUG_MAX <= 256, "what may be gathered fits the mask");

#[cfg(all(test, not(shuttle)))]
mod tests;
