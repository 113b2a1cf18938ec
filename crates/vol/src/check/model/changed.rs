//! Counts the nodes and leaves that records have changed, in all maps together: an open pool would have to write as
//! many.
//!
//! Owns the count. A copy of a changed node counts too, and a dropped one no longer does, so the maps are never
//! searched for them.

use std::cell::Cell;
use std::rc::Rc;

/// Counter of a pool; clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changed(Rc<Cell<u64>>);

impl Changed {
    pub fn count(&self) -> u64 {
        self.0.get()
    }
}

/// Part of a node or leaf that has changed: counts it until it is dropped.
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
