//! Blocks of memory in one piece, in several, and in pieces that do not fit.

use super::*;

/// Makes a vector of the bytes.
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
    let memory = IoMemory::new(&vecs, true);
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
    assert_eq!(seen(&IoMemory::new(&vecs, true), 0, 8), (false, vec![(0, 7)]));
    let mut calls = 0;
    let vecs = [vec_of(high)];
    let stopped = !IoMemory::new(&vecs, true).each_block(0, 16, 4, &mut |_, block| {
        calls += 1;
        assert_eq!(block, [7; 4]);
        calls < 2
    });
    assert_eq!((stopped, calls), (true, 2));
    assert!(!IoMemory::new(&vecs, true).each_block(0, 1 << 20, 4097, &mut |_, _| true), "no block is that long");
}

#[test]
fn a_block_is_put_where_one_piece_has_room_for_it() {
    let mut bytes = [7; 32];
    let (low, high) = bytes.split_at_mut(16);
    let vecs = [vec_of(&mut low[..2]), vec_of(&mut low[2..8]), vec_of(&mut high[..8])];
    let memory = IoMemory::new(&vecs, true);
    assert!(memory.put(1, &[1, 2, 3, 4]), "across two vectors that are adjacent");
    assert!(memory.put(12, &[5, 6, 7, 8]));
    assert!(!memory.put(6, &[9; 4]), "in two pieces");
    assert!(!memory.put(14, &[9; 4]) && !memory.put(16, &[9]), "beyond the end");
    assert!(memory.put(16, &[]));
    assert_eq!(bytes[..8], [7, 1, 2, 3, 4, 7, 7, 7]);
    assert_eq!(bytes[16..24], [7, 7, 7, 7, 5, 6, 7, 8]);
}

/// Two reads into one range of a registered buffer. Under Miri this fails if a block is lent instead of copied.
#[test]
fn two_have_the_same_memory_and_neither_a_reference_to_it() {
    let mut bytes = [7; 16];
    let (first, second) = ([vec_of(&mut bytes)], [vec_of(&mut bytes)]);
    let (first, second) = (IoMemory::new(&first, true), IoMemory::new(&second, true));
    let mut inner = Vec::new();
    assert!(first.each_block(0, 16, 8, &mut |number, block| {
        assert!(second.put(0, &[9; 8]), "while the first looks at it");
        inner.push((number, block[0], seen(&second, 0, 8)));
        block[1] == 7
    }));
    assert_eq!(inner, [(0, 7, (true, vec![(0, 9), (1, 9)])), (1, 7, (true, vec![(0, 9), (1, 9)]))]);
}

/// The owner of a write's memory may share it with others, who read it meanwhile.
#[test]
fn nothing_is_put_into_the_memory_of_a_write() {
    let mut bytes = [7u8; 16];
    IoMemory::over(&mut bytes, |memory| {
        let of_write = IoMemory { takes_bytes: false, ..memory };
        assert!(!of_write.put(0, &[9; 4]) && !of_write.put(16, &[]));
        let of_read = IoMemory { takes_bytes: true, ..of_write };
        assert!(of_read.put(12, &[9; 4]) && !of_read.put(13, &[9; 4]));
    });
    assert_eq!(bytes, [7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 9, 9, 9, 9]);
}
