//! Loose roots: the search of a whole device for the newest checkpoint, for a pool that has lost both superblocks and
//! all copies of them.
//!
//! Each checkpoint also writes its superblock into one of its pages, to which no other page refers. Owns the search for
//! the newest of these roots. The pages that the root refers to may be missing; the caller's walk of its trees verifies
//! their checksums.
//!
//! - R1: a root is used only if no page of its pool belongs to a later checkpoint. A program that writes no roots
//!   leaves such pages, and so does a checkpoint that was cut off. In both cases the root may be old, and the space of
//!   its data may hold other data.
//! - R2: of several pools the search chooses the one that was made last, and of one pool the newest root. If two roots
//!   are equally good, the search returns an error.
//! - R3: the memory of the search is bounded, whatever the device contains.
//!
//! Called by the check and by a rescue.

use std::collections::HashMap;

use sheave_base::buf::Buf;
use sheave_base::status::Status;

use crate::device::block_io::BlockIo;
use crate::device::copies::Copied;
use crate::format::block::{Block, identify};
use crate::format::superblock::Superblock;
use crate::format::{BLOCK, MAGIC, kind};

/// Bytes of one read.
const PIECE: usize = 1 << 20;
/// Most pools of which the search records pages (R3).
const MOST_POOLS: usize = 4096;

#[derive(Default)]
struct Search {
    best: Option<(u64, Superblock)>,
    /// True if another root is as good as `best`.
    tied: bool,
    /// True if there are roots of other pools.
    others: bool,
    /// Generation of the latest checkpoint of any page, by pool.
    latest: HashMap<[u8; 16], u64>,
}

/// Finds the newest root on a device. Returns `None` if there is no root, and a message if none can be chosen. Calls
/// `tell` with the number of bytes of each piece that was read.
pub(crate) fn find(io: &dyn BlockIo, tell: &mut dyn FnMut(u64)) -> Result<Option<Copied>, String> {
    let mut search = Search::default();
    let mut memory = Buf::zeroed(PIECE, BLOCK).map_err(|_| Status::NoMem.to_string())?;
    let size = io.size_bytes() / BLOCK as u64 * BLOCK as u64;
    for from in (0..size).step_by(PIECE) {
        let len = (size - from).min(PIECE as u64) as usize;
        let bytes = &mut memory[..len];
        let whole = io.read(from, bytes).is_ok();
        let (blocks, _) = bytes.as_chunks_mut::<BLOCK>();
        for (block, at) in blocks.iter_mut().zip((from..).step_by(BLOCK)) {
            if whole || io.read(at, block).is_ok() {
                search.see(at, block);
            }
        }
        tell(len as u64);
    }
    search.end()
}

impl Search {
    fn see(&mut self, at: u64, block: &Block) {
        // Comes before the check of the checksum, which would have to be computed for every block of data.
        if !block.starts_with(&MAGIC) {
            return;
        }
        // A volume may contain another pool. The pages of that pool lie at other addresses than those in their headers.
        let Some((head, _)) = identify(block).ok().filter(|(head, _)| head.address == at) else { return };
        match head.kind {
            kind::ROOT => _ = Superblock::decode_root(block, at, u64::MAX).map(|sb| self.take(at, sb)),
            kind::LEAF | kind::INDEX | kind::TABLE | kind::SUMS | kind::KEPT
                if self.latest.len() < MOST_POOLS || self.latest.contains_key(&head.pool) =>
            {
                let latest = self.latest.entry(head.pool).or_default();
                *latest = head.generation.max(*latest);
            }
            _ => {}
        }
    }

    /// Replaces the best root by `sb` if that is better (R2).
    fn take(&mut self, at: u64, sb: Superblock) {
        let Some((_, best)) = &self.best else {
            self.best = Some((at, sb));
            return;
        };
        let same = best.pool == sb.pool;
        self.others |= !same;
        let age = |sb: &Superblock| if same { (sb.incarnation, sb.generation) } else { (sb.created, 0) };
        match age(&sb).cmp(&age(best)) {
            std::cmp::Ordering::Less => {}
            std::cmp::Ordering::Equal => self.tied |= sb != *best,
            std::cmp::Ordering::Greater => (self.best, self.tied) = (Some((at, sb)), false),
        }
    }

    fn end(self) -> Result<Option<Copied>, String> {
        let Some((at, sb)) = self.best else { return Ok(None) };
        if self.tied {
            return Err(format!(
                "there are two roots of the same age, one of them at byte {at}: which of them is that of the pool \
                 cannot be told"
            ));
        }
        let latest = self.latest.get(&sb.pool).copied().unwrap_or(0);
        let full = self.latest.len() >= MOST_POOLS;
        // If the table of pools is full, the pages of a later checkpoint may be missing from it.
        if latest > sb.generation || full {
            return Err(format!(
                "the newest root, at byte {at}, is of checkpoint {}, and there are pages of a later one ({latest}): \
                 what the root says may be old, and its space in use for other data",
                sb.generation
            ));
        }
        Ok(Some(Copied { sb, at, others: self.others, is_loose: true }))
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
