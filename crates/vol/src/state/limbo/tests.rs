//! The gate: parts, graces, and owners that are left.

use super::*;
use crate::state::alloc::Units;
use crate::state::extent_map::{ExtentMap, Geometry};

/// A tree on a pool of 200 units, of which those of some runs have so many owners.
fn tree(runs: &[(u64, u64)], owners: u16) -> Tree {
    let mut units = Units::new(200);
    for unit in runs.iter().flat_map(|&(first, count)| first..first + count) {
        (0..owners).for_each(|_| assert!(units.claim_data(unit)));
    }
    Tree::new(Arc::new(ExtentMap::new(Geometry::new(16))), units)
}

/// An owner whose readers are in this grace lets units go.
fn let_go(tree: &mut Tree, grace: &Arc<Grace>, runs: &[(u64, u64)]) -> LetGo {
    let mut let_go = LetGo::default();
    let freed = let_go.by(grace);
    for unit in runs.iter().flat_map(|&(first, count)| first..first + count) {
        if tree.units.owners(unit) > 1 {
            freed.shared_units.push(unit);
        } else if tree.units.put(unit) {
            freed.unit(unit);
        }
    }
    let_go
}

#[test]
fn what_is_over_passes_in_parts_and_all_of_it() {
    let runs = [(10, 5), (100, 7)];
    let (grace, mut tree) = (Arc::new(Grace::new()), tree(&runs, 1));
    let mut limbo = Limbo::default();
    limbo.committed(let_go(&mut tree, &grace, &runs));
    let (mut parts, mut free) = (0, tree.units.counts().free);
    while limbo.advance(&mut tree, 4) {
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
    limbo.committed(let_go(&mut tree, &grace, &[(1, 2)]));
    assert!(!limbo.advance(&mut tree, 100) && !limbo.is_empty());
    seat.leave();
    // What came later waits for a grace of its own.
    limbo.committed(let_go(&mut tree, &grace, &[(50, 1)]));
    assert!(limbo.advance(&mut tree, 100), "its grace is over");
    assert_eq!(tree.units.counts().limbo, 1, "the later one waits");
    assert!(limbo.advance(&mut tree, 100), "nobody is inside");
    assert!(!limbo.advance(&mut tree, 100) && limbo.is_empty());
    assert_eq!(tree.units.counts().free, 200);
}

#[test]
fn one_of_several_owners_counts_until_its_grace_is_over() {
    let (grace, mut tree) = (Arc::new(Grace::new()), tree(&[(9, 1)], 2));
    let seat = Grace::seat(&grace);
    seat.enter();
    let mut limbo = Limbo::default();
    limbo.committed(let_go(&mut tree, &grace, &[(9, 1)]));
    assert!(!limbo.advance(&mut tree, 100));
    assert_eq!(tree.units.owners(9), 2, "the other must not take it for its own");
    seat.leave();
    assert!(limbo.advance(&mut tree, 100));
    assert_eq!((tree.units.owners(9), limbo.is_empty()), (1, true));
}

#[test]
fn owners_that_let_go_one_after_the_other_leave_it_free() {
    let (grace, mut tree) = (Arc::new(Grace::new()), tree(&[(9, 1)], 2));
    let mut limbo = Limbo::default();
    limbo.committed(let_go(&mut tree, &grace, &[(9, 1)]));
    limbo.committed(let_go(&mut tree, &grace, &[(9, 1)]));
    while limbo.advance(&mut tree, 1) {
        tree.begin_hold();
    }
    assert_eq!((tree.units.owners(9), tree.units.counts().free), (0, 200));
}

#[test]
fn one_owner_whose_io_does_not_end_keeps_back_what_it_let_go_and_nothing_else() {
    let mut tree = tree(&[(1, 40)], 1);
    let (stuck, free) = (Arc::new(Grace::new()), Arc::new(Grace::new()));
    let (seat, _other) = (Grace::seat(&stuck), Grace::seat(&free));
    seat.enter();
    let io = seat.count();
    seat.leave();
    let mut limbo = Limbo::default();
    limbo.committed(let_go(&mut tree, &stuck, &[(1, 10)]));
    for at in (11..41).step_by(10) {
        limbo.committed(let_go(&mut tree, &free, &[(at, 10)]));
        while limbo.advance(&mut tree, 4) {
            tree.begin_hold();
        }
        assert_eq!(tree.units.counts().limbo, 10, "the other's are free again, round after round");
    }
    assert!(limbo.someone().is_some_and(|(grace, _)| Arc::ptr_eq(&grace, &stuck)));
    seat.uncount(io);
    while limbo.advance(&mut tree, 4) {
        tree.begin_hold();
    }
    assert_eq!((tree.units.counts().free, limbo.is_empty()), (200, true));
    assert!(limbo.someone().is_none());
}

#[test]
fn a_unit_that_two_owners_let_go_waits_for_the_readers_of_both() {
    for first in [0, 1] {
        let mut tree = tree(&[(9, 1)], 2);
        let graces = [Arc::new(Grace::new()), Arc::new(Grace::new())];
        let seats: Vec<_> = graces.iter().map(Grace::seat).collect();
        let ios: Vec<_> = seats
            .iter()
            .map(|seat| {
                seat.enter();
                let io = seat.count();
                seat.leave();
                io
            })
            .collect();
        let mut limbo = Limbo::default();
        graces.iter().for_each(|grace| limbo.committed(let_go(&mut tree, grace, &[(9, 1)])));
        assert!(!limbo.advance(&mut tree, 10));
        seats[first].uncount(ios[first]);
        while limbo.advance(&mut tree, 10) {}
        assert_eq!((tree.units.owners(9), tree.units.counts().free), (1, 199), "the other may still read it");
        seats[1 - first].uncount(ios[1 - first]);
        while limbo.advance(&mut tree, 10) {}
        assert_eq!((tree.units.owners(9), tree.units.counts().free), (0, 200));
    }
}
