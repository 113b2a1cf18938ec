//! The kernel's io_uring as a peer: the other side of `--compare kernel`.
//!
//! The peer is made as fast as possible, because a slow peer would make Sheave look better than it is. It has a
//! registered ring, file and buffers, one issuer, deferred task work where that is faster, and no SQ array. It calls
//! enter once per batch, and writes SQEs in place and only the fields that differ. Its NOP is the plain one, which
//! looks up neither file nor buffer.
//!
//! * I1. The buffers and the file outlive every request: the loop reaps all it has submitted (looper I1). If a ring is
//!   dropped earlier, the kernel itself holds pages and files until the requests have ended.
//! * I2. SQ entries >= slots and each slot is in flight at most once (engine I1), so the SQ never overflows.
//!
//! Called by comparisons with the kernel; `sheave doctor` probes with it.
#![allow(unsafe_code)] // The enter of a registered ring is a raw system call.

use std::fs::File;

use sheave_base::buf::Buf;
use sheave_uring::sqe::{IOSQE_ASYNC, IOSQE_FIXED_FILE, Sqe, opcode};

use crate::engine::Engine;
use crate::error::LoadError;
use crate::looper::{Driven, Looper, Until};
use crate::pace::Pace;
use crate::pattern::Pattern;

mod rings;
mod setup;

use rings::{Params, Rings};
pub use setup::{Setup, Workers};

/// Kind of ring that [`probe`] sets up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// A ring without setup flags.
    Plain,
    /// A ring with one issuer and deferred task work.
    Modern,
}

/// Sets up a small ring and drops it. Returns the kernel's error if that fails.
pub fn probe(what: Probe) -> std::io::Result<()> {
    let flags = match what {
        Probe::Plain => 0,
        Probe::Modern => rings::SETUP_SINGLE_ISSUER | rings::SETUP_DEFER_TASKRUN,
    };
    let rings = Rings::new(2, Params::new(0, flags))?;
    let nothing = std::ptr::null::<libc::c_void>();
    // Some seccomp filters allow io_uring_setup, but not io_uring_enter.
    // SAFETY: nothing is submitted, waited for or passed.
    let entered = unsafe { libc::syscall(libc::SYS_io_uring_enter, rings.fd(), 0, 0, 0, nothing, 0usize) };
    if entered < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

/// A kernel ring with one buffer per slot.
pub struct KernelRing {
    rings: Rings,
    buffers: Buf,
    base: u64,
    /// Index 0 of the ring's registered files refers to this file; `None` if `nop`.
    _file: Option<File>,
    nop: bool,
    bs: u32,
    /// Opcode of a read, and opcode of a write.
    opcodes: [u8; 2],
    enter: Enter,
    /// Number of SQEs that are written and not yet taken by the kernel.
    queued: u32,
}

/// Arguments of an enter: the ring's registered index if the kernel supports that, otherwise its descriptor.
struct Enter {
    fd: i32,
    flags: u32,
    /// True with IOPOLL, where only an enter with GETEVENTS finds completions.
    polls: bool,
}

const IORING_ENTER_GETEVENTS: u32 = 1;
const IORING_ENTER_REGISTERED_RING: u32 = 1 << 4;

impl KernelRing {
    /// Writes the common fields of all requests into every SQE.
    fn prefill(&mut self, fixed_buffers: bool, in_workers: bool) {
        let template = if self.nop {
            Sqe { flags: if in_workers { IOSQE_ASYNC } else { 0 }, ..Sqe::default() }
        } else {
            Sqe { flags: IOSQE_FIXED_FILE, fd: 0, len: self.bs, ..Sqe::default() }
        };
        self.opcodes = match fixed_buffers {
            _ if self.nop => [opcode::NOP; 2],
            true => [opcode::READ_FIXED, opcode::WRITE_FIXED],
            false => [opcode::READ, opcode::WRITE],
        };
        self.rings.all_sqes().fill(template);
    }
}

impl Driven for KernelRing {
    fn run(looper: &mut Looper<Self>, pattern: &mut Pattern, until: &Until, pace: &mut Pace) -> Result<(), LoadError> {
        looper.turns(pattern, until, pace)
    }
}

impl Engine for KernelRing {
    fn expected(&self) -> i32 {
        if self.nop { 0 } else { self.bs as i32 }
    }

    #[inline]
    fn prep(&mut self, slot: u32, write: bool, offset: u64) {
        let sqe = self.rings.next_sqe();
        sqe.user_data = u64::from(slot);
        if !self.nop {
            sqe.opcode = self.opcodes[usize::from(write)];
            sqe.off = offset;
            sqe.addr = self.base + u64::from(slot) * u64::from(self.bs);
        }
        self.queued += 1;
    }

    #[inline]
    fn submit(&mut self, wait: u32) -> Result<(), LoadError> {
        self.rings.publish();
        let mut flags = self.enter.flags;
        if wait > 0 || self.queued == 0 || self.enter.polls {
            flags |= IORING_ENTER_GETEVENTS;
        }
        loop {
            let nothing = std::ptr::null::<libc::sigset_t>();
            // SAFETY: the descriptor is this ring's own; I1 for the memory that the SQEs name; the null argument is
            // not read.
            let entered = unsafe {
                libc::syscall(libc::SYS_io_uring_enter, self.enter.fd, self.queued, wait, flags, nothing, 0usize)
            };
            if let Ok(taken) = u32::try_from(entered) {
                // The next enter submits the SQEs that the kernel has not taken.
                self.queued -= taken.min(self.queued);
                return Ok(());
            }
            let err = std::io::Error::last_os_error();
            match err.raw_os_error() {
                // A signal interrupted the call before anything was submitted, so it is repeated.
                Some(libc::EINTR) => {}
                // The kernel has no room or no memory at the moment. The caller reaps and then calls again.
                Some(libc::EAGAIN | libc::EBUSY) => return Ok(()),
                _ => return Err(LoadError::run(format!("the kernel's io_uring_enter failed: {err}"))),
            }
        }
    }

    #[inline]
    fn reap(&mut self, done: impl FnMut(u32, i32)) -> u32 {
        self.rings.reap(done)
    }

    fn buffer(&mut self, slot: u32) -> &mut [u8] {
        let at = slot as usize * self.bs as usize;
        &mut self.buffers[at..at + self.bs as usize]
    }
}
