//! Memory of requests and replies.
//!
//! A payload has room for a reply's header before its data, so that both are sent as one piece. The data is aligned as
//! the device requires. Memory that is given back is kept for the next request, up to [`MAX_KEPT`]; a server with
//! nothing to do gives all of it back to the system ([`Pool::trim`]).
//!
//! The limits of clients are in `shares`. A write's payload counts there in proportion to the bytes that have arrived:
//! its address range is mapped from the start, so that the data goes from socket to device in one piece, but its pages
//! are not allocated before something is received into them.
//!
//! Invariants:
//! - P1. No byte of a payload beyond its `counted` bytes is touched.
//! - P2. The allocated pages that count for no payload have at most [`MAX_KEPT`] bytes: those of kept buffers, and
//!   those of reused buffers whose payloads do not count in full yet.

use sheave_base::buf::{Buf, MMAP_THRESHOLD_BYTES};
use sheave_nbd::reply::MAX_READ_HEADER;

/// Least bytes before the data.
const HEADROOM: usize = 64;
/// Binary logarithm of the smallest buffer.
const MIN_CLASS: u32 = 13;
/// Most bytes of memory that are kept for reuse.
const MAX_KEPT: u64 = 16 << 20;
const ALIGN: usize = 4096;

const _: () = assert!(HEADROOM >= MAX_READ_HEADER);

/// Layout of a request's memory, in order: room for a header, edge blocks that are read for rewriting (`aside`), the
/// part of the first block before the data, the data, the part of the last block after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Bytes of data.
    pub(crate) len: usize,
    /// Alignment at which the file transfers memory, a power of two. The start of the first block has it.
    pub(crate) align: usize,
    /// Bytes of the first block before the data, and of the last block after it.
    pub(crate) skip: usize,
    pub(crate) after: usize,
    /// Bytes for the edge blocks that are read for rewriting. They lie before the blocks of the data. A multiple of
    /// `align`.
    pub(crate) aside: usize,
}

impl Shape {
    pub(crate) const NONE: Shape = Shape { len: 0, align: 1, skip: 0, after: 0, aside: 0 };

    /// Returns the layout for whole blocks, or for data whose block boundaries do not matter.
    pub(crate) fn whole(len: usize, align: usize) -> Shape {
        Shape { len, align, ..Shape::NONE }
    }

    /// Returns the position of the first block.
    fn blocks_at(&self) -> usize {
        before(self.align) + self.aside
    }

    /// Returns the position of the data.
    fn at(&self) -> usize {
        self.blocks_at() + self.skip
    }

    /// Returns the bytes besides the data.
    pub(crate) fn around(&self) -> usize {
        self.at() + self.after
    }

    fn bytes(&self) -> usize {
        self.around() + self.len
    }
}

/// The memory of one request. In a box, which is kept with its buffer, because requests and replies are passed on by
/// value.
#[derive(Debug)]
pub(crate) struct Payload(Box<Memory>);

#[derive(Debug)]
struct Memory {
    buf: Buf,
    shape: Shape,
    /// Bytes that it counts for in `shares`, from its start on.
    counted: u64,
    /// True if some of these bytes come from the room that is reserved for one request of the largest size.
    of_room: bool,
    /// Bytes whose pages were allocated for earlier users of this memory.
    touched: u64,
}

impl Payload {
    fn new(buf: Buf, counted: u64) -> Payload {
        Payload(Box::new(Memory { buf, shape: Shape::NONE, counted, of_room: false, touched: 0 }))
    }

    /// Returns the bytes that it counts for in `shares`.
    pub(crate) fn counted(&self) -> u64 {
        self.0.counted
    }

    /// Returns true if some of its bytes come from the room that is reserved for one request of the largest size.
    pub(crate) fn is_of_room(&self) -> bool {
        self.0.of_room
    }

    /// Returns the bytes of data that the counted bytes have room for (P1).
    pub(crate) fn room(&self) -> u64 {
        self.0.counted.min(self.0.buf.len() as u64) - self.0.shape.around() as u64
    }

    /// Returns the position of the data.
    pub(crate) fn start(&self) -> usize {
        self.0.shape.at()
    }

    /// Returns the position of the blocks that contain the data.
    pub(crate) fn blocks_at(&self) -> usize {
        self.0.shape.blocks_at()
    }

    /// Returns the position of the edge blocks that are read for rewriting, apart from the data.
    pub(crate) fn aside_at(&self) -> usize {
        before(self.0.shape.align)
    }

    /// Returns the alignment of these positions in memory.
    pub(crate) fn align(&self) -> usize {
        self.0.shape.align
    }

    /// Returns the bytes that it counts for once all its data has arrived.
    pub(crate) fn cost(&self) -> u64 {
        Pool::cost(&self.0.shape)
    }

    /// Returns the memory before the data. A header is put at its end.
    pub(crate) fn headroom(&mut self) -> &mut [u8] {
        &mut self.0.buf[..self.0.shape.at()]
    }

    /// Returns `len` bytes of the memory from position `at` on. The data begins at [`Payload::start`].
    pub(crate) fn bytes(&self, at: usize, len: usize) -> &[u8] {
        &self.0.buf[at..at + len]
    }

