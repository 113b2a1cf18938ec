//! The memory that a kernel ring shares with this process: operations are written and completions read in place.
//!
//! Owns a second mapping of the ring's two queues, because the queues of the `io_uring` crate copy each entry in and
//! out. The crate sets up the ring and registers resources; its queues are never used.
//!
//! Invariants:
//! - R1: one thread uses the ring. The kernel is the only other party: it reads the SQ tail and writes the SQ head
//!   within `io_uring_enter`, and writes the CQ tail at any time.
//! - R2: pointers stay inside the mappings: offsets come from the kernel, indexes are masked.
//! - R3: entry `i` of the SQ's index array is always `i`, written by the crate when it set up the ring, or there is no
//!   such array.
//! - R4: the SQ never has more than its entries between head and tail, so the kernel does not read an entry while it is
//!   written.
#![allow(unsafe_code)] // memory shared with the kernel

use std::os::fd::{AsRawFd, RawFd};
use std::ptr::NonNull;

use io_uring::squeue::Entry;
use io_uring::{IoUring, Parameters};
use sheave_base::sync::atomic::{AtomicU32, Ordering};

/// Flag of the SQ: completions found the CQ full, and the kernel keeps them.
const SQ_CQ_OVERFLOW: u32 = 1 << 1;
/// Flag of the SQ: completions wait for an enter to run them.
const SQ_TASKRUN: u32 = 1 << 2;

const OFF_SQ_RING: i64 = 0;
const OFF_SQES: i64 = 0x1000_0000;

/// A completion: `struct io_uring_cqe` of the UAPI.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completed {
    /// `user_data` of the operation.
    pub user_data: u64,
    /// Result of the operation, `-errno` on failure.
    pub res: i32,
    /// `IORING_CQE_F_*`.
    pub flags: u32,
}

/// A read or write: `struct io_uring_sqe` of the UAPI with the fields that these use.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RwSqe {
    /// First word of the SQE: opcode, flags, priority and file.
    what: u64,
    offset: u64,
    addr: u64,
    len: u32,
    rw_flags: u32,
    user_data: u64,
    /// Word of the SQE with the registered buffer, the personality, and fields that reads and writes do not use.
    buffer: u64,
    rest: [u64; 2],
}

const _: () = assert!(size_of::<RwSqe>() == size_of::<Entry>() && align_of::<RwSqe>() == align_of::<Entry>());

impl RwSqe {
    /// Returns this operation with another offset, memory, length and `user_data`.
    #[inline(always)]
    pub(super) fn of(self, offset: u64, base: usize, len: u32, user_data: u64) -> RwSqe {
        RwSqe { offset, addr: base as u64, len, user_data, ..self }
    }

    /// Returns this operation with another registered buffer; it must use one already.
    #[inline(always)]
    pub(super) fn in_buffer(self, slot: u16) -> RwSqe {
        RwSqe { buffer: slot.into(), ..self }
    }
}

impl From<Entry> for RwSqe {
    fn from(entry: Entry) -> RwSqe {
        // SAFETY: both are the 64 bytes of one `struct io_uring_sqe`, of integers alone.
        unsafe { std::mem::transmute::<Entry, RwSqe>(entry) }
    }
}

/// `struct io_uring_params` of the UAPI, as far as the offsets.
#[repr(C)]
struct Params {
    sq_entries: u32,
    cq_entries: u32,
    before_offsets: [u32; 8],
    sq_off: SqOffsets,
    cq_off: CqOffsets,
}

#[repr(C)]
struct SqOffsets {
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    flags: u32,
    dropped: u32,
    array: u32,
    resv: u32,
    user_addr: u64,
}

#[repr(C)]
struct CqOffsets {
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    overflow: u32,
    cqes: u32,
    flags: u32,
    resv: u32,
    user_addr: u64,
}

const _: () = assert!(size_of::<Params>() == size_of::<Parameters>() && align_of::<Params>() == 8);

/// A mapping of the ring's descriptor.
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

