//! The orders for the keeper of a device, and the notices for its user.
//!
//! Owns the orders, and the notices under the same lock. If an order of the same kind has not been taken yet, a new
//! order replaces it, so there are never more orders than kinds. I/O that succeeds takes no lock; it reads one flag.
//!
//! Called by rings, by librbd's threads, by claims of the device, and by its keeper.

use std::fmt::Display;
use std::sync::mpsc::SyncSender;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use sheave::{Errno, Op};
use sheave_base::sync::atomic::{AtomicBool, Ordering};
use sheave_blk::limits::Capacity;

use crate::librbd::Watcher;
use crate::spec::Target;

/// Largest number of notices that are kept. A further one replaces the oldest.
const MAX_NOTICES: usize = 32;
/// Time for which a text that was logged is not logged again, because every failing request would repeat it.
const REPEATED: Duration = Duration::from_secs(60);

/// The reason why a claim got no lock.
pub(crate) type Refused = String;

/// An order for the keeper.
#[derive(Debug)]
pub(crate) enum Order {
    /// Take the exclusive lock, and send the result. It is an error if another client has the lock.
    Lock(SyncSender<Result<(), Refused>>),
    /// Release the lock, then drop the sender.
    Unlock(SyncSender<()>),
    /// Query the cluster if this client still has the lock that a claim took.
    Owns(SyncSender<Result<(), i32>>),
    /// Check that no other client has the lock.
    Look(SyncSender<Result<(), Refused>>),
    /// Read the size again.
    Size,
    /// Find out who has the lock, after a write was refused.
    Holder,
    /// Close the image, and end.
    Close,
}

#[derive(Debug)]
pub(crate) struct Desk {
    words: String,
    timeout: Duration,
    warn: Duration,
    state: Mutex<State>,
    come: Condvar,
    /// True if the cluster does not answer and a notice says so. This is only a hint for [`Desk::answers`];
    /// [`State::silent`] decides.
    silent: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    lock: Option<SyncSender<Result<(), Refused>>>,
    unlock: Option<SyncSender<()>>,
    owns: Option<SyncSender<Result<(), i32>>>,
    look: Option<SyncSender<Result<(), Refused>>>,
    size: bool,
    holder: bool,
    close: bool,
    /// Notices, each text once and the newest last. Each has the time at which it was last logged.
    notices: Vec<(String, Instant)>,
    /// The size of the image, if it has changed since the device was opened.
    size_now: Option<u64>,
    capacity: Option<Capacity>,
    /// Time from which on the cluster has not answered.
    silent: Option<Instant>,
}

