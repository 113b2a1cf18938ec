//! Short items that their own client runs before it waits: if a worker would need the client's CPU for them, or if the
//! client waits for one such item and nothing else.
//!
//! Owns taking a client's items back, and the wake-up that was put off meanwhile. The client runs the items (`ring`).
//!
//! Invariants:
//! - I1: items taken back are short, belong to the client, and come from the head of its row: no item overtakes one
//!   that may block, and no item of another client waits for this client.
//! - I2: a client takes nothing back while a worker runs or stands by: items that had to start at once have woken one.

use super::pool::Submitter;
use super::shard::Batch;
use super::work::Source;

impl<S: Source> Submitter<S> {
    /// Called when the client is about to wait. Takes back up to 64 of its short items that no worker has started, if
    /// the workers would need this thread's CPU for them, and appends their slots to `back`. The client must run them;
    /// the pool delivers no result for them.
    pub fn help(&mut self, back: &mut Vec<u32>) {
        let mut batch = std::mem::replace(&mut self.own, Batch::empty());
        self.take_own(&mut batch, back);
        self.own = batch;
    }

    fn take_own(&self, batch: &mut Batch, back: &mut Vec<u32>) {
        let shared = self.pool().shared();
        let acct = &shared.accts[0];
        // I2 is the check of `nobody_looks`.
        if !shared.options.help || !acct.has_work() || !acct.counts().nobody_looks() || !acct.is_in_workers_way() {
            return;
        }
        acct.take_own(self.at(), batch);
        let before = back.len();
        for entry in batch.entries.drain(..) {
            // Fails only for a cancelled item: cancelling is done by this thread alone.
            if self.items().start(entry.slot(), entry.generation()) {
                self.items().end(entry.slot(), entry.generation());
                back.push(entry.slot());
            }
        }
        acct.nap.note_helped(back.len() - before);
    }

    /// Takes the one staged item back if it is short and nothing else is staged. Unlike [`help`](Self::help) it does
    /// not depend on the workers' CPU: no worker has seen the item.
    pub(crate) fn take_staged_alone(&mut self, back: &mut Vec<u32>) {
        let options = &self.pool().shared().options;
        if !options.help || options.stepped {
            return;
        }
        let Some(entry) = self.pop_staged_alone() else { return };
        if self.items().start(entry.slot(), entry.generation()) {
            self.items().end(entry.slot(), entry.generation());
            back.push(entry.slot());
            self.pool().shared().accts[0].nap.note_helped(1);
        }
    }

    /// Returns true if a wake-up was put off.
    #[inline]
    pub fn has_deferred(&self) -> bool {
        self.deferred
    }

    /// Called when the client is about to sleep: sends the wake-up that was put off.
    pub fn wake_deferred(&mut self) {
        if std::mem::take(&mut self.deferred) {
            let shared = self.pool().shared_arc();
            if shared.accts[0].wants_worker() {
                shared.wake(0);
            }
        }
    }
}
