//! The typed operations that are not I/O: timeouts, cancels of other requests, messages to other rings.
//!
//! Owns [`Cancel`]. The time of an operation is part of its entry; the ring stores it beside the SQE until submission,
//! so pushing a timeout allocates nothing.

use std::time::Duration;

use super::entry::{Entry, Late, op_type};
use super::target::Target;
use super::when::When;
use crate::completion::CompletionFlags;
use crate::rsrc::{Fd, FixedFile};
use crate::sqe::{
    ASYNC_CANCEL_ALL, ASYNC_CANCEL_ANY, ASYNC_CANCEL_FD, ASYNC_CANCEL_FD_FIXED, ASYNC_CANCEL_OP, ASYNC_CANCEL_USERDATA,
    LINK_TIMEOUT_UPDATE, MSG_RING_FLAGS_PASS, TIMEOUT_BOOTTIME, TIMEOUT_ETIME_SUCCESS, TIMEOUT_UPDATE, opcode,
};

op_type! {
    /// An operation that ends at a given time; made by [`timeout`].
    Timeout
}

op_type! {
    /// An operation that removes a timeout; made by [`timeout_remove`].
    TimeoutRemove
}

op_type! {
    /// An operation that changes the time of a timeout; made by [`timeout_update`] or [`link_timeout_update`].
    TimeoutUpdate
}

op_type! {
    /// A time limit for the operation linked before it; made by [`link_timeout`].
    LinkTimeout
}

op_type! {
    /// An operation that cancels others; made by [`cancel`].
    AsyncCancel
}

op_type! {
    /// A message to another ring; made by [`message`].
    Message
}

impl Timeout {
    /// Also ends the timeout, with result 0, when `completions` more completions were posted to the ring.
    pub fn count(mut self, completions: u32) -> Timeout {
        self.0.sqe.off = completions.into();
        self
    }

    /// Counts firing as success: operations linked to the timeout run.
    pub fn etime_success(mut self) -> Timeout {
        self.0.sqe.op_flags |= TIMEOUT_ETIME_SUCCESS;
        self
    }

    /// Includes time during which the machine is suspended. Has an effect on a span only.
    pub fn boottime(self) -> Timeout {
        Timeout(boottime(self.0))
    }
}

impl LinkTimeout {
    /// Includes time during which the machine is suspended. Has an effect on a span only.
    pub fn boottime(self) -> LinkTimeout {
        LinkTimeout(boottime(self.0))
    }
}

/// Selects the clock for a span only, because a moment already names its clock.
fn boottime(mut entry: Entry) -> Entry {
    if let Late::Time(When::After(_)) = entry.late {
        entry.sqe.op_flags |= TIMEOUT_BOOTTIME;
    }
    entry
}

impl Message {
    /// Sets the flags of the completion that the message posts.
    pub fn message_flags(mut self, flags: CompletionFlags) -> Message {
        self.0.sqe.op_flags |= MSG_RING_FLAGS_PASS;
        self.0.sqe.splice_fd_in = flags.bits() as i32;
        self
    }
}

/// Completes with `-ETIME` at the given time.
///
/// ```
/// # use std::time::{Duration, Instant};
/// # use sheave_uring::{prep, Ring};
/// # let mut ring = Ring::builder().build()?;
/// let start = Instant::now();
/// ring.push(prep::timeout(Duration::from_millis(2)).user_data(1))?;
/// ring.submit_and_wait(1)?;
/// let completion = ring.completions().next().expect("waited for it");
/// assert_eq!((completion.user_data, completion.res), (1, -62)); // ETIME
/// assert!(start.elapsed() >= Duration::from_millis(2));
///
/// // Ends at a moment, or with the second other completion if that comes first.
/// ring.push(prep::timeout(start + Duration::from_secs(60)).count(2).user_data(2))?;
/// ring.push(prep::nop())?;
/// ring.push(prep::nop())?;
/// ring.submit_and_wait(3)?;
/// assert!(ring.completions().all(|c| c.res == 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn timeout(when: impl Into<When>) -> Timeout {
    Timeout(time(opcode::TIMEOUT, when.into()))
}

fn time(opcode: u8, when: When) -> Entry {
    let mut entry = Entry::without_file(opcode);
    entry.sqe.len = 1;
    entry.sqe.op_flags = when.flags();
    entry.late = Late::Time(when);
    entry
}

/// Removes the timeout with this user data, which then completes with `-ECANCELED`. Gives `-ENOENT` if there is none.
///
/// ```
/// # use std::time::Duration;
/// # use sheave_uring::{prep, Ring};
/// # let mut ring = Ring::builder().build()?;
/// ring.push(prep::timeout(Duration::from_secs(60)).user_data(7))?;
/// ring.push(prep::timeout_remove(7).user_data(8))?;
/// ring.submit_and_wait(2)?;
/// assert_eq!(ring.completions().map(|c| (c.user_data, c.res)).collect::<Vec<_>>(), [(8, 0), (7, -125)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn timeout_remove(user_data: u64) -> TimeoutRemove {
    TimeoutRemove(remove(user_data))
}

