//! Units and nodes that owners have released, each under the grace of its possible users.
//!
//! Owns the lists. [`limbo`](super::limbo) decides when an item may be reused.
//!
//! Filled by [`Tree`](super::extent_map::tree::Tree), taken by commits.

use std::collections::{BTreeMap, BTreeSet};

use sheave_base::grace::Grace;
use sheave_base::sync::Arc;

/// Units and nodes that an owner has released.
#[derive(Debug, Default)]
pub(crate) struct Freed {
    /// Runs of units without owners, as (first, count).
    units: Vec<(u64, u64)>,
    pub(crate) index: Vec<u32>,
    pub(crate) leaves: Vec<u32>,
    /// Units and nodes with other owners. They lose this owner when they have passed the deferred-free queue.
    pub(crate) shared_units: Vec<u64>,
    pub(crate) shared_index: Vec<u32>,
    pub(crate) shared_leaves: Vec<u32>,
}

impl Freed {
    /// Adds a unit without owners.
    pub(crate) fn unit(&mut self, unit: u64) {
        match self.units.last_mut() {
            Some((first, count)) if *first + *count == unit => *count += 1,
            _ => self.units.push((unit, 1)),
        }
    }

    /// Makes a list from runs of units without owners.
    pub(crate) fn of_units(units: Vec<(u64, u64)>) -> Freed {
        Freed { units, ..Freed::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.units.is_empty()
            && self.index.is_empty()
            && self.leaves.is_empty()
            && self.shared_units.is_empty()
            && self.shared_index.is_empty()
            && self.shared_leaves.is_empty()
    }

    /// Returns true if any item has other owners.
    pub(crate) fn has_shared(&self) -> bool {
        !(self.shared_units.is_empty() && self.shared_index.is_empty() && self.shared_leaves.is_empty())
    }

    pub(crate) fn append(&mut self, mut other: Freed) {
        if self.is_empty() {
            *self = other;
            return;
        }
        self.units.append(&mut other.units);
        self.index.append(&mut other.index);
        self.leaves.append(&mut other.leaves);
        self.shared_units.append(&mut other.shared_units);
        self.shared_index.append(&mut other.shared_index);
        self.shared_leaves.append(&mut other.shared_leaves);
    }

    /// Removes up to `most` units and nodes without owners.
    pub(crate) fn take_some(&mut self, most: u64) -> Freed {
        let mut part = Freed::default();
        let mut left = most;
        while left > 0
            && let Some((first, count)) = self.units.pop()
        {
            let now = count.min(left);
            part.units.push((first, now));
            if now < count {
                self.units.push((first + now, count - now));
            }
            left -= now;
        }
        for (from, to) in [(&mut self.index, &mut part.index), (&mut self.leaves, &mut part.leaves)] {
            let keep = from.len().saturating_sub(left as usize);
            left -= (from.len() - keep) as u64;
            to.append(&mut from.split_off(keep));
        }
        part
    }

    /// Returns the units without owners.
    pub(crate) fn units(&self) -> impl Iterator<Item = u64> + '_ {
        self.units.iter().flat_map(|&(first, count)| first..first + count)
    }
}

/// Nodes with an extra parent while a map is damaged ([`quarantine`](super::quarantine)).
#[derive(Debug, Default)]
pub(crate) struct Held {
    pub(crate) index: BTreeSet<u32>,
    pub(crate) leaves: BTreeSet<u32>,
}

/// Releases grouped by the grace that they wait for. Each owner has a grace of its own.
#[derive(Debug, Default)]
pub(crate) struct LetGo {
    /// Keyed by the address of the grace. The `Arc` beside it keeps that address in use.
    by: BTreeMap<usize, (Arc<Grace>, Freed)>,
}

fn key(grace: &Arc<Grace>) -> usize {
    std::ptr::from_ref::<Grace>(grace).addr()
}

impl LetGo {
    /// Returns the list of releases under `grace`.
    pub(crate) fn by(&mut self, grace: &Arc<Grace>) -> &mut Freed {
        &mut self.by.entry(key(grace)).or_insert_with(|| (Arc::clone(grace), Freed::default())).1
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by.is_empty()
    }

    pub(crate) fn append(&mut self, other: LetGo) {
        for (grace, freed) in other.by.into_values() {
            self.by(&grace).append(freed);
        }
    }

    /// Returns the releases of each owner: address of the grace, the grace, the list.
    pub(crate) fn into_owners(self) -> impl Iterator<Item = (usize, Arc<Grace>, Freed)> {
        self.by.into_iter().map(|(at, (grace, freed))| (at, grace, freed))
    }

    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn into_freed(self) -> impl Iterator<Item = Freed> {
        self.by.into_values().map(|(_, freed)| freed)
    }
}
