//! What the keeper of a device is asked for, and what the user is told of it.
//!
//! Owns the orders, under one lock with the notices. Orders of a kind that have not been taken are one order, so there
//! are never more than kinds. I/O that ends well takes no lock; it looks at one flag.
//!
//! Called by rings, by librbd's threads, by those who claim the device, and by its keeper.

use std::fmt::Display;
use std::sync::mpsc::SyncSender;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use sheave::{Errno, Op};
use sheave_base::sync::atomic::{AtomicBool, Ordering};
use sheave_blk::limits::Capacity;

use crate::librbd::Watcher;
use crate::spec::Target;

/// Most notices that are kept; the oldest goes then.
const MAX_NOTICES: usize = 32;
/// For how long a text that was logged is not logged again: each request that fails would say it once more.
const REPEATED: Duration = Duration::from_secs(60);

/// Why a claim got no lock.
pub(crate) type Refused = String;

/// What the keeper does next.
#[derive(Debug)]
pub(crate) enum Order {
    /// Takes the exclusive lock, and says whether it has it.
    Lock(SyncSender<Result<(), Refused>>),
    /// Lets go of the lock; the sender is dropped then.
    Unlock(SyncSender<()>),
    /// Asks the cluster whether the lock that was taken is had still.
    Owns(SyncSender<Result<(), i32>>),
    /// Looks whether somebody else has the lock.
    Look(SyncSender<Result<(), Refused>>),
    /// Reads the size again.
    Size,
    /// Finds out who has the lock, for a write that was refused.
    Holder,
    /// Closes the image, and ends.
    Close,
}

/// The desk of a device.
#[derive(Debug)]
pub(crate) struct Desk {
    words: String,
    timeout: Duration,
    warn: Duration,
    state: Mutex<State>,
    come: Condvar,
    /// The cluster does not answer, and that was told.
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
    /// What the user was told, each text once and the newest last, with when it was logged last.
    notices: Vec<(String, Instant)>,
    /// The size of the image, if it has changed since the device was opened.
    size_now: Option<u64>,
    capacity: Option<Capacity>,
    /// Since when the cluster does not answer.
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

    /// Leaves an order.
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

    /// The keeper waits for an order.
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

    /// A ring has attached the device: this is where its size stands.
    pub(crate) fn has_capacity(&self, capacity: &Capacity) {
        let mut state = self.lock();
        if let Some(size) = state.size_now {
            capacity.set_bytes(size);
        }
        state.capacity = Some(capacity.clone());
    }

    /// The image has this size now.
    pub(crate) fn resized(&self, from: u64, to: u64) {
        let mut state = self.lock();
        state.size_now = Some(to);
        if let Some(capacity) = &state.capacity {
            capacity.set_bytes(to);
        }
        state.log(&self.words, format_args!("it was resized from {from} to {to} bytes"));
    }

    /// Tells the user something.
    pub(crate) fn tell(&self, what: impl Display) {
        self.lock().tell(&self.words, what);
    }

    /// What the user was told.
    pub(crate) fn notices(&self) -> Vec<String> {
        self.lock().notices.iter().map(|(text, _)| text.clone()).collect()
    }

    /// A request has had no answer for `warn=`.
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
        // Relaxed: a hint for those whose requests end, who look again under the lock.
        self.silent.store(true, Ordering::Relaxed);
    }

    /// A request has ended well.
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

    /// A request has failed.
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
            // Told with the name of who has the lock.
            libc::EROFS => self.ask(Order::Holder),
            errno => self.tell(format_args!("a {} failed: {}", op.name(), Errno(errno))),
        }
    }

    /// A read had fewer bytes than it asked for: the image may have become smaller.
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
    /// Tells of something that may go on; in the log at most once in [`REPEATED`].
    fn tell(&mut self, words: &str, what: impl Display) {
        let text = format!("{words}: {what}");
        let known = self.notices.iter().find(|(told, _)| *told == text);
        if known.is_none_or(|(_, logged)| logged.elapsed() >= REPEATED) {
            self.keep_and_log(text);
        }
    }

    /// Tells of a change, each time that there is one.
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
