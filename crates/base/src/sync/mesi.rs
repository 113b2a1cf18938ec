//! The backend of [`sync`](super) for the simulation of cache lines: std's own types, which report each access to a
//! simulated machine first.
//!
//! A build with `--cfg sheave_mesi` (`cargo xtask lab` makes one beside the lab) runs the product's code on it,
//! unchanged: the types have the size, the alignment and the place in memory of std's types, so that the line of an
//! atomic is that of its real address. On threads outside of a simulation they behave like std's types.
//!
//! Owns the types. Does not own the states of lines ([`machine`]), nor the order of threads ([`sched`]).
//!
//! * I1: each type has the size and the alignment of std's; otherwise the assertions below do not compile.
//! * I2: taking a mutex counts as a write of the data inside of it; data elsewhere that crosses threads is marked by
//!   [`crossing`].
//! - I3: a held lock is waited for as under a queued spinlock: each waiter waits at a word of its own, and the release
//!   wakes the one that came first. Each time that a thread finds the lock held is counted.
//! - I4: reference counts of `Arc` are not traced.

pub mod machine;
pub mod sched;

use machine::Access;

/// Counts plain data that one thread writes and another reads as written as a whole.
#[inline]
pub fn crossing<T>(data: &T) {
    sched::touch(std::ptr::from_ref(data) as usize, size_of::<T>(), Access::Write);
}

/// Counterpart of `std::sync`.
pub mod sync {
    use std::fmt;
    use std::ops::{Deref, DerefMut};
    pub use std::sync::Arc;
    use std::sync::{LockResult, PoisonError, TryLockError, TryLockResult};
    use std::time::Duration;

    use crate::sync::mesi::machine::Access;
    use crate::sync::mesi::sched;

    pub mod atomic;

    /// Counterpart of [`std::sync::Mutex`].
    #[derive(Default)]
    #[repr(transparent)]
    pub struct Mutex<T: ?Sized>(std::sync::Mutex<T>);

