//! The top of a volume's map, and the short way to its leaves.
//!
//! Owns the words of the top, and a table with the leaf of each place, as lookups found it: the short way. It is filled
//! by lookups, without a lock, and forgotten as a whole by a new epoch when the volume's ways change.
//!
//! - T1: a word of the table counts only with the epoch that it was found in. A lookup takes the epoch before it walks,
//!   and the epoch changes after the ways do: so what was found on the old ways has the old epoch. Whoever still goes
//!   there does so within a section that began before, as if it had looked a little earlier. When the epochs have all
//!   been used, the table is emptied and they begin again; a lookup that is late takes its word back.
//! - T2: a way that a tag was on when the leaf was found has it in the table, and never loses it there.
//!
//! - T3: who looks something up through a top, and does I/O to it, is in the top's grace, and in no other: what its
//!   volume lets go waits for that one alone.
//!
//! Called by lookups; changed by [`Tree`](super::tree::Tree) under the pool's lock.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use sheave_base::grace::Grace;
use sheave_base::sync::Arc;
use sheave_base::sync::atomic::{AtomicU64, Ordering};
use sheave_base::sync::{Mutex, MutexGuard};

use super::arena::Arena;

/// Most places of the table: 8 MiB of memory, if all are touched; 16 TiB in units of 64 KiB.
const MAX_PLACES: u64 = 1 << 20;
/// A word of the table has the epoch from here on, and below it the number of the leaf's first entry among those of all
/// leaves ([`Arena::first_word`]). An entry's place is then found by a subtraction, and one comparison says that the
/// word counts and the entry is there.
const EPOCH_SHIFT: u32 = 40;
const LAST_EPOCH: u64 = if cfg!(any(test, shuttle)) { 40 } else { (1 << (64 - EPOCH_SHIFT)) - 2 };
/// While the table is emptied: no word has this epoch.
const EMPTYING: u64 = LAST_EPOCH + 1;
/// In a word of the table: the way has a tag.
const TAGGED: u64 = 1 << 39;

#[cfg(test)]
thread_local! {
    /// No memory is left for the words of slots from this one on; for what this thread makes.
    pub(crate) static NO_MEMORY_FROM: std::cell::Cell<u32> = const { std::cell::Cell::new(u32::MAX) };
}

/// The root of a map.
#[derive(Debug)]
pub(crate) struct Top {
    /// Words that are not 0: how many, and which; kept by [`Top::set_word`]. A volume may have a quarter of a million
    /// words and use one: so nobody looks at the others. The mutex is taken under the pool's lock only.
    used: AtomicU64,
    slots: Mutex<BTreeSet<u32>>,
    epoch: AtomicU64,
    places: OnceLock<Box<[AtomicU64]>>,
    words: Words,
    grace: Arc<Grace>,
}

/// Words of a top by their slots. The first ones are an arena, which suits volumes that begin small; those beyond are
/// in pages, so that a volume that is written far out has memory for a page, and not for all slots before it.
#[derive(Debug)]
struct Words {
    near: Arena,
    far: OnceLock<Box<[Page]>>,
}

/// Words of slots that follow each other; made when the first of them is.
type Page = OnceLock<Box<[AtomicU64]>>;

/// Slots of the arena, and of a page, as a power of two; pages.
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

/// The short ways of a batch of lookups; see [`Top::ways`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ways<'a> {
    places: &'a [AtomicU64],
    /// As a word of the table has it.
    epoch: u64,
    looked_at: u64,
}

impl Ways<'_> {
    /// The number of the first entry of the leaf of a place, less `start`; none if the place is beyond the table. If no
    /// short way leads there, it is larger than any number of an entry.
    #[inline(always)]
    pub(crate) fn short(&self, place: u64, start: u64) -> Option<u64> {
        // Acquire: pairs with the Release in `remember`: the leaf is as complete as for who found it.
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

    /// The grace of those who look something up here (T3).
    pub(crate) fn grace(&self) -> &Arc<Grace> {
        &self.grace
    }

    /// The word of a slot.
    #[inline(always)]
    pub(crate) fn word(&self, slot: u32) -> Option<&AtomicU64> {
        self.words.get(slot)
    }

    /// Stores the word of a slot that has been made, under the pool's lock.
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

    /// The first slot of `from..end` that has an index node. Under the pool's lock.
    pub(crate) fn next_used(&self, from: u64, end: u64) -> Option<u64> {
        let from = u32::try_from(from).ok()?;
        self.slots().range(from..).next().map(|slot| u64::from(*slot)).filter(|slot| *slot < end)
    }

    /// The last slot before `end` that has an index node. Under the pool's lock.
    pub(crate) fn last_used(&self, end: u64) -> Option<u64> {
        let end = u32::try_from(end).unwrap_or(u32::MAX);
        self.slots().range(..end).next_back().map(|slot| u64::from(*slot))
    }

    /// Slots that have an index node.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed) // Relaxed: under the lock.
    }

    /// Makes sure that the slot has a word.
    pub(crate) fn make(&self, slot: u32) -> bool {
        #[cfg(test)]
        if slot >= NO_MEMORY_FROM.get() {
            return false;
        }
        self.words.make(slot)
    }

    /// Opens the short way, for that many leaves. What lies beyond goes the long way.
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

    /// The short ways as they are now, to all leaves: for a writer, those without a tag.
    #[inline(always)]
    pub(crate) fn ways(&self, write: bool) -> Ways<'_> {
        let epoch = self.epoch() << EPOCH_SHIFT;
        let places = self.places.get().map_or(&[][..], |places| places);
        Ways { places, epoch, looked_at: if write { !0 } else { !TAGGED } }
    }

    /// A lookup that took `epoch` before it began has found a leaf, whose first entry has this number.
    pub(crate) fn remember(&self, epoch: u64, place: u64, first_entry: u64, tagged: bool) {
        let Some(word) = self.places.get().and_then(|places| places.get(place as usize)) else { return };
        if first_entry >= TAGGED || epoch == EMPTYING {
            return;
        }
        let tagged = if tagged { TAGGED } else { 0 };
        let short = epoch << EPOCH_SHIFT | tagged | first_entry;
        // Release: pairs with the Acquire in `Ways::short`. Acquire: with the Release in `forget`, whose zero this may
        // replace, or that of another who did.
        word.swap(short, Ordering::AcqRel);
        if self.epoch() != epoch {
            // Relaxed, both: who sees none takes the long way.
            let _ = word.compare_exchange(short, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// The ways have changed (T1). Under the pool's lock.
    pub(crate) fn forget(&self) {
        let mut next = self.epoch.load(Ordering::Relaxed) + 1; // Relaxed: under the lock.
        if next > LAST_EPOCH {
            // Numbers begin again: nothing of the old ones may be left. Epoch 0 never counts, and who is late with an
            // old one sees this one, behind the zero in whose place it puts its word.
            self.epoch.store(EMPTYING, Ordering::Release); // Release: pairs with the Acquire in `epoch`
            let places = self.places.get().map_or(&[][..], |places| places);
            // Release: pairs with the swap in `remember`
            places.iter().for_each(|word| word.store(0, Ordering::Release));
            next = 1;
        }
        self.epoch.store(next, Ordering::Release); // Release: pairs with the Acquire in `epoch`
    }
}
