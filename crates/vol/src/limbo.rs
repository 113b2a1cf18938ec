//! Limbo: where space and nodes wait after their last owner has gone, until nothing can touch them.
//!
//! Owns the two waits: for the commit that makes their freeing durable, and for the grace period after which no I/O and
//! no lookup uses them. Does not own what becomes of them then.
//!
//! - I1: nothing leaves before a commit that began after it was freed is durable, and a grace that began after it was
//!   freed is over.
//! - I2: two batches at most wait, whatever the number of commits: the later one gathers.
//!
//! Called by commits, allocations that find nothing free, and reports, under the pool's lock.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use sheave_base::grace::{Grace, Ticket};

/// Units and nodes without owners.
#[derive(Debug, Default)]
pub(crate) struct Freed {
    /// Runs of units: first, count.
    units: Vec<(u64, u64)>,
    pub(crate) index: Vec<u32>,
    pub(crate) leaves: Vec<u32>,
    /// What lost an owner and has others; see [`Loosened`].
    loose: Vec<Loose>,
}

/// Something that had several owners and lost one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Loose {
    Unit(u64),
    Index(u32),
    Leaf(u32),
}

/// What lost an owner since the last durable commit. On the device that owner still has it, so for those that are left it
/// is shared until the loss is durable: a crash would give the one the data of the other.
#[derive(Debug, Default)]
pub(crate) struct Loosened(HashMap<Loose, u32>);

impl Loosened {
    /// Whether a loss is not durable.
    #[inline]
    pub(crate) fn has(&self, what: Loose) -> bool {
        !self.0.is_empty() && self.0.contains_key(&what)
    }

    /// It lost an owner, which the next commit makes durable.
    pub(crate) fn add(&mut self, what: Loose, freed: &mut Freed) {
        *self.0.entry(what).or_default() += 1;
        freed.loose.push(what);
    }

    /// The losses that the commit took are durable.
    pub(crate) fn committed(&mut self, freed: &mut Freed) {
        for what in freed.loose.drain(..) {
            if let Entry::Occupied(mut losses) = self.0.entry(what) {
                *losses.get_mut() -= 1;
                if *losses.get() == 0 {
                    losses.remove();
                }
            }
        }
    }
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
        self.units.is_empty() && self.index.is_empty() && self.leaves.is_empty() && self.loose.is_empty()
    }

    pub(crate) fn append(&mut self, mut other: Freed) {
        if self.is_empty() {
            *self = other;
            return;
        }
        self.units.append(&mut other.units);
        self.index.append(&mut other.index);
        self.leaves.append(&mut other.leaves);
        self.loose.append(&mut other.loose);
    }

    /// The units, one by one.
    pub(crate) fn units(&self) -> impl Iterator<Item = u64> + '_ {
        self.units.iter().flat_map(|&(first, count)| first..first + count)
    }
}

/// What is durable and waits for graces.
#[derive(Debug, Default)]
pub(crate) struct Limbo {
    waiting: Option<(Ticket, Freed)>,
    next: Freed,
}

impl Limbo {
    /// The freeing of these is durable.
    pub(crate) fn committed(&mut self, freed: Freed) {
        self.next.append(freed);
    }

    /// Whether anything waits here.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_none() && self.next.is_empty()
    }

    /// What may be used again now. Call until it gives nothing.
    pub(crate) fn advance(&mut self, grace: &Grace) -> Option<Freed> {
        if self.waiting.is_none() && !self.next.is_empty() {
            self.waiting = Some((grace.start(), std::mem::take(&mut self.next)));
        }
        let (ticket, _) = self.waiting.as_ref()?;
        if !grace.is_over(*ticket) {
            return None;
        }
        self.waiting.take().map(|(_, freed)| freed)
    }
}
