//! Copies of the superblock: looking for them where both superblocks are lost.
//!
//! Owns the search, and where copies belong. What a copy is worth is said by S4 of
//! [`superblock`](mod@crate::format::superblock).
//!
//! Called by the check and by a rescue: an opening that may write takes no copy for a superblock, for something else
//! may have been written to the device on purpose.

use crate::device::block_io::BlockIo;
use crate::format::block::Block;
use crate::format::superblock::{COPY_GRID, LEAST_ON_GRID, Superblock, copy_places};
use crate::format::{BLOCK, BLOCK_BYTES};

/// A copy that was found.
pub(crate) struct Copied {
    pub(crate) sb: Superblock,
    /// Where it lies.
    pub(crate) at: u64,
    /// There are copies of other pools too.
    pub(crate) others: bool,
    /// It is a [loose root](super::loose): whether all that it refers to is there is not known.
    pub(crate) is_loose: bool,
}

/// The newest copy on a device whose superblocks are lost: of the places where one of a pool of its size lies, else of
/// all multiples of the grid, else of all blocks where one of a small pool may lie, which may have grown.
pub(crate) fn find(io: &dyn BlockIo) -> Option<Copied> {
    let size = io.size_bytes();
    let usual = copy_places(size, BLOCK_BYTES).into_iter().flatten().filter(|_| size >= LEAST_ON_GRID);
    newest(io, usual)
        .or_else(|| newest(io, (0..size).step_by(COPY_GRID as usize)))
        .or_else(|| newest(io, (0..size.min(LEAST_ON_GRID)).step_by(BLOCK)))
}

/// The newest copy at these places; where there are copies of several pools, of the pool that was made last.
fn newest(io: &dyn BlockIo, places: impl Iterator<Item = u64>) -> Option<Copied> {
    let mut found: Vec<(u64, Superblock)> = places.filter_map(|at| Some((at, read(io, at)?))).collect();
    found.sort_by_key(|(_, sb)| (sb.created, sb.generation));
    let (at, sb) = found.pop()?;
    let others = found.iter().any(|(_, other)| other.pool != sb.pool);
    Some(Copied { sb, at, others, is_loose: false })
}

/// The copy at a place, if there is an intact one.
fn read(io: &dyn BlockIo, at: u64) -> Option<Superblock> {
    let mut block: Block = [0; BLOCK];
    if at + BLOCK_BYTES > io.size_bytes() {
        return None;
    }
    io.read(at, &mut block).or_else(|_| io.read(at, &mut block)).ok()?;
    Superblock::decode_copy(&block, at, u64::MAX).ok()
}
