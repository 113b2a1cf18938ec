//! The plug: requests that a ring gathers before it passes a batch to the drivers, and the cached time of that batch.
//!
//! Owns the hint, the mask of hardware contexts with gathered requests, and the time cache. The requests themselves are
//! in their [`hctx`](crate::hctx). A plug belongs to its ring and never leaves the ring's thread (a ring is not
//! `Send`), so no other thread can read its cached time.
//!
//! Invariants:
//! - I1: a cached time is never older than its batch: flush and sleep discard it, and so does a cycle-counter delta
//!   above the limit ([`MAX_AGE`] unless [`Plug::set_max_age`] changed it). The delta is checked for each bio, for the
//!   first request of each lane, and for every [`CHECK_EVERY`]th request. A stamp can therefore exceed the limit only
//!   by the time that its ring takes, within one lane, to gather that many requests.
//! - I2: the cached time is a [`CoarseTs`], for statistics only. Deadlines use `PreciseTs`, which no plug caches.
//! - I3: 0 is a valid time; a separate flag says if a time is cached.

use std::marker::PhantomData;
use std::time::Duration;

use sheave_base::clock::{Clock, CoarseTs};

use crate::request::PLUG_MAX;

/// Default for the largest age of a cached time.
pub const MAX_AGE: Duration = Duration::from_micros(50);
/// Largest number of requests that share a stamp without a check of the cycle counter.
pub const CHECK_EVERY: usize = 16;

/// Clock that the lab reads for each request that shares a stamp, to measure the cost of one clock read per request
/// with everything else unchanged. The value is discarded.
#[cfg(sheave_lab)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EachRead {
    /// None: the stamp is shared.
    #[default]
    None,
    /// The coarse clock, which stamps are read from.
    Coarse,
    /// The system's clock.
    System,
}

/// A ring's plug. It cannot leave the ring's thread, because its cached time is valid only there:
///
/// ```compile_fail,E0277
/// let plug = sheave_blk::plug::Plug::new(&sheave_base::clock::Clock::real());
/// std::thread::spawn(move || plug.is_open());
/// ```
#[derive(Debug)]
pub struct Plug {
    time: CoarseTs,
    cached: bool,
    /// Value of the cycle counter when `time` was read.
    cycles: u64,
    /// Largest age of a cached time, in cycles.
    max_age: u64,
    /// A lane checks the time when the number of gathered requests has none of these bits set.
    due_mask: u8,
    /// Nesting depth: only the outermost `finish` flushes.
    depth: u32,
    /// Mask for `depth`: all bits set, or 0 if times are not cached.
    keep: u32,
    /// Number of I/Os that the submitter has announced.
    hint: u32,
    /// Mask of hardware contexts with gathered requests.
    pub(crate) dirty: u64,
    #[cfg(sheave_lab)]
    pub(crate) each: EachRead,
    /// Makes the type neither `Send` nor `Sync`.
    thread: PhantomData<*const ()>,
}

impl Plug {
    /// Makes a closed plug for a ring with this clock.
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

    /// Sets the largest age of a cached time. With zero every request reads the clock; with [`Duration::MAX`] one
    /// reading serves until the plug is flushed.
    pub fn set_max_age(&mut self, clock: &Clock, max_age: Duration) {
        (self.due_mask, self.keep) = match max_age {
            Duration::ZERO => (0, 0),
            // Only the first request of a batch reads the clock.
            Duration::MAX => (u8::MAX, u32::MAX),
            _ => (CHECK_EVERY as u8 - 1, u32::MAX),
        };
        self.max_age = clock.ns_to_cycles(u64::try_from(max_age.as_nanos()).unwrap_or(u64::MAX));
        self.invalidate();
    }

    /// Opens the plug for about `hint` I/Os. Plugs nest, and only the outermost counts.
    #[inline]
    pub fn start(&mut self, hint: u32) {
        if self.depth == 0 {
            self.hint = hint;
            self.invalidate();
        }
        self.depth += 1;
    }

    /// Closes the plug. Returns true if it was the outermost, whose gathered requests must then be flushed.
    #[inline]
    pub fn finish(&mut self) -> bool {
        debug_assert!(self.depth > 0, "finish pairs with start");
        self.depth = self.depth.saturating_sub(1);
        if self.depth > 0 {
            return false;
        }
        // Announced I/Os that did not come must not reserve tags.
        self.hint = 0;
        true
    }

    /// Returns true if a plug is open.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.depth > 0
    }

    /// Returns the number of I/Os that the submitter announced, at least 1.
    #[inline]
    pub(crate) fn hint(&self) -> u32 {
        self.hint.max(1)
    }

    /// Returns true if a submitter that has gathered `gathered` requests must call `now` again: for each request if
    /// times are not cached, for every [`CHECK_EVERY`]th if they are, and only for the first if their age is not
    /// limited.
    #[inline(always)]
    pub(crate) fn is_time_due(&self, gathered: usize) -> bool {
        gathered as u8 & self.due_mask == 0
    }

    /// Returns the number of requests that may still be gathered, after `gathered` ones, until the time is due again.
    #[inline(always)]
    pub(crate) fn until_due(&self, gathered: usize) -> usize {
        usize::from(self.due_mask) + 1 - (gathered & usize::from(self.due_mask))
    }

    /// Reads the lab's clock for a request that shares its stamp.
    #[cfg(sheave_lab)]
    #[inline(always)]
    pub(crate) fn read_for_one(&self, clock: &Clock) {
        match self.each {
            EachRead::None => {}
            EachRead::Coarse => drop(std::hint::black_box(clock.coarse())),
            EachRead::System => drop(std::hint::black_box(clock.precise())),
        }
    }

    /// Returns the time of the batch: cached while the plug is open, else read. Callers that gather many requests call
    /// this when [`Plug::is_time_due`], because even a check of the cycle counter has a cost.
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

    /// Discards the cached time. Called after a flush, before sleeping, and wherever the owner may have spent time.
    #[inline]
    pub fn invalidate(&mut self) {
        self.cached = false;
    }
}

const _: () = assert!(CHECK_EVERY.is_power_of_two() && CHECK_EVERY <= 256, "it makes a mask");
const _: () = assert!(PLUG_MAX <= 256, "what may be gathered fits the mask");

#[cfg(all(test, not(shuttle)))]
mod tests;
