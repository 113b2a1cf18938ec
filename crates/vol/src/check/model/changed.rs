//! Counts the nodes and leaves that records have changed, in all maps together. An open pool would have to write as
//! many pages.
//!
//! Owns the count. A copy of a changed node adds to it, and dropping a changed node subtracts from it, so nobody has to
//! search the maps.

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

/// Member of each node or leaf that has changed: counts it until it is dropped.
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
