//! Everything that hands memory to the kernel or to a device, or takes descriptors from the kernel.
//!
//! Keeps S1: the memory of a request's payload is in the table of requests until its CQE has arrived, the memory of a
//! guest is mapped by the queue of the request until then, and the memory of a batch is in its connection until the
//! send has ended. All outlive the ring.
#![allow(unsafe_code)] // operations on memory

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use sheave_blk::ctx::sockets::SocketEvent;
use sheave_kring::{IoVec, Message};
use sheave_uring::Ring;
use sheave_uring::sqe::{RWF_DSYNC, Sqe, opcode};

use crate::payload::Payload;

/// Kind of a socket operation, in the low two bits of its token; the number of the session or listener is in the
/// others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Accept = 0,
    Recv = 1,
    Send = 2,
    Watch = 3,
}

/// Returns the token of a socket operation.
pub(super) fn token(kind: Kind, number: usize) -> u32 {
    (number as u32) << 2 | kind as u32
}

/// Returns the kind and the number in a token.
pub(super) fn of_token(token: u32) -> (Kind, usize) {
    let kind = match token & 3 {
        0 => Kind::Accept,
        1 => Kind::Recv,
        2 => Kind::Send,
        _ => Kind::Watch,
    };
    (kind, (token >> 2) as usize)
}

/// `FALLOC_FL_KEEP_SIZE`, `_PUNCH_HOLE` and `_ZERO_RANGE`.
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 16;

/// Takes the descriptor that an accept has returned.
pub(super) fn owned(fd: i32) -> OwnedFd {
    // SAFETY: the result of an accept, which is taken once, is a descriptor that no other code owns.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum FileOp {
    Read,
    Write { durable: bool },
    Sync,
    Punch,
    Zero,
}

/// Memory of a guest that a request transfers: what is left of it. The session of the request keeps the mapping until
/// the request has ended (S1).
#[derive(Debug)]
pub(super) enum Segments {
    /// One piece of memory: the request can take the shortest way through the ring.
    One(IoVec),
    Many(Vec<IoVec>),
}

impl Segments {
    /// Leaves out the first `len` bytes, which were transferred.
    pub(super) fn advance(&mut self, mut len: usize) {
        let all = match self {
            Segments::One(one) => std::slice::from_mut(one),
            Segments::Many(all) => all,
        };
        for segment in all {
            let part = len.min(segment.len);
            (segment.base, segment.len) = (segment.base.wrapping_add(part), segment.len - part);
            len -= part;
        }
    }
}

