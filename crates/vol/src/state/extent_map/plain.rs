//! Plain lookups: units on the short way that are written as a whole, for ranges that lie in one of them.
//!
//! Owns what *plain* means in a map. Almost every read and overwrite is; what is not, the other lookups of
//! [`ExtentMap`] know. Many are looked up in two steps: first all entries are found, and asked of memory, then all are
//! read; so a map that no cache holds is waited for once, and not entry by entry.
//!
//! Called by volumes, within a section of the volume's grace.

use sheave_base::prefetch::prefetch;
use sheave_base::sync::atomic::{AtomicU64, Ordering};
use sheave_iomap::mapping::MAP_DIRTY;
use sheave_iomap::{Mapping, MappingKind};

use super::arena::Nodes;
use super::top::Ways;
use super::{Entry, ExtentMap, Geometry, Top};

/// As many entries are found before they are read.
const AT_ONCE: usize = 32;

/// What a plain entry has.
const PLAIN: u64 = Entry::ALLOC | Entry::FULL;

/// From [`Entry::DIRTY`] to [`MAP_DIRTY`].
const DIRTY_TO_FLAG: u32 = Entry::DIRTY.trailing_zeros() - MAP_DIRTY.trailing_zeros();

/// What lookups of ranges of one length have in common.
#[derive(Clone, Copy)]
struct Plain<'a> {
    ways: Ways<'a>,
    leaves: Nodes<'a>,
    geometry: Geometry,
    /// Last offset in a unit at which a range may begin.
    last: u64,
    /// The flags that say whether an entry is plain.
    flags: u64,
}

impl<'a> Plain<'a> {
    /// For readers or writers; none if no unit has room.
    #[inline(always)]
    fn new(map: &'a ExtentMap, top: &'a Top, len: u64, write: bool) -> Option<Plain<'a>> {
        Some(Plain {
            ways: top.ways(write),
            leaves: map.leaves.nodes(),
            geometry: map.geometry,
            last: map.geometry.unit_bytes().checked_sub(len)?,
            flags: PLAIN | if write { Entry::STOPS_WRITES } else { 0 },
        })
    }

    /// The entry of the unit at `pos`, if the short way leads there.
    #[inline(always)]
    fn find(&self, pos: u64) -> Option<&'a AtomicU64> {
        let unit = pos >> self.geometry.unit_shift;
        let short = self.ways.short(unit >> self.geometry.leaf_shift)?;
        let slot = unit as usize & ((1 << self.geometry.leaf_shift) - 1);
        self.leaves.word(short.place(), slot)
    }

    /// What it says, and where `pos` is on the device, if it is plain.
    #[inline(always)]
    fn read(&self, word: &AtomicU64, pos: u64) -> Option<(Entry, u64)> {
        // Acquire: pairs with the Release stores of entries in `tree` (I3).
        let entry = Entry(word.load(Ordering::Acquire));
        let offset = pos & ((1 << self.geometry.unit_shift) - 1);
        let plain = entry.0 & self.flags == PLAIN && offset <= self.last;
        plain.then(|| (entry, (entry.phys() << self.geometry.unit_shift) + offset))
    }
}

impl ExtentMap {
    /// Where a range lies, for a reader or a writer, if it is plain.
    #[inline]
    pub(crate) fn lookup_plain(&self, top: &Top, pos: u64, len: u64, write: bool) -> Option<Mapping> {
        let plain = Plain::new(self, top, len, write)?;
        let (entry, addr) = plain.read(plain.find(pos)?, pos)?;
        let flags = if write { (entry.0 >> DIRTY_TO_FLAG) as u8 & MAP_DIRTY } else { 0 };
        Some(Mapping { offset: pos, len, addr, kind: MappingKind::Mapped, flags })
    }

    /// Where ranges of `len` bytes lie that begin at the positions `at`, as far as they are plain: puts the places
    /// there instead. How many.
    pub(crate) fn lookup_many(&self, top: &Top, at: &mut [u64], len: u64, write: bool) -> usize {
        let Some(plain) = Plain::new(self, top, len, write) else { return 0 };
        let mut many = 0;
        for at in at.chunks_mut(AT_ONCE) {
            let mut words = [None; AT_ONCE];
            for (word, &pos) in words.iter_mut().zip(&*at) {
                *word = plain.find(pos);
                let Some(word) = word else { break };
                prefetch(*word);
            }
            for (word, at) in words.iter().zip(at) {
                let Some((_, addr)) = word.and_then(|word| plain.read(word, *at)) else { return many };
                *at = addr;
                many += 1;
            }
        }
        many
    }
}
