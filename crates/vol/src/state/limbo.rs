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

use super::freed::{Freed, LetGo};
use crate::state::extent_map::tree::Tree;

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
        for (at, grace, freed) in freed.into_owners() {
            let none = || Waiting { grace, now: None, next: Freed::default() };
            self.waiting.entry(at).or_insert_with(none).next.append(freed);
        }
    }

    /// Nobody uses these, and that is durable: they wait for no grace.
    pub(crate) fn pass(&mut self, freed: Freed) {
        self.over.append(freed);
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

#[cfg(all(test, not(shuttle)))]
mod tests;
