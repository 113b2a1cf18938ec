//! Memory of requests and replies.
//!
//! A payload has room for the header of a reply before its data, so that both are sent as one piece, and its data lies
//! as the device wants it. Memory that is given back is kept for the next request, up to [`MAX_KEPT`]; a server that
//! sleeps gives all of it back to the system ([`Pool::trim`]).
//!
//! Does not own who may have how much (`shares`). A payload of a write counts there for what has come of it: its
//! addresses are there from the start, so that the data goes from the socket to the device in one piece, but its pages
//! are not, before something is received into them.
//!
//! Invariants:
//! - P1. Nothing touches a payload beyond what it counts for.
//! - P2. Memory that the system has given and that no payload counts for is at most [`MAX_KEPT`]: what is kept, and the
//!   rest of payloads that were kept before and do not count whole yet.

use sheave_base::buf::{Buf, MMAP_THRESHOLD_BYTES};
use sheave_nbd::reply::MAX_READ_HEADER;

/// Bytes before the data, at least.
const HEADROOM: usize = 64;
/// Smallest memory of a payload.
const MIN_CLASS: u32 = 13;
/// Memory that is kept, at most.
const MAX_KEPT: u64 = 16 << 20;
/// What memory is aligned to.
const ALIGN: usize = 4096;

const _: () = assert!(HEADROOM >= MAX_READ_HEADER);

/// The place of the data of a request within its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Bytes of data.
    pub(crate) len: usize,
    /// The file moves memory at multiples of this, a power of two: the data, and what is around it in whole blocks.
    pub(crate) align: usize,
    /// Bytes of the first block before the data, and of the last one behind it.
    pub(crate) skip: usize,
    pub(crate) after: usize,
    /// Bytes for blocks that are read aside, before all that; a multiple of `align`.
    pub(crate) aside: usize,
}

impl Shape {
    /// No memory.
    pub(crate) const NONE: Shape = Shape { len: 0, align: 1, skip: 0, after: 0, aside: 0 };

    /// Whole blocks, or data of which the blocks do not matter.
    pub(crate) fn whole(len: usize, align: usize) -> Shape {
        Shape { len, align, ..Shape::NONE }
    }

    /// Where the blocks begin.
    fn blocks_at(&self) -> usize {
        before(self.align) + self.aside
    }

    /// Where the data begins.
    fn at(&self) -> usize {
        self.blocks_at() + self.skip
    }

    /// Bytes of all but the data.
    pub(crate) fn around(&self) -> usize {
        self.at() + self.after
    }

    fn bytes(&self) -> usize {
        self.around() + self.len
    }
}

/// Memory of one request.
#[derive(Debug)]
pub(crate) struct Payload {
    buf: Buf,
    shape: Shape,
    /// Bytes that it counts for.
    counted: u64,
    /// Some of them are of the room for one request of the largest size.
    of_room: bool,
    /// Bytes of it that the system had given before, for payloads that had this memory.
    touched: u64,
}

impl Payload {
    /// Bytes that it counts for.
    pub(crate) fn counted(&self) -> u64 {
        self.counted
    }

    /// Whether it has some of the room for one request of the largest size.
    pub(crate) fn is_of_room(&self) -> bool {
        self.of_room
    }

    /// Bytes of data that there is memory for, with what is around it, by what it counts for (P1).
    pub(crate) fn room(&self) -> u64 {
        self.counted.min(self.buf.len() as u64) - self.shape.around() as u64
    }

    /// Where the data begins.
    pub(crate) fn start(&self) -> usize {
        self.shape.at()
    }

    /// Where the blocks begin that have the data.
    pub(crate) fn blocks_at(&self) -> usize {
        self.shape.blocks_at()
    }

    /// Where blocks that are read aside begin.
    pub(crate) fn aside_at(&self) -> usize {
        before(self.shape.align)
    }

    /// The alignment of both.
    pub(crate) fn align(&self) -> usize {
        self.shape.align
    }

    /// What it counts for when all its data has come.
    pub(crate) fn cost(&self) -> u64 {
        Pool::cost(&self.shape)
    }

    /// The room before the data, for a header at its end.
    pub(crate) fn headroom(&mut self) -> &mut [u8] {
        &mut self.buf[..self.shape.at()]
    }

    /// Bytes of the memory: of the data, from [`Payload::start`] on.
    pub(crate) fn bytes(&self, at: usize, len: usize) -> &[u8] {
        &self.buf[at..at + len]
    }

    #[cfg(test)]
    pub(crate) fn bytes_mut(&mut self, at: usize, len: usize) -> &mut [u8] {
        &mut self.buf[at..at + len]
    }