    /// Returns such memory to change it.
    pub(crate) fn bytes_mut(&mut self, at: usize, len: usize) -> &mut [u8] {
        &mut self.0.buf[at..at + len]
    }

    /// Copies `bytes` into the data, to offset `from`.
    pub(crate) fn fill(&mut self, from: usize, bytes: &[u8]) {
        debug_assert!((from + bytes.len()) as u64 <= self.room(), "P1");
        let start = self.start() + from;
        self.0.buf[start..start + bytes.len()].copy_from_slice(bytes);
    }

    /// Copies bytes within the memory.
    pub(crate) fn copy(&mut self, from: usize, to: usize, len: usize) {
        debug_assert!((to + len) as u64 <= self.0.counted, "P1");
        self.0.buf.copy_within(from..from + len, to);
    }

    /// Zeroes bytes of the memory.
    pub(crate) fn zero(&mut self, at: usize, len: usize) {
        debug_assert!((at + len) as u64 <= self.0.counted, "P1");
        self.0.buf[at..at + len].fill(0);
    }

    /// Makes a source of zeroes. A reactor has only one, which no limit counts. `None` if the system has no memory.
    pub(crate) fn zeroes(len: usize) -> Option<Payload> {
        let buf = Buf::zeroed(len, ALIGN).ok()?;
        Some(Payload::new(buf, len as u64))
    }

    /// Returns the address of position `at` of the memory. The data begins at [`Payload::start`].
    pub(crate) fn address(&mut self, at: usize) -> *mut u8 {
        debug_assert!(at <= self.0.buf.len());
        self.0.buf.as_mut_ptr().wrapping_add(at)
    }
}

/// The pool that payloads are taken from.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Payloads for reuse, by the binary logarithm of the size of their buffers.
    kept: Vec<Vec<Payload>>,
    /// Allocated bytes of kept buffers, and of payloads beyond what these count for (P2).
    kept_bytes: u64,
}

impl Pool {
    pub(crate) fn new() -> Pool {
        Pool { kept: (0..usize::BITS).map(|_| Vec::new()).collect(), kept_bytes: 0 }
    }

    /// Returns the bytes that memory of this layout counts for.
    pub(crate) fn cost(shape: &Shape) -> u64 {
        let whole = 1 << class(shape.bytes());
        // The pages of a large buffer behind the data are never touched.
        if whole < MMAP_THRESHOLD_BYTES { whole as u64 } else { shape.bytes().next_multiple_of(ALIGN) as u64 }
    }

    /// Returns the largest number of data bytes, in whole pages, whose memory counts for at most `cost`.
    pub(crate) fn fits(cost: u64, align: usize) -> u64 {
        let class = 1u64 << cost.max(1).ilog2().min(MMAP_THRESHOLD_BYTES.ilog2());
        let len = class.saturating_sub(before(align) as u64);
        len - len % ALIGN as u64
    }

    /// Takes memory of this layout that counts for `counted` bytes. `None` if the system has no memory.
    pub(crate) fn take(&mut self, shape: &Shape, counted: u64, of_room: bool) -> Option<Payload> {
        let class = class(shape.bytes());
        let mut payload = match self.kept[class as usize].pop() {
            Some(kept) => kept,
            None => Payload::new(Buf::zeroed(1 << class, ALIGN).ok()?, 0),
        };
        let memory = &mut *payload.0;
        self.kept_bytes -= memory.touched.min(counted);
        (memory.shape, memory.counted, memory.of_room) = (*shape, counted, of_room);
        Some(payload)
    }

    /// Lets a payload count for `more` bytes.
    pub(crate) fn grow(&mut self, payload: &mut Payload, more: u64, of_room: bool) {
        let memory = &mut *payload.0;
        self.kept_bytes -= memory.touched.saturating_sub(memory.counted).min(more);
        memory.counted += more;
        memory.of_room |= of_room;
    }

    /// Takes memory back.
    pub(crate) fn put(&mut self, mut payload: Payload) {
        let memory = &mut *payload.0;
        self.kept_bytes -= memory.touched.saturating_sub(memory.counted);
        memory.touched = memory.touched.max(memory.counted);
        if self.kept_bytes + memory.touched <= MAX_KEPT {
            self.kept_bytes += memory.touched;
            self.kept[memory.buf.len().trailing_zeros() as usize].push(payload);
        }
    }

    /// Returns true if memory is kept for reuse.
    pub(crate) fn keeps_memory(&self) -> bool {
        self.kept_bytes > 0
    }

    /// Gives all memory that is kept for reuse back to the system.
    pub(crate) fn trim(&mut self) {
        self.kept.iter_mut().for_each(|list| *list = Vec::new());
        self.kept_bytes = 0;
    }
}

/// Returns the bytes before a block that is aligned to `align`.
fn before(align: usize) -> usize {
    align.max(HEADROOM)
}

