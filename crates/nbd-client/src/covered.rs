//! The ranges of a read that have arrived.
//!
//! Owns the ranges, of which there are few. Chunks of a structured reply may come in any order, but servers send them
//! in the order of their offsets, and adjacent ranges are merged.

/// Largest number of ranges that do not touch. A read fails if its server scatters the chunks more than that.
const MAX_RANGES: usize = 64;

/// Ranges of bytes, in order, of which no two overlap or touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Covered(Vec<(u32, u32)>);

impl Covered {
    /// Adds the bytes `from..to`, a range that is not empty.
    pub(crate) fn add(&mut self, from: u32, to: u32) -> Result<(), &'static str> {
        let ranges = &mut self.0;
        let at = ranges.partition_point(|range| range.1 < from);
        // `at` is the first range that ends at `from` or later. From there on, the ranges that begin at `to` or before
        // touch the new one.
        let touches = ranges[at..].iter().take_while(|range| range.0 <= to).count();
        let mut whole = (from, to);
        for &(start, end) in &ranges[at..at + touches] {
            if start < to && from < end {
                return Err("it sent the same bytes of a read twice");
            }
            whole = (whole.0.min(start), whole.1.max(end));
        }
        if touches == 0 && ranges.len() == MAX_RANGES {
            return Err("it sent a read in too many pieces out of order");
        }
        ranges.splice(at..at + touches, [whole]);
        Ok(())
    }

    /// Returns true if all bytes up to `len` have arrived.
    pub(crate) fn is_whole(&self, len: u32) -> bool {
        self.0 == [(0, len)]
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
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
}
