//! Shared by the scenario tests of rings: raw SQEs, runs of them, and the block layer's test driver.
#![allow(dead_code, unused_imports)] // Each test binary uses a part of it.
#![allow(unsafe_code)] // Raw SQEs.

#[path = "../../../blk/tests/support/mod.rs"]
pub mod blk;

use sheave_base::buf::Buf;
use sheave_uring::sqe::{Sqe, opcode};
use sheave_uring::{Fd, Ring};

pub use blk::Puppet;

pub fn ring() -> Ring {
    Ring::builder().entries(8).build().expect("a ring")
}

pub fn buf(len: usize) -> Buf {
    Buf::zeroed(len, 4096).expect("memory")
}

pub fn nop(user_data: u64, flags: u8) -> Sqe {
    Sqe { opcode: opcode::NOP, flags, user_data, fd: -1, ..Sqe::default() }
}

/// Returns a NOP that fails in prep.
pub fn bad(user_data: u64, flags: u8) -> Sqe {
    Sqe { op_flags: 1 << 20, ..nop(user_data, flags) }
}

/// Returns a NOP that ends with this result.
pub fn nop_result(user_data: u64, flags: u8, res: i32) -> Sqe {
    Sqe { op_flags: 1, len: res as u32, ..nop(user_data, flags) }
}

/// Returns a read or write. `addr` must be of memory that lives as long as the ring.
pub fn rw(opcode: u8, fd: impl Into<i32>, off: u64, addr: u64, len: u32, user_data: u64) -> Sqe {
    Sqe { opcode, fd: fd.into(), off, addr, len, user_data, ..Sqe::default() }
}

pub fn fsync(fd: impl Into<i32>, user_data: u64) -> Sqe {
    Sqe { opcode: opcode::FSYNC, fd: fd.into(), user_data, ..Sqe::default() }
}

/// Pushes SQEs whose memory the test keeps. The ring must have room for them.
pub fn push(ring: &mut Ring, sqes: &[Sqe]) {
    for sqe in sqes {
        // SAFETY: the tests keep the memory of their SQEs, or use addresses that must be refused.
        assert!(unsafe { ring.push_sqe(sqe) }, "the SQ has room");
    }
}

/// Returns user data and result of all readable CQEs, in order.
pub fn reaped(ring: &mut Ring) -> Vec<(u64, i32)> {
    ring.completions().map(|c| (c.user_data, c.res)).collect()
}

/// Submits SQEs and waits for everything. Returns all CQEs in order.
pub fn run(ring: &mut Ring, sqes: &[Sqe]) -> Vec<(u64, i32)> {
    push(ring, sqes);
    let taken = ring.submit().expect("slots are free");
    assert_eq!(taken as usize, sqes.len());
    ring.drain();
    assert_eq!(ring.in_flight(), 0);
    let mut all = Vec::new();
    loop {
        let some = reaped(ring);
        if some.is_empty() {
            return all;
        }
        all.extend(some);
    }
}
