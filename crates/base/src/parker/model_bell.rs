//! The bell of a parker in a model build: a count under a lock of the model checker, in place of an eventfd.
//!
//! Owns a stand-in with the same promises as `bell` (rings add up, one `silence` takes them all), which the checker can
//! schedule. Does not own a descriptor.
//!
//! Called by `parker` alone, under `--cfg shuttle` and `--cfg loom`.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use crate::sync::{Condvar, Mutex};

#[derive(Debug)]
pub(super) struct Bell {
    rings: Mutex<u64>,
    changed: Condvar,
}

impl Bell {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { rings: Mutex::new(0), changed: Condvar::new() })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        panic!("a parker in a model build has no descriptor: model the wait by `park`");
    }

    pub(super) fn ring(&self) {
        *self.rings.lock().expect("invariant: no panic under this lock") += 1;
        self.changed.notify_one();
    }

    pub(super) fn silence(&self) -> u64 {
        std::mem::take(&mut *self.rings.lock().expect("invariant: no panic under this lock"))
    }

    /// With a deadline the checker decides whether it passes before the bell rings; the clock is not asked.
    pub(super) fn wait(&self, deadline: Option<Instant>) -> bool {
        let mut rings = self.rings.lock().expect("invariant: no panic under this lock");
        while *rings == 0 {
            if deadline.is_some() && gives_up() {
                return false;
            }
            rings = self.changed.wait(rings).expect("invariant: no panic under this lock");
        }
        true
    }
}

/// Whether the deadline has passed, as the checker likes it. `loom` has no choice of values: there time stands still.
fn gives_up() -> bool {
    #[cfg(not(loom))]
    return shuttle::rand::Rng::r#gen::<bool>(&mut shuttle::rand::thread_rng());
    #[cfg(loom)]
    return false;
}
