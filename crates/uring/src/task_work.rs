//! Task work: how other threads reach a ring.
//!
//! Owns the ring's shared half: the wait-free queue of slots that workers have finished, the bounded mailbox of
//! messages from other rings, and the handle that wakes the ring if it sleeps.
//!
//! Invariants:
//! - I1: a slot is queued at most once at a time: its worker queues it when it is done, and the ring takes it out.
//! - I2: the result is written before the slot is queued, and read after it was taken out.
//! - I3: the mailbox is bounded; a full one answers, and nothing is lost that was accepted.

use crossbeam_queue::ArrayQueue;
use sheave_base::mpscq::{Consumer, MpscQueue};
use sheave_base::parker::Unparker;
use sheave_base::sync::Arc;
use sheave_base::sync::atomic::{AtomicU32, Ordering};

use crate::cqe::Cqe;

#[derive(Debug)]
struct Shared {
    done: MpscQueue,
    results: Box<[AtomicU32]>,
    mailbox: ArrayQueue<Cqe>,
    unparker: Unparker,
}

/// A ring as other threads have it: it can be sent messages and woken. Attach it to a ring to make it a target of
/// MSG_RING.
#[derive(Clone, Debug)]
pub struct RingHandle {
    shared: Arc<Shared>,
}

impl RingHandle {
    /// Sends a CQE to the ring; false when its mailbox is full.
    pub fn send(&self, cqe: Cqe) -> bool {
        let sent = self.shared.mailbox.push(cqe).is_ok();
        self.shared.unparker.unpark();
        sent
    }

    /// Wakes the ring if it sleeps.
    pub fn wake(&self) {
        self.shared.unparker.unpark();
    }

    /// A worker has finished the slot.
    pub(crate) fn finish(&self, slot: u32, res: i32) {
        // Relaxed: published by the push, see I2.
        self.shared.results[slot as usize].store(res as u32, Ordering::Relaxed);
        self.shared.done.push(slot);
        self.shared.unparker.unpark();
    }

    /// Whether both name the same ring.
    pub fn same(&self, other: &RingHandle) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

/// The owner's half.
#[derive(Debug)]
pub(crate) struct TaskWork {
    handle: RingHandle,
    done: Consumer,
}

impl TaskWork {
    pub(crate) fn new(slots: u32, mailbox: u32, unparker: Unparker) -> TaskWork {
        let (queue, done) = MpscQueue::new(slots);
        let shared = Arc::new(Shared {
            done: queue,
            results: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            mailbox: ArrayQueue::new(mailbox as usize),
            unparker,
        });
        TaskWork { handle: RingHandle { shared }, done }
    }

    pub(crate) fn handle(&self) -> &RingHandle {
        &self.handle
    }

    /// A slot that a worker has finished, and its result.
    #[inline]
    pub(crate) fn pop_done(&mut self) -> Option<(u32, i32)> {
        let slot = self.done.pop()?;
        // Relaxed: see I2.
        Some((slot, self.handle.shared.results[slot as usize].load(Ordering::Relaxed) as i32))
    }

    /// A message from another ring.
    #[inline]
    pub(crate) fn pop_message(&self) -> Option<Cqe> {
        if self.handle.shared.mailbox.is_empty() { None } else { self.handle.shared.mailbox.pop() }
    }

    /// Whether someone else could send a message or wake the ring: handles exist beside the `own` ones that the ring
    /// and its workers have.
    pub(crate) fn is_shared(&self, own: usize) -> bool {
        Arc::strong_count(&self.handle.shared) > own
    }
}
