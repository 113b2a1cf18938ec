//! Outcome of a request: the block status that travels down and up the hot path, and the errno that users see.
//!
//! Owns the two code spaces and the mapping between them. Does not own results with a length: those are `i32` in the
//! kernel's convention, made from a status by the ring.
//!
//! * I1: `Status::from_errno(s.errno()) == s` for each status.
//! * I2: `errno()` is 0 for `Ok` and positive for all others; `result()` is its negative, as rings return it.
//!
//! Called by drivers (which set a status), the block floor (which decides by it about retries) and rings (which report
//! it).

use std::fmt;

/// Outcome of a request. One byte, cheap to copy, without detail: the code that sets it logs that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
#[non_exhaustive]
pub enum Status {
    /// Done.
    #[default]
    Ok = 0,
    /// Failed for an unknown reason.
    IoErr,
    /// Not answered in time; the request may or may not have been executed.
    Timeout,
    /// No space left, or the range lies past the end of the device.
    NoSpc,
    /// The device does not support the operation.
    NotSupp,
    /// The medium cannot return the data that was written.
    Medium,
    /// The request would have to wait, and must not.
    Again,
    /// Cancelled before it was executed.
    Canceled,
    /// Malformed: misaligned, of an impossible length, or with contradictory flags.
    Invalid,
    /// Not enough memory at the moment.
    NoMem,
    /// The data does not match its checksum.
    Protection,
    /// The device is gone.
    Offline,
    /// Larger than the device accepts.
    TooBig,
    /// The device may not be written to.
    ReadOnly,
    /// The device is busy with something that excludes it.
    Busy,
    /// The connection to the device is broken.
    Transport,
    /// The remote device failed.
    Target,
    /// Another host has reserved the device.
    Conflict,
    /// The file may not become that large.
    FileTooBig,
}

/// Each status with its errno and its text: the only table (I1).
const TABLE: [(Status, i32, &str); 19] = [
    (Status::Ok, 0, "success"),
    (Status::IoErr, libc::EIO, "I/O error"),
    (Status::Timeout, libc::ETIMEDOUT, "timed out"),
    (Status::NoSpc, libc::ENOSPC, "no space left on device"),
    (Status::NotSupp, libc::EOPNOTSUPP, "operation not supported"),
    (Status::Medium, libc::ENODATA, "medium error"),
    (Status::Again, libc::EAGAIN, "would block"),
    (Status::Canceled, libc::ECANCELED, "canceled"),
    (Status::Invalid, libc::EINVAL, "invalid request"),
    (Status::NoMem, libc::ENOMEM, "out of memory"),
    (Status::Protection, libc::EILSEQ, "data does not match its checksum"),
    (Status::Offline, libc::ENODEV, "device is gone"),
    (Status::TooBig, libc::E2BIG, "request too large"),
    (Status::ReadOnly, libc::EROFS, "device is read-only"),
    (Status::Busy, libc::EBUSY, "device is busy"),
    (Status::Transport, libc::ENOLINK, "link to the device is broken"),
    (Status::Target, libc::EREMOTEIO, "remote device failed"),
    (Status::Conflict, libc::EBADE, "device is reserved by another host"),
    (Status::FileTooBig, libc::EFBIG, "file too large"),
];

/// Checks that row n of the table is status n, so that a lookup is an index.
const _: () = {
    let mut row = 0;
    while row < TABLE.len() {
        assert!(TABLE[row].0 as usize == row, "the table is in the order of the enum");
        row += 1;
    }
};

