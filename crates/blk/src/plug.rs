//! The plug: what a ring gathers before it hands a batch to the drivers, and the cached time of that batch.
//!
//! Owns the hint, the list of hardware contexts with gathered requests, and the time cache. The requests themselves
//! wait in their [`hctx`](crate::hctx). A plug belongs to its ring and never leaves the ring's thread (a ring is not
//! `Send`), so no other thread can read its cached time.
//!
//! Invariants:
//! - I1: a cached time is never older than its batch: flush and sleep drop it, and so does every [`CHECK_EVERY`]
//!   requests a cycle-counter delta of more than [`MAX_AGE_NS`].
//! - I2: the cached time is a [`CoarseTs`]: statistics only. Deadlines take `PreciseTs`, which no plug caches.
//! - I3: 0 is a valid time; whether one is cached is said by its own flag.

use std::marker::PhantomData;

use sheave_base::clock::{Clock, CoarseTs};

/// A cached time older than this is read anew.
pub const MAX_AGE_NS: u64 = 50_000;
/// At most this many requests share a stamp between two looks at the cycle counter.
pub const CHECK_EVERY: usize = 16;

/// A ring's plug. It stays on its thread, or another one would read a time that is not its own:
///
/// ```compile_fail,E0277
/// let plug = sheave_blk::plug::Plug::default();
/// std::thread::spawn(move || plug.is_open());
/// ```
#[derive(Debug, Default)]
pub struct Plug {
    time: CoarseTs,
    cached: bool,
    cycles: u64,
    /// Nesting: only the outermost `finish` flushes.
    depth: u32,
    /// How many I/Os the submitter has announced.
    hint: u32,
    /// Hardware contexts with gathered requests.
    pub(crate) dirty: u64,
    /// Neither `Send` nor `Sync`.
    thread: PhantomData<*const ()>,
}

impl Plug {
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

    /// The time of the batch: cached while the plug is open, else read. Callers that gather many requests ask once for
    /// [`CHECK_EVERY`] of them, for even a look at the cycle counter is not free.
    #[inline]
    pub fn now(&mut self, clock: &Clock) -> CoarseTs {
        if self.cached && clock.cycles_to_ns(clock.cycles().wrapping_sub(self.cycles)) <= MAX_AGE_NS {
            return self.time;
        }
        (self.time, self.cycles) = clock.coarse_with_cycles();
        self.cached = self.depth > 0;
        self.time
    }

    /// Forgets the cached time: after a flush, before sleeping, and wherever the owner may have lost time.
    #[inline]
    pub fn invalidate(&mut self) {
        self.cached = false;
    }
}

#[cfg(test)]
mod tests;