/// Returns the binary logarithm of the buffer size for `bytes` bytes.
fn class(bytes: usize) -> u32 {
    bytes.next_power_of_two().trailing_zeros().max(MIN_CLASS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes a payload that counts for all of its memory.
    fn whole(pool: &mut Pool, len: usize, align: usize) -> Payload {
        let shape = Shape::whole(len, align);
        pool.take(&shape, Pool::cost(&shape), false).expect("there is memory")
    }

    #[test]
    fn data_lies_aligned_behind_room_for_a_header() {
        let mut pool = Pool::new();
        for align in [1, 64, 512, 4096] {
            let mut payload = whole(&mut pool, 4096, align);
            assert_eq!(payload.address(payload.start()) as usize % align, 0);
            assert!(payload.headroom().len() >= MAX_READ_HEADER);
            payload.fill(4000, &[7; 96]);
            pool.put(payload);
        }
    }

    #[test]
    fn a_large_payload_counts_for_its_pages_and_a_small_one_for_all_of_its_memory() {
        let cost = |len| Pool::cost(&Shape::whole(len, 1));
        assert_eq!(cost(512), 8 << 10);
        assert_eq!(cost(64 << 10), (64 << 10) + 4096);
        assert_eq!(cost(32 << 20), (32 << 20) + 4096);
    }

    #[test]
    fn a_payload_has_room_for_what_it_counts_for() {
        let mut pool = Pool::new();
        let mut payload = pool.take(&Shape::whole(1 << 20, 512), 64 << 10, false).expect("there is memory");
        assert_eq!((payload.room(), payload.counted(), payload.is_of_room()), ((64 << 10) - 512, 64 << 10, false));
        pool.grow(&mut payload, 192 << 10, true);
        assert_eq!((payload.room(), payload.counted(), payload.is_of_room()), ((256 << 10) - 512, 256 << 10, true));
    }

    #[test]
    fn memory_is_used_again_and_kept_within_its_bound() {
        let mut pool = Pool::new();
        let mut first = whole(&mut pool, 4096, 1);
        let address = first.address(0) as usize;
        pool.put(first);
        assert_eq!(whole(&mut pool, 4000, 1).address(0) as usize, address);
        let many: Vec<_> = (0..40).map(|_| whole(&mut pool, 1 << 20, 1)).collect();
        many.into_iter().for_each(|payload| pool.put(payload));
        assert!(pool.keeps_memory() && pool.kept_bytes <= MAX_KEPT);
        pool.trim();
        assert!(!pool.keeps_memory());
    }

    #[test]
    fn memory_that_writes_announce_and_do_not_fill_is_within_the_bound_of_what_is_kept() {
        let mut pool = Pool::new();
        let mut slow = Vec::new();
        for _ in 0..100 {
            // All pages of this one are allocated.
            let read = whole(&mut pool, 1 << 20, 1);
            pool.put(read);
            slow.push(pool.take(&Shape::whole(1 << 20, 1), 8 << 10, false).expect("there is memory"));
            let beyond: u64 = slow.iter().map(|payload| payload.0.touched.saturating_sub(payload.counted())).sum();
            let kept: u64 = pool.kept.iter().flatten().map(|kept| kept.0.touched).sum();
            assert_eq!(pool.kept_bytes, kept + beyond, "P2");
            assert!(pool.kept_bytes <= MAX_KEPT, "P2");
        }
        slow.iter_mut().for_each(|payload| pool.grow(payload, 1 << 20, false));
        slow.into_iter().for_each(|payload| pool.put(payload));
        let kept: u64 = pool.kept.iter().flatten().map(|kept| kept.0.touched).sum();
        assert!(pool.kept_bytes == kept && kept <= MAX_KEPT);
    }

    #[test]
    fn data_within_blocks_has_them_whole_around_it_and_counts_for_all() {
        let mut pool = Pool::new();
        for (align, counted) in [(1, 1000), (512, 4096), (4096, 20 << 10)] {
            let shape = Shape { len: 700 << 10, align, skip: 200, after: 312, aside: 2 * align.max(512) };
            let whole = Pool::cost(&shape);
            let mut payload = pool.take(&shape, (shape.around() + counted) as u64, false).expect("there is memory");
            assert_eq!((payload.room(), payload.cost()), (counted as u64, whole));
            for at in [payload.aside_at(), payload.blocks_at()] {
                assert_eq!(payload.address(at) as usize % align, 0);
            }
            assert!(
                payload.aside_at() + shape.aside <= payload.blocks_at() && payload.headroom().len() >= MAX_READ_HEADER
            );
            assert_eq!(payload.start() - payload.blocks_at(), 200);
            let more = whole - payload.counted();
            pool.grow(&mut payload, more, false);
            assert!(payload.room() >= shape.len as u64, "{} of {}", payload.room(), shape.len);
            pool.put(payload);
        }
    }

    #[test]
    fn what_fits_costs_no_more_and_is_whole_blocks() {
        for cost in [8 << 10, 12345, 64 << 10, 100_000] {
            for align in [1, 512, 4096] {
                let len = Pool::fits(cost, align);
                assert!(len > 0 && len.is_multiple_of(ALIGN as u64), "{len} bytes");
                assert!(Pool::cost(&Shape::whole(len as usize, align)) <= cost, "{len} bytes cost more than {cost}");
            }
        }
    }
}
