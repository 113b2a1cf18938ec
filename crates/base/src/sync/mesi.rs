//! The backend of [`sync`](super) for the line-coherence simulation: std's own types, each access of which is told to a
//! simulated machine first.
//!
//! A build with `--cfg sheave_mesi` (`cargo xtask lab` makes one beside the lab) runs the product's code on it,
//! unchanged: the types have the size, the alignment and the place in memory that std's have, so that the line of an
//! atomic is that of its real address. On threads that belong to no simulation they are std's types and nothing else.
//!
//! Owns the types. Does not own the states of lines ([`machine`]) nor the order of threads ([`sched`]).
//!
//! * I1: each type has the size and the alignment of std's; the assertions below do not compile otherwise.
//! * I2: what a mutex protects counts as written by whoever takes it, in the bytes that lie in the mutex itself; what
//!   lies elsewhere and crosses threads is marked by [`crossing`].
//! * I3: a lock that is taken is waited for as under a queued spinlock: each waiter at a word of its own, and who gives
//!   it back wakes the one that came first. A waiter is counted once for each time it finds the lock taken.
//! * I4: counts of `Arc` are not traced.

pub mod machine;
pub mod sched;

use machine::Access;

/// Plain data that one thread writes and another reads: the simulation takes it for written, whole.
#[inline]
pub fn crossing<T>(data: &T) {
    sched::touch(std::ptr::from_ref(data) as usize, size_of::<T>(), Access::Write);
}

/// As `std::sync`.
pub mod sync {
    use std::fmt;
    use std::ops::{Deref, DerefMut};
    pub use std::sync::Arc;
    use std::sync::{LockResult, PoisonError, TryLockError, TryLockResult};
    use std::time::Duration;

    use crate::sync::mesi::machine::Access;
    use crate::sync::mesi::sched;

    pub mod atomic;

    /// As [`std::sync::Mutex`].
    #[derive(Default)]
    #[repr(transparent)]
    pub struct Mutex<T: ?Sized>(std::sync::Mutex<T>);

    /// As [`std::sync::MutexGuard`].
    pub struct MutexGuard<'a, T: ?Sized> {
        /// None once it was given back.
        guard: Option<std::sync::MutexGuard<'a, T>>,
        mutex: &'a Mutex<T>,
    }

    const _: () = assert!(size_of::<Mutex<[u64; 3]>>() == size_of::<std::sync::Mutex<[u64; 3]>>()); // I1
    const _: () = assert!(size_of::<Condvar>() == size_of::<std::sync::Condvar>());

    impl<T> Mutex<T> {
        /// Not taken.
        pub const fn new(value: T) -> Mutex<T> {
            Mutex(std::sync::Mutex::new(value))
        }

        /// What it protects.
        ///
        /// # Errors
        /// When a thread panicked while it held it.
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

        /// As std's.
        ///
        /// # Errors
        /// When it is taken, or a thread panicked while it held it.
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

        /// As std's.
        ///
        /// # Errors
        /// When a thread panicked while it held it.
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

        /// As std's.
        ///
        /// # Errors
        /// When a thread panicked while it held it.
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

    /// As [`std::sync::Condvar`].
    #[derive(Debug, Default)]
    #[repr(transparent)]
    pub struct Condvar(std::sync::Condvar);

    /// As [`std::sync::WaitTimeoutResult`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct WaitTimeoutResult(bool);

    impl WaitTimeoutResult {
        /// Whether the time was up.
        #[must_use]
        pub fn timed_out(&self) -> bool {
            self.0
        }
    }

    impl Condvar {
        /// Nobody waits.
        #[must_use]
        pub const fn new() -> Condvar {
            Condvar(std::sync::Condvar::new())
        }

        fn key(&self) -> usize {
            std::ptr::from_ref(self) as usize
        }

        /// Waits in the simulation; gives the guard back where there is none.
        fn wait_here<'a, T>(
            &self,
            mut guard: MutexGuard<'a, T>,
            timed: bool,
        ) -> Result<(LockResult<MutexGuard<'a, T>>, bool), MutexGuard<'a, T>> {
            if sched::now_ns().is_none() {
                return Err(guard);
            }
            let mutex = guard.mutex;
            // Nobody comes between giving the lock back and waiting: that is one step, so that no notify is lost.
            let address = mutex.address();
            sched::touch(address, 1, Access::Write);
            drop(guard.guard.take());
            sched::with_machine(|cpu, machine| machine.gave(cpu, address));
            sched::wake_one(address);
            let timed_out = sched::wait_for(self.key(), timed) == Some(true);
            Ok((mutex.lock(), timed_out))
        }

        /// As std's.
        ///
        /// # Errors
        /// When a thread panicked while it held the lock.
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

        /// As std's.
        ///
        /// # Errors
        /// When a thread panicked while it held the lock.
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

        /// As std's; in a simulation all look again.
        pub fn notify_one(&self) {
            self.0.notify_one();
            sched::wake_all(self.key());
        }

        /// As std's.
        pub fn notify_all(&self) {
            self.0.notify_all();
            sched::wake_all(self.key());
        }
    }
}

/// As `std::thread`.
pub mod thread {
    use std::io;
    pub use std::thread::{ThreadId, current, panicking, scope};
    use std::time::Duration;

    use crate::sync::mesi::sched::{self, Ticket};

    /// As [`std::thread::Builder`].
    #[derive(Debug)]
    pub struct Builder(std::thread::Builder);

    /// As [`std::thread::JoinHandle`].
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
        /// A thread without a name.
        #[must_use]
        pub fn new() -> Builder {
            Builder(std::thread::Builder::new())
        }

        /// A thread of this name.
        #[must_use]
        pub fn name(self, name: String) -> Builder {
            Builder(self.0.name(name))
        }

        /// Starts it; in a simulation on a processor of its own.
        ///
        /// # Errors
        /// When the system has no thread left.
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
        /// Waits for its end.
        ///
        /// # Errors
        /// When it panicked.
        pub fn join(self) -> std::thread::Result<T> {
            if let Some(ticket) = &self.ticket {
                while !ticket.has_ended() && sched::wait_for(ticket.end_key(), false).is_some() {}
            }
            self.handle.join()
        }

        /// Whether it has ended.
        pub fn is_finished(&self) -> bool {
            self.handle.is_finished()
        }

        /// The thread.
        pub fn thread(&self) -> &std::thread::Thread {
            self.handle.thread()
        }
    }

    /// As [`std::thread::spawn`].
    ///
    /// # Panics
    /// When the system has no thread left.
    pub fn spawn<F: FnOnce() -> T + Send + 'static, T: Send + 'static>(body: F) -> JoinHandle<T> {
        Builder::new().spawn(body).expect("a thread")
    }

    /// Others may go on.
    pub fn yield_now() {
        if !sched::step() {
            std::thread::yield_now();
        }
    }

    /// As [`std::thread::sleep`]; in a simulation others go on meanwhile.
    pub fn sleep(time: Duration) {
        if !sched::step() {
            std::thread::sleep(time);
        }
    }
}

/// As `std::hint`.
pub mod hint {
    /// Others may go on.
    pub fn spin_loop() {
        if !crate::sync::mesi::sched::step() {
            std::hint::spin_loop();
        }
    }
}
