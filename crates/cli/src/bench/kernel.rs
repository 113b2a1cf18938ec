//! The kernel's io_uring as a peer: what `--compare kernel` measures Sheave against.
//!
//! Made as fast as it can be, because a slow peer flatters: registered ring, file and buffers, one issuer,
//! deferred task work where that is faster, no SQ array, one enter a batch, SQEs written in place.
//!
//! * I1. The buffers and the file outlive every request: `ring` is dropped first (field order), and dropping
//!   a ring waits for the requests that use its registered buffers.
//! * I2. SQ entries >= slots and each slot is in flight at most once (engine I1), so the SQ never overflows.
//!
//! Called by [`crate::bench::compare`] only.
#![allow(unsafe_code)] // SQEs carry raw addresses, and the enter of a registered ring is a raw system call.

use std::fs::File;

use io_uring::{IoUring, opcode, squeue, types};
use sheave::base::buf::Buf;

use crate::bench::engine::Engine;
use crate::failure::Failure;

mod setup;

pub use setup::Setup;

/// A kernel ring with one buffer a slot.
pub struct KernelRing {
    ring: IoUring,
    buffers: Buf,
    /// Index 0 of the ring's registered files refers to it; none when `nop`.
    _file: Option<File>,
    nop: bool,
    bs: u32,
    /// The buffers are registered: one region, index 0.
    fixed_buffers: bool,
    enter: Enter,
    /// SQEs written and not yet taken by the kernel.
    queued: u32,
}

/// How to enter the ring: by its registered index where the kernel has that.
struct Enter {
    fd: i32,
    flags: u32,
    /// IOPOLL: completions are only found by an enter that asks for them.
    polls: bool,
}

const IORING_ENTER_GETEVENTS: u32 = 1;
const IORING_ENTER_REGISTERED_RING: u32 = 1 << 4;

impl KernelRing {
    /// The address of a slot's buffer.
    fn address(&mut self, slot: u32) -> *mut u8 {
        let at = slot as usize * self.bs as usize;
        debug_assert!(at + self.bs as usize <= self.buffers.len());
        self.buffers.as_mut_ptr().wrapping_add(at)
    }

    #[inline]
    fn entry(&mut self, slot: u32, write: bool, offset: u64) -> squeue::Entry {
        if self.nop {
            return opcode::Nop::new().build();
        }
        let (file, address, bs) = (types::Fixed(0), self.address(slot), self.bs);
        match (self.fixed_buffers, write) {
            (true, false) => opcode::ReadFixed::new(file, address, bs, 0).offset(offset).build(),
            (true, true) => opcode::WriteFixed::new(file, address, bs, 0).offset(offset).build(),
            (false, false) => opcode::Read::new(file, address, bs).offset(offset).build(),
            (false, true) => opcode::Write::new(file, address, bs).offset(offset).build(),
        }
    }
}

impl Engine for KernelRing {
    fn expected(&self) -> i32 {
        if self.nop { 0 } else { self.bs as i32 }
    }

    #[inline]
    fn prep(&mut self, slot: u32, write: bool, offset: u64) {
        let entry = self.entry(slot, write, offset).user_data(u64::from(slot));
        // SAFETY: I1 keeps the buffer and the file alive until the request is done.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        debug_assert!(pushed.is_ok(), "I2: the SQ has an entry for each slot");
        self.queued += 1;
    }

    #[inline]
    fn submit(&mut self, wait: u32) -> Result<(), Failure> {
        let mut flags = self.enter.flags;
        if wait > 0 || self.queued == 0 || self.enter.polls {
            flags |= IORING_ENTER_GETEVENTS;
        }
        loop {
            let nothing = std::ptr::null::<libc::sigset_t>();
            // SAFETY: the descriptor is this ring's own, and the null argument is not read.
            let entered = unsafe {
                libc::syscall(libc::SYS_io_uring_enter, self.enter.fd, self.queued, wait, flags, nothing, 0usize)
            };
            if let Ok(taken) = u32::try_from(entered) {
                // What the kernel left over goes in with the next enter.
                self.queued -= taken.min(self.queued);
                return Ok(());
            }
            let err = std::io::Error::last_os_error();
            match err.raw_os_error() {
                // A signal while nothing had been submitted: once more.
                Some(libc::EINTR) => {}
                // No room or no memory now: the caller reaps, then comes back.
                Some(libc::EAGAIN | libc::EBUSY) => return Ok(()),
                _ => return Err(Failure::run(format!("the kernel's io_uring_enter failed: {err}"))),
            }
        }
    }

    #[inline]
    fn reap(&mut self, mut done: impl FnMut(u32, i32)) -> u32 {
        let mut reaped = 0;
        for cqe in self.ring.completion() {
            done(cqe.user_data() as u32, cqe.result());
            reaped += 1;
        }
        reaped
    }

    fn buffer(&mut self, slot: u32) -> &mut [u8] {
        let at = slot as usize * self.bs as usize;
        &mut self.buffers[at..at + self.bs as usize]
    }
}
