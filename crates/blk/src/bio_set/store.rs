//! What the lab changes in a bio set, to show what the cache is worth: a smaller cache, and a [`BioStore`] behind it.
//!
//! Compiled with `--cfg sheave_lab` only. Invariants I8 and I9 of [`bio_set`](crate::bio_set) are about this.

use std::fmt::Debug;

use super::{BioSet, CACHE_SLACK};

/// What stands behind the cache of a ring's bios, in place of the ring's own pool alone: an allocator, a pool that
/// rings share, a limit. It hears of bios by number, below the set's capacity (I8), on the cold ways only: with a cache
/// that is large enough a few times, without one twice an I/O. Dropped with the set; it frees what it keeps then.
pub trait BioStore: Debug + Send {
    /// A bio leaves the pool; false when there is nothing for it, and then the I/O waits as if no bio were free.
    fn get(&mut self, bio: u32) -> bool;

    /// A bio that a `get` gave has returned to the pool.
    fn put(&mut self, bio: u32);
}

impl BioSet {
    /// Another bound of the cache; from now on no bio is promised (I9). False, and nothing has changed, while a bio is
    /// live or promised.
    pub(crate) fn set_max_cached(&mut self, max_cached: u32) -> bool {
        if self.live() + self.promised != 0 {
            return false;
        }
        self.promises = false;
        self.prune(self.cache.len());
        self.max_cached = max_cached.min(self.pool.len() as u32);
        self.cache.reserve((self.max_cached + CACHE_SLACK) as usize + 1);
        true
    }

    /// Puts a store behind the cache, in place of the one before; from now on no bio is promised (I9). False, and
    /// nothing has changed, while a bio is live or promised.
    pub(crate) fn set_store(&mut self, store: Box<dyn BioStore>) -> bool {
        if self.live() + self.promised != 0 {
            return false;
        }
        self.promises = false;
        self.prune(self.cache.len());
        self.store = Some(store);
        true
    }
}
