//! Test hook between the stores of a change.
//!
//! Lookups take no lock, so the state after each store of a change is visible to them. Owns a watcher per thread, which
//! is called after every store of an entry or of written bits by that thread.
//!
//! Called by [`tree`](super::tree) and [`bits`](super::bits).

use std::cell::RefCell;

type Watcher = Box<dyn FnMut()>;

thread_local! {
    static WATCHER: RefCell<Option<Watcher>> = const { RefCell::new(None) };
}

/// Runs `job` while `watcher` is called after every store of this thread.
pub(crate) fn watched<T>(watcher: impl FnMut() + 'static, job: impl FnOnce() -> T) -> T {
    WATCHER.set(Some(Box::new(watcher)));
    let done = job();
    WATCHER.set(None);
    done
}

/// Called after each store of an entry or of written bits.
pub(super) fn stored() {
    WATCHER.with_borrow_mut(|watcher| watcher.as_mut().map_or((), |watcher| watcher()));
}
