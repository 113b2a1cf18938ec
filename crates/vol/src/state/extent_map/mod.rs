//! Extent maps: the place of each unit of each volume, in trees that are read without a lock.
//!
//! ```text
//!   top of a volume ──> index node (256 leaves) ──> leaf (entries, written bits)
//! ```
//!
//! Owns the nodes' memory, the meaning of the words in them, and the lookups. Does not own changes: [`tree`] makes them
//! under the pool's lock, with the stores that this file's loads pair with.
//!
//! A top has one word per slot. A word of a top or an index node is the number of a node, with [`TAG`] set when the
//! node may have other parents. A write needs a path without tags.
//!
//! - I1: a node is complete before its number is stored (Release), so a lookup that loads the number (Acquire) sees all
//!   of it.
//! - I2: a node that is taken out of a tree is reused only after a grace period.
//! - I3: written bits beside the entries are zeroed before an entry gets a unit, and an entry is emptied before its
//!   written bits are. So bits loaded between two loads of equal entries belong to that entry. Equal entries are the
//!   same entry, as a released unit is reused only after a grace period.
//! - I4: a change takes several stores, and a lookup may run between any two of them. So an entry gets `DIRTY` before
//!   bits are set that are not durable, and `READY` only once everything else in it is right.

pub(crate) mod arena;
mod bits;
pub(crate) mod entry;
pub(crate) mod known;
pub(crate) mod nodes;
mod plain;
pub(crate) mod replayed;
pub(crate) mod top;
mod tops;
pub(crate) mod tree;
#[cfg(all(test, not(shuttle)))]
pub(crate) mod watch;
pub(crate) mod work;

use sheave_base::status::Status;
use sheave_base::sync::atomic::Ordering;
use sheave_iomap::mapping::MapFlags;
use sheave_iomap::{Mapping, MappingKind};

use crate::format::BLOCK_SHIFT;

pub(crate) use arena::Arena;
pub(crate) use entry::{Entry, Geometry, INDEX_SHIFT};
pub(crate) use top::Top;

/// Flag in the number of a node: the node may have other parents.
pub(crate) const TAG: u64 = 1 << 31;

/// Binary logarithm of the number of leaves in the first chunk: enough for 256 GiB in units of 64 KiB. They take 32 MiB
/// of addresses, and memory only as they are used. Small in tests, so that tests use several chunks.
const FIRST_LEAVES_SHIFT: u32 = if cfg!(any(test, shuttle)) { 1 } else { 14 };

/// Node number of a word, without the tag.
#[inline(always)]
pub(crate) fn id_of(word: u64) -> u32 {
    (word & (TAG - 1)) as u32
}

#[derive(Debug)]
pub(crate) struct ExtentMap {
    pub(crate) geometry: Geometry,
    pub(crate) index: Arena,
    pub(crate) leaves: Arena,
    pub(crate) bits: Arena,
}

/// Result of a walk to a unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    pub(crate) entry: Entry,
    /// True if a word on the path has `TAG`.
    pub(crate) tagged: bool,
    /// Number of the leaf, 0 if there is none.
    pub(crate) leaf: u32,
    /// Index of the entry in the leaf.
    pub(crate) slot: usize,
}

impl ExtentMap {
    pub(crate) fn new(geometry: Geometry) -> ExtentMap {
        ExtentMap {
            geometry,
            index: Arena::new(INDEX_SHIFT),
            leaves: Arena::with_first(geometry.leaf_shift, FIRST_LEAVES_SHIFT),
            bits: Arena::new(geometry.bits_shift()),
        }
    }

    /// Walks from `top` to a unit.
    #[inline(always)]
    pub(crate) fn find(&self, top: &Top, unit: u64) -> Spot {
        let geometry = &self.geometry;
        let slot = (unit & ((1 << geometry.leaf_shift) - 1)) as usize;
        let nothing = Spot { entry: Entry::NONE, tagged: false, leaf: 0, slot };
        let at = unit >> geometry.slot_shift();
        if at >= TAG {
            return nothing;
        }
        // Acquire: pairs with the Release stores of numbers in `tree` (I1), as does the next one.
        let Some(first) = top.word(at as u32).map(|word| word.load(Ordering::Acquire)) else { return nothing };
        let child = (unit >> geometry.leaf_shift) as usize & ((1 << INDEX_SHIFT) - 1);
        let second = match self.index.word(id_of(first), child) {
            Some(word) if first != 0 => word.load(Ordering::Acquire), // Acquire: pairs as the one above
            _ => return Spot { tagged: first & TAG != 0, ..nothing },
        };
        let tagged = (first | second) & TAG != 0;
        match self.leaves.word(id_of(second), slot) {
            Some(word) if second != 0 => {
                // Acquire: pairs with the Release stores of entries in `tree` (I3).
                let entry = Entry(word.load(Ordering::Acquire));
                Spot { entry, tagged, leaf: id_of(second), slot }
            }
            _ => Spot { tagged, ..nothing },
        }
    }

