//! The top of a volume's map, and the shortcut table to its leaves.
//!
//! Owns the words of the top, and a table with the leaf of each place, the *shortcut*. Lookups fill it without a lock.
//! When paths of the volume change, a new epoch invalidates the whole table.
//!
//! - T1: a word of the table is valid only in the epoch in which it was found. A lookup reads the epoch before it
//!   walks, and the epoch changes after the paths do, so a result from old paths has the old epoch. A lookup that still
//!   uses such a word is in a section that began earlier, and gets the result of a slightly earlier lookup. When all
//!   epochs have been used, the table is zeroed and the epochs start again; a late lookup removes its word itself.
//! - T2: a word whose path had a tag when the leaf was found has `TAGGED`, and never loses it.
//!
//! - T3: lookups through a top, and their I/O, are in sections of the top's own grace and of no other. So the units and
//!   nodes that its volume releases wait for that grace alone.
//!
//! Called by lookups; changed by [`Tree`](super::tree::Tree) under the pool's lock.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use sheave_base::grace::Grace;
use sheave_base::sync::Arc;
use sheave_base::sync::atomic::{AtomicU64, Ordering};
use sheave_base::sync::{Mutex, MutexGuard};

use super::arena::Arena;

/// Largest number of places of the shortcut table: 8 MiB of memory if all are touched, 16 TiB of data in units of 64
/// KiB.
const MAX_PLACES: u64 = 1 << 20;
/// Position of the epoch in a word of the table. Below it is the number of the leaf's first entry, counted over the
/// entries of all leaves ([`Arena::first_word`]). So one subtraction finds an entry's place, and one comparison shows
/// both that the word is valid and that the entry is there.
const EPOCH_SHIFT: u32 = 40;
const LAST_EPOCH: u64 = if cfg!(any(test, shuttle)) { 40 } else { (1 << (64 - EPOCH_SHIFT)) - 2 };
/// Epoch while the table is zeroed. No word has it.
const EMPTYING: u64 = LAST_EPOCH + 1;
/// Flag in a word of the table: the path has a tag.
const TAGGED: u64 = 1 << 39;

#[cfg(test)]
thread_local! {
    /// Test hook of this thread: making the word of this slot or a later one fails.
    pub(crate) static NO_MEMORY_FROM: std::cell::Cell<u32> = const { std::cell::Cell::new(u32::MAX) };
}

/// The root of an extent map.
#[derive(Debug)]
pub(crate) struct Top {
    /// Number of words that are not 0. `slots` has their slots; [`Top::set_word`] updates both. A volume may have a
    /// quarter of a million slots and use one, so scans of a map use `slots`. Its mutex is taken under the pool's lock
    /// only.
    used: AtomicU64,
    slots: Mutex<BTreeSet<u32>>,
    epoch: AtomicU64,
    places: OnceLock<Box<[AtomicU64]>>,
    words: Words,
    grace: Arc<Grace>,
}

/// Words of a top by slot. The first ones are an arena, which suits volumes that begin small. Later ones are in pages,
/// so that a write far out takes memory for one page, and not for all slots before it.
#[derive(Debug)]
struct Words {
    near: Arena,
    far: OnceLock<Box<[Page]>>,
}

/// Words of consecutive slots, allocated with the first of them.
type Page = OnceLock<Box<[AtomicU64]>>;

/// Binary logarithm of the number of slots in the arena, and in each page.
const PAGE_SHIFT: u32 = 10;
const PAGES: usize = 1 << 10;

impl Words {
    #[inline(always)]
    fn get(&self, slot: u32) -> Option<&AtomicU64> {
        if slot >> PAGE_SHIFT == 0 {
            return self.near.word(slot, 0);
        }
        let page = self.far.get()?.get((slot >> PAGE_SHIFT) as usize)?.get()?;
        page.get(slot as usize & ((1 << PAGE_SHIFT) - 1))
    }

    fn make(&self, slot: u32) -> bool {
        if slot >> PAGE_SHIFT == 0 {
            return self.near.make(slot);
        }
        let pages = self.far.get_or_init(|| (0..PAGES).map(|_| OnceLock::new()).collect());
        let Some(page) = pages.get((slot >> PAGE_SHIFT) as usize) else { return false };
        if page.get().is_none()
            && let Some(words) = super::arena::zeroed(1 << PAGE_SHIFT)
        {
            let _ = page.set(words);
        }
        page.get().is_some()
    }
}

/// Snapshot of the shortcut table for a batch of lookups; see [`Top::ways`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ways<'a> {
    places: &'a [AtomicU64],
    /// Epoch, shifted as in a word of the table.
    epoch: u64,
    // Mask of a word. It keeps `TAGGED` for writers, so that a tagged word is never valid for them.
    looked_at: u64,
}

impl Ways<'_> {
    /// Returns the number of the first entry of the leaf of `place`, less `start`; `None` beyond the table. Without a
    /// valid word the result is larger than any entry's number.
    #[inline(always)]
    pub(crate) fn short(&self, place: u64, start: u64) -> Option<u64> {
        // Acquire: pairs with the Release in `remember`: the leaf is as complete as for the lookup that stored the
        // word.
        let word = self.places.get(place as usize)?.load(Ordering::Acquire);
        Some((word & self.looked_at).wrapping_sub(self.epoch + start))
    }
}

