//! A mutex that counts acquisitions and contention, and can measure how long it was held and waited for.
//!
//! Owns the counters, which are protected by the lock itself, so measuring dirties no other cache line. Without a clock
//! (the default) only acquisitions and contended acquisitions are counted, and no clock is read.

use std::ops::{Deref, DerefMut};

use sheave_base::clock::Clock;
use sheave_base::sync::{Mutex, MutexGuard};

/// Statistics of a lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockStats {
    /// Number of acquisitions.
    pub taken: u64,
    /// Acquisitions that found the lock taken.
    pub contended: u64,
    /// Total time of waiting for the lock; 0 unless measured.
    pub wait_ns: u64,
    /// CPU time spent waiting, which is the part of the wait that was not slept; 0 unless measured.
    pub wait_cpu_ns: u64,
    /// Total time that the lock was held; 0 unless measured.
    pub hold_ns: u64,
}

impl std::ops::AddAssign for LockStats {
    fn add_assign(&mut self, other: Self) {
        self.taken += other.taken;
        self.contended += other.contended;
        self.wait_ns += other.wait_ns;
        self.wait_cpu_ns += other.wait_cpu_ns;
        self.hold_ns += other.hold_ns;
    }
}

/// Mutex with statistics.
#[derive(Debug)]
pub(super) struct Lock<T> {
    inner: Mutex<Inner<T>>,
    clock: Option<Clock>,
}

#[derive(Debug)]
struct Inner<T> {
    value: T,
    taken: u64,
    contended: u64,
    wait_cycles: u64,
    wait_cpu_ns: u64,
    hold_cycles: u64,
}

/// Guard of a `Lock`.
#[derive(Debug)]
pub(super) struct Held<'a, T> {
    inner: MutexGuard<'a, Inner<T>>,
    clock: Option<&'a Clock>,
    since: u64,
}

impl<T> Lock<T> {
    /// Measures times only if `clock` is given.
    pub(super) fn new(value: T, clock: Option<Clock>) -> Lock<T> {
        Lock {
            inner: Mutex::new(Inner { value, taken: 0, contended: 0, wait_cycles: 0, wait_cpu_ns: 0, hold_cycles: 0 }),
            clock,
        }
    }

    #[inline]
    pub(super) fn lock(&self) -> Held<'_, T> {
        let clock = self.clock.as_ref();
        let (mut inner, waited) = match self.inner.try_lock() {
            Ok(inner) => (inner, None),
            Err(_) => self.wait(clock),
        };
        inner.taken += 1;
        if let Some((cycles, cpu_ns)) = waited {
            inner.contended += 1;
            inner.wait_cycles += cycles;
            inner.wait_cpu_ns += cpu_ns;
        }
        Held { inner, clock, since: clock.map_or(0, Clock::cycles) }
    }

    #[cold]
    fn wait(&self, clock: Option<&Clock>) -> (MutexGuard<'_, Inner<T>>, Option<(u64, u64)>) {
        let now = || clock.map_or((0, 0), |clock| (clock.cycles(), thread_cpu_ns()));
        let from = now();
        let inner = self.inner.lock().expect("invariant: no panic under a lock of the pool");
        let until = now();
        (inner, Some((until.0.wrapping_sub(from.0), until.1.saturating_sub(from.1))))
    }

    pub(super) fn stats(&self) -> LockStats {
        let inner = self.inner.lock().expect("invariant: no panic under a lock of the pool");
        let ns = |cycles| self.clock.as_ref().map_or(0, |clock| clock.cycles_to_ns(cycles));
        LockStats {
            taken: inner.taken,
            contended: inner.contended,
            wait_ns: ns(inner.wait_cycles),
            wait_cpu_ns: inner.wait_cpu_ns,
            hold_ns: ns(inner.hold_cycles),
        }
    }
}

/// CPU time used by the calling thread.
fn thread_cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner.value
    }
}

impl<T> DerefMut for Held<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner.value
    }
}

impl<T> Drop for Held<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if let Some(clock) = self.clock {
            self.inner.hold_cycles += clock.cycles().wrapping_sub(self.since);
        }
    }
}