    /// Returns true if block `first` of a unit is written. Also returns the number of blocks from there on, at most
    /// `most`, that are in the same state.
    #[inline]
    pub(crate) fn written_run(&self, leaf: u32, slot: usize, first: u32, most: u32) -> (bool, u32) {
        if self.geometry.has_bits_in_entries() {
            // Acquire: pairs with the Release stores of entries in `tree` (I3).
            let entry = self.leaves.word(leaf, slot).map_or(Entry::NONE, |word| Entry(word.load(Ordering::Acquire)));
            return run_of(entry.bits() >> first, most);
        }
        let mut at = (slot << self.geometry.blocks_shift()) + first as usize;
        let end = at + most as usize;
        let mut run = (false, 0);
        while at < end {
            // Acquire: orders this load before the caller's second look at the entry; pairs with the Release stores of
            // bits in `tree`.
            let word = self.bits.word(leaf, at >> 6).map_or(0, |word| word.load(Ordering::Acquire)) >> (at & 63);
            if run.1 == 0 {
                run.0 = word & 1 != 0;
            }
            let left = (64 - (at & 63)).min(end - at) as u32;
            let same = if run.0 { word.trailing_ones() } else { word.trailing_zeros() }.min(left);
            run.1 += same;
            if same < left {
                break;
            }
            at += same as usize;
        }
        run
    }

    /// Does the same as `find`, and stores the leaf in the shortcut table of `top`.
    fn find_and_remember(&self, top: &Top, unit: u64) -> Spot {
        // Read before the walk, so that a change during the walk makes the stored word stale (T1 of `top`).
        let epoch = top.epoch();
        let spot = self.find(top, unit);
        if spot.leaf != 0 {
            let first_entry = self.leaves.first_word(spot.leaf);
            top.remember(epoch, unit >> self.geometry.leaf_shift, first_entry, spot.tagged);
        }
        spot
    }

    /// Returns the mapping of at most `len` bytes at `pos`, for a reader.
    #[cfg(test)]
    pub(crate) fn lookup_read(&self, top: &Top, pos: u64, len: u64) -> Result<Mapping, Status> {
        self.lookup_plain(top, pos, len, false).map_or_else(|| self.lookup_read_far(top, pos, len), Ok)
    }

    /// Returns the mapping of at most `len` bytes at `pos`, for a writer. `None` if a change of the map is needed
    /// first.
    pub(crate) fn lookup_write(&self, top: &Top, pos: u64, len: u64) -> Option<Mapping> {
        self.lookup_plain(top, pos, len, true).or_else(|| self.lookup_write_far(top, pos, len))
    }

    /// Slow path of a read: the unit is not in the shortcut table, is not fully written, or the range goes beyond it.
    #[inline(never)]
    pub(crate) fn lookup_read_far(&self, top: &Top, pos: u64, len: u64) -> Result<Mapping, Status> {
        let geometry = &self.geometry;
        let spot = self.find_and_remember(top, pos >> geometry.unit_shift);
        let offset = pos & (geometry.unit_bytes() - 1);
        let here = len.min(geometry.unit_bytes() - offset);
        if !spot.entry.is_alloc() {
            let len = if spot.leaf == 0 { self.no_leaf(pos, len) } else { here };
            return Ok(Mapping::new(MappingKind::Hole, pos, len, 0));
        }
        let addr = (spot.entry.phys() << geometry.unit_shift) + offset;
        let (written, run, _) = match spot.entry.any(Entry::FULL) {
            true => (true, here, spot.entry),
            false => self.block_run(top, pos, here, &spot)?,
        };
        let kind = if written { MappingKind::Mapped } else { MappingKind::Unwritten };
        let full = Entry::PLAIN_FOR_READS;
        let len = if written && run < len && run == geometry.unit_bytes() - offset {
            self.extend(top, pos, len, spot.entry, |entry, _| entry.has(full))
        } else {
            run
        };
        Ok(Mapping::new(kind, pos, len, addr))
    }

