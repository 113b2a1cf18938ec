//! The deferred-free queue: holds released units and nodes until nothing can use them.
//!
//! Owns the two waits of a release: for the commit that makes it durable, and for the grace period after which no I/O
//! or lookup of that owner uses the item. Then the item loses the owner, and becomes free if that was its last one.
//!
//! Releases wait even if other owners remain. A unit with a single owner is written in place. So an owner may become
//! the only one only after all reads of the other owner have ended, and when no crash can bring the other owner back.
//!
//! - I1: an item leaves the queue only after a commit that began after its release is durable, and after a grace that
//!   began after that commit is over.
//! - I2: each owner has at most two batches, however many commits there are: one waits for its grace, and the other
//!   collects.
//! - I3: items are freed in parts, so the time under the pool's lock does not depend on the size of a release.
//! - I4: each owner waits for a grace of its own: I/O of one volume that does not end delays the releases of that
//!   volume only.
//!
//! Called by commits, by allocations that find no free unit, and by reports, under the pool's lock.

use std::collections::BTreeMap;

use sheave_base::grace::{Grace, Ticket};
use sheave_base::sync::Arc;

use super::freed::{Freed, LetGo};
use crate::state::extent_map::tree::Tree;

/// Releases of one owner: the batch that waits for a grace, and the one that collects.
#[derive(Debug)]
struct Waiting {
    grace: Arc<Grace>,
    now: Option<(Ticket, Freed)>,
    next: Freed,
}

/// Durable releases that wait for a grace.
#[derive(Debug, Default)]
pub(crate) struct Limbo {
    /// Keyed by the address of the grace, as in [`LetGo`].
    waiting: BTreeMap<usize, Waiting>,
    /// Releases whose grace is over, reclaimed in parts (I3).
    over: Freed,
}

impl Limbo {
    /// Adds releases that have become durable.
    pub(crate) fn committed(&mut self, freed: LetGo) {
        for (at, grace, freed) in freed.into_owners() {
            let none = || Waiting { grace, now: None, next: Freed::default() };
            self.waiting.entry(at).or_insert_with(none).next.append(freed);
        }
    }

    /// Adds releases that are durable and unused, and need no grace.
    pub(crate) fn pass(&mut self, freed: Freed) {
        self.over.append(freed);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.over.is_empty()
    }

    /// Reclaims part of the releases whose grace is over, about `most` units, nodes and entries. Returns false if
    /// nothing was left; callers repeat the call until then.
    pub(crate) fn advance(&mut self, tree: &mut Tree, most: u64) -> bool {
        if self.over.is_empty() {
            self.look();
        }
        if self.over.is_empty() {
            return false;
        }
        tree.reclaim(&mut self.over, most);
        true
    }

    /// Starts a grace for the collected batch of each owner that waits for none, and takes the batches whose grace is
    /// over (I4).
    fn look(&mut self) {
        let over = &mut self.over;
        self.waiting.retain(|_, Waiting { grace, now, next }| {
            if now.is_none() {
                *now = Some((grace.start(), std::mem::take(next)));
            }
            // A grace that has just started is over at once if no I/O is in flight.
            if let Some((_, freed)) = now.take_if(|(ticket, _)| grace.is_over(*ticket)) {
                over.append(freed);
            }
            now.is_some() || !next.is_empty()
        });
    }

