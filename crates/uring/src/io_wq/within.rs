//! Items that run inside other items on one thread.
//!
//! A worker issues a ring's operation on a ring of its own, whose blocking work runs on the same thread as items of a
//! stepped pool. A request to end the outer item early applies to the inner ones too.
//!
//! Owns the stack of items that run on this thread, the innermost last.

use sheave_base::sync::Arc;

use super::item::Items;

#[cfg(not(shuttle))]
type List = std::cell::RefCell<Vec<(Arc<Items>, u32)>>;

#[cfg(not(shuttle))]
std::thread_local! {
    static RUNNING: List = const { List::new(Vec::new()) };
}

/// Registers an item as running on this thread until dropped.
pub(super) struct Running<'a> {
    /// Read only in a model and when the thread-local is gone. (In a model, where threads share thread-locals, items do
    /// not nest.)
    #[cfg_attr(not(shuttle), allow(dead_code))]
    items: &'a Arc<Items>,
    #[cfg_attr(not(shuttle), allow(dead_code))]
    slot: u32,
}

impl<'a> Running<'a> {
    pub(super) fn begin(items: &'a Arc<Items>, slot: u32) -> Running<'a> {
        #[cfg(not(shuttle))]
        // The thread-local may be gone when the thread ends; then items do not nest.
        let _ = RUNNING.try_with(|running| running.borrow_mut().push((Arc::clone(items), slot)));
        Running { items, slot }
    }

    /// Returns true if this item, or one that it runs within, was requested to end early.
    #[cfg(not(shuttle))]
    pub(super) fn is_cancelled(&self) -> bool {
        let any = |running: &List| running.borrow().iter().any(|(items, slot)| items.is_cancelled(*slot));
        RUNNING.try_with(any).unwrap_or_else(|_| self.items.is_cancelled(self.slot))
    }

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