    #[inline(never)]
    pub(crate) fn lookup_write_far(&self, top: &Top, pos: u64, len: u64) -> Option<Mapping> {
        let geometry = &self.geometry;
        let spot = self.find_and_remember(top, pos >> geometry.unit_shift);
        if spot.tagged || spot.entry.stops_writes() || !spot.entry.is_alloc() {
            return None;
        }
        let offset = pos & (geometry.unit_bytes() - 1);
        let here = len.min(geometry.unit_bytes() - offset);
        let addr = (spot.entry.phys() << geometry.unit_shift) + offset;
        // `DIRTY` must come from the entry as loaded after the bits: a change sets it before the bits (I4).
        let (written, run, after) = match spot.entry.any(Entry::FULL) {
            true => (true, here, spot.entry),
            false => self.block_run(top, pos, here, &spot).ok()?,
        };
        let dirty = after.0 & Entry::DIRTY;
        let flags = if dirty != 0 { MapFlags::DIRTY } else { MapFlags::NONE };
        if written {
            let plain = Entry::PLAIN_FOR_WRITES;
            let len = if run < len && run == geometry.unit_bytes() - offset {
                self.extend(top, pos, len, spot.entry, |entry, tagged| {
                    !tagged && entry.0 & (plain | Entry::DIRTY) == plain | dirty
                })
            } else {
                run
            };
            return Some(Mapping::new(MappingKind::Mapped, pos, len, addr).flags(flags));
        }
        let whole = run & !((1 << BLOCK_SHIFT) - 1);
        if pos & ((1 << BLOCK_SHIFT) - 1) != 0 || whole == 0 || !spot.entry.any(Entry::HANDED) {
            return None;
        }
        let flags = MapFlags::NEW | MapFlags::DIRTY;
        Some(Mapping::new(MappingKind::Unwritten, pos, whole, addr).flags(flags))
    }

    /// Returns the number of bytes from `pos`, at most `len`, up to the next position where a leaf could begin.
    fn no_leaf(&self, pos: u64, len: u64) -> u64 {
        let leaf = self.geometry.unit_bytes() << self.geometry.leaf_shift;
        len.min(leaf - (pos & (leaf - 1)))
    }

    /// Returns the number of bytes from `pos`, at most `len`, that are contiguous in the pool and lie in units that
    /// `like` accepts.
    fn extend(&self, top: &Top, pos: u64, len: u64, first: Entry, like: impl Fn(Entry, bool) -> bool) -> u64 {
        let geometry = &self.geometry;
        let from = pos >> geometry.unit_shift;
        let last = (pos + len - 1) >> geometry.unit_shift;
        let mut unit = from + 1;
        while unit <= last {
            let spot = self.find(top, unit);
            if spot.entry.phys() != first.phys() + (unit - from) || !like(spot.entry, spot.tagged) {
                break;
            }
            unit += 1;
        }
        len.min((unit << geometry.unit_shift) - pos)
    }

    /// Returns three results: true if the block at `pos` is written; the number of bytes, at most `len` and in one
    /// unit, that are in the same state; and the entry as it was afterwards. Fails with `Again` if the unit has moved
    /// meanwhile.
    #[inline]
    fn block_run(&self, top: &Top, pos: u64, len: u64, spot: &Spot) -> Result<(bool, u64, Entry), Status> {
        let offset = pos & (self.geometry.unit_bytes() - 1);
        let first = (offset >> BLOCK_SHIFT) as u32;
        let end = ((offset + len - 1) >> BLOCK_SHIFT) as u32 + 1;
        let to = |blocks: u32| len.min((u64::from(first + blocks) << BLOCK_SHIFT) - offset);
        if self.geometry.has_bits_in_entries() {
            let (written, blocks) = run_of(spot.entry.bits() >> first, end - first);
            return Ok((written, to(blocks), spot.entry));
        }
        let (written, blocks) = self.written_run(spot.leaf, spot.slot, first, end - first);
        let again = self.find(top, pos >> self.geometry.unit_shift);
        if !again.entry.same_place(spot.entry) || again.leaf != spot.leaf {
            return Err(Status::Again);
        }
        Ok((written, to(blocks), again.entry))
    }
}

/// Returns the lowest bit, and the number of consecutive bits from there on that equal it, at most `most`.
#[inline]
fn run_of(bits: u64, most: u32) -> (bool, u32) {
    let written = bits & 1 != 0;
    (written, if written { bits.trailing_ones() } else { bits.trailing_zeros() }.min(most))
}

#[cfg(all(test, not(shuttle)))]
mod tests;
