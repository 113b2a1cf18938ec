//! Whole maps: a top gets what another one has.
//!
//! Owns sharing between tops, slot by slot: of copies, of copies that never came to be, and of rollbacks. What is below
//! the slots is changed by [`tree`](super::tree) alone.
//!
//! Called by changes of the table, under the pool's lock.

use sheave_base::status::Status;
use sheave_base::sync::atomic::Ordering;

use super::tree::Tree;
use super::{TAG, Top, id_of};

impl Tree {
    /// The new top has what the old one has: every node gets another parent, every way a tag on both sides. After an
    /// error it has nothing.
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

    /// The top has what another one has, as after [`Tree::share`]; the nodes that it had, which are to be
    /// [put](Tree::put_exchanged), each at its time. An error changes nothing.
    pub(crate) fn exchange(&mut self, from: &Top, to: &Top, slots: (u64, u64)) -> Result<Vec<u32>, Status> {
        let mut next = 0;
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

    /// A top that nobody has looked anything up through, and that no checkpoint has, gives back what it got by
    /// [`Tree::share`]: at once, without a commit and without a grace. Writes to the one that it got it from may be
    /// under way; with another parent for a while longer the nodes, and then the units, would be moved under them.
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