    /// Returns a grace that some releases wait for.
    pub(crate) fn someone(&self) -> Option<(Arc<Grace>, Ticket)> {
        let waits = |waiting: &Waiting| Some((Arc::clone(&waiting.grace), waiting.now.as_ref()?.0));
        self.waiting.values().find_map(waits)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::collections::BTreeSet;

    use sheave_base::grace::{Phase, Seat};
    use sheave_base::rng::Rng;

    use super::*;
    use crate::state::alloc::Units;
    use crate::state::extent_map::{ExtentMap, Geometry};

    /// Makes a tree on a pool of 200 units. The units of `runs` have `owners` owners each.
    fn tree(runs: &[(u64, u64)], owners: u16) -> Tree {
        let mut units = Units::new(200);
        for unit in runs.iter().flat_map(|&(first, count)| first..first + count) {
            (0..owners).for_each(|_| assert!(units.claim_data(unit)));
        }
        Tree::new(Arc::new(ExtentMap::new(Geometry::new(16))), units)
    }

    /// Releases units of an owner whose readers are in `grace`.
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
    fn releases_pass_in_parts_until_none_is_left() {
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
        // A later release waits for another grace.
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
    fn a_unit_is_free_after_all_owners_released_it() {
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
    fn stuck_io_delays_only_its_owners_releases() {
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

    /// Model of owners with I/O in flight, the units that they have, and their releases.
    struct Owners {
        tree: Tree,
        limbo: Limbo,
        graces: [Arc<Grace>; 3],
        seats: [Seat; 3],
        /// I/O in flight of each owner, by number.
        ios: [BTreeMap<u64, Phase>; 3],
        begun: u64,
        holders: BTreeMap<u64, BTreeSet<usize>>,
        /// Releases as (unit, owner, I/O of that owner that was in flight when the release was committed). The last
        /// part is `None` before the commit.
        gone: Vec<(u64, usize, Option<BTreeSet<u64>>)>,
        let_go: LetGo,
    }

    impl Owners {
        fn new() -> Owners {
            let graces = [0; 3].map(|_| Arc::new(Grace::new()));
            let seats = [0, 1, 2].map(|at: usize| Grace::seat(&graces[at]));
            let (tree, ios) = (tree(&[], 0), [0; 3].map(|_| BTreeMap::new()));
            let (limbo, let_go) = (Limbo::default(), LetGo::default());
            Owners { tree, limbo, graces, seats, ios, begun: 0, holders: BTreeMap::new(), gone: Vec::new(), let_go }
        }

        /// Returns the number of owners that have released a unit and may still use it.
        fn blocked(&self, unit: u64) -> usize {
            let uses = |(of, by, ios): &&(u64, usize, Option<BTreeSet<u64>>)| {
                let in_use = |ios: &BTreeSet<u64>| ios.iter().any(|io| self.ios[*by].contains_key(io));
                *of == unit && ios.as_ref().is_none_or(in_use)
            };
            self.gone.iter().filter(uses).count()
        }

        fn step(&mut self, rng: &mut Rng) {
            let owner = rng.below(3) as usize;
            let held: Vec<u64> = self.holders.keys().copied().collect();
            let unit = held.get(rng.below(held.len().max(1) as u64) as usize).copied();
            match (rng.below(12), unit) {
                (0..=2, _) | (_, None) => {
                    let Some(unit) = self.tree.units.alloc() else { return };
                    assert_eq!(self.blocked(unit), 0, "unit {unit} is given away, and may still be used");
                    assert!(self.holders.insert(unit, BTreeSet::from([owner])).is_none(), "unit {unit} is given twice");
                }
                (3, Some(unit)) => {
                    if self.holders.entry(unit).or_default().insert(owner) {
                        assert!(self.tree.units.get(unit));
                    }
                }
                (4..=5, Some(unit)) => {
                    let holders = self.holders.entry(unit).or_default();
                    if !holders.remove(&owner) {
                        return;
                    }
                    if holders.is_empty() {
                        self.holders.remove(&unit);
                    }
                    self.let_go.append(let_go(&mut self.tree, &self.graces[owner], &[(unit, 1)]));
                    self.gone.push((unit, owner, None));
                }
                (6, _) => {
                    self.limbo.committed(std::mem::take(&mut self.let_go));
                    for (_, by, ios) in self.gone.iter_mut().filter(|(_, _, ios)| ios.is_none()) {
                        *ios = Some(self.ios[*by].keys().copied().collect());
                    }
                }
                (7..=8, _) => {
                    self.seats[owner].enter();
                    self.ios[owner].insert(self.begun, self.seats[owner].count());
                    self.seats[owner].leave();
                    self.begun += 1;
                }
                (9..=10, _) => {
                    if let Some((_, phase)) = self.ios[owner].pop_first() {
                        self.seats[owner].uncount(phase);
                    }
                }
                _ => _ = self.limbo.advance(&mut self.tree, rng.below(4) + 1),
            }
            // A single owner writes in place, so an owner that may still use the unit must still be counted.
            for (unit, holders) in &self.holders {
                let counted = usize::from(self.tree.units.owners(*unit));
                assert!(counted >= holders.len() + self.blocked(*unit), "unit {unit} counts {counted} owners");
            }
        }

        /// Ends all I/O and commits all releases: everything released passes, and nothing else does.
        fn end(mut self) {
            for (owner, ios) in self.ios.iter_mut().enumerate() {
                std::mem::take(ios).into_values().for_each(|phase| self.seats[owner].uncount(phase));
            }
            self.limbo.committed(self.let_go);
            while self.limbo.advance(&mut self.tree, 3) {}
            assert!(self.limbo.is_empty());
            for (unit, holders) in &self.holders {
                assert_eq!(usize::from(self.tree.units.owners(*unit)), holders.len(), "owners of unit {unit}");
            }
            assert_eq!(self.tree.units.counts().free + self.holders.len() as u64, 200, "what nobody has is free");
        }
    }

    #[test]
    fn random_releases_never_pass_early_and_all_pass() {
        for seed in sheave_testkit::seeds(40) {
            let (mut owners, mut rng) = (Owners::new(), Rng::new(seed));
            (0..2_000).for_each(|_| owners.step(&mut rng));
            owners.end();
        }
    }
}
