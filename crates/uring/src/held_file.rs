//! The file of a request, as the worker sees it that does the request's operation.
//!
//! Owns the address of a file that its request holds. An `Arc` of its own for each item would have the ring and the
//! worker exchange the cache line of the file's reference count twice an item.
//!
//! Invariants:
//! - F1: the request of an item holds its file from before the item is queued until its result is taken (I1 of
//!   [`offload`](crate::offload)), so the address is valid while the item exists.
#![allow(unsafe_code)] // An address becomes a reference again.

use std::ptr::NonNull;

use sheave_base::sync::Arc;
use sheave_iomap::File;

/// A file that the request of an item holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldFile(NonNull<dyn File>);

// SAFETY: a `File` is `Send + Sync`, so its address may be used on any thread while the file exists.
unsafe impl Send for HeldFile {}

impl HeldFile {
    /// Returns the address of a file that a request holds.
    pub(crate) fn new(file: &Arc<dyn File>) -> HeldFile {
        // The pointer of an `Arc` is never null.
        HeldFile(NonNull::from(&**file))
    }

    /// Returns true if it is this file.
    pub(crate) fn is(self, file: &Arc<dyn File>) -> bool {
        std::ptr::addr_eq(self.0.as_ptr(), Arc::as_ptr(file))
    }

    /// Returns a reference of its own.
    ///
    /// # Safety
    ///
    /// The item that came with this file must not have ended (F1).
    pub(crate) unsafe fn to_arc(self) -> Arc<dyn File> {
        let file = self.0.as_ptr().cast_const();
        // SAFETY: the address is that of a file in an `Arc`, as `new` got it, and the request holds it still.
        unsafe {
            Arc::increment_strong_count(file);
            Arc::from_raw(file)
        }
    }
}
