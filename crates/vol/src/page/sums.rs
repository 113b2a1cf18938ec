//! Pages of data checksums: the CRC32C of each 4 KiB block of a region of the pool.
//!
//! Owns their encoding. The page with index `i` has the checksums of the units from `i` times
//! [`Geometry::region_units`] on; they mean something for written blocks only.

use zerocopy::{FromBytes, IntoBytes};

use crate::block::{Block, require_zero_tail};
use crate::damage::{Damage, require};
use crate::format::{HEADER, MAX_SUMS, SUMS_OPEN, SumsHead, kind};
use crate::page::{Expect, PageRef, Place};
use crate::superblock::Geometry;

const START: usize = HEADER + size_of::<SumsHead>();

/// Checksums of a region.
pub type RegionSums = [u32; MAX_SUMS];

/// Checksums of a page in this geometry.
fn count(geometry: &Geometry) -> usize {
    geometry.region_units() as usize * geometry.unit_blocks
}

/// Encodes the page of a region; `open`: writes to it may be under way.
pub fn encode(block: &mut Block, geometry: &Geometry, place: &Place, open: bool, sums: &RegionSums) -> PageRef {
    block.fill(0);
    let flags = if open { SUMS_OPEN } else { 0 };
    let head = SumsHead { flags: flags.into(), reserved: 0.into() };
    block[HEADER..START].copy_from_slice(head.as_bytes());
    for (to, sum) in block[START..].chunks_exact_mut(4).zip(&sums[..count(geometry)]) {
        to.copy_from_slice(&sum.to_le_bytes());
    }
    place.seal(block, kind::SUMS, 0, count(geometry))
}

/// Decodes it; whether writes may have been under way.
pub fn decode(block: &Block, geometry: &Geometry, expect: &Expect, sums: &mut RegionSums) -> Result<bool, Damage> {
    let head = expect.open(block, kind::SUMS, 0)?;
    require(head.owner == 0, "owner", head.owner, "must be 0")?;
    require(head.count as usize == count(geometry), "count", head.count, "is not the number of checksums")?;
    let (body, _) = SumsHead::ref_from_prefix(&block[HEADER..]).expect("a block has room for it");
    let flags = body.flags.get();
    require(flags & !SUMS_OPEN == 0, "flags", flags, "has unknown bits")?;
    require(body.reserved.get() == 0, "reserved", body.reserved.get(), "must be 0")?;
    require_zero_tail(&block[START..], 4 * count(geometry))?;
    let (words, _) = block[START..].as_chunks::<4>();
    for (to, word) in sums.iter_mut().zip(words) {
        *to = u32::from_le_bytes(*word);
    }
    Ok(flags & SUMS_OPEN != 0)
}
