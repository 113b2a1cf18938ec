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
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

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

    /// Takes all rings so far.
    pub(super) fn silence(&self) {
        // Fails only when there is none.
        let _ = rustix::io::read(&self.fd, &mut [0_u8; 8]);
    }

    /// Blocks until the bell has rung, `timeout` is over, or a signal came. True when it has rung.
    pub(super) fn wait(&self, timeout: Option<Duration>) -> bool {
        // A span that the kernel cannot take is longer than anybody lives: no timeout.
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        matches!(poll(&mut fds, timeout.as_ref()), Ok(1..))
    }
}
