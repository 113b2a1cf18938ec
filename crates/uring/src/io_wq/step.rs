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
mod tests {
    use std::sync::Mutex;

    use super::super::{Ends, PoolOptions, Section, WorkFlags};
    use super::*;
    use crate::work_done::WorkDone;

    /// Source that records which items run and end, with the thread.
    #[derive(Default)]
    struct Log(Mutex<Vec<(&'static str, u32)>>, Mutex<Vec<std::thread::ThreadId>>);

    impl Source for std::sync::Arc<Log> {
        type Context = ();

        fn run(&self, _: &mut (), slot: u32, section: &Section<'_>) -> WorkDone {
            assert!(!section.is_cancelled());
            self.0.lock().unwrap().push(("run", slot));
            self.1.lock().unwrap().push(std::thread::current().id());
            WorkDone::Result(slot as i32)
        }

        fn run_short(&self, _: &mut (), slots: &[u32], ends: &mut impl Ends) {
            for (at, &slot) in slots.iter().enumerate() {
                self.0.lock().unwrap().push(("short", slot));
                ends.end(at, WorkDone::Result(slot as i32));
            }
        }

        fn finish(&self, done: &[(u32, WorkDone)]) {
            self.0.lock().unwrap().extend(done.iter().map(|&(slot, how)| {
                assert_eq!(WorkDone::Result(slot as i32), how);
                ("end", slot)
            }));
        }
    }

    #[test]
    fn a_step_runs_one_item_here_and_nothing_runs_by_itself() {
        let log = std::sync::Arc::new(Log::default());
        let pool = Pool::new(PoolOptions { stepped: true, ..PoolOptions::default() });
        let mut submitter = pool.submitter(log.clone(), 16).unwrap();
        assert!(pool.is_stepped() && !pool.step());
        assert!(submitter.queue(0, WorkFlags::UNBOUND));
        assert!(submitter.queue(1, WorkFlags::BOUND));
        for slot in 2..5 {
            assert!(submitter.queue(slot, WorkFlags::SHORT));
        }
        assert!(submitter.queue(5, WorkFlags::hashed(9)) && submitter.queue(6, WorkFlags::hashed(9)));
        assert!(!pool.step(), "not handed over");
        submitter.commit();
        assert_eq!(pool.counts()[0].workers + pool.counts()[1].workers, 0);
        assert_eq!(submitter.cancel(3), super::super::Cancelled::Queued);
        let mut steps = Vec::new();
        while pool.step() {
            let step: Vec<_> = log.0.lock().unwrap().drain(..).collect();
            assert_eq!(step.len(), 2, "one item, and its end: {step:?}");
            steps.push(step[0]);
        }
        assert_eq!(steps, [("run", 1), ("run", 5), ("short", 2), ("short", 4), ("run", 6), ("run", 0)]);
        assert!(log.1.lock().unwrap().iter().all(|&thread| thread == std::thread::current().id()));
    }

    #[test]
    fn the_caller_may_choose_the_account() {
        let log = std::sync::Arc::new(Log::default());
        let pool = Pool::new(PoolOptions { stepped: true, ..PoolOptions::default() });
        let mut submitter = pool.submitter(log.clone(), 4).unwrap();
        submitter.queue(0, WorkFlags::BOUND);
        submitter.queue(1, WorkFlags::UNBOUND);
        submitter.commit();
        assert!(pool.step_account(Account::Unbound) && !pool.step_account(Account::Unbound));
        assert_eq!(*log.0.lock().unwrap(), [("run", 1), ("end", 1)]);
        assert!(pool.step_account(Account::Bound));
        let threads = Pool::<std::sync::Arc<Log>>::new(PoolOptions::default());
        assert!(!threads.step(), "a pool with threads runs its work itself");
    }

    /// Source whose item of slot 0 waits until the test lets it continue.
    struct Slow(std::sync::Arc<Log>, std::sync::Arc<std::sync::Barrier>);

    impl Source for Slow {
        type Context = ();

        fn run(&self, _: &mut (), slot: u32, section: &Section<'_>) -> WorkDone {
            if slot == 0 {
                self.1.wait();
                self.1.wait();
            }
            self.0.run(&mut (), slot, section)
        }

        fn run_short(&self, context: &mut (), slots: &[u32], ends: &mut impl Ends) {
            self.0.run_short(context, slots, ends);
        }

        fn finish(&self, done: &[(u32, WorkDone)]) {
            self.0.finish(done);
        }
    }

    #[test]
    fn items_of_one_hash_stay_in_order_when_several_threads_step() {
        let log = std::sync::Arc::new(Log::default());
        let gate = std::sync::Arc::new(std::sync::Barrier::new(2));
        let pool = Pool::new(PoolOptions { stepped: true, ..PoolOptions::default() });
        let mut submitter = pool.submitter(Slow(log.clone(), gate.clone()), 4).unwrap();
        for slot in 0..2 {
            submitter.queue(slot, WorkFlags::hashed(9));
        }
        submitter.commit();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| pool.step());
            gate.wait();
            assert!(!pool.step(), "an item of its hash runs");
            gate.wait();
            assert!(other.join().unwrap());
        });
        assert!(pool.step() && !pool.step());
        assert_eq!(*log.0.lock().unwrap(), [("run", 0), ("end", 0), ("run", 1), ("end", 1)]);
    }
}
