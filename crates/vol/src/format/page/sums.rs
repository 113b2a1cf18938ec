//! Pages of data checksums: the CRC32C of each 4 KiB block of a region of the pool.
//!
//! Owns their encoding, including the list of bad blocks: the checksum of a bad block has no meaning, so its four bytes
//! hold the number of the next bad block, and a page has room for any number of them. The page with index `i` has the
//! checksums of the units from `i` times [`Geometry::region_units`] on. Only checksums of written blocks are valid.

use zerocopy::{FromBytes, IntoBytes};

use crate::format::block::{Block, require_zero_tail};
use crate::format::damage::{Damage, require};
use crate::format::page::{Expect, PagePlace, PageRef};
use crate::format::superblock::Geometry;
use crate::format::{HEADER, MAX_SUMS, SUMS_OPEN, SumsHead, kind};

const START: usize = HEADER + size_of::<SumsHead>();

/// Checksums of the blocks of a region.
pub type RegionSums = [u32; MAX_SUMS];

/// Returns the number of checksums in a page.
fn count(geometry: &Geometry) -> usize {
    geometry.region_units() as usize * geometry.unit_blocks
}

/// One bit for each block of a region, set for bad blocks.
pub type Marked = [u64; MAX_SUMS.div_ceil(64)];

/// State of a region that its page stores in addition to the checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionState {
    /// True if writes to the region may have been in flight.
    pub open: bool,
    /// Bad blocks of the region.
    pub marked: Marked,
}

/// Returns the damage of a page, at any level, whose regions begin beyond the end of the pool
/// ([`Geometry::sums_pages`]).
pub(crate) fn beyond_the_pool(index: u64) -> Damage {
    Damage::field("index", index, "is of regions beyond the end of the pool")
}

/// Encodes the page of a region. `open` is true if writes to the region may be in flight. Marks of blocks behind the
/// region's end are ignored.
pub fn encode(
    block: &mut Block,
    geometry: &Geometry,
    place: &PagePlace,
    open: bool,
    sums: &RegionSums,
    marked: &Marked,
) -> PageRef {
    block.fill(0);
    for (to, sum) in block[START..].chunks_exact_mut(4).zip(&sums[..count(geometry)]) {
        to.copy_from_slice(&sum.to_le_bytes());
    }
    let mut next = 0_u32;
    // Backwards, so that each bad block gets the number of the next one, and the list ascends.
    for at in (0..count(geometry)).rev().filter(|at| marked[at >> 6] >> (at & 63) & 1 != 0) {
        block[START + 4 * at..][..4].copy_from_slice(&next.to_le_bytes());
        next = at as u32 + 1;
    }
    let flags = if open { SUMS_OPEN } else { 0 };
    let head = SumsHead { flags: flags.into(), marked: next.into() };
    block[HEADER..START].copy_from_slice(head.as_bytes());
    place.seal(block, kind::SUMS, 0, count(geometry))
}

/// Decodes the page of a region. Bad blocks get the checksum 0.
pub fn decode(
    block: &Block,
    geometry: &Geometry,
    expect: &Expect,
    sums: &mut RegionSums,
) -> Result<RegionState, Damage> {
    let head = expect.open(block, kind::SUMS, 0)?;
    require(head.owner == 0, "owner", head.owner, "must be 0")?;
    require(head.count as usize == count(geometry), "count", head.count, "is not the number of checksums")?;
    let (body, _) = SumsHead::ref_from_prefix(&block[HEADER..]).expect("a block has room for it");
    let flags = body.flags.get();
    require(flags & !SUMS_OPEN == 0, "flags", flags, "has unknown bits")?;
    require_zero_tail(&block[START..], 4 * count(geometry))?;
    let (words, _) = block[START..].as_chunks::<4>();
    for (to, word) in sums.iter_mut().zip(words) {
        *to = u32::from_le_bytes(*word);
    }
    let mut marked = Marked::default();
    // Each number must be larger than the one before it, so a damaged list cannot be endless.
    let (mut next, mut least) = (body.marked.get() as usize, 1);
    while next != 0 {
        let inside = (least..=count(geometry)).contains(&next);
        require(inside, "marked", next as u64, "is no block of the region behind the one before it")?;
        marked[(next - 1) >> 6] |= 1 << ((next - 1) & 63);
        least = next + 1;
        next = std::mem::take(&mut sums[next - 1]) as usize;
    }
    Ok(RegionState { open: flags & SUMS_OPEN != 0, marked })
}
