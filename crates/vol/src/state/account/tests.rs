//! The account against what checkpoints really write.

use super::*;

use crate::format::page::index::{Sink, build_upper};
use crate::format::page::{PageRef, Place};

/// Counts the pages that it is given.
struct Counting(u64);

impl Sink for Counting {
    fn allocate(&mut self) -> Option<u64> {
        self.0 += 1;
        Some(self.0 << 12)
    }

    fn page(&mut self, _: u64, _: &crate::format::block::Block) {}
}

/// Index pages that are really made above `slots` pages, of which these are not empty.
fn made(slots: u64, used: &[u64]) -> u64 {
    let mut pages = vec![PageRef::NONE; slots as usize];
    used.iter().for_each(|at| pages[*at as usize] = PageRef { address: 1 << 30, checksum: 1 });
    let mut sink = Counting(0);
    let place = Place { pool: [0; 16], generation: 1, address: 0, index: 0, owner: 1 };
    build_upper(&mut sink, &place, 1, 1, &pages).expect("there is room");
    sink.0
}

#[test]
fn index_pages_are_never_counted_too_few_and_hardly_too_many() {
    for slots in [0, 1, 2, 255, 256, 257, 65_536, 65_537, 300_000] {
        for step in [1, 7, 256, 300, 65_536, 1 << 30] {
            let used: Vec<u64> = (0..slots).step_by(step).collect();
            let (made, counted) = (made(slots, &used), upper_pages(slots, used.len() as u64));
            assert!(made <= counted && counted <= made + made / 4 + 3, "{slots} by {step}: {made}, counted {counted}");
        }
        if slots > 0 {
            assert!(made(slots, &[slots - 1]) == upper_pages(slots, 1), "one far out of {slots}");
        }
    }
}
