//! Task work: the path from other threads to a ring.
//!
//! Owns the ring's shared half: the wait-free queue of slots that workers have finished, the mailbox of messages from
//! other rings (the same kind of queue over preallocated nodes), and the handle that wakes the ring if it sleeps.
//!
//! Invariants:
//! - I1: a slot is queued at most once at a time: its worker queues it when it, or its part of a batch, is done, and
//!   the ring takes it out.
//! - I2: a result or a message is written before its node is queued, and read after the node was taken out.
//! - I3: the mailbox is bounded. A full mailbox refuses messages; no accepted message is lost while the ring lives.
//! - I4: a message's node belongs to its sender from the bitmap's grant until it is queued, then to the ring until the
//!   ring returns it to the bitmap.
//! - I6: a ring may sleep until workers have finished a number of slots. It is woken when that many are finished, and
//!   at once by a result that the ring must act on (issue again, flush). It waits for a number only if each of the
//!   results gives one CQE.
//! - I5: a waker stores the reason before it ends the ring's sleep; the ring checks before each sleep.
//! - I7: a handle is counted before another thread gets it, and until everything sent through it is queued. A ring that
//!   waits only because of handles sets a flag before it counts them; a dropped handle is uncounted before it reads
//!   that flag. So the ring sees the lower count, or the handle sees the flag and wakes the ring. Without the flag no
//!   dropped handle wakes it.

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

/// Number of attempts of a sender to find a free node. One attempt can miss a node that another sender is reclaiming.
const LOOKS: u32 = 4;

#[derive(Debug, Default)]
struct Message {
    user_data: AtomicU64,
    /// Result in the lower half, flags in the upper one.
    res_and_flags: AtomicU64,
}

/// Slots that workers have finished, with their results. Workers hold this and not the ring's handle, so that they do
/// not count as handles (I7).
#[derive(Debug)]
pub(crate) struct DoneQueue {
    done: MpscQueue,
    results: Box<[AtomicU32]>,
    /// Number of results that do not wake a sleeping ring.
    wanted: WakeCount,
    unparker: Unparker,
}

impl DoneQueue {
    /// Queues the finished slots with one entry into the queue and one wake-up.
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

    /// Returns true if the queued results must wake the ring (I6).
    fn is_wanted(&self, done: &[(u32, WorkDone)]) -> bool {
        !done.iter().all(|end| matches!(end.1, WorkDone::Result(_))) || self.wanted.is_due(done.len() as u32)
    }

    /// Wakes the ring after no thread could be started for its work.
    pub(crate) fn wake(&self) {
        self.unparker.unpark();
    }
}

#[derive(Debug)]
struct HandleShared {
    mailbox: MpscQueue,
    messages: Box<[Message]>,
    /// Nodes in use.
    taken: Sbitmap,
    gone: AtomicBool,
    /// Set to end the ring's wait (I5).
    woken: AtomicBool,
    /// Number of handles, that of the ring's owner included (I7).
    handles: HandleCount,
    unparker: Unparker,
}

/// Reason why a message was not accepted.
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
    /// Returns the positive errno of a MSG_RING with this error.
    pub fn errno(self) -> Errno {
        match self {
            SendError::Full => Errno::EOVERFLOW,
            SendError::Gone => Errno::EBADFD,
        }
    }
}

