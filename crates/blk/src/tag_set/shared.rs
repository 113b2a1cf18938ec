//! The host-wide tags of a driver with one limit for all its rings, and the rings that sleep until one is free.
//!
//! Owns the bitmap and the list of sleepers. Does not own what a tag stands for.
//!
//! * I1 (no lost wake-up): a ring that found no tag puts itself on the list, then looks for a tag again, then sleeps;
//!   who frees a tag first frees it, then looks at the list. A fence on either side makes one of them see the other.
//! * I2: a ring is on the list at most once; a wake-up takes all of them off. The list has room for all rings, so that
//!   none allocates when it goes to sleep.
//! * I3 (shares): while rings go without, no other takes more than the part of all tags that each of them would have. A
//!   part is one tag at least, so a ring that is refused for its share has requests on their way, whose ends bring it
//!   back. Among more rings than tags it is chance who gets the next.
//!
//! Called by `Tags` alone.

use sheave_base::parker::Unparker;
use sheave_base::sbitmap::Sbitmap;
use sheave_base::sync::Mutex;
use sheave_base::sync::atomic::{AtomicU32, Ordering, fence};

#[derive(Debug)]
pub(super) struct SharedTags {
    pub(super) map: Sbitmap,
    /// Length of `list`: freeing looks no further while it is 0.
    sleepers: AtomicU32,
    list: Mutex<Vec<(u32, Unparker)>>,
    ids: AtomicU32,
    /// Rings that wanted a tag and got none.
    hungry: AtomicU32,
    /// Rings that have a number.
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

    /// A number for one more ring.
    pub(super) fn get_id(&self) -> u32 {
        // Relaxed: a counter; who counts last makes room for all.
        let rings = self.rings.fetch_add(1, Ordering::Relaxed) as usize + 1;
        let mut list = self.list.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let more = rings.saturating_sub(list.len());
        list.reserve(more);
        // Relaxed: only uniqueness counts.
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// The ring goes away, and sleeps no more.
    pub(super) fn put_id(&self, id: u32) {
        let mut list = self.list.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        list.retain(|(have, _)| *have != id);
        // Relaxed: a counter.
        self.rings.fetch_sub(1, Ordering::Relaxed);
    }

    /// How many more tags a ring may take that holds so many, and that is hungry itself or not (I3).
    pub(super) fn share_left(&self, held: u32, hungry: bool) -> u32 {
        // Relaxed: a count that decides who waits a little longer, and nothing else.
        let others = self.hungry.load(Ordering::Relaxed).saturating_sub(u32::from(hungry));
        if others == 0 {
            return u32::MAX;
        }
        (self.map.depth() / (others + 1)).max(1).saturating_sub(held)
    }

    /// A ring got nothing, or it is hungry no more.
    pub(super) fn set_hungry(&self, hungry: bool) {
        // Relaxed, both: as in `share_left`.
        if hungry {
            self.hungry.fetch_add(1, Ordering::Relaxed);
        } else {
            self.hungry.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Frees the tags `first + n` for each bit n of `mask`, and wakes who waits for one.
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
        // Relaxed: under the lock; a stale look costs one more turn through here.
        self.sleepers.store(0, Ordering::Relaxed);
        for (_, unparker) in list.drain(..) {
            unparker.unpark();
        }
    }

    /// Puts a ring on the list. It must look for a tag once more before it sleeps.
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
