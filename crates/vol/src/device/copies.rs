//! Copies of the superblock: the search for them on a device whose superblocks are both lost, and whether the copies of
//! an intact pool can be judged.
//!
//! Owns the search and its order. S4 of [`superblock`](mod@crate::format::superblock) says what a copy contains.
//!
//! Called by the check, by scrubs and by a rescue. An opening that may write never uses a copy in place of a
//! superblock, because the superblocks may have been overwritten on purpose.

use crate::device::block_io::BlockIo;
use crate::format::block::Block;
use crate::format::superblock::{COPY_GRID, LEAST_ON_GRID, Superblock, copy_places};
use crate::format::{BLOCK, BLOCK_BYTES};

/// End of a finding about a copy.
pub(crate) const USE: &str = "The superblocks are intact; the copy is for when they are lost";

/// A copy of the superblock, or a loose root, that was found.
pub(crate) struct Copied {
    pub(crate) sb: Superblock,
    pub(crate) at: u64,
    /// True if there are copies of other pools too.
    pub(crate) others: bool,
    /// True for a [loose root](super::loose): some of the pages that it refers to may be missing.
    pub(crate) is_loose: bool,
}

/// Returns true if the copies must belong to `sb`, the newest superblock: the pool was closed, and nothing interrupted
/// the close. A crash leaves copies that are torn or belong to the previous checkpoint; the next opening rewrites them.
pub(crate) fn must_be_newest(io: &dyn BlockIo, sb: &Superblock) -> bool {
    let other = sb.stand_by().slot();
    let mut block: Block = [0; BLOCK];
    let read = io.read(other, &mut block).ok();
    let other = read.and_then(|()| Superblock::decode(&block, other, u64::MAX).ok());
    other.is_some_and(|other| sb.close_is_complete(&other))
}

/// Finds the newest copy on a device whose superblocks are lost. Looks at the places for a pool of the device's size
/// first, then at all multiples of the grid, and last at all blocks where a copy of a small pool can lie, since such a
/// pool may have grown.
pub(crate) fn find(io: &dyn BlockIo) -> Option<Copied> {
    let size = io.size_bytes();
    let usual = copy_places(size, BLOCK_BYTES).into_iter().flatten().filter(|_| size >= LEAST_ON_GRID);
    newest(io, usual)
        .or_else(|| newest(io, (0..size).step_by(COPY_GRID as usize)))
        .or_else(|| newest(io, (0..size.min(LEAST_ON_GRID)).step_by(BLOCK)))
}

/// Returns the newest copy at `places`. If there are copies of several pools, returns one of the pool that was made
/// last.
fn newest(io: &dyn BlockIo, places: impl Iterator<Item = u64>) -> Option<Copied> {
    let mut found: Vec<(u64, Superblock)> = places.filter_map(|at| Some((at, read(io, at)?))).collect();
    found.sort_by_key(|(_, sb)| (sb.created, sb.generation));
    let (at, sb) = found.pop()?;
    let others = found.iter().any(|(_, other)| other.pool != sb.pool);
    Some(Copied { sb, at, others, is_loose: false })
}

/// Reads the copy at `at`. Returns `None` if there is no intact one.
fn read(io: &dyn BlockIo, at: u64) -> Option<Superblock> {
    let mut block: Block = [0; BLOCK];
    if at + BLOCK_BYTES > io.size_bytes() {
        return None;
    }
    // A failed read is repeated once: its error may be transient.
    io.read(at, &mut block).or_else(|_| io.read(at, &mut block)).ok()?;
    Superblock::decode_copy(&block, at, u64::MAX).ok()
}