fn remove(user_data: u64) -> Entry {
    let mut entry = Entry::without_file(opcode::TIMEOUT_REMOVE);
    entry.sqe.addr = user_data;
    entry
}

/// Sets the timeout with this user data to fire after `after` from now. It no longer counts completions.
///
/// ```
/// # use std::time::Duration;
/// # use sheave_uring::{prep, Ring};
/// # let mut ring = Ring::builder().build()?;
/// ring.push(prep::timeout(Duration::from_secs(60)).user_data(7))?;
/// ring.push(prep::timeout_update(7, Duration::ZERO).user_data(8))?;
/// ring.submit_and_wait(2)?;
/// assert_eq!(ring.completions().map(|c| (c.user_data, c.res)).collect::<Vec<_>>(), [(8, 0), (7, -62)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn timeout_update(user_data: u64, after: Duration) -> TimeoutUpdate {
    let mut entry = remove(user_data);
    entry.sqe.op_flags = TIMEOUT_UPDATE;
    entry.late = Late::NewTime(after);
    TimeoutUpdate(entry)
}

/// Cancels the operation before it, which must be linked to it, if that takes too long. An I/O that a device has cannot
/// be cancelled: then the link timeout gives `-ENOENT`, and the operation goes on.
///
/// ```
/// # use std::time::Duration;
/// # use sheave_uring::{prep, Ring};
/// # let mut ring = Ring::builder().build()?;
/// // The nop is done first, so its link timeout is cancelled.
/// ring.push(prep::nop().user_data(1).link())?;
/// ring.push(prep::link_timeout(Duration::from_secs(1)).user_data(2))?;
/// ring.submit_and_wait(2)?;
/// assert_eq!(ring.completions().map(|c| (c.user_data, c.res)).collect::<Vec<_>>(), [(1, 0), (2, -125)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn link_timeout(when: impl Into<When>) -> LinkTimeout {
    LinkTimeout(time(opcode::LINK_TIMEOUT, when.into()))
}

/// Sets the [`link_timeout`] with this user data to fire after `after` from now.
pub fn link_timeout_update(user_data: u64, after: Duration) -> TimeoutUpdate {
    let mut update = timeout_update(user_data, after);
    update.0.sqe.op_flags |= LINK_TIMEOUT_UPDATE;
    update
}

/// Kinds of operations, by the kernel's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Opcode {
    /// [`nop`](super::nop).
    Nop = opcode::NOP,
    /// [`readv`](super::readv).
    Readv = opcode::READV,
    /// [`writev`](super::writev).
    Writev = opcode::WRITEV,
    /// [`fsync`](super::fsync) and [`fdatasync`](super::fdatasync).
    Fsync = opcode::FSYNC,
    /// [`read_fixed`](super::read_fixed).
    ReadFixed = opcode::READ_FIXED,
    /// [`write_fixed`](super::write_fixed).
    WriteFixed = opcode::WRITE_FIXED,
    /// [`timeout`].
    Timeout = opcode::TIMEOUT,
    /// [`timeout_remove`], [`timeout_update`] and [`link_timeout_update`].
    TimeoutRemove = opcode::TIMEOUT_REMOVE,
    /// [`cancel`].
    AsyncCancel = opcode::ASYNC_CANCEL,
    /// [`link_timeout`].
    LinkTimeout = opcode::LINK_TIMEOUT,
    /// [`punch_hole`](super::punch_hole) and [`zero_range`](super::zero_range).
    Fallocate = opcode::FALLOCATE,
    /// [`read`](super::read).
    Read = opcode::READ,
    /// [`write`](super::write()).
    Write = opcode::WRITE,
    /// [`message`].
    Message = opcode::MSG_RING,
}

/// Condition for a cancel. Combined conditions must all hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancel {
    flags: u32,
    user_data: u64,
    /// The file; `ring` is the ring whose `fd` it is, or 0 for an index of the registered table.
    fd: i32,
    ring: u64,
    opcode: u8,
}

impl Cancel {
    const NOTHING: Cancel = Cancel { flags: 0, user_data: 0, fd: Fd::NONE.raw(), ring: 0, opcode: 0 };

    /// Matches everything that can be cancelled.
    pub const fn everything() -> Cancel {
        Cancel { flags: ASYNC_CANCEL_ANY, ..Cancel::NOTHING }
    }

