//! Sockets on the kernel ring of a ring: who serves a network waits for it and for its disks in one system call.
//!
//! Owns the way of their completions: a poll collects them ([`IoCtx::take_socket_events`]), and they have nothing to do
//! with I/O. What they mean is for the ring's owner, who names each operation by a number.
//!
//! An operation on a socket counts as something that the kernel ring will complete: a ring with one sleeps in the
//! kernel, and does not spin.
//!
//! - N1: `socket_ops` counts the operations that the kernel ring has or is to be sent, exactly: each that was prepared,
//!   until its last completion is handed out. A driver that has panicked is not waited for by these, which may last for
//!   as long as a client says nothing.
#![allow(unsafe_code)] // the memory of sends and receives

use std::os::fd::RawFd;

use super::IoCtx;
use super::kernel::make_room;
use crate::driver::{KIND_SOCKET, kernel_user_data};
use sheave_kring::{Completed, Full, IoVec, KernelRing, KringError, Message};

/// The group of receive buffers of the ring's owner; those of drivers have the numbers behind it.
const GROUP: u16 = 0;

/// An operation on a socket has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketEvent {
    /// As its operation was given.
    pub token: u32,
    /// Its result, `-errno` on failure.
    pub res: i32,
    /// Its flags, for [`Sockets::received`].
    pub flags: u32,
}

/// The kernel ring, for operations on sockets. Each prepares an operation that a commit or a wait sends, and that gives
/// one [`SocketEvent`] with its `token`.
#[derive(Debug)]
pub struct Sockets<'a> {
    kring: &'a mut KernelRing,
    /// The ring's count (N1).
    live: &'a mut u32,
}

/// `IORING_CQE_F_MORE`.
const MORE: u32 = 1 << 1;

fn user_data(token: u32) -> u64 {
    kernel_user_data((token >> 16) as u16, token as u16, KIND_SOCKET)
}

impl IoCtx {
    /// The kernel ring for operations on sockets, made now if there is none.
    ///
    /// # Errors
    ///
    /// Why there can be none here.
    pub fn sockets(&mut self) -> Result<Sockets<'_>, KringError> {
        let kring = self.core.kring.get(false)?;
        Ok(Sockets { kring, live: &mut self.socket_ops })
    }

    /// Keeps what operations on sockets have completed until somebody takes it.
    pub(super) fn keep_socket_events(&mut self, events: &[Completed]) {
        let last = events.iter().filter(|event| event.flags & MORE == 0).count();
        self.socket_ops = self.socket_ops.saturating_sub(last as u32);
        self.socket_events.extend_from_slice(events);
    }

    /// Whether operations on sockets have ended that [`IoCtx::take_socket_events`] would give.
    #[inline]
    pub fn has_socket_events(&self) -> bool {
        !self.socket_events.is_empty()
    }

    /// Moves the operations on sockets that have ended, as far as polls have found them, to the end of a list.
    pub fn take_socket_events(&mut self, to: &mut Vec<SocketEvent>) {
        let event =
            |&Completed { user_data, res, flags }: &Completed| SocketEvent { token: user_data as u32, res, flags };
        to.extend(self.socket_events.iter().map(event));
        self.socket_events.clear();
    }
}

impl Sockets<'_> {
    /// Prepares an operation that ends with an event, and counts it.
    fn prepare(&mut self, prep: impl FnOnce(&mut KernelRing) -> Result<(), Full>) -> Result<(), Full> {
        make_room(self.kring);
        prep(self.kring)?;
        *self.live += 1;
        Ok(())
    }

    /// See [`KernelRing::register_recv_buffers`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn register_recv_buffers(&mut self, count: u16, each: u32) -> Result<(), KringError> {
        self.kring.register_recv_buffers(GROUP, count, each)
    }

    /// See [`KernelRing::prep_accept`].
    ///
    /// # Errors
    ///
    /// [`Full`]: the kernel takes nothing at the moment.
    pub fn accept(&mut self, fd: RawFd, token: u32) -> Result<(), Full> {
        self.prepare(|kring| kring.prep_accept(fd, user_data(token)))
    }

    /// See [`KernelRing::prep_recv`].
    ///
    /// # Errors
    ///
    /// [`Full`].
    pub fn recv(&mut self, fd: RawFd, token: u32) -> Result<(), Full> {
        self.prepare(|kring| kring.prep_recv(fd, GROUP, user_data(token)))
    }

    /// See [`KernelRing::prep_recv_into`].
    ///
    /// # Errors
    ///
    /// [`Full`].
    ///
    /// # Safety
    ///
    /// As there.
    pub unsafe fn recv_into(&mut self, fd: RawFd, memory: IoVec, token: u32) -> Result<(), Full> {
        // SAFETY: promised by the caller.
        self.prepare(|kring| unsafe { kring.prep_recv_into(fd, memory, user_data(token)) })
    }

    /// See [`KernelRing::prep_send`].
    ///
    /// # Errors
    ///
    /// [`Full`].
    ///
    /// # Safety
    ///
    /// As there.
    pub unsafe fn send(&mut self, fd: RawFd, message: &mut Message, token: u32) -> Result<(), Full> {
        // SAFETY: promised by the caller.
        self.prepare(|kring| unsafe { kring.prep_send(fd, message, user_data(token)) })
    }

    /// Asks for the end of the operation with the number `victim`, which then gives its event; it may end otherwise
    /// first.
    ///
    /// # Errors
    ///
    /// [`Full`].
    pub fn cancel(&mut self, victim: u32) -> Result<(), Full> {
        make_room(self.kring);
        let ignored = kernel_user_data(0, 0, crate::driver::KIND_IGNORED);
        self.kring.prep_cancel(user_data(victim), ignored)
    }

    /// See [`KernelRing::received`].
    ///
    /// # Safety
    ///
    /// The event must be one of [`Sockets::recv`] on this ring, and each may be asked about once.
    #[must_use]
    pub unsafe fn received(&mut self, event: &SocketEvent) -> Option<(u16, &[u8])> {
        // SAFETY: promised by the caller.
        unsafe { self.kring.received(GROUP, event.res, event.flags) }
    }

    /// See [`KernelRing::recycle`].
    pub fn recycle(&mut self, number: u16) {
        self.kring.recycle(GROUP, number);
    }
}
