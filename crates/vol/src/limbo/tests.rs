//! The gate: parts, graces, and owners that are left.

use sheave_base::sync::Arc;

use super::*;
use crate::alloc::Units;
use crate::extent_map::{ExtentMap, Geometry};

/// A tree on a pool of 200 units, of which those of some runs have so many owners.
fn tree(runs: &[(u64, u64)], owners: u16) -> Tree {
    let mut units = Units::new(200);
    for unit in runs.iter().flat_map(|&(first, count)| first..first + count) {
        (0..owners).for_each(|_| assert!(units.claim_data(unit)));
    }
    Tree::new(Arc::new(ExtentMap::new(Geometry::new(16))), units)
}

/// An owner lets units go.
fn let_go(tree: &mut Tree, runs: &[(u64, u64)]) -> Freed {
    let mut freed = Freed::default();
    for unit in runs.iter().flat_map(|&(first, count)| first..first + count) {
        if tree.units.owners(unit) > 1 {
            freed.shared_units.push(unit);
        } else if tree.units.put(unit) {
            freed.unit(unit);
        }
    }
    freed
}

#[test]
fn what_is_over_passes_in_parts_and_all_of_it() {
    let runs = [(10, 5), (100, 7)];
    let (grace, mut tree) = (Grace::new(), tree(&runs, 1));
    let mut limbo = Limbo::default();
    limbo.committed(let_go(&mut tree, &runs));
    let (mut parts, mut free) = (0, tree.units.counts().free);
    while limbo.advance(&grace, &mut tree, 4) {
        let now = tree.units.counts().free;
        assert!((1..=4).contains(&(now - free)), "{free} -> {now}");
        (parts, free) = (parts + 1, now);
        tree.begin_hold();
    }
    assert_eq!((parts, free, limbo.is_empty()), (3, 200, true));
}

#[test]
fn nothing_passes_before_its_grace() {
    let (grace, mut tree) = (Arc::new(Grace::new()), tree(&[(1, 2), (50, 1)], 1));
    let seat = Grace::seat(&grace);
    seat.enter();
    let mut limbo = Limbo::default();
    limbo.committed(let_go(&mut tree, &[(1, 2)]));
    assert!(!limbo.advance(&grace, &mut tree, 100) && !limbo.is_empty());
    seat.leave();
    // What came later waits for a grace of its own.
    limbo.committed(let_go(&mut tree, &[(50, 1)]));
    assert!(limbo.advance(&grace, &mut tree, 100), "its grace is over");
    assert_eq!(tree.units.counts().limbo, 1, "the later one waits");
    assert!(limbo.advance(&grace, &mut tree, 100), "nobody is inside");
    assert!(!limbo.advance(&grace, &mut tree, 100) && limbo.is_empty());
    assert_eq!(tree.units.counts().free, 200);
}

#[test]
fn one_of_several_owners_counts_until_its_grace_is_over() {
    let (grace, mut tree) = (Arc::new(Grace::new()), tree(&[(9, 1)], 2));
    let seat = Grace::seat(&grace);
    seat.enter();
    let mut limbo = Limbo::default();
    limbo.committed(let_go(&mut tree, &[(9, 1)]));
    assert!(!limbo.advance(&grace, &mut tree, 100));
    assert_eq!(tree.units.owners(9), 2, "the other must not take it for its own");
    seat.leave();
    assert!(limbo.advance(&grace, &mut tree, 100));
    assert_eq!((tree.units.owners(9), limbo.is_empty()), (1, true));
}

#[test]
fn owners_that_let_go_one_after_the_other_leave_it_free() {
    let (grace, mut tree) = (Arc::new(Grace::new()), tree(&[(9, 1)], 2));
    let mut limbo = Limbo::default();
    limbo.committed(let_go(&mut tree, &[(9, 1)]));
    limbo.committed(let_go(&mut tree, &[(9, 1)]));
    while limbo.advance(&grace, &mut tree, 1) {
        tree.begin_hold();
    }
    assert_eq!((tree.units.owners(9), tree.units.counts().free), (0, 200));
}