    /// Counterpart of [`std::sync::MutexGuard`].
    pub struct MutexGuard<'a, T: ?Sized> {
        /// `None` once it was released.
        guard: Option<std::sync::MutexGuard<'a, T>>,
        mutex: &'a Mutex<T>,
    }

    const _: () = assert!(size_of::<Mutex<[u64; 3]>>() == size_of::<std::sync::Mutex<[u64; 3]>>()); // I1
    const _: () = assert!(size_of::<Condvar>() == size_of::<std::sync::Condvar>());

    impl<T> Mutex<T> {
        /// Makes a mutex that is not held.
        pub const fn new(value: T) -> Mutex<T> {
            Mutex(std::sync::Mutex::new(value))
        }

        /// Returns the protected value.
        ///
        /// # Errors
        /// If a thread panicked while it held the mutex.
        pub fn into_inner(self) -> LockResult<T> {
            self.0.into_inner()
        }
    }

    impl<T: ?Sized> Mutex<T> {
        fn address(&self) -> usize {
            std::ptr::from_ref(self).cast::<()>() as usize
        }

        fn took<'a>(&'a self, guard: std::sync::MutexGuard<'a, T>) -> MutexGuard<'a, T> {
            sched::with_machine(|cpu, machine| machine.took(cpu, self.address()));
            sched::touch(self.address(), size_of_val(self), Access::Write); // I2
            MutexGuard { guard: Some(guard), mutex: self }
        }

        /// Same as std's.
        ///
        /// # Errors
        /// If it is held, or a thread panicked while it held it.
        pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
            sched::touch(self.address(), 1, Access::Write);
            match self.0.try_lock() {
                Ok(guard) => Ok(self.took(guard)),
                Err(TryLockError::WouldBlock) => {
                    sched::with_machine(|_, machine| machine.waits());
                    Err(TryLockError::WouldBlock)
                }
                Err(TryLockError::Poisoned(guard)) => {
                    Err(TryLockError::Poisoned(PoisonError::new(self.took(guard.into_inner()))))
                }
            }
        }

        /// Same as std's.
        ///
        /// # Errors
        /// If a thread panicked while it held it.
        pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
            loop {
                match self.try_lock() {
                    Ok(guard) => return Ok(guard),
                    Err(TryLockError::Poisoned(guard)) => return Err(guard),
                    Err(TryLockError::WouldBlock) => {}
                }
                // I3.
                if sched::wait_for(self.address(), false).is_none() {
                    let guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                    return Ok(MutexGuard { guard: Some(guard), mutex: self });
                }
            }
        }

        /// Same as std's.
        ///
        /// # Errors
        /// If a thread panicked while it held it.
        pub fn get_mut(&mut self) -> LockResult<&mut T> {
            self.0.get_mut()
        }
    }

    impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.fmt(f)
        }
    }

    impl<T: ?Sized> MutexGuard<'_, T> {
        fn give_back(&mut self) {
            if let Some(guard) = self.guard.take() {
                let address = self.mutex.address();
                sched::touch(address, 1, Access::Write);
                drop(guard);
                sched::with_machine(|cpu, machine| machine.gave(cpu, address));
                sched::wake_one(address);
            }
        }
    }

    impl<T: ?Sized> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.guard.as_ref().expect("invariant: a guard that is used was not given back")
        }
    }

    impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.guard.as_mut().expect("invariant: a guard that is used was not given back")
        }
    }

    impl<T: ?Sized> Drop for MutexGuard<'_, T> {
        fn drop(&mut self) {
            self.give_back();
        }
    }

    impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            (**self).fmt(f)
        }
    }

    /// Counterpart of [`std::sync::Condvar`].
    #[derive(Debug, Default)]
    #[repr(transparent)]
    pub struct Condvar(std::sync::Condvar);

    /// Counterpart of [`std::sync::WaitTimeoutResult`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct WaitTimeoutResult(bool);

    impl WaitTimeoutResult {
        /// Returns true if the timeout passed.
        #[must_use]
        pub fn timed_out(&self) -> bool {
            self.0
        }
    }

    impl Condvar {
        /// Makes a condition variable without waiters.
        #[must_use]
        pub const fn new() -> Condvar {
            Condvar(std::sync::Condvar::new())
        }

        fn key(&self) -> usize {
            std::ptr::from_ref(self) as usize
        }

        /// Waits in the simulation; returns the guard as an error outside of one.
        fn wait_here<'a, T>(
            &self,
            mut guard: MutexGuard<'a, T>,
            timed: bool,
        ) -> Result<(LockResult<MutexGuard<'a, T>>, bool), MutexGuard<'a, T>> {
            if sched::now_ns().is_none() {
                return Err(guard);
            }
            let mutex = guard.mutex;
            // Releasing the lock and waiting is one step without a switch in between, so that no notification is lost.
            let address = mutex.address();
            sched::touch(address, 1, Access::Write);
            drop(guard.guard.take());
            sched::with_machine(|cpu, machine| machine.gave(cpu, address));
            sched::wake_one(address);
            let timed_out = sched::wait_for(self.key(), timed) == Some(true);
            Ok((mutex.lock(), timed_out))
        }

        /// Same as std's.
        ///
        /// # Errors
        /// If a thread panicked while it held the lock.
        pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
            match self.wait_here(guard, false) {
                Ok((guard, _)) => guard,
                Err(mut guard) => {
                    guard.guard = guard.guard.take().map(|inner| match self.0.wait(inner) {
                        Ok(inner) => inner,
                        Err(poisoned) => poisoned.into_inner(),
                    });
                    Ok(guard)
                }
            }
        }

        /// Same as std's.
        ///
        /// # Errors
        /// If a thread panicked while it held the lock.
        pub fn wait_timeout<'a, T>(
            &self,
            guard: MutexGuard<'a, T>,
            timeout: Duration,
        ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
            match self.wait_here(guard, true) {
                Ok((Ok(guard), timed_out)) => Ok((guard, WaitTimeoutResult(timed_out))),
                Ok((Err(poisoned), timed_out)) => {
                    Err(PoisonError::new((poisoned.into_inner(), WaitTimeoutResult(timed_out))))
                }
                Err(mut guard) => {
                    let mut timed_out = false;
                    guard.guard = guard.guard.take().map(|inner| {
                        let (inner, result) =
                            self.0.wait_timeout(inner, timeout).unwrap_or_else(PoisonError::into_inner);
                        timed_out = result.timed_out();
                        inner
                    });
                    Ok((guard, WaitTimeoutResult(timed_out)))
                }
            }
        }

        /// Same as std's; in a simulation all waiters wake up and check again.
        pub fn notify_one(&self) {
            self.0.notify_one();
            sched::wake_all(self.key());
        }

        /// Same as std's.
        pub fn notify_all(&self) {
            self.0.notify_all();
            sched::wake_all(self.key());
        }
    }
}

