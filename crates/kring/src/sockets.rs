//! Operations on sockets, and the memory that the kernel receives into.
//!
//! Owns the receive buffers of a ring. A buffer waits in a list of the kernel, and a connection has it only from the
//! arrival of data on. It is either in that list, or used by the receiver of its CQE until [`KernelRing::recycle`].
//! Each user of the ring has its own group of such buffers.
//!
//! Invariant S1: the buffers are freed after the kernel's ring, because the fields of [`KernelRing`] are dropped in
//! their order, or after the kernel has unregistered their group.
#![allow(unsafe_code)] // operations on memory, and buffers shared with the kernel

use std::os::fd::RawFd;

use io_uring::squeue::Flags;
use io_uring::types::{BufRingEntry, Fd};
use io_uring::{cqueue, opcode};
use sheave_base::buf::Buf;
use sheave_base::status::Errno;

use super::error::KringError;
use super::prep::{Full, IoVec, MAX_SEGMENTS};
use super::recv_buffers::RecvBuffers;
use super::{KernelRing, MAX_RW_BYTES};

/// `IORING_RECVSEND_POLL_FIRST`, since Linux 5.19.
const POLL_FIRST: u16 = 1;

/// A message to send: pieces of memory, in the kernel's layout. Boxed because it must not move while it is sent.
#[derive(Debug)]
pub struct Message {
    pub(super) vecs: Vec<IoVec>,
    pub(super) header: libc::msghdr,
}

impl Message {
    /// Makes an empty message.
    #[must_use]
    pub fn new() -> Box<Message> {
        // SAFETY: all fields of a message's header may be zero: no name, no vectors, no control data.
        let header = unsafe { std::mem::zeroed() };
        Box::new(Message { vecs: Vec::new(), header })
    }

    /// Removes all pieces.
    pub fn clear(&mut self) {
        self.vecs.clear();
    }

    /// Adds a piece; returns false if there are [`MAX_SEGMENTS`].
    #[must_use]
    pub fn push(&mut self, piece: IoVec) -> bool {
        let room = self.vecs.len() < MAX_SEGMENTS;
        if room {
            self.vecs.push(piece);
        }
        room
    }
}

impl KernelRing {
    /// Registers `count` buffers (a power of two) of `each` bytes as the receive buffers `group`. Allowed once per
    /// group.
    ///
    /// # Errors
    ///
    /// [`KringError::Buffer`] if there is no memory, or the kernel has no such lists (before 5.19).
    pub fn register_recv_buffers(&mut self, group: u16, count: u16, each: u32) -> Result<(), KringError> {
        let failed = |errno| KringError::Buffer { slot: 0, errno: Errno(errno) };
        if !count.is_power_of_two() || each == 0 || self.recv_group(group).is_some() {
            return Err(failed(libc::EINVAL));
        }
        let list = usize::from(count) * size_of::<BufRingEntry>();
        let ring = Buf::zeroed(list, 4096).map_err(|_| failed(libc::ENOMEM))?;
        let memory = Buf::zeroed(usize::from(count) * each as usize, 4096).map_err(|_| failed(libc::ENOMEM))?;
        let mut recv = RecvBuffers::new(ring, memory, each, count);
        let address = recv.address();
        // SAFETY: the list is kept with the ring, and freed after it (S1).
        let registered = unsafe { self.ring.submitter().register_buf_ring_with_flags(address, count, group, 0) };
        registered.map_err(|error| failed(error.raw_os_error().unwrap_or(libc::EIO)))?;
        (0..count).for_each(|number| recv.give(number));
        self.recv.push((group, recv));
        Ok(())
    }

    /// Unregisters a group of receive buffers and frees them. No receive of the group may be in flight. A group that
    /// the kernel does not unregister stays until the ring is dropped.
    pub fn unregister_recv_buffers(&mut self, group: u16) {
        if self.recv_group(group).is_some() && self.ring.submitter().unregister_buf_ring(group).is_ok() {
            self.recv.retain(|(other, _)| *other != group);
        }
    }