impl Mapping {
    fn new(fd: RawFd, len: usize, offset: i64) -> Result<Mapping, i32> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, fd, offset) };
        match NonNull::new(start.cast::<u8>()) {
            Some(start) if start.as_ptr().cast() != libc::MAP_FAILED => Ok(Mapping { start, len }),
            _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::ENOMEM)),
        }
    }

    /// Returns a pointer to the `T` that lies at `offset` by the kernel's description of the memory (R2).
    fn at<T>(&self, offset: u32) -> *mut T {
        debug_assert!(offset as usize + size_of::<T>() <= self.len, "R2: the kernel's offsets lie inside");
        self.start.as_ptr().wrapping_add(offset as usize).cast()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `new`; the pointers into it are dropped with the queues.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// The two queues of a ring, as mapped into this process.
pub(super) struct Rings {
    sqes: *mut RwSqe,
    sq_mask: u32,
    /// Count of entries written.
    sq_tail: u32,
    /// Count of entries taken by the kernel, as of the last [`Rings::look`].
    sq_head: u32,
    cq_mask: u32,
    /// Count of completions taken.
    cq_head: u32,
    cqes: *const Completed,
    sq_tail_word: *const AtomicU32,
    sq_head_word: *const AtomicU32,
    sq_flags_word: *const AtomicU32,
    cq_head_word: *const AtomicU32,
    cq_tail_word: *const AtomicU32,
    _rings: Mapping,
    _sqes: Mapping,
}

impl Rings {
    /// Maps the queues of a ring without submissions so far. Returns the errno if the kernel does not map them.
    pub(super) fn new(ring: &IoUring) -> Result<Rings, i32> {
        // SAFETY: `Parameters` is a transparent wrapper of `struct io_uring_params`, as `Params` is (asserted above).
        let params = unsafe { &*std::ptr::from_ref(ring.params()).cast::<Params>() };
        let Params { sq_entries, cq_entries, ref sq_off, ref cq_off, .. } = *params;
        // The array is last in the memory of both queues; without an array, the CQEs are.
        let sq_end = sq_off.array as usize + sq_entries as usize * size_of::<u32>();
        let cq_end = cq_off.cqes as usize + cq_entries as usize * size_of::<Completed>();
        let rings = Mapping::new(ring.as_raw_fd(), sq_end.max(cq_end), OFF_SQ_RING)?;
        let sqes = Mapping::new(ring.as_raw_fd(), sq_entries as usize * size_of::<Entry>(), OFF_SQES)?;
        // SAFETY: R2; the kernel does not change the masks.
        let (sq_mask, cq_mask) =
            unsafe { (rings.at::<u32>(sq_off.ring_mask).read(), rings.at::<u32>(cq_off.ring_mask).read()) };
        debug_assert!(sq_mask + 1 == sq_entries && cq_mask + 1 == cq_entries, "sizes are powers of two");
        Ok(Rings {
            sqes: sqes.at(0),
            sq_mask,
            sq_tail: 0,
            sq_head: 0,
            cq_mask,
            cq_head: 0,
            cqes: rings.at(cq_off.cqes),
            sq_tail_word: rings.at(sq_off.tail),
            sq_head_word: rings.at(sq_off.head),
            sq_flags_word: rings.at(sq_off.flags),
            cq_head_word: rings.at(cq_off.head),
            cq_tail_word: rings.at(cq_off.tail),
            _rings: rings,
            _sqes: sqes,
        })
    }

    /// Returns the number of entries written that the kernel has not taken.
    #[inline(always)]
    pub(super) fn pending(&self) -> u32 {
        self.sq_tail.wrapping_sub(self.sq_head)
    }

    /// Returns the number of entries that can be written.
    #[inline(always)]
    pub(super) fn space(&self) -> u32 {
        self.sq_mask + 1 - self.pending()
    }

    /// Writes one operation; returns false if there is no room.
    #[inline]
    pub(super) fn push(&mut self, entry: Entry) -> bool {
        self.push_rw(entry.into())
    }

    /// Writes one read or write; returns false if there is no room. The memory that `entry` names is guaranteed by the
    /// caller of the function of `KernelRing` that made it.
    #[inline(always)]
    pub(super) fn push_rw(&mut self, entry: RwSqe) -> bool {
        let room = self.space() != 0;
        if room {
            // SAFETY: R2 and R4.
            unsafe { self.place(self.sq_tail).write(entry) };
            self.sq_tail = self.sq_tail.wrapping_add(1);
        }
        room
    }

    /// Returns the address of entry `index`; an `RwSqe` is an `Entry` (asserted above).
    #[inline(always)]
    fn place(&self, index: u32) -> *mut RwSqe {
        self.sqes.wrapping_add((index & self.sq_mask) as usize)
    }

    /// Writes the operation that `entry` returns for each of `items`, until it returns `None` or there is no room.
    /// Returns the number written.
    #[inline(always)]
    pub(super) fn push_run<T>(&mut self, items: &[T], mut entry: impl FnMut(&T) -> Option<RwSqe>) -> u32 {
        let items = &items[..items.len().min(self.space() as usize)];
        let first = self.sq_tail;
        let mut tail = first;
        for item in items {
            let Some(entry) = entry(item) else { break };
            // SAFETY: R2 and R4.
            unsafe { self.place(tail).write(entry) };
            tail = tail.wrapping_add(1);
        }
        self.sq_tail = tail;
        tail.wrapping_sub(first)
    }

    /// Makes the written entries visible to the kernel; an enter follows.
    #[inline(always)]
    pub(super) fn publish(&mut self) {
        // SAFETY: R2. Release: the entries before the tail; pairs with the kernel's acquire in io_uring_enter.
        unsafe { (*self.sq_tail_word).store(self.sq_tail, Ordering::Release) };
    }

    /// Reads the SQ head after an enter. Returns the number of entries that the kernel has taken since the last call.
    #[inline(always)]
    pub(super) fn look(&mut self) -> u32 {
        let before = self.sq_head;
        // SAFETY: R2. Acquire: the kernel is done with the entries before its head; pairs with its release.
        self.sq_head = unsafe { (*self.sq_head_word).load(Ordering::Acquire) };
        self.sq_head.wrapping_sub(before)
    }

    /// Returns true if the kernel has completions that only an enter delivers: they wait to be run, or found the CQ
    /// full.
    #[inline]
    pub(super) fn has_kernel_work(&self) -> bool {
        // SAFETY: R2. Relaxed: a hint for the enter that follows, which orders everything.
        unsafe { (*self.sq_flags_word).load(Ordering::Relaxed) & (SQ_TASKRUN | SQ_CQ_OVERFLOW) != 0 }
    }

    /// Returns the number of completions that wait to be taken.
    #[inline(always)]
    pub(super) fn ready(&self) -> u32 {
        // SAFETY: R2. Acquire: the entries before the tail; pairs with the kernel's release of it.
        unsafe { (*self.cq_tail_word).load(Ordering::Acquire) }.wrapping_sub(self.cq_head)
    }

    /// Returns the waiting completions that are contiguous in memory, from the oldest on. [`Rings::took`] frees their
    /// places.
    #[inline(always)]
    pub(super) fn row(&self) -> &[Completed] {
        let ready = self.ready();
        let first = self.cq_head & self.cq_mask;
        let many = ready.min(self.cq_mask + 1 - first);
        // SAFETY: R2; the entries lie between head and tail, so the kernel has written them, and it leaves them alone
        // until the head has passed them, which takes `&mut self`.
        unsafe { std::slice::from_raw_parts(self.cqes.add(first as usize), many as usize) }
    }

    /// Frees the places of the `many` oldest completions for the kernel.
    #[inline(always)]
    pub(super) fn took(&mut self, many: u32) {
        self.cq_head = self.cq_head.wrapping_add(many);
        // SAFETY: R2. Release: the entries are read before the kernel may write them; pairs with its acquire.
        unsafe { (*self.cq_head_word).store(self.cq_head, Ordering::Release) };
    }
}
