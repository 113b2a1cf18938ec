//! Errors of a kernel ring, each with its cause and its fix.
//!
//! An error that the kernel returned has its [`Errno`] as source.
//!
//! Control path only: a failed operation has its `-errno` in its CQE, never one of these.

use std::fs;
use std::io;

use sheave_base::status::Errno;

/// Reason why a kernel ring cannot be made, or refuses a call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KringError {
    /// The administrator switched io_uring off.
    #[error(
        "io_uring is switched off on this machine (kernel.io_uring_disabled={value}); \
         allow it with `sysctl -w kernel.io_uring_disabled=0`{}",
        if *.value == 1 { ", or run in the group of kernel.io_uring_group" } else { "" }
    )]
    Disabled {
        /// Value of the sysctl: 1 is "for the unprivileged", 2 is "for everybody".
        value: u8,
    },
    /// A filter returns EPERM or EACCES, or a sandbox EOPNOTSUPP.
    #[error(
        "io_uring is not permitted ({}): a seccomp filter or security module forbids it, as Docker's default profile \
         does; run with a profile that allows io_uring_setup, io_uring_enter and io_uring_register, such as \
         docs/systemd/seccomp.json of Sheave (`--security-opt seccomp=FILE`), or with seccomp=unconfined",
        errno_text(*.errno)
    )]
    Forbidden {
        /// EPERM, EACCES or EOPNOTSUPP.
        #[source]
        errno: Errno,
    },
    /// The kernel has no io_uring.
    #[error(
        "this kernel has no io_uring (ENOSYS); it needs Linux 5.6 or newer built with CONFIG_IO_URING, and a sandbox \
         (such as gVisor) must pass it through"
    )]
    Missing,
    /// Not enough (lockable) memory.
    #[error(
        "the kernel has no memory for the ring (ENOMEM): the limit on locked memory is probably too small; raise it \
         with `ulimit -l unlimited` or LimitMEMLOCK=infinity in the unit file, or ask for fewer entries"
    )]
    NoMemory,
    /// No file descriptor is left.
    #[error("no file descriptor is left for the ring ({}); raise the limit with `ulimit -n`", errno_text(*.errno))]
    NoDescriptor {
        /// EMFILE or ENFILE.
        #[source]
        errno: Errno,
    },
    /// The requested number of entries is 0, or above the kernel's limit.
    #[error("a kernel ring has 1 to 32768 entries, not {entries}; ask for fewer")]
    BadEntries { entries: u32 },
    /// Even the oldest set of flags was refused.
    #[error(
        "the kernel refuses every set-up of io_uring that Sheave knows ({}){}",
        errno_text(*.errno),
        if *.iopoll { "; try without polling" } else { "; Linux 5.6 or newer is needed" }
    )]
    Refused {
        /// Error of the last try.
        #[source]
        errno: Errno,
        /// True if polling was requested.
        iopoll: bool,
    },
    /// The ring polls, and this device has no queues to poll.
    #[error(
        "the ring polls its devices (IOPOLL), and this one has no poll queues; attach it to another ring, or make the \
         ring without polling"
    )]
    Polls,
    /// `io_uring_enter` failed in a way that no retry helps.
    #[error("io_uring_enter failed: {}{}", errno_text(*.errno), enter_hint(*.errno))]
    Enter {
        #[source]
        errno: Errno,
    },
    /// The kernel does not add a buffer to the ring's table. I/O works without it.
    #[error(
        "buffer slot {slot} cannot be registered: {}{}",
        errno_text(*.errno),
        if *.errno == Errno::ENOMEM { "; raise the limit on locked memory with `ulimit -l`" } else { "" }
    )]
    Buffer {
        slot: u32,
        /// Error of the kernel.
        #[source]
        errno: Errno,
    },
}

impl KringError {
    /// Returns true if an enter that failed with this error may succeed later: the kernel lacks memory for requests.
    pub fn is_shortage(&self) -> bool {
        matches!(self, Self::Enter { errno: Errno(libc::EAGAIN | libc::EBUSY | libc::ENOMEM) })
    }

    /// Returns the error for a failed `io_uring_setup`.
    pub(super) fn from_setup(errno: i32, iopoll: bool) -> Self {
        Self::explain_setup(errno, iopoll, disabled_sysctl())
    }

    /// Does [`from_setup`](Self::from_setup), with `disabled` as the value of `kernel.io_uring_disabled`.
    pub(super) fn explain_setup(errno: i32, iopoll: bool, disabled: Option<u8>) -> Self {
        match errno {
            // Some sandboxes return this for unknown system calls.
            libc::EOPNOTSUPP => Self::Forbidden { errno: Errno(errno) },
            libc::EPERM | libc::EACCES => match disabled {
                Some(value @ 1..) => Self::Disabled { value },
                _ => Self::Forbidden { errno: Errno(errno) },
            },
            libc::ENOSYS => Self::Missing,
            libc::ENOMEM => Self::NoMemory,
            libc::EMFILE | libc::ENFILE => Self::NoDescriptor { errno: Errno(errno) },
            _ => Self::Refused { errno: Errno(errno), iopoll },
        }
    }
}

fn disabled_sysctl() -> Option<u8> {
    fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok()?.trim().parse().ok()
}

pub(super) fn errno_text(errno: Errno) -> io::Error {
    errno.into()
}

fn enter_hint(errno: Errno) -> &'static str {
    match errno.0 {
        libc::EPERM | libc::EACCES | libc::ENOSYS => {
            "; a seccomp filter or security module forbids it by now: allow io_uring_setup, io_uring_enter and \
             io_uring_register, or none of them"
        }
        libc::EEXIST => "; the ring was used by another thread than the one that made it",
        libc::EAGAIN | libc::ENOMEM | libc::EBUSY => {
            "; the kernel has no memory for requests: lower the depth, or free memory"
        }
        libc::EBADR => "; the kernel ran out of memory and lost completions",
        libc::EBADF | libc::EOPNOTSUPP => "; its descriptor was closed by somebody else",
        _ => "",
    }
}
