//! The slots under a model checker: a reader gets a whole entry or none while the writer overwrites them.

use super::KeepLast;
use crate::model::explore;
use crate::sync::Arc;
use crate::sync::thread;

/// A writer of `entries` entries overwrites the slots; a reader reads each number.
fn race(places: usize, entries: u64) {
    let kept = Arc::new(KeepLast::<2>::new(places));
    let writer = Arc::clone(&kept);
    let writing = thread::spawn(move || (0..entries).for_each(|number| writer.push(&[number + 7, number + 7])));
    for number in 0..entries {
        let there = kept.written() > number;
        match kept.read(number) {
            Some(entry) => assert_eq!(entry, [number + 7; 2], "an entry is whole, and the one that was asked for"),
            // The entry may have been overwritten, but only by later ones.
            None => assert!(!there || kept.written() + 1 > number + places as u64, "{number} was written, and is gone"),
        }
    }
    writing.join().expect("writer");
    assert_eq!(kept.read(entries - 1), Some([entries + 6; 2]), "the last is there");
}

#[test]
fn model_an_entry_is_read_whole_or_not_at_all() {
    explore("one place", || race(1, 2));
}

#[test]
fn model_the_last_entries_are_kept() {
    explore("two places", || race(2, 3));
}
