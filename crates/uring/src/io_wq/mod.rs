//! io-wq: work that must not run on the ring's thread.
//!
//! Owns the interface between a ring and its workers, and for now the smallest pool that is correct behind it: one
//! worker thread, started with the first work, items in the order of their queueing. Results come back through the
//! ring's [`task_work`](crate::task_work).
//!
//! Invariants:
//! - I1: every queued item comes back exactly once, in the ring's task-work queue, also at shutdown.
//! - I2: the queue is bounded by the ring's slots: a slot has at most one item.
//! - I3: dropping the pool runs what is queued, then joins the thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use sheave_base::sync::Arc;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::dio;
use sheave_iomap::mapping::Intent;
use sheave_iomap::{File, Kiocb};

use crate::blocking::{result_of, result_of_map};
use crate::sqe::errno;
use crate::task_work::RingHandle;

/// What a worker does for a slot.
#[derive(Debug)]
pub(crate) enum Work {
    /// `IOSQE_ASYNC` on an operation that has nothing to block on: the ring issues it when it comes back.
    Issue,
    /// The completion of an I/O whose plan is `Worker`.
    Complete(Arc<dyn File>, Kiocb),
    /// A mapping that blocks: position and length.
    Map(Arc<dyn File>, u64, u64, Intent),
}

/// The result of [`Work::Issue`]: the ring is to issue the slot now. No CQE has it.
pub(crate) const ISSUE_NOW: i32 = i32::MIN;

#[derive(Debug)]
struct Item {
    slot: u32,
    work: Work,
}

/// The pool of one ring.
#[derive(Debug, Default)]
pub(crate) struct IoWq {
    worker: Option<(Sender<Item>, JoinHandle<()>)>,
}

impl IoWq {
    /// Queues work for a slot of this ring. When no worker can be had, the work is given back.
    pub(crate) fn queue(&mut self, ring: &RingHandle, slot: u32, work: Work) -> Result<(), Work> {
        if self.worker.is_none() {
            match start(ring.clone()) {
                Ok(worker) => self.worker = Some(worker),
                Err(_) => return Err(work),
            }
        }
        match &self.worker {
            Some((sender, _)) => sender.send(Item { slot, work }).map_err(|error| error.0.work),
            None => Err(work),
        }
    }

    /// How many handles of the ring the workers hold.
    pub(crate) fn handles(&self) -> usize {
        usize::from(self.worker.is_some())
    }
}

fn start(ring: RingHandle) -> std::io::Result<(Sender<Item>, JoinHandle<()>)> {
    let (sender, items) = channel();
    let thread = std::thread::Builder::new().name("sheave-iowq".into()).spawn(move || run(&items, &ring))?;
    Ok((sender, thread))
}

fn run(items: &Receiver<Item>, ring: &RingHandle) {
    let token = MayBlock::on_worker();
    for item in items {
        // A file that panics has told why; its ring must hear of the request all the same (I1).
        let res = catch_unwind(AssertUnwindSafe(|| work(item.work, &token)));
        ring.finish(item.slot, res.unwrap_or(-errno::EIO));
    }
}

fn work(work: Work, token: &MayBlock) -> i32 {
    match work {
        Work::Issue => ISSUE_NOW,
        Work::Complete(file, mut kiocb) => result_of(dio::finish_in_worker(&*file, &mut kiocb, token)),
        Work::Map(file, pos, len, intent) => result_of_map(file.map_blocking(pos, len, intent, token).map(|_| ())),
    }
}

impl Drop for IoWq {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.worker.take() {
            drop(sender);
            // A worker that panicked has said so; there is nothing left to join.
            let _ = thread.join();
        }
    }
}
