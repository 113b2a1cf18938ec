//! Measuring for the lab: a mutex that counts acquisitions and contention and can measure how long it was held and
//! waited for, and the times that items wait from queue to start. Compiled only with `--cfg sheave_lab`; other builds
//! have the mutex of `lock`.
//!
//! Owns the counters of a lock, which the lock itself protects, so that measuring dirties no other cache line; without
//! a clock (the default) only acquisitions and contended acquisitions are counted. Owns the histogram of a pool's
//! waits, which all workers write, and the stamps of a client's items.

use std::ops::{Deref, DerefMut};

use sheave_base::clock::Clock;
use sheave_base::histogram::{Histogram, cells};
use sheave_base::sync::atomic::{AtomicU64, Ordering};
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
    pub(super) fn new(value: T) -> Lock<T> {
        Lock {
            inner: Mutex::new(Inner { value, taken: 0, contended: 0, wait_cycles: 0, wait_cpu_ns: 0, hold_cycles: 0 }),
            clock: None,
        }
    }

    /// Measures times from now on.
    pub(super) fn measure(&mut self, starts: &Starts) {
        self.clock = Some(starts.clock.clone());
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

/// Times from queue to start of a pool's items, in eight cells per power of two of nanoseconds.
#[derive(Debug)]
pub(super) struct Starts {
    clock: Clock,
    waits: Histogram<3, { cells(3, 64) }>,
}

/// Cycle at which each item of a client was queued.
#[derive(Debug)]
pub(super) struct Stamps(Box<[AtomicU64]>);

impl Stamps {
    pub(super) fn new(slots: u32) -> Stamps {
        Stamps((0..slots).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Starts {
    pub(super) fn new() -> Starts {
        Starts { clock: Clock::real(), waits: Histogram::default() }
    }

    /// Called when the item of `slot` is queued.
    pub(super) fn queued(&self, stamps: &Stamps, slot: u32) {
        // Relaxed: published with the item.
        stamps.0[slot as usize].store(self.clock.cycles(), Ordering::Relaxed);
    }

    /// Called when the item of `slot` starts.
    pub(super) fn started(&self, stamps: &Stamps, slot: u32) {
        // Relaxed: seen with the item.
        let queued = stamps.0[slot as usize].load(Ordering::Relaxed);
        self.waits.add_shared(self.clock.cycles_to_ns(self.clock.cycles().wrapping_sub(queued)));
    }

    /// Returns upper bounds in ns, each with the number of items that waited up to it and longer than the bound before.
    pub(super) fn snapshot(&self) -> Vec<(u64, u64)> {
        self.waits.counted().map(|(waits, count)| (*waits.end(), count)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_counts_and_reads_a_clock_only_if_it_measures() {
        let mut lock = Lock::new(0);
        *lock.lock() += 1;
        assert_eq!(lock.stats(), LockStats { taken: 1, ..LockStats::default() });
        lock.measure(&Starts::new());
        // A waiter that starts late finds the lock free, and is followed by another.
        let contended = (0..100).any(|_| {
            let held = lock.lock();
            std::thread::scope(|scope| {
                scope.spawn(|| *lock.lock());
                std::thread::sleep(std::time::Duration::from_millis(5));
                drop(held);
            });
            lock.stats().contended > 0
        });
        let stats = lock.stats();
        assert!(contended && stats.taken > stats.contended, "{stats:?}");
        assert!(stats.hold_ns > 0 && stats.wait_ns > 0, "{stats:?}");
    }

    #[test]
    fn waits_are_counted_up_to_the_bounds_of_their_cells() {
        let (starts, stamps) = (Starts::new(), Stamps::new(2));
        starts.queued(&stamps, 1);
        std::thread::sleep(std::time::Duration::from_millis(1));
        starts.started(&stamps, 1);
        let [(bound, count)] = starts.snapshot()[..] else { panic!("one item, one cell") };
        assert!(bound >= 1_000_000 && count == 1, "{bound} {count}");
    }
}
