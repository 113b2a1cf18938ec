//! Against a plain set.

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
    fn growing_keeps_what_is_set(first in 1u64..5000, more in 1u64..300_000, bit in any::<u64>()) {
        let mut bitmap = Bitmap::new(first);
        bitmap.set(bit % first);
        bitmap.grow(first + more);
        prop_assert_eq!(bitmap.next(0), Some(bit % first));
        bitmap.set(first + more - 1);
        prop_assert_eq!(bitmap.next(bit % first + 1), Some(first + more - 1).filter(|end| *end > bit % first));
    }
}
