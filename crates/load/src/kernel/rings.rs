//! The memory that the peer's kernel ring shares with this process: set up, mapped, filled and read in place.
//!
//! * I1. One thread uses the ring; the kernel is the only other party. It reads the SQ tail and writes the SQ head
//!   within `io_uring_enter`, and writes the CQ tail at any time.
//! * I2. The pointers stay inside the mappings: offsets come from the kernel, indexes are masked.
//! * I3. Entry `i` of the SQ array is `i` for ever, or there is no array.
#![allow(unsafe_code)] // Memory shared with the kernel.

use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use sheave_base::sync::atomic::{AtomicU32, Ordering};
use sheave_uring::sqe::Sqe;

/// `struct io_uring_params` of the UAPI.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Params {
    sq_entries: u32,
    cq_entries: u32,
    flags: u32,
    sq_thread_cpu: u32,
    sq_thread_idle: u32,
    features: u32,
    wq_fd: u32,
    resv: [u32; 3],
    sq_off: SqOffsets,
    cq_off: CqOffsets,
}

impl Params {
    /// Returns parameters that request `flags` (`IORING_SETUP_*`) and, with [`SETUP_CQSIZE`], a CQ of `cq_entries`
    /// entries.
    pub fn new(cq_entries: u32, flags: u32) -> Self {
        Self { cq_entries, flags, ..Self::default() }
    }
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct SqOffsets {
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    flags: u32,
    dropped: u32,
    array: u32,
    resv1: u32,
    user_addr: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CqOffsets {
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    overflow: u32,
    cqes: u32,
    flags: u32,
    resv1: u32,
    user_addr: u64,
}

pub const SETUP_IOPOLL: u32 = 1;
pub const SETUP_CQSIZE: u32 = 1 << 3;
pub const SETUP_COOP_TASKRUN: u32 = 1 << 8;
pub const SETUP_SINGLE_ISSUER: u32 = 1 << 12;
pub const SETUP_DEFER_TASKRUN: u32 = 1 << 13;
pub const SETUP_NO_SQARRAY: u32 = 1 << 16;
const FEAT_SINGLE_MMAP: u32 = 1;
const OFF_SQ_RING: i64 = 0;
const OFF_SQES: i64 = 0x1000_0000;

/// A completion, `struct io_uring_cqe` of the UAPI.
#[repr(C)]
#[derive(Clone, Copy)]
struct Cqe {
    user_data: u64,
    res: i32,
    flags: u32,
}

/// A mapping of the ring's descriptor.
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

impl Mapping {
    fn new(fd: &OwnedFd, len: usize, offset: i64) -> Result<Self> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, fd.as_raw_fd(), offset) };
        match NonNull::new(start.cast::<u8>()) {
            Some(start) if start.as_ptr().cast() != libc::MAP_FAILED => Ok(Self { start, len }),
            _ => Err(Error::last_os_error()),
        }
    }

    /// Returns a pointer to the `T` that the kernel placed `offset` bytes into the mapping (I2).
    fn at<T>(&self, offset: u32) -> *mut T {
        debug_assert!(offset as usize + size_of::<T>() <= self.len, "I2: the kernel's offsets lie inside");
        self.start.as_ptr().wrapping_add(offset as usize).cast()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `new`; the pointers into it are dropped with the rings.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// The shared rings.
pub struct Rings {
    sq_tail: *mut AtomicU32,
    sq_mask: u32,
    /// Number of SQEs filled so far, whether published or not.
    filled: u32,
    sqes: *mut Sqe,
    cq_head: *mut AtomicU32,
    cq_tail: *mut AtomicU32,
    cq_mask: u32,
    cqes: *mut Cqe,
    _rings: Mapping,
    _sqe_memory: Mapping,
    fd: OwnedFd,
}

impl Rings {
    /// Sets up a ring with `params`.
    pub fn new(entries: u32, mut params: Params) -> Result<Self> {
        // SAFETY: the kernel reads and writes one `Params`, which lives across the call.
        let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, entries, &raw mut params) };
        if fd < 0 {
            return Err(Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor for us.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        if params.features & FEAT_SINGLE_MMAP == 0 {
            return Err(Error::from_raw_os_error(libc::ENOSYS)); // Kernels before 5.4.
        }
        let sq_end = params.sq_off.array as usize + params.sq_entries as usize * size_of::<u32>();
        let cq_end = params.cq_off.cqes as usize + params.cq_entries as usize * size_of::<Cqe>();
        let rings = Mapping::new(&fd, sq_end.max(cq_end), OFF_SQ_RING)?;
        let sqe_memory = Mapping::new(&fd, params.sq_entries as usize * size_of::<Sqe>(), OFF_SQES)?;
        if params.flags & SETUP_NO_SQARRAY == 0 {
            let array = rings.at::<u32>(params.sq_off.array);
            for index in 0..params.sq_entries {
                // SAFETY: I2, and nothing has been submitted yet (I1).
                unsafe { array.add(index as usize).write(index) };
            }
        }
        // SAFETY: I2; the kernel does not change the masks.
        let (sq_mask, cq_mask) = unsafe {
            (rings.at::<u32>(params.sq_off.ring_mask).read(), rings.at::<u32>(params.cq_off.ring_mask).read())
        };
        Ok(Self {
            sq_tail: rings.at(params.sq_off.tail),
            sq_mask,
            filled: 0,
            sqes: sqe_memory.at(0),
            cq_head: rings.at(params.cq_off.head),
            cq_tail: rings.at(params.cq_off.tail),
            cq_mask,
            cqes: rings.at(params.cq_off.cqes),
            _rings: rings,
            _sqe_memory: sqe_memory,
            fd,
        })
    }

    pub fn fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// Returns the next SQE, with its previous content. The caller does not exceed the size of the SQ.
    #[inline]
    pub fn next_sqe(&mut self) -> &mut Sqe {
        let index = self.filled & self.sq_mask;
        self.filled = self.filled.wrapping_add(1);
        // SAFETY: I2; the kernel is done with an entry before the caller comes round to it, and does not look at it
        // before `publish` (I1).
        unsafe { &mut *self.sqes.add(index as usize) }
    }

    /// Returns all SQEs, so that the caller can fill in the fields that all requests share. Called before the first
    /// submission.
    pub fn all_sqes(&mut self) -> &mut [Sqe] {
        // SAFETY: I2; nothing is in flight.
        unsafe { std::slice::from_raw_parts_mut(self.sqes, self.sq_mask as usize + 1) }
    }

    /// Makes the filled SQEs visible to the kernel.
    #[inline]
    pub fn publish(&mut self) {
        // SAFETY: I2. Release: the SQEs before the tail; pairs with the kernel's acquire in io_uring_enter.
        unsafe { (*self.sq_tail).store(self.filled, Ordering::Release) };
    }

    /// Calls `done` for each available completion. Returns their number.
    #[inline]
    pub fn reap(&mut self, mut done: impl FnMut(u32, i32)) -> u32 {
        // SAFETY: I2. Relaxed: we alone write the head. Acquire: the CQEs before the tail; pairs with the kernel's
        // release of the tail.
        let (mut head, tail) =
            unsafe { ((*self.cq_head).load(Ordering::Relaxed), (*self.cq_tail).load(Ordering::Acquire)) };
        let reaped = tail.wrapping_sub(head);
        while head != tail {
            // SAFETY: I2; the entry lies between head and tail, so the kernel has written it and leaves it alone.
            let cqe = unsafe { &*self.cqes.add((head & self.cq_mask) as usize) };
            done(cqe.user_data as u32, cqe.res);
            head = head.wrapping_add(1);
        }
        // SAFETY: I2. Release: the entries are read before the kernel may reuse them; pairs with its acquire.
        unsafe { (*self.cq_head).store(head, Ordering::Release) };
        reaped
    }
}
