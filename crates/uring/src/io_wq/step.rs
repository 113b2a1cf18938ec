//! A pool without threads: its work runs where and when somebody says [`Pool::step`].
//!
//! Owns the batch of each account that was begun. For simulators: rings, files and their workers run on one thread, in
//! an order that repeats to the byte. Rings that wait, drain or are dropped take steps themselves, so nothing hangs; a
//! simulator that wants another order steps before.
//!
//! Invariants:
//! - I1: a step runs one item, or says that there is none. Bound work comes before unbound unless the caller chooses.
//! - I2: items of one hash run in order, as with threads: the bucket is released with the last item of its batch.

use sheave_base::sync::MutexGuard;
use sheave_base::sync::atomic::Ordering;

use super::pool::{Pool, Shared};
use super::shard::Batch;
use super::work::{CANCELLED, Source};
use super::worker::run_guarded;

/// One account's work, for [`Pool::step_account`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Account {
    /// Work that ends by itself and soon.
    Bound,
    /// Work that may take for ever.
    Unbound,
}

/// The batches in hand, by account.
#[derive(Debug)]
pub(super) struct Steps {
    batches: [Batch; 2],
    /// Items of each that were run.
    at: [usize; 2],
}

impl Steps {
    pub(super) fn new() -> Steps {
        Steps { batches: [Batch::new(), Batch::new()], at: [0; 2] }
    }
}

impl<S: Source> Pool<S> {
    /// Whether the pool has no threads, and somebody must step.
    #[must_use]
    pub fn is_stepped(&self) -> bool {
        self.shared().options.stepped
    }

    /// Runs one item on this thread; false when none is queued. Only for a [stepped](super::PoolOptions::stepped) pool,
    /// and not from within an item.
    pub fn step(&self) -> bool {
        self.step_account(Account::Bound) || self.step_account(Account::Unbound)
    }

    /// The same for one account.
    pub fn step_account(&self, account: Account) -> bool {
        let shared = self.shared();
        if !shared.options.stepped {
            return false;
        }
        let acct = account as usize;
        while let Some(entry) = shared.next_entry(acct) {
            let Some(client) = shared.client(entry.client()) else { continue };
            let (slot, generation) = (entry.slot(), entry.generation());
            if !client.items.start(slot, generation) {
                continue;
            }
            // Acquire pairs with the Release of `shutdown`.
            let res = if entry.is_unbound() && shared.closed.load(Ordering::Acquire) {
                CANCELLED
            } else if entry.may_block() {
                run_guarded(&client, slot)
            } else {
                client.source.run_short(slot)
            };
            client.items.end(slot, generation);
            client.finish(&[(slot, res)]);
            return true;
        }
        false
    }
}

impl<S: Source> Shared<S> {
    /// The next entry of an account. The lock is not held while its item runs.
    fn next_entry(&self, acct: usize) -> Option<super::work::Entry> {
        let mut steps = self.steps();
        let Steps { batches, at } = &mut *steps;
        let (batch, at) = (&mut batches[acct], &mut at[acct]);
        if *at >= batch.entries.len() {
            // Releases the bucket of the batch before (I2).
            *at = 0;
            if !self.accts[acct].take(0, batch) {
                return None;
            }
        }
        *at += 1;
        Some(batch.entries[*at - 1])
    }

    fn steps(&self) -> MutexGuard<'_, Steps> {
        self.steps.lock().expect("invariant: no panic under this lock")
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
