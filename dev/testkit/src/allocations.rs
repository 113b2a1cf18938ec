//! A global allocator that counts the allocations of one thread while a test watches it.
//!
//! A test binary installs it (`#[global_allocator] static ALLOCATOR: Counting = Counting;`) and calls [`allocations`].
//!
//! - I1: allocations of other threads (the harness, workers) are not counted.
//! - I2: memory comes from and goes to the system's allocator, with the layouts that the caller gave.
//! - I3: a binary that has not installed the allocator fails, because otherwise every count would be 0.
#![allow(unsafe_code)] // A global allocator is an unsafe trait.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Number of allocations of this thread while it is watched, else `None`. The variable is const and has no
    /// destructor, so it allocates nothing itself.
    static COUNT: Cell<Option<u64>> = const { Cell::new(None) };
}

/// The system's allocator, with a count for the thread that is watched.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counting;

fn count() {
    // In a thread that is ending the variable no longer exists; such a thread is not watched.
    let _ = COUNT.try_with(|count| count.set(count.get().map(|count| count + 1)));
}

// SAFETY: every call goes to `System` as it came (I2); `count` neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is the one that `System` requires (I2).
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as above (I2).
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: it came from `System` with this layout (I2).
        unsafe { System.realloc(ptr, layout, new_size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above (I2).
        unsafe { System.dealloc(ptr, layout) }
    }
}

/// Returns the number of allocations of this thread during `work`. New memory, zeroed memory and resized memory count.
pub fn allocations(work: impl FnOnce()) -> u64 {
    let counts = counted(|| drop(std::hint::black_box(Box::new(0_u64))));
    assert_eq!(counts, 1, "this binary does not install the counting allocator: nothing would be counted (I3)");
    counted(work)
}

fn counted(work: impl FnOnce()) -> u64 {
    COUNT.set(Some(0));
    work();
    COUNT.replace(None).unwrap_or(0)
}
