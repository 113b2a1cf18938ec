//! The deferred-free queue: holds released units and nodes until nothing can use them.
//!
//! Owns the two waits of a release: for the commit that makes it durable, and for the grace period after which no I/O
//! or lookup of that owner uses the item. Then the item loses the owner, and becomes free if that was its last one.
//!
//! Releases wait even if other owners remain. A unit with a single owner is written in place. So an owner
//! may become the only one after all reads of the other owner have ended, and after no crash can bring that one back.
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
    /// nothing was left. Called until then.
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
mod tests;
