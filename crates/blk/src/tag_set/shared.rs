//! Host-wide tags of a driver with one limit for all its rings, and the rings that sleep until one is free.
//!
//! Owns the bitmap and the list of sleepers. Does not own the info of tags.
//!
//! * I1 (no lost wake-up): a ring that found no tag puts itself on the list, then tries to take a tag again, then
//!   sleeps. A ring that frees a tag first frees it, then reads the list. A fence on either side makes one of them see
//!   the other.
//! * I2: a ring is on the list at most once; a wake-up removes all of them. The list has room for all rings, so that
//!   none allocates when it goes to sleep.
//! * I3 (shares): while some rings find no tag, no other ring takes more than an equal share of all tags. A share is at
//!   least one tag, so a ring that is refused because of its share has requests in flight, whose ends bring it back.
//!   With more rings than tags, chance decides which ring gets the next tag.
//!
//! Called by `Tags` alone.

use sheave_base::parker::Unparker;
use sheave_base::sbitmap::Sbitmap;
use sheave_base::sync::Mutex;
use sheave_base::sync::atomic::{AtomicU32, Ordering, fence};

#[derive(Debug)]
pub(super) struct SharedTags {
    pub(super) map: Sbitmap,
    /// Length of `list`. While it is 0, freeing a tag does not lock the list.
    sleepers: AtomicU32,
    list: Mutex<Vec<(u32, Unparker)>>,
    ids: AtomicU32,
    /// Number of rings whose last attempt to take a tag failed.
    hungry: AtomicU32,
    /// Number of rings that use the set.
    rings: AtomicU32,
}

impl SharedTags {
    pub(super) fn new(depth: u32) -> SharedTags {
        SharedTags {
            map: Sbitmap::new(depth),
            sleepers: AtomicU32::new(0),
            list: Mutex::new(Vec::new()),
            ids: AtomicU32::new(0),
            hungry: AtomicU32::new(0),
            rings: AtomicU32::new(0),
        }
    }

    /// Registers one more ring. Returns its number.
    pub(super) fn get_id(&self) -> u32 {
        // Relaxed: a counter. The ring that counts last makes room for all.
        let rings = self.rings.fetch_add(1, Ordering::Relaxed) as usize + 1;
        let mut list = self.list.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let more = rings.saturating_sub(list.len());
        list.reserve(more);
        // Relaxed: only uniqueness counts.
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// Unregisters a ring, which sleeps no more.
    pub(super) fn put_id(&self, id: u32) {
        let mut list = self.list.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        list.retain(|(have, _)| *have != id);
        // Relaxed: a counter.
        self.rings.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the number of tags that a ring may still take (I3). `held` and `hungry` are those of the ring itself.
    pub(super) fn share_left(&self, held: u32, hungry: bool) -> u32 {
        // Relaxed: a count that only decides which ring waits a little longer.
        let others = self.hungry.load(Ordering::Relaxed).saturating_sub(u32::from(hungry));
        if others == 0 {
            return u32::MAX;
        }
        (self.map.depth() / (others + 1)).max(1).saturating_sub(held)
    }

    /// Counts a ring as hungry, or as no longer hungry.
    pub(super) fn set_hungry(&self, hungry: bool) {
        // Relaxed, both: as in `share_left`.
        if hungry {
            self.hungry.fetch_add(1, Ordering::Relaxed);
        } else {
            self.hungry.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Frees the tags `first + n` for each bit n of `mask`, and wakes the rings that wait for one.
    pub(super) fn free(&self, first: u32, mask: u64) {
        self.map.clear_batch(first, mask);
        // I1: pairs with the fence in `ask`.
        fence(Ordering::SeqCst);
        // Relaxed: ordered by the fence.
        if self.sleepers.load(Ordering::Relaxed) != 0 {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        let mut list = self.list.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // Relaxed: under the lock; a stale value costs one more call of this function.
        self.sleepers.store(0, Ordering::Relaxed);
        for (_, unparker) in list.drain(..) {
            unparker.unpark();
        }
    }

    /// Puts a ring on the list. It must try to take a tag once more before it sleeps.
    pub(super) fn ask(&self, id: u32, unparker: &Unparker) {
        let mut list = self.list.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if !list.iter().any(|(have, _)| *have == id) {
            list.push((id, unparker.clone()));
        }
        // Relaxed: ordered by the fence.
        self.sleepers.store(list.len() as u32, Ordering::Relaxed);
        drop(list);
        // I1: pairs with the fence in `free`.
        fence(Ordering::SeqCst);
    }
}
