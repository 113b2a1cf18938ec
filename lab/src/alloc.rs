//! A global allocator that can count the calls that a piece of code makes.
//!
//! A program installs it (`#[global_allocator] static ALLOC: Counting = Counting;`), like `sheave-lab` does. While no
//! code is counted, it adds only one load to each call of the system's allocator.
//!
//! * A1. Counts are per thread. Allocations of other threads, such as one that shows progress, do not count.
//! * A2. Memory comes from and goes to the system's allocator, unchanged.
#![allow(unsafe_code)] // `GlobalAlloc` is an unsafe trait.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use sheave_base::sync::atomic::{AtomicU32, Ordering};

/// The system's allocator, with counting.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counting;

/// Number of threads that count now.
static COUNTERS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// Number of calls on this thread, allocations and releases alike (A1). The variable needs neither memory nor a
    /// destructor.
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

#[inline]
fn note() {
    // Relaxed: a thread sees its own change of the number, and counts of other threads do not matter.
    if COUNTERS.load(Ordering::Relaxed) != 0 {
        // A thread that ends has no such variable any more, and runs no code that would read it.
        let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
    }
}

// SAFETY: every call goes to `System` as it came (A2); `note` neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller's promises are those that `System` requires (A2).
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: as above (A2).
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note();
        // SAFETY: as above (A2).
        unsafe { System.realloc(place, layout, size) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        note();
        // SAFETY: as above (A2).
        unsafe { System.dealloc(place, layout) }
    }
}

/// Runs `work`. Returns the number of allocator calls that it makes on this thread, and its result. The number is
/// `None` if the program has another allocator.
pub fn calls<T>(work: impl FnOnce() -> T) -> (Option<u64>, T) {
    let installed = counted(|| drop(std::hint::black_box(Box::new(0_u64)))).0 > 0;
    let (count, result) = counted(work);
    (installed.then_some(count), result)
}

fn counted<T>(work: impl FnOnce() -> T) -> (u64, T) {
    let before = CALLS.get();
    let _on = On::new();
    let result = work();
    (CALLS.get() - before, result)
}

/// Turns counting on as long as a value exists.
struct On;

impl On {
    fn new() -> On {
        // Relaxed: as in `note`.
        COUNTERS.fetch_add(1, Ordering::Relaxed);
        On
    }
}

impl Drop for On {
    fn drop(&mut self) {
        // Relaxed: as in `note`.
        COUNTERS.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_this_thread_calls() {
        assert_eq!(calls(|| ()).0, Some(0));
        let (count, sum) = calls(|| {
            let boxes: Vec<Box<u64>> = (0..10).map(|n| std::hint::black_box(Box::new(n))).collect();
            boxes.iter().map(|n| **n).sum::<u64>()
        });
        assert_eq!((count, sum), (Some(22), 45), "ten boxes and a vector, made and dropped");
        let (count, ()) = calls(|| {
            let mut grows = std::hint::black_box(vec![1_u8; 10]);
            grows.reserve_exact(1000);
        });
        assert_eq!(count, Some(3));
    }

    #[test]
    fn allocations_of_other_threads_are_not_counted() {
        use std::sync::mpsc::channel;
        let (start, started) = channel::<()>();
        let (done, end) = channel::<()>();
        let other = std::thread::spawn(move || {
            started.recv().expect("told to");
            let busy: Vec<String> = (0..1000).map(|n| n.to_string()).collect();
            done.send(()).expect("awaited");
            busy.len()
        });
        let (count, ()) = calls(|| {
            start.send(()).expect("there");
            end.recv().expect("there");
        });
        assert!(count.expect("installed") < 20, "{count:?}: what the channels take, and not 1000 strings");
        assert_eq!(other.join().expect("no panic"), 1000);
    }

    #[test]
    fn memory_is_the_systems() {
        let mut zeroed = vec![0_u32; 4096];
        assert!(zeroed.iter().all(|&n| n == 0));
        zeroed.iter_mut().zip(0..).for_each(|(place, n)| *place = n);
        zeroed.reserve(1 << 16);
        assert!(zeroed.iter().zip(0..).all(|(&place, n)| place == n), "moved with its content");
    }
}
