//! Time, real or virtual, as two types that do not mix: one for statistics, one for deadlines.
//!
//! Owns the reading of clocks. Does not cache any reading: the plug does that, which is why the types differ.
//!
//! | type | from | may be cached | used for |
//! |---|---|---|---|
//! | [`CoarseTs`] | the processor's cycle counter, else `CLOCK_MONOTONIC` | yes | statistics |
//! | [`PreciseTs`] | `CLOCK_MONOTONIC` | no | deadlines, rate limits |
//!
//! * I1: no conversion leads from `CoarseTs` to `PreciseTs` or back.
//! * I2: reading never allocates, and without a virtual clock never writes memory.
//! * I3: a span is never negative: if the later stamp is smaller (the counters of two processors may differ by a few
//!   ns), the span is 0.
//! * I4: a coarse clock from the cycle counter keeps the rate of `CLOCK_MONOTONIC` to within about 10 ppm (the error of
//!   its calibration).
//!
//! Called by the plug, by request start and completion (coarse), timeouts and rate limits (precise), and spin loops
//! (cycles).

mod tsc;

use std::sync::OnceLock;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::sync::Arc;
use crate::sync::atomic::{AtomicU64, Ordering};
use tsc::Tsc;

const NS_PER_SEC: u64 = 1_000_000_000;

/// A stamp for statistics: ns since some moment before the start of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct CoarseTs(
    /// Nanoseconds.
    pub u64,
);

impl CoarseTs {
    /// Returns the ns since `earlier`, or 0 if that is not earlier (I3).
    #[inline]
    #[must_use]
    pub fn ns_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// A stamp for deadlines: ns of `CLOCK_MONOTONIC`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct PreciseTs(
    /// Nanoseconds.
    pub u64,
);

impl PreciseTs {
    /// Returns the ns since `earlier`, or 0 if that is not earlier (I3).
    #[inline]
    #[must_use]
    pub fn ns_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the stamp `span` later, or the largest one if that is out of range.
    #[inline]
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(duration_ns(span)))
    }

    /// Returns the time from `now` to this stamp, zero if it has passed.
    #[inline]
    #[must_use]
    pub fn left(self, now: Self) -> Duration {
        Duration::from_nanos(self.ns_since(now))
    }
}

/// Clock to which a deadline refers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Timeline {
    /// `CLOCK_MONOTONIC`: time that the machine was up, without suspend.
    Monotonic,
    /// `CLOCK_BOOTTIME`: the same, with suspend.
    Boottime,
    /// `CLOCK_REALTIME`: since 1970; jumps when the time of day is set.
    Realtime,
}

/// Source of time. Cheap to clone; each owner keeps its own.
#[derive(Debug, Clone)]
pub struct Clock {
    source: Source,
}

#[derive(Debug, Clone)]
enum Source {
    /// The cycle counter for coarse stamps, `CLOCK_MONOTONIC` for precise ones.
    Tsc(Tsc),
    /// `CLOCK_MONOTONIC` for both, on a machine whose cycle counter is not reliable.
    Os,
    Virtual(Arc<VirtualState>),
}

#[derive(Debug, Default)]
struct VirtualState {
    now_ns: AtomicU64,
    reads: AtomicU64,
    looks: AtomicU64,
}

impl Clock {
    /// Returns the real clock. The first call in a process takes about 10 ms to calibrate the cycle counter.
    #[must_use]
    pub fn real() -> Self {
        // Not `sync`: calibration happens once per process and is no part of any modelled protocol.
        static CALIBRATED: OnceLock<Option<Tsc>> = OnceLock::new();
        // The simulation of cache lines has a clock of its own, which `monotonic_ns` reads.
        let calibrate = || if cfg!(sheave_mesi) { None } else { Tsc::calibrate(monotonic_ns) };
        let source = match CALIBRATED.get_or_init(calibrate) {
            Some(tsc) => Source::Tsc(*tsc),
            None => Source::Os,
        };
        Self { source }
    }

    /// Returns a clock that stands at 0, and the handle that advances it.
    #[must_use]
    pub fn virtual_clock() -> (Self, VirtualClock) {
        let state =
            Arc::new(VirtualState { now_ns: AtomicU64::new(0), reads: AtomicU64::new(0), looks: AtomicU64::new(0) });
        (Self { source: Source::Virtual(Arc::clone(&state)) }, VirtualClock { state })
    }

    /// Returns the current stamp for statistics: a branch, a read of the cycle counter, a multiplication.
    #[inline(always)]
    #[must_use]
    pub fn coarse(&self) -> CoarseTs {
        CoarseTs(match &self.source {
            Source::Tsc(tsc) => tsc.ns(tsc::cycles()),
            Source::Os => monotonic_ns(),
            Source::Virtual(state) => state.read(),
        })
    }

    /// Returns a stamp and the cycle count that it was made from, with one reading of the counter. The age of the stamp
    /// can then be checked cheaply with [`cycles`](Self::cycles).
    #[inline]
    #[must_use]
    pub fn coarse_with_cycles(&self) -> (CoarseTs, u64) {
        match &self.source {
            Source::Tsc(tsc) => {
                let cycles = tsc::cycles();
                (CoarseTs(tsc.ns(cycles)), cycles)
            }
            Source::Os | Source::Virtual(_) => {
                let now = self.coarse();
                (now, now.0)
            }
        }
    }

