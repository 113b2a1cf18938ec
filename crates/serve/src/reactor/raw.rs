//! All that hands memory to the kernel or to a device, and takes descriptors from it.
//!
//! S1 is kept here: the memory of a request's payload is in the table of requests until its CQE has come, the memory of
//! a batch in its connection until the send has ended; both outlive the ring.
#![allow(unsafe_code)] // operations on memory

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use sheave_blk::ctx::sockets::SocketEvent;
use sheave_kring::{IoVec, Message};
use sheave_uring::Ring;
use sheave_uring::sqe::{RWF_DSYNC, Sqe, opcode};

use crate::payload::Payload;

/// What an operation on a socket is, in the low bits of its number; the connection or listener is in the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Accept = 0,
    Recv = 1,
    Send = 2,
}

/// The number of an operation on a socket.
pub(super) fn token(kind: Kind, number: usize) -> u32 {
    (number as u32) << 2 | kind as u32
}

/// `FALLOC_FL_KEEP_SIZE`, `_PUNCH_HOLE` and `_ZERO_RANGE`.
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 16;

/// The connection whose descriptor an accept has given.
pub(super) fn owned(fd: i32) -> OwnedFd {
    // SAFETY: the result of an accept, which is looked at once, is a descriptor that nobody else has.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// What a request asks its file for.
#[derive(Clone, Copy, Debug)]
pub(super) enum FileOp {
    Read,
    Write { durable: bool },
    Sync,
    Punch,
    Zero,
}

/// Queues an operation on a file: `len` bytes at `offset`, in the memory of the payload from its byte `at` on, which
/// stays in the table of requests until the CQE with `slot` has come. False when the queue is full.
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
        FileOp::Punch => (sqe.opcode, sqe.addr, sqe.len) = (opcode::FALLOCATE, len, PUNCH_HOLE | KEEP_SIZE),
        FileOp::Zero => (sqe.opcode, sqe.addr, sqe.len) = (opcode::FALLOCATE, len, ZERO_RANGE | KEEP_SIZE),
    }
    // SAFETY: S1: the memory is the payload's, which is not touched until the CQE has come.
    unsafe { ring.push_sqe(&sqe) }
}

/// Starts receiving into a receive buffer of the kernel's choice; false when that is not possible now.
pub(super) fn recv(ring: &mut Ring, fd: impl AsFd, conn: usize) -> bool {
    let raw = fd.as_fd().as_raw_fd();
    ring.sockets(|mut sockets| sockets.recv(raw, token(Kind::Recv, conn)).is_ok()).unwrap_or(false)
}

/// Starts receiving `len` bytes into a payload, from `from` on in its data.
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

/// Starts sending a message whose pieces lie in a batch that its connection keeps.
pub(super) fn send(ring: &mut Ring, fd: impl AsFd, conn: usize, message: &mut Message) -> bool {
    let raw = fd.as_fd().as_raw_fd();
    // SAFETY: S1: the connection keeps message and batch, unchanged, until the send has ended.
    let prepared = |mut sockets: sheave_blk::ctx::sockets::Sockets<'_>| unsafe {
        sockets.send(raw, message, token(Kind::Send, conn)).is_ok()
    };
    ring.sockets(prepared).unwrap_or(false)
}

/// Shows what a receive has brought, then gives its buffer back to the kernel; `None` when it brought nothing. `ring`
/// finds the ring in what `with` works on.
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
    // SAFETY: the buffer lives as long as the ring, and nobody writes to it until it is recycled, which is below.
    let data = unsafe { std::slice::from_raw_parts(base, len) };
    let result = with(on, data);
    // Without a kernel ring there would be no buffer.
    let _ = ring(on).sockets(|mut sockets| sockets.recycle(number));
    Some(result)
}
