//! Short items that their own client runs before it waits: where a worker would need the client's CPU for them, and
//! where the client waits for one such item and nothing else.
//!
//! Owns the taking back of a client's items, and the wake-up that was put off meanwhile. How a ring runs what it has
//! taken back, its owner knows (`ring`).
//!
//! Invariants:
//! - I1: what a client takes back is short, its own, and at the head of its row: nothing overtakes an item that is not
//!   short, and no other client's item waits for the client.
//! - I2: a client takes nothing back while a worker runs or stands by: what had to be done at once has woken one.

use super::pool::Submitter;
use super::shard::Batch;
use super::work::Source;

impl<S: Source> Submitter<S> {
    /// The client is about to wait: takes short items of its own back that no worker has begun, 64 at most, where the
    /// workers would need this thread's CPU for them. They are the client's to run; no result of them comes. The slots
    /// are appended to `back`.
    pub fn help(&mut self, back: &mut Vec<u32>) {
        let mut batch = std::mem::replace(&mut self.own, Batch::empty());
        self.take_own(&mut batch, back);
        self.own = batch;
    }

    fn take_own(&self, batch: &mut Batch, back: &mut Vec<u32>) {
        let shared = self.pool().shared();
        let acct = &shared.accts[0];
        // I2.
        if !shared.options.help || !acct.has_work() || !acct.counts().nobody_looks() || !acct.is_in_workers_way() {
            return;
        }
        acct.take_own(self.at(), batch);
        let before = back.len();
        for entry in batch.entries.drain(..) {
            // Only this thread cancels, and a cancelled item is not started.
            if self.items().start(entry.slot(), entry.generation()) {
                self.items().end(entry.slot(), entry.generation());
                back.push(entry.slot());
            }
        }
        acct.nap.note_helped(back.len() - before);
    }

    /// Takes the one short item back that is queued and was not handed over, if nothing else is. As
    /// [`help`](Self::help), but wherever workers are, for none of them knows of it.
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

    /// Whether a wake-up was put off.
    #[inline]
    pub fn has_deferred(&self) -> bool {
        self.deferred
    }

    /// The client is about to sleep: wakes the worker that it has not woken before.
    pub fn wake_deferred(&mut self) {
        if std::mem::take(&mut self.deferred) {
            let shared = self.pool().shared_arc();
            if shared.accts[0].wants_worker() {
                shared.wake(0);
            }
        }
    }
}
