//! An allocator that records the freeing of watched memory. Used by each test binary that declares this module.
#![allow(dead_code)] // Each test binary uses a part of it.
#![allow(unsafe_code)] // A global allocator is unsafe to implement.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use sheave_base::buf::Buf;

/// Watched addresses: 0 for none, `FREED` once they were freed.
static WATCHED: [AtomicUsize; 512] = [const { AtomicUsize::new(0) }; 512];
/// Entries from here on were never used.
static USED: AtomicUsize = AtomicUsize::new(0);
const FREED: usize = 1;

struct Watching;

fn freed(ptr: *mut u8) {
    let watched = USED.load(Ordering::SeqCst);
    for entry in &WATCHED[..watched] {
        let _ = entry.compare_exchange(ptr as usize, FREED, Ordering::SeqCst, Ordering::SeqCst);
    }
}

// SAFETY: all memory comes from `System`, with the layouts that the caller gave.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is the one that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        freed(ptr);
        // SAFETY: it came from `System` with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;

/// A watch on the memory of a buffer.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    at: usize,
    addr: usize,
}

impl Watch {
    pub fn new(buf: &Buf) -> Watch {
        let addr = buf.as_ptr() as usize;
        let take = |entry: &AtomicUsize| entry.compare_exchange(0, addr, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        let at = WATCHED.iter().position(take).expect("fewer are watched at a time");
        USED.fetch_max(at + 1, Ordering::SeqCst);
        Watch { at, addr }
    }

    pub fn forget(self) {
        WATCHED[self.at].store(0, Ordering::SeqCst);
    }

    pub fn addr(self) -> usize {
        self.addr
    }

    pub fn is_freed(self) -> bool {
        WATCHED[self.at].load(Ordering::SeqCst) == FREED
    }
}

#[test]
fn freed_memory_is_seen() {
    let buf = Buf::zeroed(4096, 4096).expect("memory");
    let watch = Watch::new(&buf);
    assert!(!watch.is_freed());
    drop(buf);
    assert!(watch.is_freed());
}
