//! The background threads of an open pool: their start, their wake-ups and their end.
//!
//! Owns the signals and the threads' lives. Does not own the work that they do ([`ops::discard`](crate::ops::discard),
//! [`sums::idle`](super::sums::idle)).
//!
//! - B1: dropping the last `Pool` and `Volume` ends the threads: each of them holds the [`Keeper`], whose drop stops
//!   the threads and waits until their present work is done. So a pool that was dropped has no claim on its device, and
//!   neither discards nor writes.
//! - B2: a thread with nothing to do sleeps.
//!
//! Called by [`Pool`](crate::Pool), and by operations that free units.

use std::time::Duration;

use sheave_base::status::Status;
use sheave_base::sync::thread::{Builder, JoinHandle};
use sheave_base::sync::{Arc, Condvar, Mutex, MutexGuard};
use sheave_base::wait;

#[derive(Debug, Default)]
struct Flags {
    go: bool,
    stop: bool,
    /// True while the thread is in `pause`: new work does not wake it.
    pauses: bool,
}

/// Wakes a background thread, and ends it.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    flags: Mutex<Flags>,
    changed: Condvar,
}

impl Signal {
    fn flags(&self) -> MutexGuard<'_, Flags> {
        self.flags.lock().expect("invariant: no panic under this lock")
    }

    /// Records that there is work, and wakes the thread unless it is in `pause`.
    pub(crate) fn notify(&self) {
        let mut flags = self.flags();
        if !flags.go {
            flags.go = true;
            if !flags.pauses {
                self.changed.notify_one();
            }
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.flags().stop
    }

    /// Forgets earlier calls of `notify`. Called before the thread searches for work, so that a `notify` during the
    /// search is kept.
    pub(crate) fn clear(&self) {
        self.flags().go = false;
    }

    /// Sleeps until there is work, or for `longest`. Returns false when the thread is to end.
    pub(crate) fn wait(&self, longest: Option<Duration>) -> bool {
        let mut flags = self.flags();
        if !flags.go && !flags.stop {
            // No loop around the wait: a spurious wake-up only makes the thread search for work once more.
            flags = wait::wait_on(&self.changed, &self.flags, flags, longest);
        }
        !flags.stop
    }

    /// Sleeps for `time`, even if there is work. Returns false when the thread is to end.
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

/// The state of the background discard of an open pool.
#[derive(Debug, Default)]
pub(crate) struct Discards {
    pub(crate) signal: Arc<Signal>,
    failed: Mutex<Option<Status>>,
}

impl Discards {
    /// Returns the error of the failed discard. After a failure no discard is sent.
    pub(crate) fn failed(&self) -> Option<Status> {
        *self.failed.lock().expect("invariant: no panic under this lock")
    }

    pub(crate) fn fail(&self, status: Status) {
        *self.failed.lock().expect("invariant: no panic under this lock") = Some(status);
    }
}

/// The background threads of a pool, held by all users of the pool (B1).
#[derive(Debug)]
pub(crate) struct Keeper {
    pub(crate) discards: Worker,
    pub(crate) regions: Worker,
}

#[derive(Debug)]
pub(crate) struct Worker {
    name: &'static str,
    signal: Arc<Signal>,
    /// False if the pool was opened without this thread.
    wanted: bool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Worker {
    pub(crate) fn new(name: &'static str, signal: Arc<Signal>, wanted: bool) -> Worker {
        Worker { name, signal, wanted, thread: Mutex::new(None) }
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted
    }

    fn thread(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.thread.lock().expect("invariant: no panic under this lock")
    }

    /// Starts the thread, if it is wanted and not running.
    ///
    /// # Errors
    ///
    /// `NoMem` when the system cannot create a thread.
    pub(crate) fn start(&self, run: impl FnOnce() + Send + 'static) -> Result<(), Status> {
        let mut thread = self.thread();
        if thread.is_some() || !self.wanted {
            return Ok(());
        }
        self.signal.flags().stop = false;
        *thread = Some(Builder::new().name(self.name.into()).spawn(run).map_err(|_| Status::NoMem)?);
        Ok(())
    }

    /// Ends the thread, and waits until it has ended.
    pub(crate) fn stop(&self) {
        let Some(thread) = self.thread().take() else { return };
        self.signal.flags().stop = true;
        self.signal.changed.notify_one();
        // A thread that panicked has reported that itself.
        let _ = thread.join();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::Signal;

    /// Under load, regions are opened all the time. If each `notify` ended the pause, the looks would follow each other
    /// without a break.
    #[test]
    fn notify_does_not_end_a_pause_but_stop_does() {
        let signal = Arc::new(Signal::default());
        let pauses = |time| {
            let signal = Arc::clone(&signal);
            thread::spawn(move || {
                let begun = Instant::now();
                (signal.pause(time), begun.elapsed())
            })
        };
        let time = Duration::from_millis(100);
        let paused = pauses(time);
        while !paused.is_finished() {
            signal.clear();
            signal.notify();
            thread::sleep(Duration::from_millis(1));
        }
        let (goes_on, took) = paused.join().expect("no panic");
        assert!(goes_on && took >= time, "{took:?}");
        assert!(signal.wait(None), "what was told in the pause is there after it");
        let paused = pauses(Duration::from_secs(3600));
        signal.flags().stop = true;
        signal.changed.notify_one();
        assert!(!paused.join().expect("no panic").0);
    }
}