/// Counterpart of `std::thread`.
pub mod thread {
    use std::io;
    pub use std::thread::{ThreadId, current, panicking, scope};
    use std::time::Duration;

    use crate::sync::mesi::sched::{self, Ticket};

    /// Counterpart of [`std::thread::Builder`].
    #[derive(Debug)]
    pub struct Builder(std::thread::Builder);

    /// Counterpart of [`std::thread::JoinHandle`].
    #[derive(Debug)]
    pub struct JoinHandle<T> {
        handle: std::thread::JoinHandle<T>,
        ticket: Option<Ticket>,
    }

    impl Default for Builder {
        fn default() -> Self {
            Builder::new()
        }
    }

    impl Builder {
        /// Makes a builder of a thread without a name.
        #[must_use]
        pub fn new() -> Builder {
            Builder(std::thread::Builder::new())
        }

        /// Sets the name of the thread.
        #[must_use]
        pub fn name(self, name: String) -> Builder {
            Builder(self.0.name(name))
        }

        /// Starts the thread; in a simulation on a processor of its own.
        ///
        /// # Errors
        /// If the system cannot start a thread.
        pub fn spawn<F: FnOnce() -> T + Send + 'static, T: Send + 'static>(self, body: F) -> io::Result<JoinHandle<T>> {
            let ticket = Ticket::take();
            let own = ticket.as_ref().map(Ticket::beside);
            let handle = self.0.spawn(move || match own {
                Some(ticket) => ticket.live(body),
                None => body(),
            })?;
            if let Some(ticket) = &ticket {
                ticket.await_start();
            }
            Ok(JoinHandle { handle, ticket })
        }
    }

    impl<T> JoinHandle<T> {
        /// Waits for the end of the thread.
        ///
        /// # Errors
        /// If the thread panicked.
        pub fn join(self) -> std::thread::Result<T> {
            if let Some(ticket) = &self.ticket {
                while !ticket.has_ended() && sched::wait_for(ticket.end_key(), false).is_some() {}
            }
            self.handle.join()
        }

        /// Returns true if the thread has ended.
        pub fn is_finished(&self) -> bool {
            self.handle.is_finished()
        }

        pub fn thread(&self) -> &std::thread::Thread {
            self.handle.thread()
        }
    }

    /// Counterpart of [`std::thread::spawn`].
    ///
    /// # Panics
    /// If the system cannot start a thread.
    pub fn spawn<F: FnOnce() -> T + Send + 'static, T: Send + 'static>(body: F) -> JoinHandle<T> {
        Builder::new().spawn(body).expect("a thread")
    }

    /// Lets other threads run.
    pub fn yield_now() {
        if !sched::step() {
            std::thread::yield_now();
        }
    }

    /// Counterpart of [`std::thread::sleep`]; in a simulation only lets other threads run.
    pub fn sleep(time: Duration) {
        if !sched::step() {
            std::thread::sleep(time);
        }
    }
}

/// Counterpart of `std::hint`.
pub mod hint {
    /// Lets other threads run.
    pub fn spin_loop() {
        if !crate::sync::mesi::sched::step() {
            std::hint::spin_loop();
        }
    }
}
