//! Everything that hands memory to the kernel or to a device, or takes descriptors from the kernel.
//!
//! Keeps S1: the memory of a request's payload is in the table of requests until its CQE has arrived, the memory of a
//! batch in its connection until the send has ended. Both outlive the ring.
#![allow(unsafe_code)] // operations on memory

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use sheave_blk::ctx::sockets::SocketEvent;
use sheave_kring::{IoVec, Message};
use sheave_uring::Ring;
use sheave_uring::sqe::{RWF_DSYNC, Sqe, opcode};

use crate::payload::Payload;

/// Kind of a socket operation, in the low two bits of its token; the number of the connection or listener is in the
/// others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Accept = 0,
    Recv = 1,
    Send = 2,
}

/// Returns the token of a socket operation.
pub(super) fn token(kind: Kind, number: usize) -> u32 {
    (number as u32) << 2 | kind as u32
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

/// Queues an operation on `len` bytes at `offset` of a file. Its memory begins at byte `at` of the payload, which stays
/// in the table of requests until the CQE with `slot` has arrived. Returns false if the queue is full.
pub(super) fn push(
    ring: &mut Ring,
    op: FileOp,
    fd: i32,
    (offset, len): (u64, u64),
    memory: Option<(&mut Payload, usize)>,
    slot: u32,
) -> bool {
    let addr = memory.map_or(0, |(payload, at)| {
        debug_assert!(at as u64 + len <= payload.counted(), "P1");
        payload.address(at) as u64
    });
    let mut sqe = Sqe { fd, off: offset, addr, len: len as u32, user_data: u64::from(slot), ..Sqe::default() };
    match op {
        FileOp::Read => sqe.opcode = opcode::READ,
        FileOp::Write { durable } => {
            sqe.opcode = opcode::WRITE;
            sqe.op_flags = if durable { RWF_DSYNC } else { 0 };
        }
        FileOp::Sync => (sqe.opcode, sqe.off, sqe.len) = (opcode::FSYNC, 0, 0),
        // io_uring's FALLOCATE takes the length in `addr` and the mode in `len`.
        FileOp::Punch => (sqe.opcode, sqe.addr, sqe.len) = (opcode::FALLOCATE, len, PUNCH_HOLE | KEEP_SIZE),
        FileOp::Zero => (sqe.opcode, sqe.addr, sqe.len) = (opcode::FALLOCATE, len, ZERO_RANGE | KEEP_SIZE),
    }
    // SAFETY: S1: the memory is the payload's, which is not touched until the CQE has come.
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
