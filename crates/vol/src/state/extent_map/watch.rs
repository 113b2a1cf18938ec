//! What a lookup could find between any two stores of a change: tests alone look.
//!
//! Lookups take no lock, so each store of a change is seen by itself. Owns the watcher of a thread, which is called
//! after every store of an entry or of written bits that the thread makes.
//!
//! Called by [`tree`](super::tree) and [`bits`](super::bits).

use std::cell::RefCell;

type Watcher = Box<dyn FnMut()>;

thread_local! {
    static WATCHER: RefCell<Option<Watcher>> = const { RefCell::new(None) };
}

/// Does something while `watcher` is called after every store of this thread.
pub(crate) fn watched<T>(watcher: impl FnMut() + 'static, job: impl FnOnce() -> T) -> T {
    WATCHER.set(Some(Box::new(watcher)));
    let done = job();
    WATCHER.set(None);
    done
}

/// An entry or written bits were stored.
pub(super) fn stored() {
    WATCHER.with_borrow_mut(|watcher| watcher.as_mut().map_or((), |watcher| watcher()));
}
