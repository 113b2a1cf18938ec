//! A global allocator that counts, while somebody asks it to: how many calls a piece of code makes.
//!
//! A program installs it (`#[global_allocator] static ALLOC: Counting = Counting;`); `sheave` does. Switched off it
//! adds one load to a call of the system's allocator, and nothing else.
//!
//! * A1. Counts are per thread: what others allocate meanwhile, such as who shows progress, is not in them.
//! * A2. Memory comes from and goes to the system's allocator, unchanged.
#![allow(unsafe_code)] // A global allocator is an unsafe trait.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use sheave_base::sync::atomic::{AtomicU32, Ordering};

/// The system's allocator, counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counting;

/// How many threads count now.
static COUNTERS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// Calls on this thread, allocations and releases alike (A1). It needs no memory and no drop.
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

#[inline]
fn note() {
    // Relaxed: a thread sees its own switching.
    if COUNTERS.load(Ordering::Relaxed) != 0 {
        // A thread that ends has no cell any more, and nobody who asks.
        let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
    }
}

// SAFETY: every call goes to `System` as it came (A2); `note` neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller's promises are those that `System` asks for (A2).
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

/// Calls of the allocator that `work` makes on this thread, and what it gives. `None` in a program that has another
/// allocator.
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

/// Counting is on while one exists.
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
mod tests;