    /// Returns the current stamp for deadlines: always reads the system's clock (about 20 to 40 ns).
    #[inline]
    #[must_use]
    pub fn precise(&self) -> PreciseTs {
        PreciseTs(match &self.source {
            Source::Tsc(_) | Source::Os => monotonic_ns(),
            Source::Virtual(state) => state.read(),
        })
    }

    /// Returns the current time of `timeline` in ns, for deadlines. A virtual clock has the same time on all of them.
    #[must_use]
    pub fn now_ns(&self, timeline: Timeline) -> u64 {
        let id = match (&self.source, timeline) {
            (Source::Virtual(_), _) | (_, Timeline::Monotonic) => return self.precise().0,
            (_, Timeline::Boottime) => ClockId::Boottime,
            (_, Timeline::Realtime) => ClockId::Realtime,
        };
        let now = clock_gettime(id);
        now.tv_sec as u64 * NS_PER_SEC + now.tv_nsec as u64
    }

    /// Returns a counter with a constant rate and an arbitrary start, the cheapest clock to read; for bounds on
    /// spinning and on the age of a cached stamp. A virtual clock counts ns, and counts these reads separately.
    #[inline]
    #[must_use]
    pub fn cycles(&self) -> u64 {
        match &self.source {
            Source::Tsc(_) => tsc::cycles(),
            Source::Os => monotonic_ns(),
            Source::Virtual(state) => state.look(),
        }
    }

    /// Returns the stamp of an earlier [counter reading](Self::cycles).
    #[inline(always)]
    #[must_use]
    pub fn coarse_of(&self, cycles: u64) -> CoarseTs {
        CoarseTs(match &self.source {
            Source::Tsc(tsc) => tsc.ns(cycles),
            Source::Os | Source::Virtual(_) => cycles,
        })
    }

    /// Converts `cycles`, a difference of two [`cycles`](Self::cycles), to ns.
    #[inline]
    #[must_use]
    pub fn cycles_to_ns(&self, cycles: u64) -> u64 {
        match &self.source {
            Source::Tsc(tsc) => tsc.span_ns(cycles),
            Source::Os | Source::Virtual(_) => cycles,
        }
    }

    /// Converts a span to cycles. Convert a bound once, and then compare cycles.
    #[must_use]
    pub fn ns_to_cycles(&self, ns: u64) -> u64 {
        match &self.source {
            Source::Tsc(tsc) => tsc.span_cycles(ns),
            Source::Os | Source::Virtual(_) => ns,
        }
    }

    /// Returns true if coarse stamps come from the processor's cycle counter.
    #[must_use]
    pub fn is_cycle_counter(&self) -> bool {
        matches!(self.source, Source::Tsc(_))
    }
}

impl VirtualState {
    /// Reads the virtual clock and counts the read. Out of line for the same reason as `read`.
    #[cold]
    fn look(&self) -> u64 {
        // Relaxed, both: as in `read`.
        self.looks.fetch_add(1, Ordering::Relaxed);
        self.now_ns.load(Ordering::Relaxed)
    }

    /// Reads the virtual clock and counts the read. Out of line, like `monotonic_ns`, so that only the read of the
    /// cycle counter is inlined into the fast path.
    #[cold]
    fn read(&self) -> u64 {
        // Relaxed, both: a clock orders nothing, and a count is read when all is quiet.
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.now_ns.load(Ordering::Relaxed)
    }
}

/// Handle of a virtual clock: sets the time of all [`Clock`]s cloned from its pair.
#[derive(Debug, Clone)]
pub struct VirtualClock {
    state: Arc<VirtualState>,
}

impl VirtualClock {
    /// Advances the time by `span`.
    pub fn advance(&self, span: Duration) {
        // Relaxed: a clock orders nothing.
        self.state.now_ns.fetch_add(duration_ns(span), Ordering::Relaxed);
    }

    /// Sets the time, also backwards, to test how code copes with that.
    pub fn set(&self, now_ns: u64) {
        // Relaxed: a clock orders nothing.
        self.state.now_ns.store(now_ns, Ordering::Relaxed);
    }

    /// Returns the number of reads for a stamp, coarse or precise.
    #[must_use]
    pub fn reads(&self) -> u64 {
        // Relaxed: exact once the threads that read it have been joined.
        self.state.reads.load(Ordering::Relaxed)
    }

    /// Returns the number of reads of the cycle counter, which check the age of something.
    #[must_use]
    pub fn looks(&self) -> u64 {
        // Relaxed: as for `reads`.
        self.state.looks.load(Ordering::Relaxed)
    }
}

/// Returns `CLOCK_MONOTONIC` in ns. Out of line: inlined it would give each reader of the cycle counter a stack frame.
#[inline(never)]
fn monotonic_ns() -> u64 {
    #[cfg(sheave_mesi)]
    if let Some(now) = crate::sync::mesi::sched::now_ns() {
        return now;
    }
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * NS_PER_SEC + now.tv_nsec as u64
}

/// Returns a span in ns, at most 2^64 - 1 (584 years).
#[inline]
fn duration_ns(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(all(test, not(any(shuttle, loom))))]
mod tests;
