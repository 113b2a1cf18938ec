//! Ring memory: the submission and the completion queue in the kernel's layout, and every acquire and release on them.
//!
//! Owns one block of memory with the contents of the kernel's `struct io_rings` and SQE array: heads and tails on cache
//! lines of their own, masks, sizes, flags, the overflow and dropped counters, the index array, SQEs and CQEs.
//! [`Offsets`] gives their positions, as `io_sqring_offsets` and `io_cqring_offsets` do, so that another program can
//! later map the block.
//!
//! Invariants:
//! - I1: indices count up and wrap at 2^32; an entry is `index & mask`; sizes are powers of two.
//! - I2: SQ: the producer writes SQE and array entry, then releases `tail`; the consumer acquires `tail`, copies the
//!   SQE, then releases `head`. An SQE is copied once and never read again: its memory may change.
//! - I3: CQ: the producer writes CQEs, then releases `tail` once a batch; the consumer acquires `tail`, reads, then
//!   releases `head`. The producer never writes an entry that the head has not passed.
//! - I4: an index read from the array may have any value; it is checked.
//! - I5: this thread is producer and consumer of both queues. It never reads its own heads and tails back from the
//!   memory, and ignores what another program wrote there. A queue whose other end is elsewhere needs the acquiring
//!   loads of I2 and I3 there.
#![allow(unsafe_code)] // Memory that another program may map is accessed by address.

use std::ptr::NonNull;

use sheave_base::buf::{Buf, BufError};
use sheave_base::sync::atomic::{AtomicU32, Ordering};

use crate::cqe::Cqe;
use crate::sqe::Sqe;

const LINE: usize = 64;

/// Positions of the words that every batch writes. [`Offsets`] has the rest.
const SQ_HEAD: usize = 0;
const SQ_TAIL: usize = LINE;
const CQ_HEAD: usize = 2 * LINE;
const CQ_TAIL: usize = 3 * LINE;

/// Byte offsets within the ring memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Offsets {
    /// The index of the first SQE that the ring has not taken.
    pub sq_head: usize,
    /// The index after the last SQE that was pushed.
    pub sq_tail: usize,
    /// Number of SQEs, less one.
    pub sq_ring_mask: usize,
    /// Number of SQEs.
    pub sq_ring_entries: usize,
    /// Flags of the ring: [`SQ_CQ_OVERFLOW`](crate::sqe::SQ_CQ_OVERFLOW).
    pub sq_flags: usize,
    /// Number of SQEs with an invalid index.
    pub sq_dropped: usize,
    /// Indices of SQEs.
    pub sq_array: usize,
    /// The index of the first CQE that was not read.
    pub cq_head: usize,
    /// The index after the last CQE that was posted.
    pub cq_tail: usize,
    /// Number of CQEs, less one.
    pub cq_ring_mask: usize,
    /// Number of CQEs.
    pub cq_ring_entries: usize,
    /// Number of lost CQEs; always 0.
    pub cq_overflow: usize,
    /// The CQEs.
    pub cqes: usize,
    /// The SQEs.
    pub sqes: usize,
    /// Total number of bytes.
    pub total: usize,
}