/// Handle of a ring for other threads: sends it messages and wakes it. Attached to a ring, it is a target of MSG_RING.
/// May outlive its ring; sending then fails.
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
    /// Sends a completion with this `user_data` and result to the ring, which posts it in its next reap. Ends the
    /// ring's sleep. Never blocks.
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

    /// Does [`send`](Self::send) with the CQE's flags, for MSG_RING.
    pub(crate) fn send_cqe(&self, cqe: Cqe) -> Result<(), SendError> {
        let shared = &*self.shared;
        // Acquire pairs with the Release in `TaskWork::close`: after a sender has seen that the ring is gone, it sends
        // no more.
        if shared.gone.load(Ordering::Acquire) {
            return Err(SendError::Gone);
        }
        let mut word = 0;
        let mut look = |n| {
            // The sender that is reclaiming nodes may need this CPU.
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

    /// Ends the ring's current wait, or else its next wait that would sleep. Several wakes before that count as one.
    pub fn wake(&self) {
        // Release pairs with the Acquire in `TaskWork::take_wake`: the woken ring sees everything that the waker did
        // before.
        self.shared.woken.store(true, Ordering::Release);
        self.shared.unparker.unpark();
    }

    /// Returns true if both handles are of the same ring.
    pub fn same(&self, other: &RingHandle) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

/// The half that the ring's thread owns: takes out finished slots and messages.
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

    /// Returns the queue for slots that workers have finished.
    pub(crate) fn done_queue(&self) -> Arc<DoneQueue> {
        Arc::clone(&self.finished)
    }

    /// Returns true if there is neither a finished slot nor a message.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.done.is_empty() && self.mail.is_empty()
    }

    /// Prepares a sleep until workers have finished `finished` slots. Returns false if some have finished since the
    /// last look. Other wakers still end the sleep. Must be followed by [`TaskWork::is_awake`].
    pub(crate) fn sleep_until(&self, finished: u32) -> bool {
        self.finished.wanted.sleep_until(finished);
        self.done.is_empty()
    }

    /// Ends the sleep that [`TaskWork::sleep_until`] prepared.
    pub(crate) fn is_awake(&self) {
        self.finished.wanted.awake();
    }

    /// Takes a slot that a worker has finished, with its result.
    #[inline]
    pub(crate) fn pop_done(&mut self) -> Option<(u32, WorkDone)> {
        let slot = self.done.pop()?;
        // Relaxed: see I2.
        let word = self.finished.results[slot as usize].load(Ordering::Relaxed);
        Some((slot, WorkDone::from_word(word)))
    }

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

    /// Returns true if the ring was woken since the last call.
    pub(crate) fn take_wake(&self) -> bool {
        let woken = &self.handle.shared.woken;
        // Relaxed: a check that avoids the exchange; no other memory is read because of it. The Acquire pairs with the
        // Release in `RingHandle::wake`.
        woken.load(Ordering::Relaxed) && woken.swap(false, Ordering::Acquire)
    }

    /// Returns true if a message waits or is being sent.
    pub(crate) fn has_mail(&self) -> bool {
        !self.mail.is_empty()
    }

    /// Announces that the ring will count its handles, because only handles keep it waiting. From now on each dropped
    /// handle wakes it (I7). Must be followed by [`TaskWork::is_done_counting`].
    pub(crate) fn count_handles(&self) {
        self.handle.shared.handles.hear();
    }

    /// Ends the announcement of [`TaskWork::count_handles`].
    pub(crate) fn is_done_counting(&self) {
        self.handle.shared.handles.deaf();
    }

    /// Returns true if another thread could send a message or wake the ring: there are more handles than the `own`
    /// ones. If not, the mailbox has all that will ever be sent (I7).
    pub(crate) fn is_shared(&self, own: usize) -> bool {
        self.handle.shared.handles.count() as usize > 1 + own
    }

    /// Refuses every message from now on.
    pub(crate) fn close(&self) {
        // Release pairs with the Acquire in `RingHandle::send`.
        self.handle.shared.gone.store(true, Ordering::Release);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    use sheave_base::parker::{Parker, Wake};

    use super::TaskWork;
    use crate::cqe::Cqe;
    use crate::work_done::WorkDone;
    use crate::{Ring, SendError, Waited};

    const SENDERS: u64 = 3;
    const EACH: u64 = 2_000;

    fn cqe(user_data: u64) -> Cqe {
        Cqe { user_data, res: -(user_data as i32), flags: 3 }
    }

    #[test]
    fn all_that_was_accepted_arrives_once_and_in_order() {
        let mut ring = Ring::builder().entries(8).spin(Duration::ZERO).build().expect("a ring");
        let senders: Vec<_> = (0..SENDERS)
            .map(|sender| {
                let handle = ring.handle();
                thread::spawn(move || {
                    for n in 0..EACH {
                        while let Err(error) = handle.send_cqe(cqe(sender << 32 | n)) {
                            assert_eq!(error, SendError::Full);
                            thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        let mut next = [0; SENDERS as usize];
        while next.iter().sum::<u64>() < SENDERS * EACH {
            assert!(ring.wait(1, None).is_ready(), "sleeps until somebody sends");
            for completion in ring.completions() {
                let (sender, n) = ((completion.user_data >> 32) as usize, completion.user_data & 0xffff_ffff);
                assert_eq!((next[sender], completion.res, completion.flags.bits()), (n, -(n as i32), 3));
                next[sender] += 1;
            }
        }
        senders.into_iter().for_each(|sender| sender.join().expect("no panic"));
    }

    /// However many threads send at once: a sender with fewer messages in flight than there is room for is never
    /// refused.
    #[test]
    fn a_mailbox_with_room_refuses_nobody() {
        const ON_THE_WAY: u32 = 7;
        let mut ring = Ring::builder().entries(8).cq_entries(64).spin(Duration::ZERO).build().expect("a ring");
        let senders: Vec<_> = (0..8)
            .map(|_| {
                let (handle, read) = (ring.handle(), Arc::new(AtomicU32::new(0)));
                let seen = Arc::clone(&read);
                let sender = thread::spawn(move || {
                    for sent in 0..EACH as u32 {
                        while sent - seen.load(Ordering::SeqCst) >= ON_THE_WAY {
                            thread::yield_now();
                        }
                        let accepted = handle.send(Arc::as_ptr(&seen).addr() as u64, 0);
                        assert_eq!(accepted, Ok(()), "there is room for 64, and at most 56 are on the way");
                    }
                });
                (sender, read)
            })
            .collect();
        let mut left = 8 * EACH;
        while left > 0 {
            assert!(ring.wait(1, Some(Duration::from_secs(20))).is_ready(), "senders go on, {left} to come");
            for completion in ring.completions() {
                let of = |(_, read): &&(_, Arc<AtomicU32>)| Arc::as_ptr(read).addr() as u64 == completion.user_data;
                senders.iter().find(of).expect("one of them").1.fetch_add(1, Ordering::SeqCst);
                left -= 1;
            }
        }
        senders.into_iter().for_each(|(sender, _)| sender.join().expect("no panic"));
    }

    #[test]
    fn a_ring_that_nobody_else_can_reach_does_not_wait() {
        let mut ring = Ring::builder().entries(8).build().expect("a ring");
        let itself = ring.handle();
        let fd = ring.attach_ring(&itself).expect("room");
        drop(itself);
        assert_eq!(ring.wait(1, None), Waited::Idle);
        // The ring's own worker does not count as another holder either.
        ring.push(crate::prep::nop().run_async()).expect("room");
        ring.submit_and_wait(1).expect("submitted");
        assert_eq!(ring.completions().count(), 1);
        assert_eq!(ring.wait(1, None), Waited::Idle);
        ring.push(crate::prep::message(fd, 5, 6)).expect("room");
        assert_eq!(ring.submit_and_wait(2).expect("submitted"), 1);
        assert_eq!(ring.completions().map(|c| (c.user_data, c.res)).collect::<Vec<_>>(), [(0, 0), (5, 6)]);
    }

    #[test]
    fn a_message_ends_a_sleep_before_its_time() {
        let mut ring = Ring::builder().entries(8).spin(Duration::ZERO).build().expect("a ring");
        ring.push(crate::prep::timeout(Duration::from_secs(1000))).expect("room");
        ring.submit().expect("submitted");
        let handle = ring.handle();
        let sender = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            handle.send_cqe(cqe(1))
        });
        let start = Instant::now();
        assert_eq!(ring.wait(1, Some(Duration::from_secs(500))), Waited::Ready(1));
        assert!(start.elapsed() < Duration::from_secs(400));
        assert_eq!(sender.join().expect("no panic"), Ok(()));
    }

    #[test]
    fn a_handle_outlives_its_ring() {
        let ring = Ring::builder().entries(8).build().expect("a ring");
        let handle = ring.handle();
        assert!(handle.same(&ring.handle()));
        assert_eq!(handle.send_cqe(cqe(1)), Ok(()));
        drop(ring);
        assert_eq!(handle.send_cqe(cqe(2)), Err(SendError::Gone));
        handle.wake();
    }

    #[test]
    fn rings_dropped_under_senders_are_safe() {
        for round in 0..20 {
            let ring = Ring::builder().entries(8).build().expect("a ring");
            let handle = ring.handle();
            let sender = thread::spawn(move || {
                let mut accepted = 0;
                loop {
                    match handle.send_cqe(cqe(accepted)) {
                        Ok(()) => accepted += 1,
                        Err(SendError::Full) => thread::yield_now(),
                        Err(SendError::Gone) => return accepted,
                    }
                }
            });
            thread::sleep(Duration::from_micros(round * 50));
            drop(ring);
            sender.join().expect("it is told that the ring is gone");
        }
    }

    /// Returns true if the owner was woken since the last call.
    fn is_woken(parker: &mut Parker) -> bool {
        parker.park(Some(Duration::ZERO)) == Wake::Notified
    }

    const DONE: WorkDone = WorkDone::Result(0);

    #[test]
    fn a_ring_that_wants_several_results_is_woken_once_by_the_last() {
        let mut parker = Parker::new().expect("a parker");
        let mut work = TaskWork::new(8, 8, parker.unparker());
        let finished = work.done_queue();
        for wanted in [4, 5] {
            assert!(work.sleep_until(wanted));
            finished.finish(&[(0, DONE)]);
            finished.finish(&[(1, DONE), (2, DONE)]);
            assert!(!is_woken(&mut parker), "three of {wanted}");
            finished.finish(&[(3, DONE), (4, DONE)]);
            assert!(is_woken(&mut parker), "five of {wanted}");
            finished.finish(&[(5, DONE)]);
            work.is_awake();
            is_woken(&mut parker);
            assert!(!work.sleep_until(4), "some are there already: it looks before it sleeps");
            work.is_awake();
            assert_eq!(
                std::iter::from_fn(|| work.pop_done()).map(|done| done.0).collect::<Vec<_>>(),
                [0, 1, 2, 3, 4, 5]
            );
            finished.finish(&[(6, DONE)]);
            assert!(is_woken(&mut parker), "a ring that is awake, or waits for one, hears of each");
            assert_eq!(work.pop_done(), Some((6, DONE)));
        }
    }

    #[test]
    fn a_ring_that_wants_several_results_is_woken_at_once_by_what_it_has_to_do() {
        let mut parker = Parker::new().expect("a parker");
        let mut work = TaskWork::new(8, 8, parker.unparker());
        let finished = work.done_queue();
        for what in [WorkDone::Reissue, WorkDone::Flush, WorkDone::NoThread] {
            assert!(work.sleep_until(4));
            finished.finish(&[(0, DONE), (1, what)]);
            assert!(is_woken(&mut parker), "{what:?} is no CQE yet");
            work.is_awake();
            assert_eq!(std::iter::from_fn(|| work.pop_done()).count(), 2);
        }
    }
}
