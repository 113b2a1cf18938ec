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
mod tests {
    use std::collections::VecDeque;
    use std::mem::offset_of;

    use super::*;
    use crate::req::Req;
    use crate::sqe::SQ_CQ_OVERFLOW;

    /// A deterministic stream of small numbers.
    struct Dice(u64);

    impl Dice {
        fn below(&mut self, n: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % n
        }
    }

    fn sqe(user_data: u64) -> Sqe {
        Sqe { user_data, ..Sqe::default() }
    }

    fn cqe(user_data: u64) -> Cqe {
        Cqe { user_data, res: -(user_data as i32), flags: 0 }
    }

    #[test]
    fn entries_have_the_layout_of_the_uapi() {
        assert_eq!((size_of::<Sqe>(), size_of::<Cqe>()), (64, 16));
        let sqe = [
            (offset_of!(Sqe, opcode), 0),
            (offset_of!(Sqe, flags), 1),
            (offset_of!(Sqe, ioprio), 2),
            (offset_of!(Sqe, fd), 4),
            (offset_of!(Sqe, off), 8),
            (offset_of!(Sqe, addr), 16),
            (offset_of!(Sqe, len), 24),
            (offset_of!(Sqe, op_flags), 28),
            (offset_of!(Sqe, user_data), 32),
            (offset_of!(Sqe, buf_index), 40),
            (offset_of!(Sqe, personality), 42),
            (offset_of!(Sqe, splice_fd_in), 44),
            (offset_of!(Sqe, addr3), 48),
            (offset_of!(Sqe, pad2), 56),
        ];
        assert!(sqe.iter().all(|(ours, uapi)| ours == uapi), "{sqe:?}");
        let cqe = [offset_of!(Cqe, user_data), offset_of!(Cqe, res), offset_of!(Cqe, flags)];
        assert_eq!(cqe, [0, 8, 12]);
    }

    #[test]
    fn a_request_in_flight_takes_at_most_640_bytes() {
        let slot_and_kiocb = size_of::<Req>();
        assert!(
            offset_of!(Req, kiocb) + size_of::<sheave_iomap::Kiocb>() <= slot_and_kiocb,
            "the slot holds the kiocb"
        );
        let bio = size_of::<sheave_blk::bio::Bio>();
        let block_request = size_of::<sheave_blk::request::Request>();
        let cold = size_of::<crate::core::Cold>();
        let all = slot_and_kiocb + cold + bio + block_request;
        assert!(all <= 640, "slot {slot_and_kiocb} (its cold part {cold}), bio {bio}, block request {block_request}");
    }

