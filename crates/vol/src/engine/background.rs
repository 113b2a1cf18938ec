//! The threads of an open pool that work behind its users: when they are wanted, woken, and ended.
//!
//! Owns the signals and the threads' lives. Does not own what they do ([`ops::discard`](crate::ops::discard),
//! [`sums::idle`](super::sums::idle)).
//!
//! - B1: the threads have ended when the last `Pool` and `Volume` are gone: each holds the [`Keeper`], whose drop ends
//!   them and waits for what they are at. So nobody finds the device claimed, discarded or written after a pool was
//!   dropped.
//! - B2: a thread with nothing to do sleeps.
//!
//! Called by [`Pool`](crate::Pool), and by who frees units.

use std::time::Duration;

use sheave_base::status::Status;
use sheave_base::sync::thread::{Builder, JoinHandle};
use sheave_base::sync::{Arc, Condvar, Mutex, MutexGuard};
use sheave_base::wait;

#[derive(Debug, Default)]
struct Flags {
    go: bool,
    stop: bool,
    /// The thread sleeps for a time, and is not woken by what there is to do.
    pauses: bool,
}

/// What wakes the thread, and ends it.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    flags: Mutex<Flags>,
    changed: Condvar,
}

impl Signal {
    fn flags(&self) -> MutexGuard<'_, Flags> {
        self.flags.lock().expect("invariant: no panic under this lock")
    }

    /// There is something to do.
    pub(crate) fn notify(&self) {
        let mut flags = self.flags();
        if !flags.go {
            flags.go = true;
            if !flags.pauses {
                self.changed.notify_one();
            }
        }
    }

    /// Whether the thread is to end.
    pub(crate) fn is_stopping(&self) -> bool {
        self.flags().stop
    }

    /// What was told up to now is known.
    pub(crate) fn clear(&self) {
        self.flags().go = false;
    }

    /// Sleeps until there is something to do, or until the time is up; false when the thread is to end.
    pub(crate) fn wait(&self, longest: Option<Duration>) -> bool {
        let mut flags = self.flags();
        if !flags.go && !flags.stop {
            // Waking for nothing does no harm.
            flags = wait::wait_on(&self.changed, &self.flags, flags, longest);
        }
        !flags.stop
    }

    /// Sleeps for a time, whatever there is to do; false when the thread is to end.
    pub(crate) fn pause(&self, time: Duration) -> bool {
        let mut flags = self.flags();
        if !flags.stop {
            flags.pauses = true;
            flags = wait::wait_on(&self.changed, &self.flags, flags, Some(time));
            flags.pauses = false;
        }
        !flags.stop
    }
}

/// What is known of the background discard of an open pool.
#[derive(Debug, Default)]
pub(crate) struct Discards {
    pub(crate) signal: Arc<Signal>,
    failed: Mutex<Option<Status>>,
}

impl Discards {
    /// The discard that failed: none is sent after it.
    pub(crate) fn failed(&self) -> Option<Status> {
        *self.failed.lock().expect("invariant: no panic under this lock")
    }

    /// One has failed.
    pub(crate) fn fail(&self, status: Status) {
        *self.failed.lock().expect("invariant: no panic under this lock") = Some(status);
    }
}

/// Held by all who use an open pool (B1).
#[derive(Debug)]
pub(crate) struct Keeper {
    /// Gives back what became free.
    pub(crate) discards: Worker,
    /// Closes regions of checksums that nobody writes to.
    pub(crate) regions: Worker,
}

/// One thread.
#[derive(Debug)]
pub(crate) struct Worker {
    name: &'static str,
    signal: Arc<Signal>,
    /// The pool was opened with it.
    wanted: bool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Worker {
    pub(crate) fn new(name: &'static str, signal: Arc<Signal>, wanted: bool) -> Worker {
        Worker { name, signal, wanted, thread: Mutex::new(None) }
    }

    /// Whether the pool may have it.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted
    }

    fn thread(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.thread.lock().expect("invariant: no panic under this lock")
    }

    /// Starts the thread, if it is wanted and not there.
    ///
    /// # Errors
    ///
    /// `NoMem` when the system has no thread for it.
    pub(crate) fn start(&self, run: impl FnOnce() + Send + 'static) -> Result<(), Status> {
        let mut thread = self.thread();
        if thread.is_some() || !self.wanted {
            return Ok(());
        }
        self.signal.flags().stop = false;
        *thread = Some(Builder::new().name(self.name.into()).spawn(run).map_err(|_| Status::NoMem)?);
        Ok(())
    }

    /// Ends the thread, and waits until it has.
    pub(crate) fn stop(&self) {
        let Some(thread) = self.thread().take() else { return };
        self.signal.flags().stop = true;
        self.signal.changed.notify_one();
        // One that panicked has told so itself.
        let _ = thread.join();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests;
