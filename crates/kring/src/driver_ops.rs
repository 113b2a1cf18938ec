//! Operations that a driver prepares on its own descriptors: sockets, timers, events.
//!
//! Owns their SQEs. Each operation has one CQE that ends it. A multishot receive has one CQE for each piece of data,
//! whose flags announce whether more will follow (I2 of the crate). Called by the adapter for outside drivers.
#![allow(unsafe_code)] // operations on memory

use std::os::fd::RawFd;
use std::time::Duration;

use io_uring::opcode;
use io_uring::types::{Fd, Timespec};

use super::KernelRing;
use super::address::Address;
use super::prep::{Full, IoVec, KOp, MAX_RW_BYTES, Target};
use super::sockets::Message;

/// Direction of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Sends all bytes to the socket, unless the connection ends.
    Send,
    /// Receives the available bytes from the socket, at least one.
    Recv,
    /// Receives all bytes from the socket, unless the connection ends.
    RecvAll,
}

/// A time in the form that the kernel reads.
#[derive(Debug)]
pub struct OpTime(Timespec);

impl From<Duration> for OpTime {
    fn from(time: Duration) -> OpTime {
        OpTime(time.into())
    }
}

impl Message {
    #[must_use]
    pub fn pieces(&self) -> &[IoVec] {
        &self.vecs
    }
}

impl KernelRing {
    /// Prepares to send or receive a message; a message of a single piece uses SEND or RECV.
    ///
    /// # Errors
    ///
    /// [`Full`].
    ///
    /// # Safety
    ///
    /// The message and its pieces must stay where they are and otherwise unused (for a send: unchanged) until the
    /// operation's CQE was reaped (I3).
    pub unsafe fn prep_message(
        &mut self,
        fd: RawFd,
        direction: Direction,
        message: &mut Message,
        user_data: u64,
    ) -> Result<(), Full> {
        let fd = Fd(fd);
        let flags = match direction {
            Direction::Send => libc::MSG_NOSIGNAL | libc::MSG_WAITALL,
            Direction::Recv => 0,
            Direction::RecvAll => libc::MSG_WAITALL,
        };
        message.header.msg_iov = message.vecs.as_mut_ptr().cast();
        message.header.msg_iovlen = message.vecs.len() as _;
        let header = &raw mut message.header;
        let entry = match (direction, &*message.vecs) {
            (Direction::Send, &[IoVec { base, len }]) => {
                opcode::Send::new(fd, base, len.min(MAX_RW_BYTES) as u32).flags(flags).build()
            }
            (_, &[IoVec { base, len }]) => {
                opcode::Recv::new(fd, base, len.min(MAX_RW_BYTES) as u32).flags(flags).build()
            }
            (Direction::Send, _) => opcode::SendMsg::new(fd, header).flags(flags as u32).build(),
            _ => opcode::RecvMsg::new(fd, header).flags(flags as u32).build(),
        };
        self.push(entry, user_data)
    }

    /// Prepares a read or write of a file, like `preadv2` and `pwritev2`.
    ///
    /// # Errors
    ///
    /// [`Full`].
    ///
    /// # Safety
    ///
    /// The requirements of [`prep_message`](Self::prep_message).
    pub unsafe fn prep_file(
        &mut self,
        fd: RawFd,
        op: KOp,
        message: &mut Message,
        offset: u64,
        rw_flags: i32,
        user_data: u64,
    ) -> Result<(), Full> {
        // SAFETY: promised by the caller; the vectors are the message's.
        unsafe { self.prep_rw(op, Target::Raw(fd), &message.vecs, None, offset, rw_flags, user_data) }
    }

    /// Prepares a multishot receive into the [receive buffers](Self::register_recv_buffers) of a group (since Linux
    /// 6.0). Each piece of data has a CQE. The last CQE, without the flag for more, is an error, the end of the
    /// connection, or `-ENOBUFS`.
    ///
    /// # Errors
    ///
    /// [`Full`].
    pub fn prep_recv_multishot(&mut self, fd: RawFd, group: u16, user_data: u64) -> Result<(), Full> {
        self.push(opcode::RecvMulti::new(Fd(fd), group).build(), user_data)?;
        self.multishot = true;
        Ok(())
    }

    /// Prepares to connect a socket.
    ///
    /// # Errors
    ///
    /// [`Full`].
    ///
    /// # Safety
    ///
    /// The address must stay where it is until the operation's CQE was reaped (I3).
    pub unsafe fn prep_connect(&mut self, fd: RawFd, to: &Address, user_data: u64) -> Result<(), Full> {
        let (address, len) = to.raw();
        self.push(opcode::Connect::new(Fd(fd), address, len).build(), user_data)
    }

    /// Prepares a poll: its CQE comes when the descriptor becomes readable, fails, or its peer closes.
    ///
    /// # Errors
    ///
    /// [`Full`].
    pub fn prep_readable(&mut self, fd: RawFd, user_data: u64) -> Result<(), Full> {
        self.push(opcode::PollAdd::new(Fd(fd), libc::POLLIN as u32).build(), user_data)
    }

    /// Prepares a timer: its CQE, `-ETIME`, comes after the time `after`.
    ///
    /// # Errors
    ///
    /// [`Full`].
    ///
    /// # Safety
    ///
    /// The time must stay where it is until the operation's CQE was reaped (I3).
    pub unsafe fn prep_timer(&mut self, after: &OpTime, user_data: u64) -> Result<(), Full> {
        self.push(opcode::Timeout::new(&raw const after.0).build(), user_data)
    }
}
