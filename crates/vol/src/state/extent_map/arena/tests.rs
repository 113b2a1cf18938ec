//! Numbers and places of nodes.

use sheave_base::sync::atomic::Ordering;

use super::*;

#[test]
fn every_node_has_a_place_of_its_own() {
    let mut next = (0, 0);
    for id in 0..100_000u32 {
        let at = place(id);
        assert_eq!(at, next, "node {id}");
        next = if at.1 + 1 == 1 << (FIRST_SHIFT as usize + at.0) { (at.0 + 1, 0) } else { (at.0, at.1 + 1) };
    }
    assert!(place(u32::MAX >> 1).0 < CHUNKS, "the last number has a chunk");
}

#[test]
fn nodes_are_zero_and_keep_what_is_stored() {
    let arena = Arena::new(3);
    assert!(arena.word(70, 0).is_none(), "nobody made it");
    for id in [1, 63, 64, 70, 5000] {
        assert!(arena.make(id));
        for (at, word) in arena.node(id).expect("made").iter().enumerate() {
            assert_eq!(word.load(Ordering::Relaxed), 0);
            word.store(u64::from(id) << 8 | at as u64, Ordering::Relaxed);
        }
    }
    for id in [1, 63, 64, 70, 5000] {
        let word = arena.word(id, 7).expect("made").load(Ordering::Relaxed);
        assert_eq!(word, u64::from(id) << 8 | 7);
    }
}
