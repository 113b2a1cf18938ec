//! Numbers, places and words of nodes.

use sheave_base::sync::atomic::Ordering;

use super::*;

#[test]
fn every_node_has_a_place_of_its_own() {
    for first_shift in [1, 6, 14] {
        let arena = Arena::with_first(3, first_shift);
        let mut next = (0, 0);
        for id in 0..100_000u32 {
            let at = arena.place(id);
            assert_eq!(at, next, "node {id}");
            assert_eq!(arena.first_node(at.0) + at.1 as u32, id);
            next = if at.1 + 1 == 1 << (first_shift as usize + at.0) { (at.0 + 1, 0) } else { (at.0, at.1 + 1) };
        }
    }
    assert!(Arena::new(3).place(super::super::nodes::MAX_NODES - 1).0 < CHUNKS, "the last number has a chunk");
}

#[test]
fn the_last_chunk_has_the_words_that_its_numbers_say() {
    let arena = Arena::with_first(2, 1);
    assert_eq!(arena.last_chunk().1.len(), 0, "nothing is made yet");
    for id in 0..500 {
        assert!(arena.make(id));
        let (start, words) = arena.last_chunk();
        let at = (arena.first_word(id) - start) as usize;
        assert!(std::ptr::eq(&raw const words[at + 3], arena.word(id, 3).expect("made")), "node {id}");
        let named = arena.word_at(arena.first_word(id) + 3).expect("made");
        assert!(std::ptr::eq(&raw const words[at + 3], named), "node {id}");
        assert!(words.len() as u64 >= start, "more than half of all");
    }
    assert!(arena.word_at(u64::MAX).is_none() && arena.word_at(1 << 20).is_none());
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
