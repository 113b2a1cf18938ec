//! Blocks of memory in one piece, in several, and in pieces that do not fit.

use super::*;

/// A vector of its own bytes.
fn vec_of(bytes: &mut [u8]) -> BVec {
    // SAFETY: each test keeps the memory until it has looked at all of it, and does not touch it meanwhile.
    unsafe { BVec::new(bytes.as_mut_ptr().expose_provenance(), bytes.len()) }
}

fn seen(memory: &IoMemory<'_>, from: u64, len: u64) -> (bool, Vec<(u64, u8)>) {
    let mut seen = Vec::new();
    let all = memory.each_block(from, len, 4, &mut |number, block| {
        seen.push((number, block[0]));
        true
    });
    (all, seen)
}

#[test]
fn blocks_come_in_order_across_vectors_and_runs() {
    let mut bytes: Vec<u8> = (0..64).collect();
    // One run of 8 bytes in three vectors, a gap, one of 16.
    let (low, high) = bytes.split_at_mut(32);
    let vecs = [vec_of(&mut low[..2]), vec_of(&mut low[2..5]), vec_of(&mut low[5..8]), vec_of(&mut high[..16])];
    let memory = IoMemory::new(&vecs);
    assert_eq!(seen(&memory, 0, 24), (true, vec![(0, 0), (1, 4), (2, 32), (3, 36), (4, 40), (5, 44)]));
    assert_eq!(seen(&memory, 4, 8), (true, vec![(0, 4), (1, 32)]));
    assert_eq!(seen(&memory, 12, 12), (true, vec![(0, 36), (1, 40), (2, 44)]));
    assert_eq!(seen(&memory, 20, 8), (false, vec![(0, 44)]), "the memory is shorter");
    assert_eq!(seen(&memory, 0, 0), (true, vec![]));
}

#[test]
fn a_block_in_two_places_is_not_given_and_stopping_is_told() {
    let mut bytes = [7; 64];
    let (low, high) = bytes.split_at_mut(32);
    let vecs = [vec_of(&mut low[..6]), vec_of(&mut high[..2])];
    assert_eq!(seen(&IoMemory::new(&vecs), 0, 8), (false, vec![(0, 7)]));
    let mut calls = 0;
    let vecs = [vec_of(high)];
    assert!(!IoMemory::new(&vecs).each_block(0, 16, 4, &mut |_, block| {
        block[0] = 9;
        calls += 1;
        calls < 2
    }));
    assert_eq!((calls, bytes[32], bytes[36], bytes[40]), (2, 9, 9, 7));
}

#[test]
fn a_block_is_lent_once_at_a_time() {
    let mut bytes = [7; 16];
    let vecs = [vec_of(&mut bytes)];
    let memory = IoMemory::new(&vecs);
    let mut inner = Vec::new();
    assert!(memory.each_block(0, 8, 8, &mut |_, _| {
        inner.push(seen(&memory, 0, 8));
        inner.push(seen(&memory, 8, 8));
        true
    }));
    assert_eq!(inner, [(false, vec![]), (false, vec![])], "not even another block: it is refused, not looked for");
    assert_eq!(seen(&memory, 0, 8), (true, vec![(0, 7), (1, 7)]), "afterwards it is there again");
}