    /// Puts bytes at this place in the data.
    pub(crate) fn fill(&mut self, from: usize, bytes: &[u8]) {
        debug_assert!((from + bytes.len()) as u64 <= self.room(), "P1");
        let start = self.start() + from;
        self.buf[start..start + bytes.len()].copy_from_slice(bytes);
    }

    /// Copies bytes within the memory.
    pub(crate) fn copy(&mut self, from: usize, to: usize, len: usize) {
        debug_assert!((to + len) as u64 <= self.counted, "P1");
        self.buf.copy_within(from..from + len, to);
    }

    /// Zeroes bytes of the memory.
    pub(crate) fn zero(&mut self, at: usize, len: usize) {
        debug_assert!((at + len) as u64 <= self.counted, "P1");
        self.buf[at..at + len].fill(0);
    }

    /// Zeroes, outside of all bounds: a reactor has them once. `None` when the system has no memory.
    pub(crate) fn zeroes(len: usize) -> Option<Payload> {
        let buf = Buf::zeroed(len, ALIGN).ok()?;
        Some(Payload { buf, shape: Shape::NONE, counted: len as u64, of_room: false, touched: 0 })
    }

    /// The address of a byte of the memory: of the data, from [`Payload::start`] on.
    pub(crate) fn address(&mut self, at: usize) -> *mut u8 {
        debug_assert!(at <= self.buf.len());
        self.buf.as_mut_ptr().wrapping_add(at)
    }
}

/// Memory to use again, of which the system has given so many bytes.
#[derive(Debug)]
struct Kept {
    buf: Buf,
    touched: u64,
}

/// Where payloads come from.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Memory to use again, by the logarithm of its size.
    kept: Vec<Vec<Kept>>,
    /// Bytes that the system has given of what is kept, and of payloads beyond what these count for (P2).
    kept_bytes: u64,
}

impl Pool {
    pub(crate) fn new() -> Pool {
        Pool { kept: (0..usize::BITS).map(|_| Vec::new()).collect(), kept_bytes: 0 }
    }

    /// Bytes that memory of this shape counts for.
    pub(crate) fn cost(shape: &Shape) -> u64 {
        let whole = 1 << class(shape.bytes());
        // Of a large one the pages behind the data are never touched.
        if whole < MMAP_THRESHOLD_BYTES { whole as u64 } else { shape.bytes().next_multiple_of(ALIGN) as u64 }
    }

    /// Most bytes of data, in whole blocks of memory, that count for no more than this.
    pub(crate) fn fits(cost: u64, align: usize) -> u64 {
        let class = 1u64 << cost.max(1).ilog2().min(MMAP_THRESHOLD_BYTES.ilog2());
        let len = class.saturating_sub(before(align) as u64);
        len - len % ALIGN as u64
    }

    /// Memory of this shape that counts for so many bytes; `None` when the system has none.
    pub(crate) fn take(&mut self, shape: &Shape, counted: u64, of_room: bool) -> Option<Payload> {
        let class = class(shape.bytes());
        let Kept { buf, touched } = match self.kept[class as usize].pop() {
            Some(kept) => kept,
            None => Kept { buf: Buf::zeroed(1 << class, ALIGN).ok()?, touched: 0 },
        };
        self.kept_bytes -= touched.min(counted);
        Some(Payload { buf, shape: *shape, counted, of_room, touched })
    }

    /// A payload counts for so many bytes more.
    pub(crate) fn grow(&mut self, payload: &mut Payload, more: u64, of_room: bool) {
        self.kept_bytes -= payload.touched.saturating_sub(payload.counted).min(more);
        payload.counted += more;
        payload.of_room |= of_room;
    }

    /// Takes memory back.
    pub(crate) fn put(&mut self, payload: Payload) {
        let Payload { buf, counted, touched, .. } = payload;
        self.kept_bytes -= touched.saturating_sub(counted);
        let touched = touched.max(counted);
        if self.kept_bytes + touched <= MAX_KEPT {
            self.kept_bytes += touched;
            self.kept[buf.len().trailing_zeros() as usize].push(Kept { buf, touched });
        }
    }

    /// Whether there is memory that nobody uses.
    pub(crate) fn keeps_memory(&self) -> bool {
        self.kept_bytes > 0
    }

    /// Gives memory that nobody uses back to the system.
    pub(crate) fn trim(&mut self) {
        self.kept.iter_mut().for_each(|list| *list = Vec::new());
        self.kept_bytes = 0;
    }
}

/// Bytes before blocks at a multiple of `align`.
fn before(align: usize) -> usize {
    align.max(HEADROOM)
}

/// The logarithm of the size for so many bytes.
fn class(bytes: usize) -> u32 {
    bytes.next_power_of_two().trailing_zeros().max(MIN_CLASS)
}

#[cfg(test)]
mod tests;
