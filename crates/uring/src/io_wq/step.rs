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
use super::work::{CANCELLED, Ends, Source};
use super::worker::run_guarded;
use crate::work_done::WorkDone;

/// One account's work, for [`Pool::step_account`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Account {
    /// Work that ends by itself and soon.
    Bound,
    /// Work that may take for ever.
    Unbound,
}

/// How the item of a step has ended.
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

    /// Runs one item of one account on this thread; false when none is queued there that may run now.
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