    /// Returns `sq_off` and `cq_off` of a kernel ring of these sizes, in the order of the UAPI; `None` if io_uring is
    /// forbidden.
    fn kernel_offsets(sq: u32, cq: u32) -> Option<([u32; 7], [u32; 6])> {
        const SETUP_CQSIZE: u32 = 1 << 3;
        // `struct io_uring_params`: sizes and flags in 10 words, then two structures of 10.
        let mut params = [0_u32; 30];
        (params[1], params[2]) = (cq, SETUP_CQSIZE);
        // SAFETY: the array is as long and as aligned as the structure.
        let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, sq, params.as_mut_ptr()) };
        if fd < 0 {
            return None;
        }
        // SAFETY: it was opened above and is nobody else's.
        unsafe { libc::close(fd as i32) };
        Some((params[10..17].try_into().ok()?, params[20..26].try_into().ok()?))
    }

    /// Returns the offsets in the kernel's `struct io_rings` with heads and tails `line` bytes apart: a cache line in
    /// the first kernels with rings (and here), a word in later ones. All other fields stayed in place.
    fn uapi_offsets(line: u32, cq: u32) -> ([u32; 7], [u32; 6]) {
        let fixed = 4 * line;
        let cqes = (fixed + 32).next_multiple_of(64);
        let array = (cqes + 16 * cq).next_multiple_of(64);
        let sq = [0, line, fixed, fixed + 8, fixed + 20, fixed + 16, array];
        (sq, [2 * line, 3 * line, fixed + 4, fixed + 12, fixed + 28, cqes])
    }

    #[test]
    fn ring_memory_has_the_kernels_layout() {
        for (sq, cq) in [(1, 2), (8, 16), (128, 256), (256, 4096)] {
            let at = Offsets::new(sq, cq);
            let ours_sq =
                [at.sq_head, at.sq_tail, at.sq_ring_mask, at.sq_ring_entries, at.sq_flags, at.sq_dropped, at.sq_array];
            let ours_cq = [at.cq_head, at.cq_tail, at.cq_ring_mask, at.cq_ring_entries, at.cq_overflow, at.cqes];
            let ours = (ours_sq.map(|at| at as u32), ours_cq.map(|at| at as u32));
            assert_eq!(ours, uapi_offsets(64, cq), "SQ of {sq}, CQ of {cq}");
            let Some(kernel) = kernel_offsets(sq, cq) else {
                return sheave_testkit::skip(
                    "io_uring is not allowed here, so the kernel cannot be asked for its layout",
                );
            };
            assert_eq!(kernel, uapi_offsets(kernel.0[1], cq), "SQ of {sq}, CQ of {cq}");
        }
    }

    #[test]
    fn offsets_are_aligned_and_do_not_overlap() {
        for (sq, cq) in [(1, 1), (1, 2), (2, 64), (64, 64), (4096, 8192), (32768, 65536)] {
            let at = Offsets::new(sq, cq);
            let words = [at.sq_head, at.sq_tail, at.cq_head, at.cq_tail, at.sq_ring_mask, at.cq_ring_mask];
            let more = [at.sq_ring_entries, at.cq_ring_entries, at.sq_dropped, at.sq_flags, at.cq_overflow];
            let mut ranges: Vec<_> = words.iter().chain(&more).map(|&start| (start, start + 4)).collect();
            ranges.push((at.cqes, at.cqes + cq as usize * 16));
            ranges.push((at.sq_array, at.sq_array + sq as usize * 4));
            ranges.push((at.sqes, at.sqes + sq as usize * 64));
            ranges.sort_unstable();
            assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{ranges:?}");
            assert_eq!(ranges.last().expect("not empty").1, at.total);
            for line in [at.sq_head, at.sq_tail, at.cq_head, at.cq_tail, at.cqes, at.sq_array] {
                assert_eq!(line % LINE, 0, "a cache line of its own");
            }
            assert_eq!(at.sqes % 4096, 0, "SQEs are mapped by themselves");
        }
    }

    #[test]
    fn the_offsets_find_their_words_in_memory() {
        let mut queues = Queues::new(4, 8).unwrap();
        let read = |queues: &Queues, at: usize| {
            let (memory, _) = queues.memory();
            u32::from_ne_bytes(memory[at..at + 4].try_into().expect("4 bytes"))
        };
        let at = Offsets::new(4, 8);
        assert_eq!(read(&queues, at.sq_ring_mask), 3);
        assert_eq!(read(&queues, at.cq_ring_mask), 7);
        assert_eq!(read(&queues, at.sq_ring_entries), 4);
        assert_eq!(read(&queues, at.cq_ring_entries), 8);
        for index in 0..4 {
            assert_eq!(read(&queues, at.sq_array + 4 * index), index as u32);
        }
        *queues.sq_next().unwrap().1 = sqe(0x1122_3344);
        assert_eq!(read(&queues, at.sq_tail), 0, "filled, not published");
        queues.sq_publish();
        assert_eq!(read(&queues, at.sq_tail), 1);
        assert_eq!(read(&queues, at.sqes + 32), 0x1122_3344);
        queues.sq_take(&mut Sqe::default()).unwrap();
        assert_eq!(read(&queues, at.sq_head), 0, "taken, not given back");
        queues.sq_advance();
        assert_eq!(read(&queues, at.sq_head), 1);
        queues.cq_push(cqe(77));
        assert_eq!((read(&queues, at.cq_tail), read(&queues, at.cqes)), (0, 77));
        assert_eq!(queues.cq_publish(), 1);
        assert_eq!(read(&queues, at.cq_tail), 1);
        queues.cq_advance(1);
        assert_eq!(read(&queues, at.cq_head), 1);
        queues.set_sq_flag(SQ_CQ_OVERFLOW, true);
        assert_eq!(read(&queues, at.sq_flags), SQ_CQ_OVERFLOW);
        queues.set_sq_flag(SQ_CQ_OVERFLOW, false);
        assert_eq!((read(&queues, at.sq_flags), queues.sq_flags()), (0, 0));
        assert_eq!(read(&queues, at.cq_overflow), 0);
    }

    /// Moves both queues to an index, as if `to` entries had passed.
    fn wind(queues: &mut Queues, to: u32) {
        (queues.sq_fill, queues.sq_published, queues.sq_head) = (to, to, to);
        (queues.cq_tail, queues.cq_published, queues.cq_head) = (to, to, to);
        for at in [queues.at.sq_head, queues.at.sq_tail, queues.at.cq_head, queues.at.cq_tail] {
            queues.word(at).store(to, Ordering::Relaxed);
        }
    }

    /// Offers some CQEs at once, numbered from `next` on. Returns the number written.
    fn fill(queues: &mut Queues, dice: &mut Dice, cq: &mut VecDeque<u64>, next: u64) -> u64 {
        let (most, offered) = (dice.below(8), dice.below(8));
        let (mut asked, offered) = (0, offered.min(most));
        let filled = u64::from(queues.cq_fill(most as usize, |at| {
            assert_eq!(at as u64, asked, "each once, in order");
            let given = asked < offered;
            asked += u64::from(given);
            given.then(|| cqe(next + at as u64))
        }));
        assert_eq!(filled, asked, "none is lost");
        cq.extend(next..next + filled);
        assert!(filled == offered || cq.len() == 16 || queues.cq_tail() & 15 == 0, "to the end of the row");
        filled
    }

    /// Asserts that SQEs read in place are those that were published, in order.
    fn look_at_rows(queues: &Queues, dice: &mut Dice, published: &VecDeque<u64>) {
        let (most, ahead) = (dice.below(9) as u32, dice.below(published.len() as u64 + 1) as u32);
        let most = most.min(published.len() as u32 - ahead);
        let row: Vec<u64> = queues.sq_row(ahead, most).iter().map(|sqe| sqe.user_data).collect();
        assert!(row.len() as u32 <= most && (row.is_empty() == (most == 0)), "some, if there are any");
        assert!(row.iter().eq(published.iter().skip(ahead as usize).take(row.len())));
    }

    #[test]
    fn both_queues_are_queues_also_where_their_indices_wrap() {
        for (seed, start) in [(1, 0), (2, u32::MAX - 50), (3, 1 << 31), (4, u32::MAX)] {
            let mut queues = Queues::new(8, 16).unwrap();
            wind(&mut queues, start);
            let mut dice = Dice(seed);
            let (mut filled, mut published, mut freed) = (VecDeque::new(), VecDeque::new(), 8);
            let (mut cq, mut shown, mut next) = (VecDeque::new(), 0, 0_u64);
            for _ in 0..20_000 {
                match dice.below(8) {
                    0 | 1 => match queues.sq_next() {
                        Some((_, slot)) => {
                            *slot = sqe(next);
                            filled.push_back(next);
                            next += 1;
                            assert!(freed > 0);
                            freed -= 1;
                        }
                        None => assert_eq!(freed, 0, "refused when full, and only then"),
                    },
                    2 => {
                        queues.sq_publish();
                        published.append(&mut filled);
                    }
                    3 => {
                        assert_eq!(queues.sq_pending() as usize, published.len());
                        look_at_rows(&queues, &mut dice, &published);
                        if let Some(expected) = published.pop_front() {
                            let mut taken = Sqe::default();
                            assert!(queues.sq_take(&mut taken).is_some());
                            assert_eq!(taken, sqe(expected));
                            freed += 1;
                        }
                    }
                    4 => {
                        queues.sq_advance();
                        assert_eq!(queues.word(queues.at.sq_head).load(Ordering::Relaxed), queues.sq_head);
                        assert_eq!(queues.sq_space() as usize, freed);
                    }
                    5 => {
                        assert_eq!(queues.cq_has_room(), cq.len() < 16, "no entry is written that was not read");
                        if queues.cq_has_room() {
                            queues.cq_push(cqe(next));
                            cq.push_back(next);
                            next += 1;
                        }
                    }
                    6 => next += fill(&mut queues, &mut dice, &mut cq, next),
                    _ => {
                        queues.cq_publish();
                        shown = shown.max(cq.len());
                        assert_eq!(queues.cq_ready() as usize, cq.len());
                        let head = queues.cq_head();
                        let (row, rest) = queues.cq_rows(head, cq.len() as u32);
                        assert!(row.iter().chain(rest).map(|cqe| cqe.user_data).eq(cq.iter().copied()));
                        assert_eq!(row.is_empty(), cq.is_empty());
                        for n in 0..dice.below(cq.len() as u64 + 1) as u32 {
                            let got = queues.cq_read(head.wrapping_add(n));
                            assert_eq!(got, cqe(cq.pop_front().expect("it was there")));
                            queues.cq_advance(head.wrapping_add(n + 1));
                        }
                    }
                }
            }
            assert!(next > 4000 && shown == 16, "the test went round and to the brim");
        }
    }

    #[test]
    fn an_index_outside_of_the_array_is_dropped_and_counted() {
        let mut queues = Queues::new(4, 8).unwrap();
        for n in 0..3 {
            *queues.sq_next().unwrap().1 = sqe(n);
        }
        for (entry, index) in [(0, 4), (1, u32::MAX), (2, 1)] {
            queues.array_entry(entry).store(index, Ordering::Relaxed);
        }
        queues.sq_publish();
        let mut into = Sqe::default();
        assert_eq!(queues.sq_take(&mut into), None);
        assert_eq!(queues.sq_take(&mut into), None);
        assert_eq!(queues.sq_take(&mut into), Some(1), "in the order of the array, not of the SQEs");
        assert_eq!(into, sqe(1));
        assert_eq!(queues.word(queues.at.sq_dropped).load(Ordering::Relaxed), 2);
    }

    #[test]
    fn heads_and_tails_written_by_a_peer_are_ignored() {
        let mut queues = Queues::new(4, 8).unwrap();
        let offsets = queues.at;
        for nonsense in [5, 77, 1 << 31, u32::MAX] {
            for at in [offsets.sq_head, offsets.sq_tail, offsets.cq_head, offsets.cq_tail] {
                queues.word(at).store(nonsense, Ordering::Relaxed);
            }
            assert_eq!((queues.sq_pending(), queues.sq_space(), queues.cq_ready()), (0, 4, 0), "I5");
        }
        (0..8).for_each(|n| _ = queues.cq_push(cqe(n)));
        queues.word(offsets.cq_head).store(77, Ordering::Relaxed);
        assert!(!queues.cq_has_room(), "a head beyond the tail frees nothing");
        assert_eq!((queues.cq_publish(), queues.cq_ready()), (8, 8));
        assert_eq!(queues.word(offsets.cq_tail).load(Ordering::Relaxed), 8, "what was written there is gone");
    }

    #[test]
    fn an_sqe_is_copied_when_it_is_taken() {
        let mut queues = Queues::new(2, 4).unwrap();
        *queues.sq_next().unwrap().1 = sqe(1);
        queues.sq_publish();
        let mut taken = Sqe::default();
        let index = queues.sq_take(&mut taken).unwrap();
        // SAFETY: the index was checked; nothing else looks at the memory.
        unsafe { (*queues.sqes.as_ptr().add(index as usize)).user_data = 2 };
        assert_eq!(taken.user_data, 1, "what the memory becomes later does not matter");
    }
}