impl Status {
    /// Returns each status, `Ok` first.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.0)
    }

    /// Returns the status with the number `raw`, as stored by `status as u8`; any other number is `IoErr`.
    #[inline]
    #[must_use]
    pub fn from_u8(raw: u8) -> Self {
        TABLE.get(usize::from(raw)).map_or(Self::IoErr, |row| row.0)
    }

    /// Returns true for `Ok`.
    #[inline]
    #[must_use]
    pub fn is_ok(self) -> bool {
        self as u8 == Self::Ok as u8
    }

    /// Returns the positive errno; 0 for `Ok` (I2).
    #[inline]
    #[must_use]
    pub fn errno(self) -> Errno {
        Errno(TABLE[self as usize].1)
    }

    /// Returns the CQE result of a request that ended with this status and has no length: 0, or the negative errno.
    #[inline]
    #[must_use]
    pub fn result(self) -> i32 {
        -TABLE[self as usize].1
    }

    /// Returns the status for an errno of either sign: users have positive ones, rings and the kernel negative ones. An
    /// errno without a status of its own is `IoErr`.
    #[must_use]
    pub fn from_errno(errno: Errno) -> Self {
        let errno = errno.0.saturating_abs();
        if let Some(row) = TABLE.iter().find(|row| row.1 == errno) {
            return row.0;
        }
        match errno {
            libc::ETIME => Self::Timeout,
            libc::EDQUOT => Self::NoSpc,
            libc::ENOSYS | libc::ENOTTY => Self::NotSupp,
            libc::ENXIO | libc::ESHUTDOWN | libc::EBADF => Self::Offline,
            libc::EMSGSIZE | libc::EOVERFLOW => Self::TooBig,
            libc::EPERM | libc::EACCES => Self::ReadOnly,
            libc::ECONNRESET | libc::EPIPE | libc::ENOTCONN | libc::ECONNREFUSED => Self::Transport,
            libc::EINTR => Self::Again,
            libc::EFAULT => Self::Invalid,
            _ => Self::IoErr,
        }
    }

    /// Returns true if the same request may succeed a little later on the same device without any repair.
    #[inline]
    #[must_use]
    pub fn retry_helps(self) -> bool {
        matches!(self, Self::Again | Self::NoMem | Self::Busy | Self::Timeout | Self::Transport)
    }

    /// Returns true if the device or the connection to it has failed, so that an operator must look at it, and false if
    /// it only refused the request: a device without space, or without support for an operation, has not failed.
    #[inline]
    #[must_use]
    pub fn is_fault(self) -> bool {
        matches!(
            self,
            Self::IoErr
                | Self::Timeout
                | Self::Medium
                | Self::Protection
                | Self::Offline
                | Self::Transport
                | Self::Target
                | Self::Conflict
        )
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(TABLE[*self as usize].2)
    }
}

impl std::error::Error for Status {}

impl From<Status> for Errno {
    fn from(status: Status) -> Self {
        status.errno()
    }
}

/// An errno, positive; prints as `ENOSPC: no space left on device`.
///
/// ```
/// use sheave_base::status::{Errno, Status};
///
/// assert_eq!(Status::NoSpc.errno(), Errno::ENOSPC);
/// assert_eq!(Errno::ENOSPC.to_string(), "ENOSPC: no space left on device");
/// assert_eq!(Errno(4242).to_string(), "errno 4242"); // one that the table does not have
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Errno(
    /// The number in `errno.h`, positive; 0 is no error.
    pub i32,
);

impl Errno {
    /// Returns the errno of an error of the standard library; `EIO` if it carries none.
    #[must_use]
    pub fn from_io(error: &std::io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EIO))
    }

    /// Returns the name, such as `ENOSPC`; `None` for an unknown number.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        ERRNOS.iter().find(|row| row.0 == self.0).map(|row| row.1)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match ERRNOS.iter().find(|row| row.0 == self.0) {
            Some((_, name, words)) => write!(f, "{name}: {words}"),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl std::error::Error for Errno {}

impl From<Errno> for std::io::Error {
    fn from(errno: Errno) -> Self {
        Self::from_raw_os_error(errno.0)
    }
}

/// Errnos of block and socket I/O: a constant of [`Errno`] for each, and the table of their names and texts.
macro_rules! errnos {
    ($($name:ident: $words:literal,)*) => {
        impl Errno {
            $(
                #[doc = concat!("`", stringify!($name), "`: ", $words, ".")]
                pub const $name: Errno = Errno(libc::$name);
            )*
        }

        const ERRNOS: &[(i32, &str, &str)] = &[(0, "OK", "success"), $((libc::$name, stringify!($name), $words),)*];
    };
}

