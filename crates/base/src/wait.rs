//! Long waits: for a lock that is held over I/O, for a change that another thread makes, for time to pass.
//!
//! Owns how a thread waits: it sleeps. A simulator that runs several threads one at a time gives each of them a
//! *stepper* (`set_stepper`); such a thread hands over to the simulator instead of sleeping, so that the order in
//! which threads go on is the simulator's, and repeats. Does not own what is waited for.
//!
//! - I1: only a thread that is about to wait looks at its stepper: whatever does not wait pays nothing for it.
//! - I2: the lock of a wait is let go while the stepper runs, so nobody else is kept from it.
//! - I3: every wait may end early; the caller looks again at what it waits for.
//! - I4: where nobody waits, but another thread may come between, debug builds have a *gap* ([`gap`]): a thread that
//!   was told how often hands over there too. It holds no lock then that is not taken here.
//!
//! Called by grace periods and by files that wait for their own workers. Short locks, never held over a wait, are not
//! taken here.

pub use imp::{gap, lock, wait_on};

/// What a stepper says to a thread that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Look again.
    Again,
    /// A wait with a timeout is over: look a last time.
    TimeUp,
}

#[cfg(not(any(shuttle, loom)))]
pub use imp::{set_gaps, set_stepper, step};

#[cfg(not(any(shuttle, loom)))]
mod imp {
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;
    use std::sync::TryLockError;
    use std::time::Duration;

    use super::Step;
    use crate::rng::mix;
    use crate::sync::{Condvar, Mutex, MutexGuard};

    type Stepper = Rc<dyn Fn() -> Step>;

    /// How often a thread hands over in a gap at most.
    const MOST_STEPS: u64 = 32;

    thread_local! {
        static STEPPER: RefCell<Option<Stepper>> = const { RefCell::new(None) };
        /// What the next gap draws from, in how many of a hundred this thread hands over, and in how many of those
        /// often.
        static GAPS: Cell<(u64, (u64, u64))> = const { Cell::new((0, (0, 0))) };
    }

    /// From now on this thread does not sleep where it waits, but calls this; `None`: it sleeps again.
    pub fn set_stepper(stepper: Option<Stepper>) {
        STEPPER.set(stepper);
    }

    /// Hands over to the simulator that steps this thread, if one does.
    pub fn step() -> Option<Step> {
        let stepper = STEPPER.try_with(|stepper| stepper.borrow().clone()).ok().flatten()?;
        Some(stepper())
    }

    /// From now on this thread hands over in so many of a hundred gaps, as the seed says (I4); and in so many of a
    /// hundred of those again and again, as if it did not run for a while.
    pub fn set_gaps(seed: u64, percents: (u64, u64)) {
        GAPS.set((seed, percents));
    }

    /// Another thread may come between here.
    pub fn gap() {
        let Ok((seed, (percent, long))) = GAPS.try_with(Cell::get) else { return };
        if percent > 0 {
            GAPS.set((mix(seed), (percent, long)));
            if seed % 100 < percent {
                let steps = if (seed >> 16) % 100 < long { 1 + (seed >> 40) % MOST_STEPS } else { 1 };
                (0..steps).for_each(|_| _ = step());
            }
        }
    }

    /// Takes a lock that others may hold over I/O.
    ///
    /// # Panics
    /// When a thread panicked while it held the lock.
    pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        loop {
            match mutex.try_lock() {
                Ok(guard) => return guard,
                Err(TryLockError::WouldBlock) if step().is_some() => {}
                Err(_) => return mutex.lock().expect("invariant: no panic under this lock"),
            }
        }
    }

    /// Waits until somebody notifies of a change under the lock, at most so long where a time is given.
    ///
    /// # Panics
    /// When a thread panicked while it held the lock.
    pub fn wait_on<'a, T>(
        changed: &Condvar,
        mutex: &'a Mutex<T>,
        guard: MutexGuard<'a, T>,
        timeout: Option<Duration>,
    ) -> MutexGuard<'a, T> {
        const WHY: &str = "invariant: no panic under this lock";
        if STEPPER.try_with(|stepper| stepper.borrow().is_some()).unwrap_or(false) {
            drop(guard); // I2
            step();
            return mutex.lock().expect(WHY);
        }
        match timeout {
            Some(timeout) => changed.wait_timeout(guard, timeout).expect(WHY).0,
            None => changed.wait(guard).expect(WHY),
        }
    }
}

/// In a model build the checker decides who goes on.
#[cfg(any(shuttle, loom))]
mod imp {
    use std::time::Duration;

    use crate::sync::{Condvar, Mutex, MutexGuard};

    const WHY: &str = "invariant: no panic under this lock";

    /// The checker sees the lock that follows.
    pub fn gap() {}

    /// Takes a lock that others may hold over I/O.
    pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().expect(WHY)
    }

    /// Waits until somebody notifies of a change under the lock, at most so long where a time is given.
    pub fn wait_on<'a, T>(
        changed: &Condvar,
        _: &'a Mutex<T>,
        guard: MutexGuard<'a, T>,
        timeout: Option<Duration>,
    ) -> MutexGuard<'a, T> {
        match timeout {
            Some(timeout) => changed.wait_timeout(guard, timeout).expect(WHY).0,
            None => changed.wait(guard).expect(WHY),
        }
    }
}

#[cfg(all(test, not(any(shuttle, loom))))]
mod tests;