impl Offsets {
    /// Computes the layout for queues of these sizes (powers of two).
    pub fn new(sq_entries: u32, cq_entries: u32) -> Offsets {
        let round = |at: usize| at.next_multiple_of(LINE);
        let fixed = 4 * LINE;
        let cqes = fixed + LINE;
        let sq_array = round(cqes + cq_entries as usize * size_of::<Cqe>());
        let sqes = round(sq_array + sq_entries as usize * 4).next_multiple_of(4096);
        Offsets {
            sq_head: SQ_HEAD,
            sq_tail: SQ_TAIL,
            cq_head: CQ_HEAD,
            cq_tail: CQ_TAIL,
            sq_ring_mask: fixed,
            cq_ring_mask: fixed + 4,
            sq_ring_entries: fixed + 8,
            cq_ring_entries: fixed + 12,
            sq_dropped: fixed + 16,
            sq_flags: fixed + 20,
            cq_overflow: fixed + 28,
            cqes,
            sq_array,
            sqes,
            total: sqes + sq_entries as usize * size_of::<Sqe>(),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Queues {
    memory: Buf,
    at: Offsets,
    sqes: NonNull<Sqe>,
    array: NonNull<AtomicU32>,
    cqes: NonNull<Cqe>,
    sq_mask: u32,
    cq_mask: u32,
    /// The producer's SQ tail. Ahead of the published tail while SQEs are filled.
    sq_fill: u32,
    sq_published: u32,
    /// The consumer's SQ head.
    sq_head: u32,
    /// The producer's CQ tail. Ahead of the published tail within a batch.
    cq_tail: u32,
    cq_published: u32,
    /// The consumer's CQ head.
    cq_head: u32,
}

impl Queues {
    pub(crate) fn new(sq_entries: u32, cq_entries: u32) -> Result<Queues, BufError> {
        let at = Offsets::new(sq_entries, cq_entries);
        let mut memory = Buf::zeroed(at.total, 4096)?;
        let base = memory.as_mut_ptr();
        // SAFETY: the offsets lie within `memory`, which `Offsets::new` sized, and are aligned for their types; the
        // memory moves with `Queues` by pointer only, so the addresses stay.
        let (sqes, array, cqes) = unsafe {
            (
                NonNull::new_unchecked(base.add(at.sqes).cast()),
                NonNull::new_unchecked(base.add(at.sq_array).cast()),
                NonNull::new_unchecked(base.add(at.cqes).cast()),
            )
        };
        let queues = Queues {
            memory,
            at,
            sqes,
            array,
            cqes,
            sq_mask: sq_entries - 1,
            cq_mask: cq_entries - 1,
            sq_fill: 0,
            sq_published: 0,
            sq_head: 0,
            cq_tail: 0,
            cq_published: 0,
            cq_head: 0,
        };
        queues.word(at.sq_ring_mask).store(sq_entries - 1, Ordering::Relaxed);
        queues.word(at.cq_ring_mask).store(cq_entries - 1, Ordering::Relaxed);
        queues.word(at.sq_ring_entries).store(sq_entries, Ordering::Relaxed);
        queues.word(at.cq_ring_entries).store(cq_entries, Ordering::Relaxed);
        for i in 0..sq_entries {
            // The identity, as in programs without indirection. Relaxed: nobody else sees it yet.
            queues.array_entry(i).store(i, Ordering::Relaxed);
        }
        Ok(queues)
    }

    /// Returns the memory and the positions in it.
    #[cfg(any(test, feature = "raw"))]
    pub(crate) fn memory(&self) -> (&Buf, Offsets) {
        (&self.memory, self.at)
    }

    #[inline]
    fn word(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(offset.is_multiple_of(4) && offset < self.at.total, "offsets are this layout's");
        // SAFETY: within `memory`, aligned (`Offsets::new`), only ever accessed as an atomic.
        unsafe { &*self.memory.as_ptr().add(offset).cast::<AtomicU32>() }
    }

    /// Publishes a head or tail, one of the words that every batch writes, to the other end of the queue.
    #[inline(always)]
    fn publish<const WORD: usize>(&self, value: u32) {
        const { assert!(WORD <= CQ_TAIL && WORD.is_multiple_of(LINE)) }
        // SAFETY: one of the first words of `memory`, aligned, only ever accessed as an atomic.
        let word = unsafe { &*self.memory.as_ptr().add(WORD).cast::<AtomicU32>() };
        // Release: the entries before a tail are written, those before a head are copied; pairs with the acquire of the
        // program at the other end of the queue.
        word.store(value, Ordering::Release);
    }

    #[inline]
    fn array_entry(&self, index: u32) -> &AtomicU32 {
        // SAFETY: masked to the size of the array (I1).
        unsafe { &*self.array.as_ptr().add((index & self.sq_mask) as usize) }
    }

    #[inline]
    pub(crate) fn sq_space(&self) -> u32 {
        (self.sq_mask + 1).wrapping_sub(self.sq_fill.wrapping_sub(self.sq_head))
    }

    /// Returns the position of the SQE that is taken next. Positions do not wrap at the size of the queue.
    #[inline(always)]
    pub(crate) fn sq_at(&self) -> u32 {
        self.sq_head
    }

    /// Returns the position of the SQE that is filled next.
    #[inline(always)]
    pub(crate) fn sq_filled(&self) -> u32 {
        self.sq_fill
    }

    pub(crate) fn sq_entries(&self) -> u32 {
        self.sq_mask + 1
    }

    pub(crate) fn cq_entries(&self) -> u32 {
        self.cq_mask + 1
    }

    /// Returns the next free SQE, to be filled, and its index. [`Queues::sq_publish`] publishes it.
    #[inline(always)]
    pub(crate) fn sq_next(&mut self) -> Option<(u32, &mut Sqe)> {
        if self.sq_fill.wrapping_sub(self.sq_head) > self.sq_mask {
            return None;
        }
        // The array remains the identity: this producer fills SQEs in order.
        let index = self.sq_fill & self.sq_mask;
        self.sq_fill = self.sq_fill.wrapping_add(1);
        // SAFETY: masked index; the consumer does not read it before the tail is published, and this borrow of
        // `self` has ended by then.
        Some((index, unsafe { &mut *self.sqes.as_ptr().add(index as usize) }))
    }

    /// Publishes the filled SQEs. Returns the number of SQEs not taken.
    #[inline(always)]
    pub(crate) fn sq_publish(&mut self) -> u32 {
        let (tail, head) = (self.sq_fill, self.sq_head);
        self.sq_published = tail;
        self.publish::<SQ_TAIL>(tail);
        tail.wrapping_sub(head)
    }

    /// Returns the number of SQEs that are published and not taken.
    #[inline(always)]
    pub(crate) fn sq_pending(&self) -> u32 {
        self.sq_published.wrapping_sub(self.sq_head)
    }

    /// Copies the next SQE and returns its index. `None` if the entry's index is out of range, which counts as dropped.
    #[inline]
    pub(crate) fn sq_take(&mut self, into: &mut Sqe) -> Option<u32> {
        let index = self.array_entry(self.sq_head).load(Ordering::Relaxed); // Published by the tail (I2).
        self.sq_head = self.sq_head.wrapping_add(1);
        if index > self.sq_mask {
            self.sq_drop();
            return None;
        }
        // SAFETY: index checked (I4); any bytes are a valid `Sqe`; `into` is a place of its own. By reference and not
        // by value: a copy of a copy would wait for the stores of the first.
        unsafe { std::ptr::copy_nonoverlapping(self.sqes.as_ptr().add(index as usize), into, 1) };
        Some(index)
    }

    /// Returns SQEs that are contiguous in memory, at most `most`, from the one `ahead` places after the next. Does not
    /// take them.
    #[inline(always)]
    pub(crate) fn sq_row(&self, ahead: u32, most: u32) -> &[Sqe] {
        let first = self.sq_head.wrapping_add(ahead) & self.sq_mask;
        let many = most.min(self.sq_mask + 1 - first);
        // SAFETY: within the SQEs; any bytes are a valid `Sqe`; nothing writes them while they are looked at, for their
        // producer is this thread (I5), which holds `self`.
        unsafe { std::slice::from_raw_parts(self.sqes.as_ptr().add(first as usize), many as usize) }
    }

    /// Returns the next SQE. If none is published, the contents are old.
    #[inline(always)]
    pub(crate) fn sq_peek(&self) -> &Sqe {
        let first = self.sq_head & self.sq_mask;
        // SAFETY: as in `sq_row`.
        unsafe { &*self.sqes.as_ptr().add(first as usize) }
    }

    /// Takes `count` SQEs that were read in place.
    #[inline]
    pub(crate) fn sq_skip(&mut self, count: u32) {
        self.sq_head = self.sq_head.wrapping_add(count);
    }

    #[cold]
    fn sq_drop(&self) {
        let dropped = self.word(self.at.sq_dropped);
        // Relaxed: a counter with one writer.
        dropped.store(dropped.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Returns the taken entries to the producer.
    #[inline(always)]
    pub(crate) fn sq_advance(&mut self) {
        self.publish::<SQ_HEAD>(self.sq_head);
    }

    #[inline(always)]
    pub(crate) fn cq_has_room(&self) -> bool {
        self.cq_tail.wrapping_sub(self.cq_head) <= self.cq_mask
    }

    /// Writes CQEs into contiguous free entries, at most `most`, until `cqe_at` returns `None`. Returns the number
    /// written. Calls `cqe_at` with 0, 1, 2 ..., once for each, and not again after `None`.
    #[inline(always)]
    pub(crate) fn cq_fill(&mut self, most: usize, mut cqe_at: impl FnMut(usize) -> Option<Cqe>) -> u32 {
        let first = self.cq_tail & self.cq_mask;
        let free = (self.cq_mask + 1).wrapping_sub(self.cq_tail.wrapping_sub(self.cq_head));
        let many = (free.min(self.cq_mask + 1 - first) as usize).min(most);
        // SAFETY: within the CQEs, and free (I3): the consumer does not look at them before the tail is published.
        let row = unsafe { std::slice::from_raw_parts_mut(self.cqes.as_ptr().add(first as usize), many) };
        let mut filled = 0;
        for entry in row {
            let Some(cqe) = cqe_at(filled) else { break };
            *entry = cqe;
            filled += 1;
        }
        self.cq_tail = self.cq_tail.wrapping_add(filled as u32);
        filled as u32
    }

    /// Writes a CQE into the CQ, which must have room. Returns the index of the entry.
    #[inline(always)]
    pub(crate) fn cq_push(&mut self, cqe: Cqe) -> u32 {
        debug_assert!(self.cq_has_room(), "I3: the consumer has not read it");
        let index = self.cq_tail & self.cq_mask;
        // SAFETY: masked index; the entry is free (`cq_has_room` was checked, I3). Field by field: the fields are in
        // registers; building the CQE in memory first would stall on those stores.
        unsafe {
            let entry = self.cqes.as_ptr().add(index as usize);
            (*entry).user_data = cqe.user_data;
            (*entry).res = cqe.res;
            (*entry).flags = cqe.flags;
        }
        self.cq_tail = self.cq_tail.wrapping_add(1);
        index
    }

    /// Replaces the user data of a CQE that is published and not consumed by the result of `of`.
    pub(crate) fn cq_patch(&mut self, head: u32, of: impl FnOnce(u64) -> u64) {
        debug_assert!(self.cq_published.wrapping_sub(head) as i32 > 0, "I3: not written yet");
        // SAFETY: masked index; written, and both ends of the CQ are this thread, which holds `self` (I5).
        let cqe = unsafe { &mut *self.cqes.as_ptr().add((head & self.cq_mask) as usize) };
        cqe.user_data = of(cqe.user_data);
    }

    /// Returns the number of CQEs written so far, modulo 2^32.
    #[inline(always)]
    pub(crate) fn cq_tail(&self) -> u32 {
        self.cq_tail
    }

    /// Publishes the written CQEs. Returns the number of new ones.
    #[inline]
    pub(crate) fn cq_publish(&mut self) -> u32 {
        let new = self.cq_tail.wrapping_sub(self.cq_published);
        if new != 0 {
            self.cq_published = self.cq_tail;
            self.publish::<CQ_TAIL>(self.cq_tail);
        }
        new
    }

    /// Publishes the written CQEs, without a test for new ones. Returns the number of CQEs not consumed.
    #[inline(always)]
    pub(crate) fn cq_publish_new(&mut self) -> u32 {
        let (tail, head) = (self.cq_tail, self.cq_head);
        self.cq_published = tail;
        self.publish::<CQ_TAIL>(tail);
        tail.wrapping_sub(head)
    }

    /// Returns the number of CQEs published and not consumed.
    #[inline(always)]
    pub(crate) fn cq_ready(&self) -> u32 {
        self.cq_published.wrapping_sub(self.cq_head)
    }

    #[inline(always)]
    pub(crate) fn cq_head(&self) -> u32 {
        self.cq_head
    }

    /// Returns `many` published entries from `head` on: those up to the end of the CQ, and the rest from its beginning.
    #[inline(always)]
    pub(crate) fn cq_rows(&self, head: u32, many: u32) -> (&[Cqe], &[Cqe]) {
        debug_assert!(self.cq_published.wrapping_sub(head) >= many, "I3: not written yet");
        let first = head & self.cq_mask;
        let row = many.min(self.cq_mask + 1 - first);
        // SAFETY: within the CQEs, because there are at most as many as the CQ has; written and published, and the
        // producer does not write them until `cq_advance` (I3).
        let entries = |from: u32, len: u32| unsafe {
            std::slice::from_raw_parts(self.cqes.as_ptr().add(from as usize), len as usize)
        };
        (entries(first, row), entries(0, many - row))
    }

    /// Reads the published entry at `head`.
    #[inline]
    pub(crate) fn cq_read(&self, head: u32) -> Cqe {
        let index = head & self.cq_mask;
        // SAFETY: masked index; written, and published by the tail that covers it (I3). Field by field, as it was
        // written: a load of the whole would wait until the stores of the fields have left the processor.
        let cqe = unsafe { &*self.cqes.as_ptr().add(index as usize) };
        Cqe { user_data: cqe.user_data, res: cqe.res, flags: cqe.flags }
    }

    /// Returns consumed entries to the producer.
    #[inline(always)]
    pub(crate) fn cq_advance(&mut self, head: u32) {
        self.cq_head = head;
        self.publish::<CQ_HEAD>(head);
    }

    /// Sets or clears a flag in the SQ ring.
    pub(crate) fn set_sq_flag(&self, flag: u32, on: bool) {
        let flags = self.word(self.at.sq_flags);
        // Relaxed: one writer; a reader that sees the flag then calls the ring.
        let old = flags.load(Ordering::Relaxed);
        flags.store(if on { old | flag } else { old & !flag }, Ordering::Relaxed);
    }

    pub(crate) fn sq_flags(&self) -> u32 {
        self.word(self.at.sq_flags).load(Ordering::Relaxed) // See `set_sq_flag`.
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