    /// Matches the operation with this user data.
    pub const fn user_data(user_data: u64) -> Cancel {
        Cancel { flags: ASYNC_CANCEL_USERDATA, user_data, ..Cancel::NOTHING }
    }

    /// Matches I/O on this file that no device has yet.
    pub const fn file(fd: Fd) -> Cancel {
        Cancel { flags: ASYNC_CANCEL_FD, fd: fd.raw(), ring: fd.ring(), ..Cancel::NOTHING }
    }

    /// Matches I/O on this file of the registered table that no device has yet.
    pub const fn fixed_file(file: FixedFile) -> Cancel {
        Cancel { flags: ASYNC_CANCEL_FD | ASYNC_CANCEL_FD_FIXED, fd: file.0 as i32, ..Cancel::NOTHING }
    }

    /// Matches operations of one kind.
    pub const fn opcode(opcode: Opcode) -> Cancel {
        Cancel { flags: ASYNC_CANCEL_OP, opcode: opcode as u8, ..Cancel::NOTHING }
    }

    /// Adds the conditions of `other`.
    #[must_use]
    pub const fn and(self, other: Cancel) -> Cancel {
        Cancel {
            flags: self.flags | other.flags,
            user_data: if other.flags & ASYNC_CANCEL_USERDATA != 0 { other.user_data } else { self.user_data },
            fd: if other.flags & ASYNC_CANCEL_FD != 0 { other.fd } else { self.fd },
            ring: if other.flags & ASYNC_CANCEL_FD != 0 { other.ring } else { self.ring },
            opcode: if other.flags & ASYNC_CANCEL_OP != 0 { other.opcode } else { self.opcode },
        }
    }

    /// Cancels all matches, not only the first. The result is their number.
    #[must_use]
    pub const fn all(mut self) -> Cancel {
        self.flags |= ASYNC_CANCEL_ALL;
        self
    }

    /// Returns the target for the ring numbered `ring`. An `fd` of another ring names nothing there.
    pub(crate) fn target(self, ring: u64) -> Target {
        let fd = if self.ring == 0 || self.ring == ring { self.fd } else { Fd::NONE.raw() };
        Target { flags: self.flags, user_data: self.user_data, fd, opcode: self.opcode }
    }
}

/// Cancels waiting operations; each of them gives `-ECANCELED`. See also [`Ring::cancel`](crate::Ring::cancel).
///
/// ```
/// # use std::time::Duration;
/// # use sheave_uring::{prep, prep::Cancel, Ring};
/// # let mut ring = Ring::builder().build()?;
/// ring.push(prep::timeout(Duration::from_secs(60)).user_data(1))?;
/// ring.push(prep::timeout(Duration::from_secs(90)).user_data(2))?;
/// ring.push(prep::cancel(Cancel::everything()).user_data(3))?;
/// ring.submit_and_wait(3)?;
/// let results: Vec<_> = ring.completions().map(|c| (c.user_data, c.res)).collect();
/// assert_eq!(results, [(3, 2), (1, -125), (2, -125)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn cancel(what: Cancel) -> AsyncCancel {
    let mut entry = Entry::without_file(opcode::ASYNC_CANCEL);
    entry.sqe.fd = what.fd;
    entry.ring = what.ring;
    entry.sqe.addr = what.user_data;
    entry.sqe.len = what.opcode.into();
    entry.sqe.op_flags = what.flags;
    AsyncCancel(entry)
}

/// Posts a completion with this user data and result in another ring, and wakes it if it sleeps. `to` comes from
/// [`Ring::attach_ring`](crate::Ring::attach_ring). Gives `-EOVERFLOW` if too many messages wait in the other ring, and
/// `-EBADFD` if it is gone.
///
/// ```
/// # use sheave_uring::{prep, Ring};
/// let (send, receive) = std::sync::mpsc::channel();
/// let other = std::thread::spawn(move || {
///     let mut ring = Ring::builder().build().expect("a ring");
///     send.send(ring.handle()).expect("the other side waits");
///     assert!(ring.wait(1, None).is_ready());
///     ring.completions().map(|c| (c.user_data, c.res)).collect::<Vec<_>>()
/// });
/// let mut ring = Ring::builder().build()?;
/// let to = ring.attach_ring(&receive.recv()?)?;
/// ring.push(prep::message(to, 42, 7))?;
/// ring.submit_and_wait(1)?;
/// assert_eq!(ring.completions().next().map(|c| c.res), Some(0));
/// assert_eq!(other.join().expect("no panic"), [(42, 7)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn message(to: Fd, user_data: u64, result: i32) -> Message {
    let mut entry = Entry::new(opcode::MSG_RING, to.into());
    entry.sqe.off = user_data;
    entry.sqe.len = result as u32;
    Message(entry)
}
