//! Descriptor by which an event loop waits for a ring.
//!
//! Owns an epoll instance over two eventfds: the parker's, which other threads signal, and one that the kernel ring
//! signals. The latter is needed because a poll of the kernel ring's own descriptor does not show completions that need
//! an enter. Everything is made on first use: a ring that nobody waits for from outside has no such descriptors and
//! makes no system calls for them.
//!
//! Called by `IoCtx::prepare_wait`.

use std::cell::OnceCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, epoll, eventfd};
use sheave_kring::KernelRing;

/// Descriptors for waiting from outside.
#[derive(Debug, Default)]
pub(crate) struct Outside {
    set: OnceCell<Option<OwnedFd>>,
    /// Eventfd that the kernel ring signals, once registered.
    kernel: Option<OwnedFd>,
}

impl Outside {
    /// Returns the epoll instance with `bell`, the parker's eventfd, in it; `None` if it cannot be made.
    pub(crate) fn set(&self, bell: BorrowedFd<'_>) -> Option<BorrowedFd<'_>> {
        let make = || {
            let set = epoll::create(epoll::CreateFlags::CLOEXEC).ok()?;
            add(set.as_fd(), bell).then_some(set)
        };
        self.set.get_or_init(make).as_ref().map(AsFd::as_fd)
    }

    /// Makes the kernel ring signal the epoll instance, if it does not yet. Returns true if it does.
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

    /// Consumes the kernel ring's signals so far.
    pub(crate) fn silence(&self) {
        if let Some(kernel) = &self.kernel {
            // An error is fine: it means that the kernel ring has not signalled.
            let _ = rustix::io::read(kernel, &mut [0; 8]);
        }
    }
}

fn add(set: BorrowedFd<'_>, fd: BorrowedFd<'_>) -> bool {
    epoll::add(set, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN).is_ok()
}
