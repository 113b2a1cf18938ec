//! System calls of a parker: on its bell, an eventfd, and on its state word, a futex.
//!
//! Owns the descriptor. `parker` decides when to ring and when to wake.
//!
//! * I1: rings add up, and one `silence` takes them all.
//! * I2: neither side ever blocks except in `sleep_on`.
//!
//! Called by `parker` alone. Replaced by `model_bell` in a model build.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use rustix::thread::futex;

use crate::sync::atomic::AtomicU32;
#[cfg(sheave_mesi)]
use crate::sync::mesi;

#[derive(Debug)]
pub(super) struct Bell {
    /// `None` if the owner waits in `sleep_on` only.
    fd: Option<OwnedFd>,
}

impl Bell {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { fd: Some(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?) })
    }

    /// Makes a bell that nobody waits for: its rings do nothing.
    pub(super) fn silent() -> Self {
        Self { fd: None }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("invariant: who waits for the descriptor has made the parker with one").as_fd()
    }

    /// Makes the descriptor readable.
    pub(super) fn ring(&self) {
        if let Some(fd) = &self.fd {
            // Fails only when 2^64 - 1 rings have added up: then the descriptor is readable anyway.
            let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
        }
    }

    /// Takes all rings so far and returns their number. Returns `None` if there is no descriptor.
    pub(super) fn silence(&self) -> Option<u64> {
        let mut rings = [0; 8];
        match rustix::io::read(self.fd.as_ref()?, &mut rings) {
            Ok(_) => Some(u64::from_ne_bytes(rings)),
            // Fails only if there is no ring.
            Err(_) => Some(0),
        }
    }

    /// Blocks while `word` has `value`, until [`Bell::wake`]. Returns false if `deadline` has passed. May return early:
    /// the caller checks the word.
    pub(super) fn sleep_on(&self, word: &AtomicU32, value: u32, deadline: Option<Instant>) -> bool {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // A span beyond the kernel's range is longer than any lifetime: no timeout.
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        #[cfg(sheave_mesi)]
        if let Some(timed_out) = mesi::sched::wait_for(std::ptr::from_ref(word) as usize, deadline.is_some()) {
            return !timed_out;
        }
        // After a signal, or with another value, the caller checks the word. Other errors are impossible for a word of
        // this process.
        futex::wait(real(word), futex::Flags::PRIVATE, value, left.as_ref()) != Err(Errno::TIMEDOUT)
    }

    /// Wakes the owner that sleeps on the word.
    pub(super) fn wake(&self, word: &AtomicU32) {
        #[cfg(sheave_mesi)]
        mesi::sched::wake_all(std::ptr::from_ref(word) as usize);
        // Cannot fail for a word of this process. If the owner is awake already, nothing happens.
        let _ = futex::wake(real(word), futex::Flags::PRIVATE, 1);
    }
}

/// Returns the word in the form that system calls take.
#[cfg(not(sheave_mesi))]
fn real(word: &AtomicU32) -> &AtomicU32 {
    word
}

/// Returns the word in the form that system calls take.
#[cfg(sheave_mesi)]
fn real(word: &AtomicU32) -> &mesi::sync::atomic::SystemWord {
    word.real()
}
