//! The system calls of a parker: on its bell, which is one eventfd, and on the word of its state, which is a futex.
//!
//! Owns the descriptor. Does not own when to ring or to wake: that is `parker`.
//!
//! * I1: rings add up and one `silence` takes them all.
//! * I2: neither side ever blocks but in `sleep_on`.
//!
//! Called by `parker` alone. In a model build `model_bell` stands in for it.

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
    fd: OwnedFd,
}

impl Bell {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)? })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Makes the descriptor readable.
    pub(super) fn ring(&self) {
        // Fails only when 2^64 - 1 rings have added up: then it is readable anyway.
        let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
    }

    /// Takes all rings so far and says how many they were.
    pub(super) fn silence(&self) -> u64 {
        let mut rings = [0; 8];
        match rustix::io::read(&self.fd, &mut rings) {
            Ok(_) => u64::from_ne_bytes(rings),
            // There is none: nothing else can fail.
            Err(_) => 0,
        }
    }

    /// Blocks while the word has this value, until somebody wakes it or `deadline` has passed: false then. It may
    /// return early, for the caller to look.
    pub(super) fn sleep_on(&self, word: &AtomicU32, value: u32, deadline: Option<Instant>) -> bool {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // A span that the kernel cannot take is longer than anybody lives: no timeout.
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        #[cfg(sheave_mesi)]
        if let Some(timed_out) = mesi::sched::wait_for(std::ptr::from_ref(word) as usize, deadline.is_some()) {
            return !timed_out;
        }
        // A signal, or another value: the caller looks. No other error is possible for a word of this process.
        futex::wait(real(word), futex::Flags::PRIVATE, value, left.as_ref()) != Err(Errno::TIMEDOUT)
    }

    /// Wakes the owner that sleeps on the word.
    pub(super) fn wake(&self, word: &AtomicU32) {
        #[cfg(sheave_mesi)]
        mesi::sched::wake_all(std::ptr::from_ref(word) as usize);
        // It cannot fail for a word of this process; that nobody sleeps there any more is fine.
        let _ = futex::wake(real(word), futex::Flags::PRIVATE, 1);
    }
}

/// The word as the system takes it.
#[cfg(not(sheave_mesi))]
fn real(word: &AtomicU32) -> &AtomicU32 {
    word
}

/// The word as the system takes it.
#[cfg(sheave_mesi)]
fn real(word: &AtomicU32) -> &mesi::sync::atomic::SystemWord {
    word.real()
}