/// The memory that an operation transfers.
pub(super) enum Memory<'a> {
    None,
    /// From this position of a payload on.
    Payload(&'a mut Payload, usize),
    Segments(&'a Segments),
}

impl<'a> Memory<'a> {
    /// Returns the memory of a payload from position `at` on.
    pub(super) fn of(payload: &'a mut Option<Payload>, at: usize) -> Memory<'a> {
        payload.as_mut().map_or(Memory::None, |payload| Memory::Payload(payload, at))
    }
}

/// Queues an operation on `len` bytes at `offset` of a file. Its memory stays in the table of requests, or in the guest
/// of the session that the request belongs to, until the CQE with `slot` has arrived. Returns false if the queue is
/// full.
#[inline]
pub(super) fn push(
    ring: &mut Ring,
    op: FileOp,
    fd: i32,
    (offset, len): (u64, u64),
    memory: Memory<'_>,
    slot: u32,
) -> bool {
    let mut is_vectored = false;
    let (addr, sqe_len) = match memory {
        Memory::None => (0, len as u32),
        Memory::Payload(payload, at) => {
            debug_assert!(at as u64 + len <= payload.counted(), "P1");
            (payload.address(at) as u64, len as u32)
        }
        Memory::Segments(Segments::One(one)) => {
            debug_assert!(one.len as u64 == len, "the memory of a request has its length");
            (one.base as u64, len as u32)
        }
        Memory::Segments(Segments::Many(all)) => {
            is_vectored = true;
            (all.as_ptr() as u64, all.len() as u32)
        }
    };
    let mut sqe = Sqe { fd, off: offset, addr, len: sqe_len, user_data: u64::from(slot), ..Sqe::default() };
    match op {
        FileOp::Read => sqe.opcode = if is_vectored { opcode::READV } else { opcode::READ },
        FileOp::Write { durable } => {
            sqe.opcode = if is_vectored { opcode::WRITEV } else { opcode::WRITE };
            sqe.op_flags = if durable { RWF_DSYNC } else { 0 };
        }
        FileOp::Sync => (sqe.opcode, sqe.off, sqe.len) = (opcode::FSYNC, 0, 0),
        // io_uring's FALLOCATE takes the length in `addr` and the mode in `len`.
        FileOp::Punch => (sqe.opcode, sqe.addr, sqe.len) = (opcode::FALLOCATE, len, PUNCH_HOLE | KEEP_SIZE),
        FileOp::Zero => (sqe.opcode, sqe.addr, sqe.len) = (opcode::FALLOCATE, len, ZERO_RANGE | KEEP_SIZE),
    }
    // SAFETY: S1: the memory is the payload's, or the guest's as the session of the request keeps it, and is not
    // touched by this process until the CQE has come. The vectors are in the table of requests.
    unsafe { ring.push_sqe(&sqe) }
}

/// Starts receiving into a buffer that the kernel chooses. Returns false if the ring does not take the operation.
pub(super) fn recv(ring: &mut Ring, fd: impl AsFd, conn: usize) -> bool {
    let raw = fd.as_fd().as_raw_fd();
    ring.sockets(|mut sockets| sockets.recv(raw, token(Kind::Recv, conn)).is_ok()).unwrap_or(false)
}

/// Starts receiving `len` bytes into the data of a payload, at offset `from`.
pub(super) fn recv_into(
    ring: &mut Ring,
    fd: impl AsFd,
    conn: usize,
    payload: &mut Payload,
    from: usize,
    len: usize,
) -> bool {
    let at = payload.start() + from;
    debug_assert!((from + len) as u64 <= payload.room(), "P1");
    let place = IoVec { base: payload.address(at), len };
    let raw = fd.as_fd().as_raw_fd();
    // SAFETY: S1: the payload is in the table of requests until the receive has ended.
    let prepared = |mut sockets: sheave_blk::ctx::sockets::Sockets<'_>| unsafe {
        sockets.recv_into(raw, place, token(Kind::Recv, conn)).is_ok()
    };
    ring.sockets(prepared).unwrap_or(false)
}

/// Starts watching a descriptor. Returns false if the ring does not take the operation.
pub(super) fn watch(ring: &mut Ring, fd: impl AsFd, kind: Kind, session: usize) -> bool {
    let raw = fd.as_fd().as_raw_fd();
    ring.sockets(|mut sockets| sockets.watch(raw, token(kind, session)).is_ok()).unwrap_or(false)
}

/// Ends a watch, whose last event then comes. Returns false if the ring does not take the operation.
pub(super) fn unwatch(ring: &mut Ring, kind: Kind, session: usize) -> bool {
    ring.sockets(|mut sockets| sockets.cancel(token(kind, session)).is_ok()).unwrap_or(false)
}

/// Signals an eventfd with the next system call. Returns false if the ring does not take the operation.
pub(super) fn signal(ring: &mut Ring, fd: impl AsFd) -> bool {
    let raw = fd.as_fd().as_raw_fd();
    ring.sockets(|mut sockets| sockets.signal(raw).is_ok()).unwrap_or(false)
}

/// Starts sending a message whose pieces lie in a batch that the connection keeps.
pub(super) fn send(ring: &mut Ring, fd: impl AsFd, conn: usize, message: &mut Message) -> bool {
    let raw = fd.as_fd().as_raw_fd();
    // SAFETY: S1: the connection keeps message and batch, unchanged, until the send has ended.
    let prepared = |mut sockets: sheave_blk::ctx::sockets::Sockets<'_>| unsafe {
        sockets.send(raw, message, token(Kind::Send, conn)).is_ok()
    };
    ring.sockets(prepared).unwrap_or(false)
}

/// Passes the received bytes to `with`, then gives the buffer back to the kernel. `None` if the receive brought
/// nothing. `ring` returns the ring of `on`, which `with` works on.
pub(super) fn with_received<T, R>(
    on: &mut T,
    ring: impl Fn(&mut T) -> &mut Ring,
    event: &SocketEvent,
    with: impl FnOnce(&mut T, &[u8]) -> R,
) -> Option<R> {
    let lent = ring(on).sockets(|mut sockets| {
        // SAFETY: each event is handed out once, and comes here once.
        unsafe { sockets.received(event) }.map(|(number, data)| (number, data.as_ptr(), data.len()))
    });
    let (number, base, len) = lent.ok().flatten()?;
    // SAFETY: the buffer lives as long as the ring, and it is not written to until it is recycled, which is below.
    let data = unsafe { std::slice::from_raw_parts(base, len) };
    let result = with(on, data);
    // Cannot fail: the buffer came from this kernel ring.
    let _ = ring(on).sockets(|mut sockets| sockets.recycle(number));
    Some(result)
}
