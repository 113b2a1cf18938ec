//! Long waits: for a lock that is held over I/O, for a change made by another thread, for time to pass.
//!
//! Owns the way in which a thread waits: it sleeps. A simulator that runs several threads one at a time gives each of
//! them a *stepper* (`set_stepper`); such a thread yields to the simulator instead of sleeping, so that the simulator
//! chooses the order of the threads and can repeat it. Does not own the condition that is waited for.
//!
//! - I1: a thread checks its stepper only when it is about to wait, so code that does not wait pays nothing for it.
//! - I2: the lock of a wait is released while the stepper runs, so that other threads can take it.
//! - I3: every wait may end early; the caller checks its condition again.
//! - I4: debug builds have a *gap* ([`gap`]) at places where no thread waits, but another may run in between: a thread
//!   with a stepper yields there too, as often as [`set_gaps`] says. It then holds only locks taken by [`lock`].
//!
//! Called by grace periods and by files that wait for their own workers. Short locks, which are never held over a wait,
//! are not taken here.

pub use imp::{gap, lock, wait_on};

/// A stepper's answer to a thread that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Check the condition again.
    Again,
    /// A wait with a timeout is over: check a last time.
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

    /// Largest number of yields of a thread in one gap.
    const MOST_STEPS: u64 = 32;

    thread_local! {
        static STEPPER: RefCell<Option<Stepper>> = const { RefCell::new(None) };
        /// Seed of the next gap, percentage of gaps in which this thread yields, and percentage of these gaps in which
        /// it yields many times.
        static GAPS: Cell<(u64, (u64, u64))> = const { Cell::new((0, (0, 0))) };
    }

    /// Sets the function that this thread calls wherever it would sleep. With `None` it sleeps again.
    pub fn set_stepper(stepper: Option<Stepper>) {
        STEPPER.set(stepper);
    }

    /// Yields to the simulator that steps this thread, if there is one, and returns its answer.
    pub fn step() -> Option<Step> {
        let stepper = STEPPER.try_with(|stepper| stepper.borrow().clone()).ok().flatten()?;
        Some(stepper())
    }

    /// Makes this thread yield in a percentage of gaps, drawn from `seed` (I4): `percents.0` of all gaps, and in
    /// `percents.1` of these many times, as if the thread were not scheduled for a while.
    pub fn set_gaps(seed: u64, percents: (u64, u64)) {
        GAPS.set((seed, percents));
    }

    /// Marks a place where another thread may run in between (I4).
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

    /// Takes a lock that other threads may hold over I/O.
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

    /// Waits until `changed` is notified, for at most `timeout` if there is one.
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

/// In a model build the checker chooses the thread that continues.
#[cfg(any(shuttle, loom))]
mod imp {
    use std::time::Duration;

    use crate::sync::{Condvar, Mutex, MutexGuard};

    const WHY: &str = "invariant: no panic under this lock";

    /// Does nothing: the checker interleaves at the lock that follows.
    pub fn gap() {}

    /// Takes a lock that other threads may hold over I/O.
    pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().expect(WHY)
    }

    /// Waits until `changed` is notified, for at most `timeout` if there is one.
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
mod tests {
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;
    use std::time::Duration;

    use super::*;
    use crate::grace::Grace;
    use crate::sync::{Arc, Condvar, Mutex};

    /// Returns a stepper that counts, and answers `TimeUp` from the third time on.
    fn counting() -> Rc<Cell<u32>> {
        let steps = Rc::new(Cell::new(0));
        let count = Rc::clone(&steps);
        set_stepper(Some(Rc::new(move || {
            count.set(count.get() + 1);
            if count.get() < 3 { Step::Again } else { Step::TimeUp }
        })));
        steps
    }

    #[test]
    fn a_thread_without_a_stepper_sleeps() {
        set_stepper(None);
        assert_eq!(step(), None);
        let (mutex, changed) = (Mutex::new(5), Condvar::new());
        assert_eq!(*lock(&mutex), 5);
        assert_eq!(*wait_on(&changed, &mutex, lock(&mutex), Some(Duration::from_micros(1))), 5);
    }

    #[test]
    fn a_stepped_thread_hands_over_wherever_it_waits() {
        let steps = counting();
        let (mutex, changed) = (Mutex::new(5), Condvar::new());
        // Without a notification and a timeout a wait without a stepper would sleep for ever.
        assert_eq!(*wait_on(&changed, &mutex, lock(&mutex), None), 5);
        assert_eq!(steps.get(), 1, "a free lock is no wait");
        assert_eq!((step(), step()), (Some(Step::Again), Some(Step::TimeUp)));
        set_stepper(None);
        assert_eq!(steps.get(), 3);
    }

    #[test]
    fn the_lock_of_a_wait_is_free_while_the_stepper_runs() {
        let mutex = Rc::new(Mutex::new(5));
        let other = Rc::clone(&mutex);
        set_stepper(Some(Rc::new(move || {
            *other.try_lock().expect("I2") += 1;
            Step::Again
        })));
        let guard = wait_on(&Condvar::new(), &mutex, lock(&mutex), None);
        assert_eq!(*guard, 6);
        drop(guard);
        set_stepper(None);
    }

    #[test]
    fn a_held_lock_is_tried_again_after_each_step() {
        static HELD: Mutex<u32> = Mutex::new(7);
        let guard = Rc::new(RefCell::new(Some(lock(&HELD))));
        let release = Rc::clone(&guard);
        let steps = Rc::new(Cell::new(0));
        let count = Rc::clone(&steps);
        set_stepper(Some(Rc::new(move || {
            count.set(count.get() + 1);
            if count.get() == 4 {
                release.borrow_mut().take();
            }
            Step::Again
        })));
        assert_eq!(*lock(&HELD), 7);
        assert_eq!(steps.get(), 4);
        set_stepper(None);
    }

    #[test]
    fn a_grace_waits_step_by_step_and_ends_with_its_time() {
        let grace = Arc::new(Grace::new());
        let seat = Grace::seat(&grace);
        seat.enter();
        let phase = seat.count();
        seat.leave();
        let steps = counting();
        assert!(!grace.wait(grace.start(), Duration::MAX), "the stepper says when the time is up");
        assert_eq!(steps.get(), 3);
        seat.uncount(phase);
        assert!(grace.wait(grace.start(), Duration::MAX));
        set_stepper(None);
    }
}
