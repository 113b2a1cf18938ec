//! Leaf pages: the unit of the pool that each unit of a volume maps to, and its written blocks.
//!
//! Owns their encoding. An entry is the number of a unit of the pool, or 0 for a hole. The bitmaps of all entries
//! follow behind the last entry. Each bitmap has one bit for each block, rounded up to whole bytes. An entry without
//! any written block is not stored.

use crate::format::block::{Block, require_zero_tail};
use crate::format::damage::{Damage, require};
use crate::format::page::{Expect, PagePlace, PageRef};
use crate::format::superblock::Geometry;
use crate::format::{HEADER, kind};

/// Returns the bytes of an entry's bitmap.
const fn bitmap_bytes(unit_blocks: usize) -> usize {
    unit_blocks.div_ceil(8)
}

/// Encodes entries and their written bits, [`Geometry::entry_words`] words each. Entries without a written block are
/// omitted. The rest of the leaf, after shorter slices, has holes.
pub fn encode(block: &mut Block, geometry: &Geometry, place: &PagePlace, entries: &[u64], written: &[u64]) -> PageRef {
    block.fill(0);
    let bytes = bitmap_bytes(geometry.unit_blocks);
    let bitmaps = HEADER + 8 * geometry.leaf_entries;
    let mut count = 0;
    let words = written.chunks_exact(geometry.entry_words);
    for (at, (&phys, words)) in entries.iter().zip(words).take(geometry.leaf_entries).enumerate() {
        if phys == 0 || words.iter().all(|&word| word == 0) {
            continue;
        }
        count += 1;
        block[HEADER + 8 * at..][..8].copy_from_slice(&phys.to_le_bytes());
        let to = &mut block[bitmaps + bytes * at..][..bytes];
        for (to, word) in to.chunks_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes()[..to.len()]);
        }
    }
    place.seal(block, kind::LEAF, 0, count)
}

/// Decodes into slices of at least [`Geometry::leaf_entries`] entries and `entry_words` times as many words. Returns
/// the number of entries that are not holes.
pub fn decode(
    block: &Block,
    geometry: &Geometry,
    expect: &Expect,
    entries: &mut [u64],
    written: &mut [u64],
) -> Result<usize, Damage> {
    let head = expect.open(block, kind::LEAF, 0)?;
    require(head.owner != 0, "owner", head.owner, "is no volume")?;
    let bytes = bitmap_bytes(geometry.unit_blocks);
    let bitmaps = HEADER + 8 * geometry.leaf_entries;
    require_zero_tail(&block[bitmaps..], bytes * geometry.leaf_entries)?;
    let mut count = 0;
    let words = written.chunks_exact_mut(geometry.entry_words);
    for (at, (entry, words)) in entries.iter_mut().zip(words).take(geometry.leaf_entries).enumerate() {
        let mut raw = [0; 8];
        raw.copy_from_slice(&block[HEADER + 8 * at..][..8]);
        let phys = u64::from_le_bytes(raw);
        let from = &block[bitmaps + bytes * at..][..bytes];
        for (word, from) in words.iter_mut().zip(from.chunks(8)) {
            let mut raw = [0; 8];
            raw[..from.len()].copy_from_slice(from);
            *word = u64::from_le_bytes(raw);
        }
        check_entry(geometry, phys, words)?;
        count += usize::from(phys != 0);
        *entry = phys;
    }
    require(count == head.count as usize, "count", head.count, "is not the number of entries")?;
    Ok(count)
}

/// Returns an error unless the entry is a unit of the pool with written blocks, or a hole without any.
pub(crate) fn check_entry(geometry: &Geometry, phys: u64, words: &[u64]) -> Result<(), Damage> {
    let any = words.iter().any(|&word| word != 0);
    if phys == 0 {
        return require(!any, "written", words[0], "has bits for a hole");
    }
    require(geometry.is_unit(phys), "entry", phys, "is no unit of the pool")?;
    require(any, "written", 0u64, "has no bits for an entry")?;
    require(words.iter().all(|word| word & !geometry.full_word() == 0), "written", words[0], "has too many bits")
}
