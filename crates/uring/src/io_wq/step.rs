//! A pool without threads: its work runs where and when somebody says [`Pool::step`].
//!
//! Owns the running of one item; which is next, `shared` knows. For simulators: rings, files and their workers run on
//! one thread, or on several that take turns, in an order that repeats to the byte. Rings that wait, drain or are
//! dropped take steps themselves, so nothing hangs; a simulator that wants another order steps before.
//!
//! Invariants:
//! - I1: a step runs one item, or says that there is none. Bound work comes before unbound unless the caller chooses.
//! - I2: items of one hash run in order, as with threads: the bucket is released when the last item of its batch has
//!   ended, also when items are stepped on several threads.

use sheave_base::sync::atomic::Ordering;

use super::pool::Pool;
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

impl<S: Source> Pool<S> {
    /// Whether the pool has no threads, and somebody must step.
    #[must_use]
    pub fn is_stepped(&self) -> bool {
        self.shared().options.stepped
    }

    /// Runs one item on this thread; false when none is queued, or what is queued must wait for an item that another
    /// thread has not ended. Only for a [stepped](super::PoolOptions::stepped) pool, and not from within an item.
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
            let (slot, generation) = (entry.slot(), entry.generation());
            let client = shared.client(entry.client()).filter(|client| client.items.start(slot, generation));
            let Some(client) = client else {
                shared.entry_ended(acct);
                continue;
            };
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
            shared.entry_ended(acct);
            return true;
        }
        false
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
