//! The memory that the kernel receives into, and the list from which it takes buffers.
//!
//! Owns the state of each buffer: with the kernel or not. The list is shared with the kernel, which reads it while the
//! ring lives.
#![allow(unsafe_code)] // a list shared with the kernel

use io_uring::types::BufRingEntry;
use sheave_base::buf::Buf;
use sheave_base::sync::atomic::{AtomicU16, Ordering};

/// Receive buffers of one group. The kernel chooses one of them for each receive.
pub(super) struct RecvBuffers {
    /// List of free buffers, shared with the kernel.
    ring: Buf,
    memory: Buf,
    each: u32,
    mask: u16,
    tail: u16,
    /// True for buffers in the list, by number.
    with_kernel: Vec<bool>,
}

impl RecvBuffers {
    /// Makes buffers of `each` bytes, none of them in the list, which has room for `count`.
    pub(super) fn new(ring: Buf, memory: Buf, each: u32, count: u16) -> RecvBuffers {
        RecvBuffers { ring, memory, each, mask: count - 1, tail: 0, with_kernel: vec![false; usize::from(count)] }
    }

    /// Returns the address of the list, for the kernel.
    pub(super) fn address(&mut self) -> u64 {
        self.ring.as_mut_ptr() as u64
    }

    /// Records that the kernel has used buffer `number`. Returns its first `len` bytes; `None` for an invalid number.
    pub(super) fn lend(&mut self, number: u16, len: usize) -> Option<(*const u8, usize)> {
        *self.with_kernel.get_mut(usize::from(number))? = false;
        let start = self.memory.as_ptr().wrapping_add(usize::from(number) * self.each as usize);
        Some((start, len.min(self.each as usize)))
    }

    /// Adds a buffer to the list, unless it is there.
    pub(super) fn take_back(&mut self, number: u16) {
        if self.with_kernel.get(usize::from(number)) == Some(&false) {
            self.give(number);
        }
    }

    /// Appends a buffer to the list.
    pub(super) fn give(&mut self, number: u16) {
        let start = self.memory.as_mut_ptr().wrapping_add(usize::from(number) * self.each as usize);
        let at = usize::from(self.tail & self.mask);
        let entries = self.ring.as_mut_ptr().cast::<BufRingEntry>();
        // SAFETY: `at` is below the number of entries, which the list has memory for; the kernel reads an entry after
        // the tail has passed it. Only its fields are written: the tail lies in the rest of the first entry.
        let entry = unsafe { &mut *entries.wrapping_add(at) };
        entry.set_addr(start as u64);
        entry.set_len(self.each);
        entry.set_bid(number);
        self.tail = self.tail.wrapping_add(1);
        self.with_kernel[usize::from(number)] = true;
        // SAFETY: the list has at least one entry, which was zeroed when it was made.
        let tail = unsafe { BufRingEntry::tail(entries) }.cast::<AtomicU16>();
        // SAFETY: an aligned word of the list, which is ours; the kernel reads it as it does the tail of a queue.
        // Release: the entry before the tail; pairs with the kernel's acquire when it picks a buffer.
        unsafe { (*tail).store(self.tail, Ordering::Release) };
    }
}
