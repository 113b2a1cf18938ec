//! Task work: how other threads reach a ring.
//!
//! Owns the ring's shared half: the wait-free queue of slots that workers have finished, the mailbox of messages from
//! other rings (the same kind of queue over preallocated nodes), and the handle that wakes the ring if it sleeps.
//!
//! Invariants:
//! - I1: a slot is queued at most once at a time: its worker queues it when it, or its part of a batch, is done, and
//!   the ring takes it out.
//! - I2: a result, or a message, is written before its node is queued, and read after it was taken out.
//! - I3: the mailbox is bounded; a full one answers, and nothing is lost that was accepted by a ring that lives.
//! - I4: a message's node belongs to its sender from the bitmap's grant until it is queued, then to the ring until it
//!   gives it back to the bitmap.
//! - I6: a ring that sleeps until workers have finished several slots is woken when they have, and at once when one of
//!   them is to be issued again. It counts only on slots of which each result is one CQE.
//! - I5: who wakes the ring says so before it ends the ring's sleep; the ring looks before each sleep.
//! - I7: a handle is counted from before another thread has it until after all that was sent through it. A ring that
//!   only handles keep waiting says so before it counts them, and a handle that goes looks for that after it was
//!   counted off: one of both sees the other, so the ring hears of the last handle, and of none while it does not care.

use sheave_base::handle_count::HandleCount;
use sheave_base::mpscq::{Consumer, MpscQueue};
use sheave_base::parker::Unparker;
use sheave_base::sbitmap::{Sbitmap, WORD_BITS};
use sheave_base::status::Errno;
use sheave_base::sync::Arc;
use sheave_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use sheave_base::wake_count::WakeCount;

use thiserror::Error;

use crate::cqe::Cqe;
use crate::work_done::WorkDone;

/// How often a sender looks for a free node: one that another sender is just taking back is not seen.
const LOOKS: u32 = 4;

#[derive(Debug, Default)]
struct Message {
    user_data: AtomicU64,
    /// Result in the lower half, flags in the upper one.
    res_and_flags: AtomicU64,
}

/// The slots that workers have finished, with their results. Workers hold this, and not the ring's handle.
#[derive(Debug)]
pub(crate) struct DoneQueue {
    done: MpscQueue,
    results: Box<[AtomicU32]>,
    /// Results for which the ring, if it sleeps, need not be woken.
    wanted: WakeCount,
    unparker: Unparker,
}

impl DoneQueue {
    /// A worker has finished these slots: one entry into the queue, one wake-up.
    pub(crate) fn finish(&self, done: &[(u32, WorkDone)]) {
        for &(slot, how) in done {
            // Relaxed: published by the push (I2).
            self.results[slot as usize].store(how.to_word(), Ordering::Relaxed);
        }
        self.done.push_all(done.iter().map(|&(slot, _)| slot));
        if self.is_wanted(done) {
            self.unparker.unpark();
        }
    }

    /// Whether the ring is to be woken for these results, which were queued (I6).
    fn is_wanted(&self, done: &[(u32, WorkDone)]) -> bool {
        !done.iter().all(|end| matches!(end.1, WorkDone::Result(_))) || self.wanted.is_due(done.len() as u32)
    }

    /// The ring is to look for work of its own, if it sleeps.
    pub(crate) fn wake(&self) {
        self.unparker.unpark();
    }
}

#[derive(Debug)]
struct HandleShared {
    mailbox: MpscQueue,
    messages: Box<[Message]>,
    /// Which messages are taken.
    taken: Sbitmap,
    /// The ring was dropped.
    gone: AtomicBool,
    /// A wait is to end (I5).
    woken: AtomicBool,
    /// Handles, that of the ring's owner included (I7).
    handles: HandleCount,
    unparker: Unparker,
}

/// Why a message was not accepted.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendError {
    /// Too many messages wait to be posted.
    #[error("the ring's mailbox is full: it must read its completions; or build it with more cq_entries")]
    Full,
    /// The ring was dropped.
    #[error("the ring is gone: detach its handle")]
    Gone,
}

impl SendError {
    /// The positive errno that MSG_RING answers.
    pub fn errno(self) -> Errno {
        match self {
            SendError::Full => Errno::EOVERFLOW,
            SendError::Gone => Errno::EBADFD,
        }
    }
}

/// A ring as other threads have it: it can be sent messages and woken. Attach it to a ring to make it a target of
/// MSG_RING. It outlives its ring, and then says so.
#[derive(Debug)]
pub struct RingHandle {
    shared: Arc<HandleShared>,
}

impl Clone for RingHandle {
    fn clone(&self) -> RingHandle {
        self.shared.handles.add();
        RingHandle { shared: Arc::clone(&self.shared) }
    }
}

impl Drop for RingHandle {
    fn drop(&mut self) {
        if self.shared.handles.gone() {
            self.shared.unparker.unpark();
        }
    }
}

