//! The bell of a parker: one eventfd.
//!
//! Owns the descriptor and the three system calls on it. Does not own when to ring: that is `parker`.
//!
//! * I1: rings add up and one `silence` takes them all.
//! * I2: neither side ever blocks but in `wait`.
//!
//! Called by `parker` alone. In a model build `model_bell` stands in for it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

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

    /// Blocks until the bell has rung or `deadline` has passed. True when it has rung.
    pub(super) fn wait(&self, deadline: Option<Instant>) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        // Each turn but the last is a signal that came in.
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            // A span that the kernel cannot take is longer than anybody lives: no timeout.
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            match poll(&mut fds, left.as_ref()) {
                Ok(ready) => return ready > 0,
                Err(Errno::INTR) => {}
                // No memory in the kernel: as if it had rung, so that the sleeper looks, and comes back.
                Err(_) => return true,
            }
        }
    }
}
