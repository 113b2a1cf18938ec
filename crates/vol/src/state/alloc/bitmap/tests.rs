//! The bitmap against a plain set.

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
