//! A pool without threads: its work runs in [`Pool::step`], on the calling thread.
//!
//! Owns running one item; `shared` decides which is next. For simulators: rings, files and their workers run on one
//! thread, or on several that take turns, in an order that is reproducible to the byte. Rings that wait, drain or are
//! dropped take steps themselves, so nothing hangs; a simulator that wants another order takes steps before that.
//!
//! Invariants:
//! - I1: a step runs at most one item, and reports if there was none. Bound work comes before unbound unless the caller
//!   chooses.
//! - I2: items of one hash run in order, as with threads: the bucket is released when the last item of its batch has
//!   ended, also if items are stepped on several threads.

use sheave_base::sync::atomic::Ordering;

use super::pool::Pool;
use super::work::{CANCELLED, Ends, Source};
use super::worker::run_guarded;
use crate::work_done::WorkDone;

/// Selects the account for [`Pool::step_account`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Account {
    /// Work that ends by itself and soon.
    Bound,
    /// Work that may take for ever.
    Unbound,
}

/// Receives the result of the item that a step runs.
struct Stepped(Option<WorkDone>);

impl Ends for Stepped {
    fn end(&mut self, _: usize, how: WorkDone) {
        self.0 = Some(how);
    }

    fn end_rest(&mut self, how: WorkDone) {
        self.0.get_or_insert(how);
    }

    fn blocking(&mut self, wait: impl FnOnce()) {
        wait();
    }
}

impl<S: Source> Pool<S> {
    /// Returns true if the pool has no threads and work runs only in steps.
    #[must_use]
    pub fn is_stepped(&self) -> bool {
        self.shared().options.stepped
    }

    /// Runs one item on this thread. Returns false if none is queued, or the queued ones must wait for an item that
    /// another thread is running. Only for a [stepped](super::PoolOptions::stepped) pool; must not be called inside an
    /// item.
    pub fn step(&self) -> bool {
        self.step_account(Account::Bound) || self.step_account(Account::Unbound)
    }

    /// Runs one item of one account on this thread. Returns false if none is queued there that may run now.
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
            let cancelled = entry.is_unbound() && shared.closed.load(Ordering::Acquire);
            let mut end = Stepped(None);
            if cancelled {
                end.0 = Some(CANCELLED);
            } else if entry.may_block() {
                end.0 = Some(run_guarded(&client, &mut S::Context::default(), slot));
            } else {
                client.source.run_short(&mut S::Context::default(), &[slot], &mut end);
            }
            client.items.end(slot, generation);
            client.finish(&[(slot, end.0.unwrap_or(WorkDone::Reissue))]);
            shared.entry_ended(acct);
            return true;
        }
        false
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
