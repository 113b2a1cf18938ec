//! The gate of reclamation: where space and nodes wait after an owner has let them go, until nothing can touch them.
//!
//! Owns the two waits: for the commit that makes the letting go durable, and for the grace period after which no I/O
//! and no lookup of that owner uses them. What passes the gate loses the owner, and is free if that was its last.
//!
//! It makes no difference whether the last owner lets go or one of several. An owner that is left writes in place to
//! what it has alone; so it has a unit alone only when the reads of the other have ended, and when no crash can bring
//! the other back.
//!
//! - I1: nothing passes before a commit that began after it was let go is durable, and a grace that began after that
//!   commit is over.
//! - I2: two batches at most wait of each owner, whatever the number of commits: the later one gathers.
//! - I3: what passes, passes in parts: nobody holds the pool's lock in proportion to what was let go.
//! - I4: each owner has a grace of its own, and what it lets go waits for that one: I/O of one volume that does not end
//!   keeps back what that volume has let go, and nothing else.
//!
//! Called by commits, allocations that find nothing free, and reports, under the pool's lock.

use std::collections::BTreeMap;

use sheave_base::grace::{Grace, Ticket};
use sheave_base::sync::Arc;

use crate::state::extent_map::tree::Tree;

/// Units and nodes that an owner has let go.
#[derive(Debug, Default)]
pub(crate) struct Freed {
    /// Runs of units without owners: first, count.
    units: Vec<(u64, u64)>,
    pub(crate) index: Vec<u32>,
    pub(crate) leaves: Vec<u32>,
    /// Units and nodes with other owners: they lose one when they have passed the gate.
    pub(crate) shared_units: Vec<u64>,
    pub(crate) shared_index: Vec<u32>,
    pub(crate) shared_leaves: Vec<u32>,
}

impl Freed {
    /// One more unit.
    pub(crate) fn unit(&mut self, unit: u64) {
        match self.units.last_mut() {
            Some((first, count)) if *first + *count == unit => *count += 1,
            _ => self.units.push((unit, 1)),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.units.is_empty()
            && self.index.is_empty()
            && self.leaves.is_empty()
            && self.shared_units.is_empty()
            && self.shared_index.is_empty()
            && self.shared_leaves.is_empty()
    }

    /// Whether anything in it has other owners.
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

    /// Takes a part out: so many units and nodes at most, none of those with other owners.
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

    /// The units, one by one.
    pub(crate) fn units(&self) -> impl Iterator<Item = u64> + '_ {
        self.units.iter().flat_map(|&(first, count)| first..first + count)
    }
}

/// What owners have let go, by the grace of those who may still use it: each owner has one of its own.
#[derive(Debug, Default)]
pub(crate) struct LetGo {
    /// By the address of the grace, which the grace beside it keeps.
    by: BTreeMap<usize, (Arc<Grace>, Freed)>,
}

fn key(grace: &Arc<Grace>) -> usize {
    std::ptr::from_ref::<Grace>(grace).addr()
}

impl LetGo {
    /// What those in this grace have let go.
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

    /// Without the graces.
    #[cfg(test)]
    pub(crate) fn into_freed(self) -> impl Iterator<Item = Freed> {
        self.by.into_values().map(|(_, freed)| freed)
    }
}

/// What one owner has let go, and waits for its grace.
#[derive(Debug)]
struct Waiting {
    grace: Arc<Grace>,
    now: Option<(Ticket, Freed)>,
    next: Freed,
}

/// What is durably let go, and waits for graces.
#[derive(Debug, Default)]
pub(crate) struct Limbo {
    /// By the address of the grace, as in [`LetGo`].
    waiting: BTreeMap<usize, Waiting>,
    /// The graces of these are over: it goes part by part.
    over: Freed,
}

impl Limbo {
    /// The letting go of these is durable.
    pub(crate) fn committed(&mut self, freed: LetGo) {
        for (at, (grace, freed)) in freed.by {
            let none = || Waiting { grace, now: None, next: Freed::default() };
            self.waiting.entry(at).or_insert_with(none).next.append(freed);
        }
    }

    /// Whether anything waits here.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.over.is_empty()
    }

    /// Lets a part pass whose grace is over, about `most` units, nodes and entries: it may be used again. False when
    /// nothing was left to pass; call until then.
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

    /// Looks at all graces (I4).
    fn look(&mut self) {
        let over = &mut self.over;
        self.waiting.retain(|_, Waiting { grace, now, next }| {
            if now.is_none() {
                *now = Some((grace.start(), std::mem::take(next)));
            }
            if let Some((_, freed)) = now.take_if(|(ticket, _)| grace.is_over(*ticket)) {
                over.append(freed);
            }
            now.is_some() || !next.is_empty()
        });
    }

    /// One of the graces that are waited for.
    pub(crate) fn someone(&self) -> Option<(Arc<Grace>, Ticket)> {
        let waits = |waiting: &Waiting| Some((Arc::clone(&waiting.grace), waiting.now.as_ref()?.0));
        self.waiting.values().find_map(waits)
    }
}

#[cfg(test)]
mod tests;
