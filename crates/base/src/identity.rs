//! Numbers that are unique in the process: rings and queues recognise their own objects by them.
//!
//! Owns the last number. An address would not do, because a new object may get the address of a dropped one.
//!
//! Called when rings and hardware queues are made, never for an I/O.

use std::sync::{Mutex, PoisonError};

/// A lock and not an atomic, because the model checkers' atomics cannot outlive one of their executions. No other lock
/// is taken while it is held.
static LAST: Mutex<u64> = Mutex::new(0);

/// Returns a number that was never returned before and is not 0.
pub fn unique() -> u64 {
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    // Cannot overflow: one number per nanosecond would last for centuries.
    *last += 1;
    *last
}

#[cfg(test)]
#[cfg(not(any(shuttle, loom)))]
mod tests {
    use super::unique;

    #[test]
    fn no_two_are_the_same_on_any_thread() {
        let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(|| [(); 100].map(|()| unique()))).collect();
        let mut all: Vec<u64> = threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!((all.len(), all.contains(&0)), (400, false));
    }
}