errnos! {
    EPERM: "operation not permitted",
    ENOENT: "no such file or directory",
    EINTR: "interrupted system call",
    EIO: "input/output error",
    ENXIO: "no such device or address",
    E2BIG: "request too large",
    EBADF: "bad file descriptor",
    EAGAIN: "resource temporarily unavailable",
    ENOMEM: "cannot allocate memory",
    EACCES: "permission denied",
    EFAULT: "bad address",
    ENOTBLK: "block device required",
    EBUSY: "device or resource busy",
    EEXIST: "file exists",
    ENODEV: "no such device",
    ENOTDIR: "not a directory",
    EISDIR: "is a directory",
    EINVAL: "invalid argument",
    ENFILE: "too many open files in system",
    EMFILE: "too many open files",
    ENOTTY: "inappropriate ioctl for device",
    EFBIG: "file too large",
    ENOSPC: "no space left on device",
    ESPIPE: "illegal seek",
    EROFS: "read-only file system or device",
    EPIPE: "broken pipe",
    ERANGE: "result out of range",
    EDEADLK: "resource deadlock avoided",
    ENAMETOOLONG: "file name too long",
    ENOSYS: "function not implemented",
    ENOTEMPTY: "directory not empty",
    ELOOP: "too many levels of symbolic links",
    EBADE: "invalid exchange",
    ENODATA: "no data available",
    ETIME: "timer expired",
    ENOLINK: "link has been severed",
    EPROTO: "protocol error",
    EBADMSG: "bad message",
    EOVERFLOW: "value too large for data type",
    EBADFD: "file descriptor in bad state",
    EILSEQ: "data does not match its checksum",
    ENOTSOCK: "socket operation on non-socket",
    EMSGSIZE: "message too long",
    EOPNOTSUPP: "operation not supported",
    EADDRINUSE: "address already in use",
    ECONNABORTED: "connection aborted",
    ECONNRESET: "connection reset by peer",
    ENOBUFS: "no buffer space available",
    ENOTCONN: "not connected",
    ESHUTDOWN: "shut down",
    ETIMEDOUT: "timed out",
    ECONNREFUSED: "connection refused",
    EALREADY: "operation already in progress",
    EINPROGRESS: "operation now in progress",
    EREMOTEIO: "remote I/O error",
    EDQUOT: "disk quota exceeded",
    ENOMEDIUM: "no medium found",
    ECANCELED: "operation canceled",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_survives_the_way_through_errno() {
        for status in Status::all() {
            assert_eq!(Status::from_errno(status.errno()), status);
            assert_eq!(Status::from_errno(Errno(status.result())), status);
            assert_eq!(status.is_ok(), status.errno() == Errno(0));
            assert!(status.errno().0 >= 0);
            assert!(Errno::from(status).name().is_some(), "{status}");
            assert!(!status.to_string().is_empty());
        }
        assert_eq!(Status::all().count(), TABLE.len());
    }

    #[test]
    fn an_unknown_errno_is_an_io_error() {
        for errno in [4095, i32::MAX, i32::MIN, libc::ENOENT] {
            assert_eq!(Status::from_errno(Errno(errno)), Status::IoErr);
        }
        assert_eq!(Status::from_errno(Errno::ETIME), Status::Timeout);
        assert_eq!(Status::from_errno(Errno(-libc::EINTR)), Status::Again);
    }

    #[test]
    fn retry_helps_only_where_waiting_cures() {
        let cured: Vec<_> = Status::all().filter(|status| status.retry_helps()).collect();
        assert_eq!(cured, [Status::Timeout, Status::Again, Status::NoMem, Status::Busy, Status::Transport]);
    }

    #[test]
    fn an_errno_prints_name_and_words() {
        assert_eq!(Errno(libc::ENOSPC).to_string(), "ENOSPC: no space left on device");
        assert_eq!(Errno(4095).to_string(), "errno 4095");
        assert_eq!((Errno(libc::EIO).name(), Errno(4095).name()), (Some("EIO"), None));
        assert_eq!(Errno::from_io(&std::io::Error::from_raw_os_error(28)), Errno(libc::ENOSPC));
        assert_eq!(Errno::from_io(&std::io::Error::other("x")), Errno(libc::EIO));
        assert_eq!(size_of::<Status>(), 1);
    }

    #[test]
    fn no_errno_stands_twice_in_the_table() {
        for (at, row) in ERRNOS.iter().enumerate() {
            assert!(ERRNOS[at + 1..].iter().all(|other| other.0 != row.0), "{} stands twice", row.1);
        }
    }
}
