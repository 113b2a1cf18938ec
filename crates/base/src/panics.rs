//! Drops the payload of a caught panic, whose destructor is foreign code.
//!
//! Owns the way in which a payload is dropped.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Drops the payload of a caught panic. If that panics in turn, the second payload is leaked, because its destructor
/// could panic again without end.
#[cold]
pub fn discard(payload: Box<dyn Any + Send>) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(again);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    static DROPPED: AtomicU32 = AtomicU32::new(0);

    struct PanicsInDrop;

    impl Drop for PanicsInDrop {
        fn drop(&mut self) {
            DROPPED.fetch_add(1, Ordering::Relaxed); // Relaxed: one thread.
            std::panic::panic_any(PanicsInDrop);
        }
    }

    #[test]
    fn a_payload_that_panics_in_its_drop_is_dropped_once_and_hurts_nobody() {
        discard(Box::new(PanicsInDrop));
        // Relaxed: as above.
        assert_eq!(DROPPED.load(Ordering::Relaxed), 1, "it is dropped, and what that carries is not");
    }
}
