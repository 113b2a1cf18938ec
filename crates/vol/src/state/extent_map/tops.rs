//! Sharing whole maps between tops.
//!
//! Owns sharing between tops, slot by slot: for copies, for undone copies, and for rollbacks. Levels below the slots
//! are changed by [`tree`](super::tree) alone.
//!
//! Called by changes of the table, under the pool's lock.

use sheave_base::status::Status;
use sheave_base::sync::atomic::Ordering;

use super::tree::Tree;
use super::{TAG, Top, id_of};

impl Tree {
    /// Shares all nodes of `from` with `to`: each index node gets another parent, and the slots of both tops a tag. On
    /// an error `to` is left empty.
    pub(crate) fn share(&mut self, from: &Top, to: &Top, slots: u64) -> Result<(), Status> {
        let mut next = 0;
        while let Some(at) = from.next_used(next, slots) {
            next = at + 1;
            self.count_slot();
            let at = at as u32;
            let Some(word) = from.word(at) else { continue };
            let id = word.load(Ordering::Relaxed); // Relaxed: under the lock.
            if !to.make(at) {
                self.unshare(to, slots);
                from.forget();
                return Err(Status::NoMem);
            }
            self.index.get(id_of(id));
            from.set_word(at, id | TAG);
            to.set_word(at, id | TAG);
        }
        from.forget();
        to.forget();
        Ok(())
    }

    /// Replaces the map of `to` by the map of `from`, which is then shared as by [`Tree::share`]. Returns the index
    /// nodes that `to` had. The caller must [put](Tree::put_exchanged) them, one at a time. An error changes nothing.
    pub(crate) fn exchange(&mut self, from: &Top, to: &Top, slots: (u64, u64)) -> Result<Vec<u32>, Status> {
        let mut next = 0;
        // Makes all words first: this is the only step that can fail, and nothing has changed yet.
        while let Some(at) = from.next_used(next, slots.0) {
            if !to.make(at as u32) {
                return Err(Status::NoMem);
            }
            next = at + 1;
        }
        let (mut old, mut next, end) = (Vec::new(), 0, slots.0.max(slots.1));
        while let Some(at) = from.next_used(next, end).into_iter().chain(to.next_used(next, end)).min() {
            next = at + 1;
            let at = at as u32;
            // Relaxed, here and below: under the lock.
            let source = from.word(at).filter(|word| word.load(Ordering::Relaxed) != 0);
            let Some(target) = to.word(at) else { continue };
            let had = id_of(target.load(Ordering::Relaxed));
            let has = source.map_or(0, |word| word.load(Ordering::Relaxed) | TAG);
            if source.is_some() {
                self.index.get(id_of(has));
                from.set_word(at, has);
            }
            to.set_word(at, has);
            old.extend((had != 0).then_some(had));
            self.count_slot();
        }
        from.forget();
        to.forget();
        Ok(old)
    }

    /// Undoes [`Tree::share`] for a top that was never used for lookups and is in no checkpoint. Does so at once,
    /// without a commit or a grace: a deferred release would keep the second parent for a while, and changes of the
    /// source would then have to copy nodes and units to which writes are in flight.
    pub(crate) fn unshare(&mut self, top: &Top, slots: u64) {
        while let Some(at) = top.next_used(0, slots) {
            let at = at as u32;
            let id = top.word(at).map_or(0, |word| id_of(word.load(Ordering::Relaxed))); // Relaxed: under the lock.
            top.set_word(at, 0);
            let last = self.index.put(id);
            debug_assert!(last.is_none(), "the source of a copy has what the copy has");
            self.work += 1;
        }
    }
}