impl RingHandle {
    /// Sends the ring a completion with this `user_data` and result, which it posts in its next reap; ends its sleep.
    /// Never blocks.
    ///
    /// ```
    /// # let mut ring = sheave_uring::Ring::builder().build()?;
    /// let handle = ring.handle();
    /// std::thread::spawn(move || handle.send(7, 42)).join().expect("no panic")?;
    /// assert_eq!(ring.wait(1, None), sheave_uring::Waited::Ready(1));
    /// assert_eq!(ring.pop().map(|done| (done.user_data, done.res)), Some((7, 42)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn send(&self, user_data: u64, res: i32) -> Result<(), SendError> {
        self.send_cqe(Cqe { user_data, res, flags: 0 })
    }

    /// Sends a CQE with its flags, as MSG_RING does; else as [`send`](Self::send).
    pub(crate) fn send_cqe(&self, cqe: Cqe) -> Result<(), SendError> {
        let shared = &*self.shared;
        // Acquire pairs with the Release in `TaskWork::close`: who was told that the ring is gone sends no more.
        if shared.gone.load(Ordering::Acquire) {
            return Err(SendError::Gone);
        }
        let mut word = 0;
        let mut look = |n| {
            // The sender that is taking nodes back may wait for this CPU.
            if n > 0 {
                sheave_base::sync::thread::yield_now();
            }
            shared.taken.get(&mut word)
        };
        let Some(node) = (0..LOOKS).find_map(&mut look) else { return Err(SendError::Full) };
        let message = &shared.messages[node as usize];
        // Relaxed, both: published by the push (I2).
        message.user_data.store(cqe.user_data, Ordering::Relaxed);
        let res_and_flags = u64::from(cqe.flags) << 32 | u64::from(cqe.res as u32);
        message.res_and_flags.store(res_and_flags, Ordering::Relaxed);
        shared.mailbox.push(node);
        shared.unparker.unpark();
        Ok(())
    }

    /// Ends the ring's wait: the one that it is in, or else its next one that would sleep. Several wakes before that
    /// are one.
    pub fn wake(&self) {
        // Release pairs with the Acquire in `TaskWork::take_wake`: what the waker did before, who was woken sees.
        self.shared.woken.store(true, Ordering::Release);
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
    finished: Arc<DoneQueue>,
    done: Consumer,
    mail: Consumer,
}

impl TaskWork {
    pub(crate) fn new(slots: u32, mailbox: u32, unparker: Unparker) -> TaskWork {
        let (queue, done) = MpscQueue::new(slots);
        let (messages, mail) = MpscQueue::new(mailbox);
        let finished = Arc::new(DoneQueue {
            done: queue,
            results: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            wanted: WakeCount::new(),
            unparker: unparker.clone(),
        });
        let shared = Arc::new(HandleShared {
            mailbox: messages,
            messages: (0..mailbox).map(|_| Message::default()).collect(),
            taken: Sbitmap::new(mailbox),
            gone: AtomicBool::new(false),
            woken: AtomicBool::new(false),
            handles: HandleCount::new(),
            unparker,
        });
        TaskWork { handle: RingHandle { shared }, finished, done, mail }
    }

    pub(crate) fn handle(&self) -> &RingHandle {
        &self.handle
    }

    /// Where workers put what they have finished.
    pub(crate) fn done_queue(&self) -> Arc<DoneQueue> {
        Arc::clone(&self.finished)
    }

    /// Whether there is neither a finished slot nor a message.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.done.is_empty() && self.mail.is_empty()
    }

    /// The ring is about to sleep until workers have finished so many slots; false when some have finished since it
    /// looked. Whoever else wakes it does as ever. [`TaskWork::is_awake`] is to follow.
    pub(crate) fn sleep_until(&self, finished: u32) -> bool {
        self.finished.wanted.sleep_until(finished);
        self.done.is_empty()
    }

    /// The ring sleeps no more.
    pub(crate) fn is_awake(&self) {
        self.finished.wanted.awake();
    }

    /// A slot that a worker has finished, and how its work ended.
    #[inline]
    pub(crate) fn pop_done(&mut self) -> Option<(u32, WorkDone)> {
        let slot = self.done.pop()?;
        // Relaxed: see I2.
        let word = self.finished.results[slot as usize].load(Ordering::Relaxed);
        Some((slot, WorkDone::from_word(word)))
    }

    /// A message from another ring.
    #[inline]
    pub(crate) fn pop_message(&mut self) -> Option<Cqe> {
        let node = self.mail.pop()?;
        let shared = &*self.handle.shared;
        let message = &shared.messages[node as usize];
        // Relaxed, both: see I2.
        let res_and_flags = message.res_and_flags.load(Ordering::Relaxed);
        let (res, flags) = (res_and_flags as i32, (res_and_flags >> 32) as u32);
        let cqe = Cqe { user_data: message.user_data.load(Ordering::Relaxed), res, flags };
        shared.taken.clear_batch(node - node % WORD_BITS, 1 << (node % WORD_BITS));
        Some(cqe)
    }

    /// Whether the ring was woken since the last call.
    pub(crate) fn take_wake(&self) -> bool {
        let woken = &self.handle.shared.woken;
        // Relaxed: a look that spares the exchange; nothing is concluded from it but when to look again. The Acquire
        // pairs with the Release in `RingHandle::wake`.
        woken.load(Ordering::Relaxed) && woken.swap(false, Ordering::Acquire)
    }

    /// Whether a message waits, or is being sent.
    pub(crate) fn has_mail(&self) -> bool {
        !self.mail.is_empty()
    }

    /// The ring is about to look how many handles there are, for nothing else keeps it waiting: from now on it hears
    /// of each that goes (I7). [`TaskWork::is_done_counting`] is to follow.
    pub(crate) fn count_handles(&self) {
        self.handle.shared.handles.hear();
    }

    /// The ring waits no more.
    pub(crate) fn is_done_counting(&self) {
        self.handle.shared.handles.deaf();
    }

    /// Whether someone else could send a message or wake the ring: there are more handles than these many of its own.
    /// If not, the mailbox has all that will ever be sent (I7).
    pub(crate) fn is_shared(&self, own: usize) -> bool {
        self.handle.shared.handles.count() as usize > 1 + own
    }

    /// From now on every message is refused.
    pub(crate) fn close(&self) {
        // Release pairs with the Acquire in `RingHandle::send`.
        self.handle.shared.gone.store(true, Ordering::Release);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
