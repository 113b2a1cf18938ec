//! The list of bad ranges, and the counts beyond it.

use super::*;

#[test]
fn neighbours_are_one_range() {
    let mut bad = Bad::default();
    for block in [0, 1, 3, 4, 9] {
        bad.add(block * GRAIN, GRAIN);
    }
    let listed = [(0, 2), (3, 2), (9, 1)].map(|(at, len)| BadRange { offset: at * GRAIN, length: len * GRAIN });
    assert_eq!((bad.listed.as_slice(), bad.ranges, bad.bytes), (listed.as_slice(), 3, 5 * GRAIN));
    assert!(bad.words().ends_with("20480 bytes could not be read, in 3 ranges\n"), "{}", bad.words());
    assert!(!bad.words().contains("more"), "{}", bad.words());
}

#[test]
fn ranges_beyond_the_list_are_counted() {
    let mut bad = Bad::default();
    let last = MOST_LISTED as u64;
    for number in 0..=last {
        bad.add(number * 2 * GRAIN, GRAIN);
    }
    assert_eq!((bad.listed.len(), bad.ranges, bad.bytes), (MOST_LISTED, last + 1, (last + 1) * GRAIN));
    // A block adjacent to the last, unlisted range belongs to that range, and does not extend a listed one.
    bad.add((last * 2 + 1) * GRAIN, GRAIN);
    let at_end = bad.listed.last().map(|range| (range.offset, range.length));
    assert_eq!((bad.ranges, at_end), (last + 1, Some(((last - 1) * 2 * GRAIN, GRAIN))));
    let words = bad.words();
    assert!(
        words.ends_with("  and 1 more\n268443648 bytes could not be read, in 65537 ranges\n"),
        "{}",
        &words[words.len() - 200..]
    );
}