impl Desk {
    pub(crate) fn new(target: &Target) -> Desk {
        Desk {
            words: target.words(),
            timeout: target.timeout,
            warn: target.warn,
            state: Mutex::default(),
            come: Condvar::new(),
            silent: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Leaves an order for the keeper.
    pub(crate) fn ask(&self, order: Order) {
        let mut state = self.lock();
        match order {
            Order::Lock(answer) => state.lock = Some(answer),
            Order::Unlock(done) => state.unlock = Some(done),
            Order::Owns(answer) => state.owns = Some(answer),
            Order::Look(answer) => state.look = Some(answer),
            Order::Size => state.size = true,
            Order::Holder => state.holder = true,
            Order::Close => state.close = true,
        }
        self.come.notify_one();
    }

    /// Waits for an order. Called by the keeper.
    pub(crate) fn next(&self) -> Order {
        let mut state = self.lock();
        loop {
            let unlock = state.unlock.take().map(Order::Unlock);
            let order = unlock.or_else(|| state.lock.take().map(Order::Lock));
            let order = order.or_else(|| state.owns.take().map(Order::Owns));
            let order = order.or_else(|| state.look.take().map(Order::Look));
            if let Some(order) = order {
                return order;
            }
            if std::mem::take(&mut state.size) {
                return Order::Size;
            }
            if std::mem::take(&mut state.holder) {
                return Order::Holder;
            }
            if state.close {
                return Order::Close;
            }
            state = self.come.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }

    /// Stores the capacity of a ring's device, so that it can be updated when the image is resized. Called when a ring
    /// attaches the device.
    pub(crate) fn has_capacity(&self, capacity: &Capacity) {
        let mut state = self.lock();
        if let Some(size) = state.size_now {
            capacity.set_bytes(size);
        }
        state.capacity = Some(capacity.clone());
    }

    /// Records a change of the image's size.
    pub(crate) fn resized(&self, from: u64, to: u64) {
        let mut state = self.lock();
        state.size_now = Some(to);
        if let Some(capacity) = &state.capacity {
            capacity.set_bytes(to);
        }
        state.log(&self.words, format_args!("it was resized from {from} to {to} bytes"));
    }

    /// Reports a condition that may last.
    pub(crate) fn tell(&self, what: impl Display) {
        self.lock().tell(&self.words, what);
    }

    pub(crate) fn notices(&self) -> Vec<String> {
        self.lock().notices.iter().map(|(text, _)| text.clone()).collect()
    }

    /// Reports that a request has had no answer for `warn=`.
    pub(crate) fn is_silent(&self) {
        let mut state = self.lock();
        if state.silent.is_some() {
            return;
        }
        state.silent = Instant::now().checked_sub(self.warn);
        let (warn, timeout) = (self.warn, self.timeout);
        state.log(
            &self.words,
            format_args!(
                "the cluster has not answered for {warn:?}. Requests wait, each up to {timeout:?}; `ceph -s` shows \
                 what the cluster does"
            ),
        );
        // Relaxed: a hint for requests that succeed, which check again under the lock.
        self.silent.store(true, Ordering::Relaxed);
    }

    /// Records that a request succeeded.
    #[inline]
    pub(crate) fn answers(&self) {
        // Relaxed: as in `is_silent`.
        if self.silent.load(Ordering::Relaxed) {
            self.answers_again();
        }
    }

    #[cold]
    fn answers_again(&self) {
        let mut state = self.lock();
        // Relaxed: as in `is_silent`.
        self.silent.store(false, Ordering::Relaxed);
        if let Some(since) = state.silent.take() {
            let after = since.elapsed().as_secs_f64();
            state.log(&self.words, format_args!("the cluster answers again, after {after:.1} s"));
        }
    }

    /// Reports a failed request.
    #[cold]
    pub(crate) fn failed(&self, op: Op, errno: i32) {
        match errno {
            libc::ESHUTDOWN => self.tell(
                "the cluster has put this client on its blocklist: another has broken its exclusive lock, or an \
                 operator has. Nothing is read or written any more; close the device, see who has the image now (`rbd \
                 status`, `ceph osd blocklist ls`), and open it again",
            ),
            libc::ETIMEDOUT => self.tell(format_args!(
                "requests had no answer for {:?} and were given up; whether their writes were carried out is unknown. \
                 `ceph -s` shows what the cluster does; timeout= waits longer",
                self.timeout
            )),
            // The keeper's notice names the owner of the lock.
            libc::EROFS => self.ask(Order::Holder),
            errno => self.tell(format_args!("a {} failed: {}", op.name(), Errno(errno))),
        }
    }

    /// Orders the size to be read again, because a read returned too few bytes and the image may have become smaller.
    #[cold]
    pub(crate) fn was_short(&self) {
        self.ask(Order::Size);
    }
}

impl Watcher for Desk {
    fn changed(&self) {
        self.ask(Order::Size);
    }
}

impl State {
    /// Keeps a notice of a condition that may last, and logs it at most once in [`REPEATED`].
    fn tell(&mut self, words: &str, what: impl Display) {
        let text = format!("{words}: {what}");
        let known = self.notices.iter().find(|(told, _)| *told == text);
        if known.is_none_or(|(_, logged)| logged.elapsed() >= REPEATED) {
            self.keep_and_log(text);
        }
    }

    /// Keeps and logs a notice of a change.
    fn log(&mut self, words: &str, what: impl Display) {
        self.keep_and_log(format!("{words}: {what}"));
    }

    fn keep_and_log(&mut self, text: String) {
        tracing::warn!("{text}");
        self.notices.retain(|(told, _)| *told != text);
        if self.notices.len() == MAX_NOTICES {
            self.notices.remove(0);
        }
        self.notices.push((text, Instant::now()));
    }
}

#[cfg(test)]
pub(crate) mod tests;
