//! Parts, and the graces before them.

use sheave_base::sync::Arc;

use super::*;

fn freed(runs: &[(u64, u64)], leaves: u32) -> Freed {
    let mut freed = Freed { leaves: (1..=leaves).collect(), ..Freed::default() };
    runs.iter().for_each(|&(first, count)| (first..first + count).for_each(|unit| freed.unit(unit)));
    freed
}

#[test]
fn what_is_over_leaves_in_parts_and_all_of_it() {
    let grace = Grace::new();
    let mut limbo = Limbo::default();
    limbo.committed(freed(&[(10, 5), (100, 7)], 3));
    let (mut units, mut leaves, mut parts) = (Vec::new(), 0, 0);
    while let Some(part) = limbo.advance(&grace, 4) {
        let count = part.units().count() + part.leaves.len();
        assert!((1..=4).contains(&count), "{part:?}");
        units.extend(part.units());
        leaves += part.leaves.len();
        parts += 1;
    }
    units.sort_unstable();
    assert_eq!(units, (10..15).chain(100..107).collect::<Vec<_>>());
    assert_eq!((leaves, parts, limbo.is_empty()), (3, 4, true));
}

#[test]
fn nothing_leaves_before_its_grace() {
    let grace = Arc::new(Grace::new());
    let seat = Grace::seat(&grace);
    seat.enter();
    let mut limbo = Limbo::default();
    limbo.committed(freed(&[(1, 2)], 0));
    assert!(limbo.advance(&grace, 100).is_none() && !limbo.is_empty());
    seat.leave();
    // What came later waits for a grace of its own.
    limbo.committed(freed(&[(50, 1)], 0));
    let first = limbo.advance(&grace, 100).expect("its grace is over");
    assert_eq!(first.units().collect::<Vec<_>>(), [1, 2]);
    assert_eq!(limbo.advance(&grace, 100).expect("nobody is inside").units().collect::<Vec<_>>(), [50]);
    assert!(limbo.advance(&grace, 100).is_none() && limbo.is_empty());
}

#[test]
fn what_is_shared_is_split_off() {
    let mut all = Freed { shared_units: vec![1], shared_leaves: vec![2], ..freed(&[(9, 1)], 1) };
    let shared = all.split_shared();
    assert!(!all.has_shared() && shared.has_shared());
    assert_eq!((all.units().count(), all.leaves.len(), shared.units().count()), (1, 1, 0));
}