    fn recv_group(&mut self, group: u16) -> Option<&mut RecvBuffers> {
        self.recv.iter_mut().find(|(other, _)| *other == group).map(|(_, recv)| recv)
    }

    /// Returns the received data and the number of its buffer, from the result and the flags of a CQE.
    ///
    /// # Safety
    ///
    /// `res` and `flags` must be those of a CQE of a receive of this group on this ring, and each CQE may be passed
    /// only once.
    #[must_use]
    pub unsafe fn received(&mut self, group: u16, res: i32, flags: u32) -> Option<(u16, &[u8])> {
        let number = cqueue::buffer_select(flags)?;
        let (start, len) = self.recv_group(group)?.lend(number, usize::try_from(res).unwrap_or(0))?;
        // SAFETY: the buffer is not with the kernel, as promised; it goes there by `recycle`, which takes `&mut self`.
        Some((number, unsafe { std::slice::from_raw_parts(start, len) }))
    }

    /// Returns a buffer to the kernel's list. Ignores one that is there already.
    pub fn recycle(&mut self, group: u16, number: u16) {
        if let Some(recv) = self.recv_group(group) {
            recv.take_back(number);
        }
    }

    /// Prepares to accept the next connection of a listening socket; the CQE's result is its descriptor.
    ///
    /// # Errors
    ///
    /// [`Full`].
    pub fn prep_accept(&mut self, fd: RawFd, user_data: u64) -> Result<(), Full> {
        let entry = opcode::Accept::new(Fd(fd), std::ptr::null_mut(), std::ptr::null_mut());
        self.push(entry.flags(libc::SOCK_CLOEXEC).build(), user_data)
    }

    /// Prepares to receive the next data into one of the [receive buffers](Self::register_recv_buffers) of a group. If
    /// no buffer is free, the CQE is `-ENOBUFS`. The kernel polls the socket first (POLL_FIRST): a reply is never there
    /// directly after its request was sent, so a receive attempt would be wasted.
    ///
    /// # Errors
    ///
    /// [`Full`].
    pub fn prep_recv(&mut self, fd: RawFd, group: u16, user_data: u64) -> Result<(), Full> {
        let entry = opcode::Recv::new(Fd(fd), std::ptr::null_mut(), 0).buf_group(group).ioprio(POLL_FIRST);
        self.push(entry.build().flags(Flags::BUFFER_SELECT), user_data)
    }

    /// Prepares to receive into `memory`, all of it unless the connection ends.
    ///
    /// # Errors
    ///
    /// [`Full`].
    ///
    /// # Safety
    ///
    /// The memory must stay valid and otherwise unused until the operation's CQE was reaped (I3).
    pub unsafe fn prep_recv_into(&mut self, fd: RawFd, memory: IoVec, user_data: u64) -> Result<(), Full> {
        let len = memory.len.min(MAX_RW_BYTES) as u32;
        self.push(opcode::Recv::new(Fd(fd), memory.base, len).flags(libc::MSG_WAITALL).build(), user_data)
    }

