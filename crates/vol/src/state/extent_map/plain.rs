//! Plain lookups: ranges within one unit that is in the shortcut table and fully written.
//!
//! Owns the meaning of *plain* in a map. Almost every read and overwrite is plain; the other lookups of [`ExtentMap`]
//! handle the rest. One short loop looks up a batch. Its iterations are independent, so the processor overlaps their
//! cache misses: with a map that is in no cache, a batch waits for memory once, and not once per entry.
//!
//! Called by volumes, within a section of the volume's grace.

use sheave_base::sync::atomic::{AtomicU64, Ordering};
use sheave_iomap::mapping::{Intent, MapFlags};
use sheave_iomap::{Mapping, MappingKind, PlainRanges};

use super::top::Ways;
use super::{Entry, ExtentMap, Top};

/// Common inputs of lookups of ranges of one length.
#[derive(Clone, Copy)]
struct Plain<'a> {
    map: &'a ExtentMap,
    ways: Ways<'a>,
    /// Entries of the last chunk of leaves, which has more than half of them, and the number of the first one.
    entries: &'a [AtomicU64],
    start: u64,
    unit_shift: u32,
    /// Largest offset in a unit at which a range may begin.
    last: u64,
    /// Smallest plain entry.
    plain: u64,
    /// Mask of the unit number. Kept in a field, because the compiler would load a constant anew in every iteration.
    phys: u64,
}

impl<'a> Plain<'a> {
    /// Inputs for readers or writers; `None` if a range is longer than a unit.
    #[inline(always)]
    fn new(map: &'a ExtentMap, top: &'a Top, len: u64, write: bool) -> Option<Plain<'a>> {
        let (start, entries) = map.leaves.last_chunk();
        Some(Plain {
            map,
            ways: top.ways(write),
            entries,
            start,
            unit_shift: map.geometry.unit_shift & 63,
            last: map.geometry.unit_bytes().checked_sub(len)?,
            plain: if write { Entry::PLAIN_FOR_WRITES } else { Entry::PLAIN_FOR_READS },
            phys: Entry::PHYS,
        })
    }

    /// Looks up the entry of the unit at `pos` in the shortcut table, in maps whose leaves have `1 << LEAF_SHIFT`
    /// entries. `Err`: the entry is in another chunk; its number is relative to `start` and may have wrapped.
    #[inline(always)]
    fn find_here<const LEAF_SHIFT: u32>(&self, pos: u64) -> Option<Result<&'a AtomicU64, u64>> {
        let unit = pos >> self.unit_shift;
        let short = self.ways.short(unit >> LEAF_SHIFT, self.start)?;
        let at = short.wrapping_add(unit & ((1 << LEAF_SHIFT) - 1));
        Some(self.entries.get(at as usize).ok_or(at))
    }

    /// Returns the entry of the unit at `pos`, in any chunk.
    #[inline]
    fn find(&self, pos: u64) -> Option<&'a AtomicU64> {
        let found = match self.map.geometry.leaf_shift {
            8 => self.find_here::<8>(pos)?,
            7 => self.find_here::<7>(pos)?,
            _ => self.find_here::<6>(pos)?,
        };
        found.or_else(|at| self.map.leaves.word_at(at.wrapping_add(self.start)).ok_or(())).ok()
    }

    /// Returns the entry and the pool address of `pos`, if the entry is plain. `FITS`: all ranges are known to end
    /// within their units.
    #[inline(always)]
    fn read<const FITS: bool>(&self, word: &AtomicU64, pos: u64) -> Option<(Entry, u64)> {
        // Acquire: pairs with the Release stores of entries in `tree` (I3).
        let entry = Entry(word.load(Ordering::Acquire));
        let offset = pos & ((1 << self.unit_shift) - 1);
        let plain = entry.0 >= self.plain && (FITS || offset <= self.last);
        plain.then(|| (entry, ((entry.0 & self.phys) << self.unit_shift) + offset))
    }

    /// Calls [`Plain::read_here`] with the map's leaf size. `fits` is as in [`Plain::read`].
    #[inline(always)]
    fn read_most(&self, at: &mut [u64], fits: bool) -> usize {
        match (self.map.geometry.leaf_shift, fits) {
            (8, true) => self.read_here::<8, true>(at),
            (8, false) => self.read_here::<8, false>(at),
            (7, true) => self.read_here::<7, true>(at),
            (7, false) => self.read_here::<7, false>(at),
            (_, true) => self.read_here::<6, true>(at),
            (_, false) => self.read_here::<6, false>(at),
        }
    }

    /// Continues after the first `many` ranges. An entry in another chunk is looked up singly, then the fast loop
    /// resumes.
    #[inline(never)]
    fn read_rest(&self, at: &mut [u64], mut many: usize, fits: bool) -> usize {
        while let Some(next) = at.get_mut(many) {
            let word = self.find(*next);
            let Some((_, addr)) = word.and_then(|word| self.read::<false>(word, *next)) else { break };
            *next = addr;
            many += 1;
            many += self.read_most(at.get_mut(many..).unwrap_or_default(), fits);
        }
        many
    }

    /// Replaces positions by pool addresses while they are plain and in the last chunk. Returns the number replaced.
    /// This is a separate function because its loop needs all registers.
    #[inline(never)]
    fn read_here<const LEAF_SHIFT: u32, const FITS: bool>(&self, at: &mut [u64]) -> usize {
        let all = at.len();
        let mut rest = at.iter_mut();
        while let Some(at) = rest.next() {
            let Some(Ok(word)) = self.find_here::<LEAF_SHIFT>(*at) else { return all - rest.len() - 1 };
            let Some((_, addr)) = self.read::<FITS>(word, *at) else { return all - rest.len() - 1 };
            *at = addr;
        }
        all
    }
}

impl ExtentMap {
    /// Returns the mapping of a range for a reader or a writer, if it is plain.
    #[inline]
    pub(crate) fn lookup_plain(&self, top: &Top, pos: u64, len: u64, write: bool) -> Option<Mapping> {
        let plain = Plain::new(self, top, len, write)?;
        let (entry, addr) = plain.read::<false>(plain.find(pos)?, pos)?;
        let flags = MapFlags::DIRTY.only_if(write && entry.any(Entry::DIRTY));
        Some(Mapping::new(MappingKind::Mapped, pos, len, addr).flags(flags))
    }

    /// Replaces the positions `at` by pool addresses, up to the first range that is not plain. Returns the number
    /// replaced.
    pub(crate) fn lookup_many(&self, top: &Top, at: &mut [u64], ranges: &PlainRanges) -> usize {
        let write = ranges.intent == Intent::Write;
        let Some(plain) = Plain::new(self, top, ranges.len, write) else { return 0 };
        let many = plain.read_most(at, ranges.are_blocks());
        if many == at.len() { many } else { plain.read_rest(at, many, ranges.are_blocks()) }
    }
}
