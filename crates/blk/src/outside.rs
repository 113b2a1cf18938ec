//! The descriptor by which others wait for a ring.
//!
//! Owns an epoll instance over two eventfds: the parker's bell, which other threads ring, and one that the kernel ring
//! rings, for a poll of the kernel ring itself does not tell of what only an enter completes. It is made when it is
//! first asked for: a ring that nobody waits for from outside has none, and makes no system call for it.
//!
//! Called by `IoCtx::prepare_wait`.

use std::cell::OnceCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, epoll, eventfd};
use sheave_kring::KernelRing;

/// What is waited for from outside.
#[derive(Debug, Default)]
pub(crate) struct Outside {
    set: OnceCell<Option<OwnedFd>>,
    /// What the kernel ring rings, once it was asked to.
    kernel: Option<OwnedFd>,
}

impl Outside {
    /// The set, with the bell in it; `None` when it cannot be had.
    pub(crate) fn set(&self, bell: BorrowedFd<'_>) -> Option<BorrowedFd<'_>> {
        let make = || {
            let set = epoll::create(epoll::CreateFlags::CLOEXEC).ok()?;
            add(set.as_fd(), bell).then_some(set)
        };
        self.set.get_or_init(make).as_ref().map(AsFd::as_fd)
    }

    /// Has the kernel ring tell the set, if it does not yet; whether it does.
    pub(crate) fn watch(&mut self, bell: BorrowedFd<'_>, kring: &KernelRing) -> bool {
        if self.kernel.is_none()
            && let Some(set) = self.set(bell)
        {
            let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok();
            let tells = |bell: &OwnedFd| add(set, bell.as_fd()) && kring.register_eventfd(bell.as_fd()).is_ok();
            let kernel = bell.filter(tells);
            self.kernel = kernel;
        }
        self.kernel.is_some()
    }

    /// Takes what the kernel ring has rung so far.
    pub(crate) fn silence(&self) {
        if let Some(kernel) = &self.kernel {
            // Nothing to read is fine, too: it has not rung.
            let _ = rustix::io::read(kernel, &mut [0; 8]);
        }
    }
}

fn add(set: BorrowedFd<'_>, fd: BorrowedFd<'_>) -> bool {
    epoll::add(set, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN).is_ok()
}
