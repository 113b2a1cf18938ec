//! How many nodes and leaves records have changed, of all maps together: as many as an open pool would have to write.
//!
//! Owns the count. A copy of what has changed counts too, and what nobody has any more does not, so nobody need look
//! for them.

use std::cell::Cell;
use std::rc::Rc;

/// The count of a pool; its clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changed(Rc<Cell<u64>>);

impl Changed {
    /// How many there are now.
    pub fn count(&self) -> u64 {
        self.0.get()
    }
}

/// Something that has changed, and counts while it is there.
#[derive(Debug)]
pub(crate) struct Mark(Changed);

impl Mark {
    pub fn new(of: &Changed) -> Mark {
        of.0.set(of.0.get() + 1);
        Mark(of.clone())
    }
}

impl Clone for Mark {
    fn clone(&self) -> Mark {
        Mark::new(&self.0)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        let count = &self.0.0;
        count.set(count.get() - 1);
    }
}
