//! Numbers that no two things of a process share, however many come and go: by them a ring or a queue knows what is its
//! own.
//!
//! Owns the last number. An address would not do: the next thing may get the one of a thing that is gone.
//!
//! Called when rings and hardware queues are made, never for an I/O.

use std::sync::{Mutex, PoisonError};

/// A lock and no atomic, for the model checkers' atomics cannot outlive one of their executions; it is taken alone.
static LAST: Mutex<u64> = Mutex::new(0);

/// A number that was not given before, and is not 0.
pub fn unique() -> u64 {
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    // At a number a nanosecond they last for centuries.
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
