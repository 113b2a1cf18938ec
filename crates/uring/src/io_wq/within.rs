//! Items that run within items.
//!
//! A worker that issues an operation for a ring does so on a ring of its own, whose blocking work runs on the same
//! thread as items of a pool without threads. Whoever wants the outer item to end early wants the inner one to.
//!
//! Owns the items that run on this thread, the innermost last.

use sheave_base::sync::Arc;

use super::item::Items;

#[cfg(not(shuttle))]
type List = std::cell::RefCell<Vec<(Arc<Items>, u32)>>;

#[cfg(not(shuttle))]
std::thread_local! {
    static RUNNING: List = const { List::new(Vec::new()) };
}

/// An item that runs on this thread, until this is dropped.
pub(super) struct Running<'a> {
    /// In a model, whose threads share what belongs to a thread, nothing runs within anything.
    #[cfg_attr(not(shuttle), allow(dead_code))]
    items: &'a Arc<Items>,
    #[cfg_attr(not(shuttle), allow(dead_code))]
    slot: u32,
}

impl<'a> Running<'a> {
    pub(super) fn begin(items: &'a Arc<Items>, slot: u32) -> Running<'a> {
        #[cfg(not(shuttle))]
        // The list may be gone when the thread ends: then nothing runs within anything any more.
        let _ = RUNNING.try_with(|running| running.borrow_mut().push((Arc::clone(items), slot)));
        Running { items, slot }
    }

    /// Whether somebody wants this item, or one that it runs within, to end early.
    #[cfg(not(shuttle))]
    pub(super) fn is_cancelled(&self) -> bool {
        let any = |running: &List| running.borrow().iter().any(|(items, slot)| items.is_cancelled(*slot));
        RUNNING.try_with(any).unwrap_or_else(|_| self.items.is_cancelled(self.slot))
    }

    /// See above.
    #[cfg(shuttle)]
    pub(super) fn is_cancelled(&self) -> bool {
        self.items.is_cancelled(self.slot)
    }
}

#[cfg(not(shuttle))]
impl Drop for Running<'_> {
    fn drop(&mut self) {
        let _ = RUNNING.try_with(|running| running.borrow_mut().pop());
    }
}
