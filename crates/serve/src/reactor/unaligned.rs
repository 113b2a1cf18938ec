//! Requests that begin or end within a block: the blocks that they touch, and the rewriting of their edges.
//!
//! A client that did not negotiate block sizes may use any byte range. The file transfers whole blocks, so
//!
//! * a read reads all blocks that it touches, and the reply contains the requested part;
//! * a write reads the blocks that it changes in part, puts the bytes to keep around its data, and writes all blocks;
//! * a zeroing does so with the blocks at its edges, and then zeroes those in between;
//! * a trim is only advice, and leaves blocks alone that it covers in part.
//!
//! While a block is rewritten, no other request changes it (`turns`).
//!
//! Owns the byte positions of edges. The order of steps is in `turns`.

use sheave_nbd::session::{Command, Request};

use crate::block_locks::{Change, blocks_of};
use crate::payload::{Payload, Shape};

/// A block that is changed in part: `front` bytes at its start and `back` bytes at its end are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Edge {
    pub(super) offset: u64,
    front: usize,
    back: usize,
}

/// A request that begins or ends within a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unaligned {
    /// First byte and length of the blocks that the request touches.
    pub(super) blocks: (u64, u64),
    pub(super) block_bytes: u64,
    pub(super) edges: Vec<Edge>,
}

impl Unaligned {
    /// Returns `None` for a request of whole blocks, which is the usual case, and for one without a range.
    #[inline]
    pub(super) fn of(request: &Request, block_bytes: u64) -> Option<Unaligned> {
        let is_aligned = (request.offset | request.len) & (block_bytes - 1) == 0;
        if is_aligned || request.len == 0 { None } else { Some(Unaligned::cut(request, block_bytes)) }
    }

    #[cold]
    fn cut(request: &Request, block_bytes: u64) -> Unaligned {
        let (from, to) = (request.offset, request.offset + request.len);
        let start = from - from % block_bytes;
        let end = to.next_multiple_of(block_bytes);
        let (front, back) = ((from - start) as usize, (end - to) as usize);
        let last = end - block_bytes;
        let edges = if start == last {
            vec![Edge { offset: start, front, back }]
        } else {
            let edges = [Edge { offset: start, front, back: 0 }, Edge { offset: last, front: 0, back }];
            edges.into_iter().filter(|edge| edge.front + edge.back > 0).collect()
        };
        Unaligned { blocks: (start, end - start), block_bytes, edges }
    }

    /// Returns first byte and length of the whole blocks of the range.
    pub(super) fn inner(&self) -> (u64, u64) {
        let (mut from, mut to) = (self.blocks.0, self.blocks.0 + self.blocks.1);
        for edge in &self.edges {
            from += if edge.offset == from { self.block_bytes } else { 0 };
            to -= if edge.offset + self.block_bytes == to { self.block_bytes } else { 0 };
        }
        (from, to.saturating_sub(from))
    }

    /// Returns the layout of the memory that the request takes. Edges are read into a place before the data; a write
    /// has room around its data for the bytes of them that are kept.
    pub(super) fn shape(&self, request: &Request, align: usize) -> Shape {
        let len = match request.command {
            Command::Read | Command::Write => request.len as usize,
            Command::WriteZeroes => 0,
            _ => return Shape::NONE,
        };
        let (mut skip, mut after) = (0, 0);
        if len > 0 {
            skip = (request.offset - self.blocks.0) as usize;
            after = self.blocks.1 as usize - skip - len;
        }
        let aside = if request.command == Command::Read { 0 } else { self.edges.len() * self.stride(align) };
        Shape { len, align, skip, after, aside }
    }

    /// Returns the distance between edges in memory.
    pub(super) fn stride(&self, align: usize) -> usize {
        (self.block_bytes as usize).max(align)
    }

    pub(super) fn change(&self) -> Change {
        let rewritten = self.edges.iter().map(|edge| edge.offset / self.block_bytes).collect();
        Change { blocks: blocks_of(self.blocks, self.block_bytes), rewritten }
    }

    /// Copies the bytes of the edges that are kept to both sides of a write's data.
    pub(super) fn surround(&self, payload: &mut Payload) {
        let block = self.block_bytes as usize;
        for (number, edge) in self.edges.iter().enumerate() {
            let aside = payload.aside_at() + number * self.stride(payload.align());
            let place = payload.blocks_at() + (edge.offset - self.blocks.0) as usize;
            payload.copy(aside, place, edge.front);
            payload.copy(aside + block - edge.back, place + block - edge.back, edge.back);
        }
    }

    /// Zeroes the bytes of the edges that are not kept.
    pub(super) fn zero(&self, payload: &mut Payload) {
        let block = self.block_bytes as usize;
        for (number, edge) in self.edges.iter().enumerate() {
            let aside = payload.aside_at() + number * self.stride(payload.align());
            payload.zero(aside + edge.front, block - edge.front - edge.back);
        }
    }
}

#[cfg(test)]
mod tests;
