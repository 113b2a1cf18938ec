//! The system calls of a parker in a model build: a count and a condition variable of the model checker replace the
//! eventfd and the futex.
//!
//! Owns a replacement that keeps the promises of `bell` (rings add up, and one `silence` takes them all; no thread
//! sleeps on a word that has changed) and that the checker can schedule. Does not own a descriptor.
//!
//! Called by `parker` alone, under `--cfg shuttle` and `--cfg loom`.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Condvar, Mutex};

#[derive(Debug)]
pub(super) struct Bell {
    rings: Mutex<u64>,
    /// True if rings do nothing.
    silent: bool,
    changed: Condvar,
}

impl Bell {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { rings: Mutex::new(0), silent: false, changed: Condvar::new() })
    }

    pub(super) fn silent() -> Self {
        Self { rings: Mutex::new(0), silent: true, changed: Condvar::new() }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        panic!("a parker in a model build has no descriptor: model the wait by `park`");
    }

    pub(super) fn ring(&self) {
        if self.silent {
            return;
        }
        *self.rings.lock().expect("invariant: no panic under this lock") += 1;
        self.changed.notify_one();
    }

    pub(super) fn silence(&self) -> Option<u64> {
        (!self.silent).then(|| std::mem::take(&mut *self.rings.lock().expect("invariant: no panic under this lock")))
    }

    /// With a deadline the checker chooses whether it passes first; the clock is not read.
    pub(super) fn sleep_on(&self, word: &AtomicU32, value: u32, deadline: Option<Instant>) -> bool {
        let mut rings = self.rings.lock().expect("invariant: no panic under this lock");
        // Relaxed: a waker changes the word before it takes the lock.
        while word.load(Ordering::Relaxed) == value {
            if deadline.is_some() && gives_up() {
                return false;
            }
            rings = self.changed.wait(rings).expect("invariant: no panic under this lock");
        }
        true
    }

    pub(super) fn wake(&self, _: &AtomicU32) {
        // Under the lock, so that nothing comes between a sleeper's check of the word and its sleep.
        let _rings = self.rings.lock().expect("invariant: no panic under this lock");
        self.changed.notify_one();
    }

    /// Waits for the bell, like an event loop.
    #[cfg(test)]
    pub(super) fn wait(&self) {
        let mut rings = self.rings.lock().expect("invariant: no panic under this lock");
        while *rings == 0 {
            rings = self.changed.wait(rings).expect("invariant: no panic under this lock");
        }
    }
}

/// Returns a random choice of the checker: true if the deadline has passed. `loom` has no such choices: there it never
/// passes.
fn gives_up() -> bool {
    #[cfg(not(loom))]
    return shuttle::rand::Rng::r#gen::<bool>(&mut shuttle::rand::thread_rng());
    #[cfg(loom)]
    return false;
}
