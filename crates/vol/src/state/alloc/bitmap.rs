//! A bitmap whose next set bit is found in a few steps at any size.
//!
//! Owns the bits and the summaries over them: bit `n` of level `k + 1` is set if word `n` of level `k` is not 0.
//!
//! - I1: a summary bit is set exactly if the word below has a bit set.
//!
//! Called by [`Chunks`](super::chunks) to find chunks with free units.

#[derive(Debug, Default)]
pub(crate) struct Bitmap {
    len: u64,
    levels: Vec<Vec<u64>>,
}

impl Bitmap {
    pub(crate) fn new(len: u64) -> Bitmap {
        let mut bitmap = Bitmap { len: 0, levels: vec![Vec::new()] };
        bitmap.grow(len);
        bitmap
    }

    /// Grows the bitmap; new bits are cleared.
    pub(crate) fn grow(&mut self, len: u64) {
        self.len = self.len.max(len);
        let mut words = self.len.div_ceil(64) as usize;
        for level in 0.. {
            if self.levels.len() == level {
                let below: Vec<bool> = self.levels[level - 1].iter().map(|word| *word != 0).collect();
                let mut summary = vec![0; words];
                below.iter().enumerate().filter(|at| *at.1).for_each(|(at, _)| summary[at >> 6] |= 1 << (at & 63));
                self.levels.push(summary);
            }
            self.levels[level].resize(words, 0);
            if words <= 1 {
                break;
            }
            words = words.div_ceil(64);
        }
    }

    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn get(&self, bit: u64) -> bool {
        bit < self.len && self.levels[0][(bit >> 6) as usize] >> (bit & 63) & 1 != 0
    }

    pub(crate) fn set(&mut self, bit: u64) {
        let mut at = bit;
        for level in &mut self.levels {
            let word = &mut level[(at >> 6) as usize];
            let was = *word;
            *word |= 1 << (at & 63);
            // The summaries above have the bit already (I1).
            if was != 0 {
                break;
            }
            at >>= 6;
        }
    }

    /// Sets bits `from..to`, a word at a time.
    pub(crate) fn set_range(&mut self, from: u64, to: u64) {
        let (mut from, mut to) = (from, to);
        for level in &mut self.levels {
            if from >= to {
                break;
            }
            let mut at = from;
            while at < to {
                let here = (64 - (at & 63)).min(to - at);
                level[(at >> 6) as usize] |= (u64::MAX >> (64 - here)) << (at & 63);
                at += here;
            }
            (from, to) = (from >> 6, to.div_ceil(64));
        }
    }

    pub(crate) fn clear(&mut self, bit: u64) {
        let mut at = bit;
        for level in &mut self.levels {
            let word = &mut level[(at >> 6) as usize];
            *word &= !(1 << (at & 63));
            if *word != 0 {
                break;
            }
            at >>= 6;
        }
    }

    /// Returns the first set bit at or after `from`.
    pub(crate) fn next(&self, from: u64) -> Option<u64> {
        let (mut level, mut at) = (0, from);
        loop {
            let word = self.levels.get(level)?.get((at >> 6) as usize).copied().unwrap_or(0) >> (at & 63);
            if word != 0 {
                at += u64::from(word.trailing_zeros());
                break;
            }
            level += 1;
            at = (at >> 6) + 1;
        }
        while level > 0 {
            level -= 1;
            at = (at << 6) + u64::from(self.levels[level][at as usize].trailing_zeros());
        }
        Some(at)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn like_a_set(len in 1u64..20_000, steps in prop::collection::vec((any::<bool>(), any::<u64>()), 1..200)) {
            let mut bitmap = Bitmap::new(len);
            let mut set = BTreeSet::new();
            for (on, bit) in steps {
                let bit = bit % len;
                if on {
                    bitmap.set(bit);
                    set.insert(bit);
                } else {
                    bitmap.clear(bit);
                    set.remove(&bit);
                }
                prop_assert_eq!(bitmap.get(bit), on);
                for from in [0, bit, bit + 1, len - 1] {
                    prop_assert_eq!(bitmap.next(from), set.range(from..).next().copied());
                }
            }
        }

        #[test]
        fn a_range_is_like_its_bits(len in 1u64..20_000, a in any::<u64>(), b in any::<u64>(), other in any::<u64>()) {
            let (from, to) = ((a % (len + 1)).min(b % (len + 1)), (a % (len + 1)).max(b % (len + 1)));
            let (mut one, mut all) = (Bitmap::new(len), Bitmap::new(len));
            one.set(other % len);
            all.set(other % len);
            one.set_range(from, to);
            (from..to).for_each(|bit| all.set(bit));
            prop_assert_eq!(one.levels, all.levels);
        }

        #[test]
        fn growing_keeps_what_is_set(first in 1u64..5000, more in 1u64..300_000, bit in any::<u64>()) {
            let mut bitmap = Bitmap::new(first);
            bitmap.set(bit % first);
            bitmap.grow(first + more);
            prop_assert_eq!(bitmap.next(0), Some(bit % first));
            bitmap.set(first + more - 1);
            prop_assert_eq!(bitmap.next(bit % first + 1), Some(first + more - 1).filter(|end| *end > bit % first));
        }
    }
}