    /// Prepares to send a whole message.
    ///
    /// # Errors
    ///
    /// [`Full`].
    ///
    /// # Safety
    ///
    /// The message and its pieces must stay where they are, and unchanged, until the operation's CQE was reaped (I3).
    pub unsafe fn prep_send(&mut self, fd: RawFd, message: &mut Message, user_data: u64) -> Result<(), Full> {
        let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
        // A single piece needs no header, which the kernel would copy and parse.
        if let [IoVec { base, len }] = *message.vecs
            && len <= MAX_RW_BYTES
        {
            return self.push(opcode::Send::new(Fd(fd), base, len as u32).flags(flags).build(), user_data);
        }
        message.header.msg_iov = message.vecs.as_mut_ptr().cast();
        message.header.msg_iovlen = message.vecs.len() as _;
        let entry = opcode::SendMsg::new(Fd(fd), &raw const message.header).flags(flags as u32);
        self.push(entry.build(), user_data)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;
    use crate::KringOpts;

    const SECOND: Option<Duration> = Some(Duration::from_secs(1));

    fn ring() -> Option<KernelRing> {
        KernelRing::new(8, KringOpts::default()).ok()
    }

    fn only(ring: &mut KernelRing) -> (u64, i32, u32) {
        ring.enter(1, SECOND).expect("it enters");
        let mut all = Vec::new();
        ring.reap(|user_data, res, flags| all.push((user_data, res, flags)));
        assert_eq!(all.len(), 1);
        all[0]
    }

    #[test]
    fn what_is_received_lies_in_a_lent_buffer_until_it_is_recycled() {
        let Some(mut ring) = ring() else { return };
        ring.register_recv_buffers(0, 2, 4096).expect("a kernel from 5.19 on");
        let (mut near, far) = UnixStream::pair().expect("a pair");
        for round in 0..5u8 {
            ring.prep_recv(far.as_raw_fd(), 0, 7).expect("there is room");
            near.write_all(&[round; 100]).expect("it is sent");
            let (user_data, res, flags) = only(&mut ring);
            assert_eq!((user_data, res), (7, 100));
            // SAFETY: of the CQE above.
            let (number, data) = unsafe { ring.received(0, res, flags) }.expect("it has a buffer");
            assert_eq!(data, [round; 100]);
            // The first buffer is kept: all others are received into the second.
            if round > 0 {
                ring.recycle(0, number);
                ring.recycle(0, number);
            }
        }
    }

    #[test]
    fn without_a_free_buffer_nothing_is_received() {
        let Some(mut ring) = ring() else { return };
        ring.register_recv_buffers(0, 1, 4096).expect("a kernel from 5.19 on");
        let (mut near, far) = UnixStream::pair().expect("a pair");
        near.write_all(b"one").expect("it is sent");
        ring.prep_recv(far.as_raw_fd(), 0, 1).expect("there is room");
        let (_, res, flags) = only(&mut ring);
        // SAFETY: of the CQE above.
        let number = unsafe { ring.received(0, res, flags) }.expect("it has a buffer").0;
        near.write_all(b"two").expect("it is sent");
        ring.prep_recv(far.as_raw_fd(), 0, 2).expect("there is room");
        assert_eq!(only(&mut ring).1, -libc::ENOBUFS);
        ring.recycle(0, number);
        ring.prep_recv(far.as_raw_fd(), 0, 3).expect("there is room");
        assert_eq!(only(&mut ring).1, 3);
    }

    #[test]
    fn a_message_of_several_pieces_is_sent_whole() {
        let Some(mut ring) = ring() else { return };
        let (near, mut far) = UnixStream::pair().expect("a pair");
        let mut pieces = [*b"head", *b"data"];
        let mut message = Message::new();
        for piece in &mut pieces {
            assert!(message.push(IoVec { base: piece.as_mut_ptr(), len: 4 }));
        }
        // SAFETY: message and pieces outlive the wait.
        unsafe { ring.prep_send(near.as_raw_fd(), &mut message, 5) }.expect("there is room");
        assert_eq!(only(&mut ring).1, 8);
        let mut got = [0; 8];
        far.read_exact(&mut got).expect("it came");
        assert_eq!(&got, b"headdata");
    }

    #[test]
    fn a_receive_into_memory_waits_for_all_of_it() {
        let Some(mut ring) = ring() else { return };
        let (mut near, far) = UnixStream::pair().expect("a pair");
        let mut memory = vec![0u8; 6];
        let place = IoVec { base: memory.as_mut_ptr(), len: 6 };
        // SAFETY: the memory outlives the wait.
        unsafe { ring.prep_recv_into(far.as_raw_fd(), place, 5) }.expect("there is room");
        near.write_all(b"abc").expect("it is sent");
        ring.enter(1, Some(Duration::from_millis(20))).expect("it enters");
        assert_eq!(ring.ready(), 0);
        near.write_all(b"def").expect("it is sent");
        assert_eq!(only(&mut ring).1, 6);
        assert_eq!(memory, b"abcdef");
    }
}
