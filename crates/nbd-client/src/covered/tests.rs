//! Ranges add up in any order, and overlapping ones are refused.

use proptest::prelude::*;

use super::{Covered, MAX_RANGES};

#[test]
fn neighbours_become_one_and_overlaps_are_refused() {
    let mut covered = Covered::default();
    covered.add(0, 4).expect("new");
    covered.add(8, 12).expect("new");
    assert!(!covered.is_whole(12));
    covered.add(4, 8).expect("between");
    assert!(covered.is_whole(12));
    for (from, to) in [(0, 1), (11, 12), (11, 20), (3, 5)] {
        assert!(covered.add(from, to).is_err(), "{from}..{to}");
    }
    assert!(covered.is_whole(12), "a refusal changes nothing");
}

#[test]
fn ranges_are_bounded() {
    let mut covered = Covered::default();
    let refused = (0..1000).find(|n| covered.add(n * 4, n * 4 + 1).is_err());
    assert_eq!(refused, Some(MAX_RANGES as u32));
}

proptest! {
    #[test]
    fn ranges_cover_the_same_bytes_as_a_plain_map(pieces in prop::collection::vec((0u32..64, 1u32..16), 0..40)) {
        let (mut covered, mut map) = (Covered::default(), [false; 80]);
        for (from, len) in pieces {
            let bytes = &mut map[from as usize..(from + len) as usize];
            let fresh = bytes.iter().all(|byte| !byte);
            prop_assert_eq!(covered.add(from, from + len).is_ok(), fresh);
            if fresh {
                bytes.fill(true);
            }
        }
        for len in 1..80u32 {
            let whole = map[..len as usize].iter().all(|byte| *byte) && !map[len as usize..].contains(&true);
            prop_assert_eq!(covered.is_whole(len), whole);
        }
    }
}
