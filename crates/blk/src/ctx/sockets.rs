//! Sockets on the ring's kernel ring: a network server waits for sockets and for disks in one system call.
//!
//! Owns the path of the completions of socket operations: a poll collects them for [`IoCtx::take_socket_events`].
//! Socket operations are unrelated to block I/O. The ring's owner gives each a number and interprets its completion.
//!
//! A socket operation in flight counts as pending in the kernel ring, so the ring sleeps in the kernel and does not
//! spin.
//!
//! - N1: `socket_ops` is the exact number of socket operations in flight: each counts from when it is prepared until
//!   its last completion is passed on. The shutdown of a driver that has panicked must not wait for them, because they
//!   may last as long as a client sends nothing.
#![allow(unsafe_code)] // the memory of sends and receives

use std::os::fd::RawFd;

use super::IoCtx;
use super::kernel::make_room;
use crate::driver::{KIND_IGNORED, KIND_RING, KIND_SIGNAL, KIND_SOCKET, kernel_user_data};
use sheave_kring::{Completed, Full, IoVec, KernelRing, KringError, Message};

/// Buffer group of the ring's owner for receives. Drivers use the numbers after it.
const GROUP: u16 = 0;

/// Completion of a socket operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketEvent {
    /// Number given to the operation.
    pub token: u32,
    /// Result; `-errno` on failure.
    pub res: i32,
    /// Flags of the completion, for [`Sockets::received`].
    pub flags: u32,
}

/// Access to the kernel ring for operations on sockets and eventfds. Each method prepares an operation that the next
/// commit or wait sends. An operation with a `token` produces one [`SocketEvent`] with it; a watch produces any number.
#[derive(Debug)]
pub struct Sockets<'a> {
    kring: &'a mut KernelRing,
    /// The ring's `socket_ops` (N1).
    live: &'a mut u32,
}

/// `IORING_CQE_F_MORE`.
const MORE: u32 = 1 << 1;
/// User data of all signals.
const SIGNAL: u64 = kernel_user_data(0, 0, KIND_SIGNAL);
/// A cancellation that looked like a signal would never count as ended, and the ring would wait for it at its end.
const _: () = assert!(!matches!(KIND_SIGNAL, KIND_IGNORED | KIND_RING | KIND_SOCKET));

impl SocketEvent {
    /// Returns true if the operation has further events.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        self.flags & MORE != 0
    }
}

fn user_data(token: u32) -> u64 {
    kernel_user_data((token >> 16) as u16, token as u16, KIND_SOCKET)
}

impl IoCtx {
    /// Returns access to the kernel ring for socket operations, and makes the kernel ring if there is none.
    ///
    /// # Errors
    ///
    /// The error of making the kernel ring, if it is not available here.
    pub fn sockets(&mut self) -> Result<Sockets<'_>, KringError> {
        let kring = self.core.kring.get(false)?;
        Ok(Sockets { kring, live: &mut self.socket_ops })
    }

    /// Stores completions of socket operations until they are collected.
    pub(super) fn keep_socket_events(&mut self, events: &[Completed]) {
        let last = events.iter().filter(|event| event.flags & MORE == 0).count();
        self.socket_ops = self.socket_ops.saturating_sub(last as u32);
        self.socket_events.extend_from_slice(events);
    }

    /// Returns true if [`IoCtx::take_socket_events`] has events to return.
    #[inline]
    pub fn has_socket_events(&self) -> bool {
        !self.socket_events.is_empty()
    }

    /// Appends to `to` the completions of socket operations that polls have found.
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
    /// The same as for [`KernelRing::register_recv_buffers`].
    pub fn register_recv_buffers(&mut self, count: u16, each: u32) -> Result<(), KringError> {
        self.kring.register_recv_buffers(GROUP, count, each)
    }

    /// See [`KernelRing::prep_accept`].
    ///
    /// # Errors
    ///
    /// [`Full`]: the kernel accepts nothing at the moment.
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
    /// The same as for [`KernelRing::prep_recv_into`].
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
    /// The same as for [`KernelRing::prep_send`].
    pub unsafe fn send(&mut self, fd: RawFd, message: &mut Message, token: u32) -> Result<(), Full> {
        // SAFETY: promised by the caller.
        self.prepare(|kring| unsafe { kring.prep_send(fd, message, user_data(token)) })
    }

    /// See [`KernelRing::prep_watch`]. Each event but the last has [`SocketEvent::goes_on`].
    ///
    /// # Errors
    ///
    /// [`Full`].
    pub fn watch(&mut self, fd: RawFd, token: u32) -> Result<(), Full> {
        self.prepare(|kring| kring.prep_watch(fd, user_data(token)))
    }

    /// See [`KernelRing::prep_signal`]. There is no event.
    ///
    /// # Errors
    ///
    /// [`Full`].
    pub fn signal(&mut self, fd: RawFd) -> Result<(), Full> {
        make_room(self.kring);
        self.kring.prep_signal(fd, SIGNAL)
    }

    /// Requests cancellation of the operation with the number `victim`, which then produces its event. The operation
    /// may end by itself first.
    ///
    /// # Errors
    ///
    /// [`Full`].
    pub fn cancel(&mut self, victim: u32) -> Result<(), Full> {
        make_room(self.kring);
        let ignored = kernel_user_data(0, 0, KIND_IGNORED);
        self.kring.prep_cancel(user_data(victim), ignored)
    }

    /// See [`KernelRing::received`].
    ///
    /// # Safety
    ///
    /// The event must come from [`Sockets::recv`] on this ring, and must not have been passed before.
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
