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
mod tests {
    use super::*;
    use crate::payload::Pool;

    fn write(offset: u64, len: u64) -> Request {
        Request { command: Command::Write, flags: 0, cookie: 0, offset, len, contexts: 0 }
    }

    #[test]
    fn a_request_is_cut_into_its_edges_and_the_blocks_between() {
        let cut = |offset, len| {
            let it = Unaligned::of(&write(offset, len), 512)?;
            Some((
                it.blocks,
                it.edges.iter().map(|edge| (edge.offset, edge.front, edge.back)).collect::<Vec<_>>(),
                it.inner().1,
            ))
        };
        assert_eq!(cut(512, 1024), None);
        assert_eq!(cut(3, 0), None);
        assert_eq!(cut(1, 7), Some(((0, 512), vec![(0, 1, 504)], 0)));
        assert_eq!(cut(512, 7), Some(((512, 512), vec![(512, 0, 505)], 0)));
        assert_eq!(cut(1000, 24), Some(((512, 512), vec![(512, 488, 0)], 0)));
        assert_eq!(cut(511, 2), Some(((0, 1024), vec![(0, 511, 0), (512, 0, 511)], 0)));
        assert_eq!(cut(100, 412), Some(((0, 512), vec![(0, 100, 0)], 0)));
        assert_eq!(cut(100, 924), Some(((0, 1024), vec![(0, 100, 0)], 512)));
        assert_eq!(cut(0, 1025), Some(((0, 1536), vec![(1024, 0, 511)], 1024)));
        assert_eq!(cut(1, 2000), Some(((0, 2048), vec![(0, 1, 0), (1536, 0, 47)], 1024)));
        let inner = |offset, len| Unaligned::of(&write(offset, len), 512).expect("in parts").inner();
        assert_eq!((inner(1, 2000), inner(0, 1025), inner(100, 924)), ((512, 1024), (0, 1024), (512, 512)));
    }

    /// Returns a byte of the file.
    fn was(at: u64) -> u8 {
        2 + (at % 200) as u8
    }

    #[test]
    fn what_stays_of_the_edges_is_put_around_the_data() {
        for (align, offset, len) in [(1, 100, 7), (512, 100, 500), (4096, 1, 2000), (512, 512, 513), (4096, 511, 1)] {
            let request = write(offset, len);
            let it = Unaligned::of(&request, 512).expect("in parts");
            let shape = it.shape(&request, align);
            let mut pool = Pool::new();
            let mut payload = pool.take(&shape, Pool::cost(&shape), false).expect("there is memory");
            payload.fill(0, &vec![1; len as usize]);
            for number in 0..it.edges.len() {
                let at = payload.aside_at() + number * it.stride(align);
                // The bytes of the block, as they were read.
                let block: Vec<u8> = (0..512).map(|byte| was(it.edges[number].offset + byte)).collect();
                payload.bytes_mut(at, 512).copy_from_slice(&block);
            }
            it.surround(&mut payload);
            let (start, bytes) = it.blocks;
            for place in 0..bytes {
                let is_data = (offset..offset + len).contains(&(start + place));
                let expected = if is_data { 1 } else { was(start + place) };
                let found = payload.bytes(payload.blocks_at() + place as usize, 1)[0];
                assert_eq!(found, expected, "{align} {offset} {len} {place}");
            }
            // The same for zeroes.
            it.zero(&mut payload);
            for (number, edge) in it.edges.iter().enumerate() {
                let aside = payload.bytes(payload.aside_at() + number * it.stride(align), 512);
                let zeroes = aside.iter().filter(|byte| **byte == 0).count();
                assert_eq!(zeroes, 512 - edge.front - edge.back);
                assert!(aside[edge.front..512 - edge.back].iter().all(|byte| *byte == 0));
            }
        }
    }
}