impl Top {
    pub(crate) fn new() -> Top {
        Top {
            used: AtomicU64::new(0),
            slots: Mutex::new(BTreeSet::new()),
            epoch: AtomicU64::new(1),
            places: OnceLock::new(),
            words: Words { near: Arena::new(0), far: OnceLock::new() },
            grace: Arc::new(Grace::new()),
        }
    }

    /// Returns the grace of all lookups through this top (T3).
    pub(crate) fn grace(&self) -> &Arc<Grace> {
        &self.grace
    }

    #[inline(always)]
    pub(crate) fn word(&self, slot: u32) -> Option<&AtomicU64> {
        self.words.get(slot)
    }

    /// Stores the word of a slot, which must have been made. Called under the pool's lock.
    pub(crate) fn set_word(&self, slot: u32, value: u64) {
        let Some(word) = self.word(slot) else { return };
        // Relaxed, all but the store of the word: under the lock.
        let old = word.load(Ordering::Relaxed);
        word.store(value, Ordering::Release); // Release: pairs with the Acquire load in `ExtentMap::find`
        if (old == 0) == (value == 0) {
            return;
        }
        let used = self.used.load(Ordering::Relaxed) + u64::from(value != 0);
        self.used.store(used - u64::from(value == 0), Ordering::Relaxed);
        if value == 0 {
            self.slots().remove(&slot);
        } else {
            self.slots().insert(slot);
        }
    }

    fn slots(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.slots.lock().expect("invariant: no panic under this lock")
    }

    /// Returns the first slot of `from..end` that has an index node. Called under the pool's lock.
    pub(crate) fn next_used(&self, from: u64, end: u64) -> Option<u64> {
        let from = u32::try_from(from).ok()?;
        self.slots().range(from..).next().map(|slot| u64::from(*slot)).filter(|slot| *slot < end)
    }

    /// Returns the last slot before `end` that has an index node. Called under the pool's lock.
    pub(crate) fn last_used(&self, end: u64) -> Option<u64> {
        let end = u32::try_from(end).unwrap_or(u32::MAX);
        self.slots().range(..end).next_back().map(|slot| u64::from(*slot))
    }

    /// Returns the number of slots that have an index node.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed) // Relaxed: under the lock.
    }

    /// Makes sure that the slot has a word. Returns false if the allocation fails.
    pub(crate) fn make(&self, slot: u32) -> bool {
        #[cfg(test)]
        if slot >= NO_MEMORY_FROM.get() {
            return false;
        }
        self.words.make(slot)
    }

    /// Allocates the shortcut table for `leaves` leaves, up to a bound; further leaves are found by a walk.
    pub(crate) fn open(&self, leaves: u64) {
        if self.places.get().is_none()
            && let Some(places) = super::arena::zeroed(leaves.clamp(1, MAX_PLACES) as usize)
        {
            let _ = self.places.set(places);
        }
    }

    #[inline(always)]
    pub(crate) fn epoch(&self) -> u64 {
        // Acquire: pairs with the Release in `forget`.
        self.epoch.load(Ordering::Acquire)
    }

    /// Returns the shortcut table in the current epoch. For a writer, words with `TAGGED` are invalid.
    #[inline(always)]
    pub(crate) fn ways(&self, write: bool) -> Ways<'_> {
        let epoch = self.epoch() << EPOCH_SHIFT;
        let places = self.places.get().map_or(&[][..], |places| places);
        Ways { places, epoch, looked_at: if write { !0 } else { !TAGGED } }
    }

    /// Stores the leaf of `place`, whose first entry has this number. `epoch` was read before the walk (T1).
    pub(crate) fn remember(&self, epoch: u64, place: u64, first_entry: u64, tagged: bool) {
        let Some(word) = self.places.get().and_then(|places| places.get(place as usize)) else { return };
        // A number this large does not fit the word; the place stays on the slow path.
        if first_entry >= TAGGED || epoch == EMPTYING {
            return;
        }
        let tagged = if tagged { TAGGED } else { 0 };
        let short = epoch << EPOCH_SHIFT | tagged | first_entry;
        // Release: pairs with the Acquire in `Ways::short`. Acquire: pairs with the Release in `forget`, if this
        // replaces its zero, or with the Release of another lookup here.
        word.swap(short, Ordering::AcqRel);
        if self.epoch() != epoch {
            // Relaxed, both: a lookup that finds 0 walks from the top instead.
            let _ = word.compare_exchange(short, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Invalidates the shortcut table, as paths have changed (T1). Called under the pool's lock.
    pub(crate) fn forget(&self) {
        let mut next = self.epoch.load(Ordering::Relaxed) + 1; // Relaxed: under the lock.
        if next > LAST_EPOCH {
            // Epochs start again, so no word of an old one may remain. Epoch 0 is never valid. The swap of a late
            // lookup is either overwritten by the zero, or it replaces the zero: then the lookup next reads `EMPTYING`
            // or a later epoch, and removes its word.
            self.epoch.store(EMPTYING, Ordering::Release); // Release: pairs with the Acquire in `epoch`
            let places = self.places.get().map_or(&[][..], |places| places);
            // Release: pairs with the swap in `remember`
            places.iter().for_each(|word| word.store(0, Ordering::Release));
            next = 1;
        }
        self.epoch.store(next, Ordering::Release); // Release: pairs with the Acquire in `epoch`
    }
}
