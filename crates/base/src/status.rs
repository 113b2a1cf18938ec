//! How a request ended: the block status that travels down and up the hot path, and the errno that users see.
//!
//! Owns the two code spaces and the map between them. Does not own results that carry a length: those are `i32`
//! in the kernel's convention, made from a status at the ring.
//!
//! * I1: `Status::from_errno(s.errno()) == s` for each status.
//! * I2: `errno()` is 0 for `Ok` and positive for all others; rings negate it.
//!
//! Called by drivers (which set a status), the block floor (which retries by it) and rings (which report it).

use std::fmt;

/// How a request ended. One byte, cheap to copy, no detail: that is for the log of the code that set it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
#[non_exhaustive]
pub enum Status {
    /// Done.
    #[default]
    Ok = 0,
    /// Failed, and nothing more is known.
    IoErr,
    /// Not answered in time; it may or may not have been carried out.
    Timeout,
    /// No space left for it, or it lies past the end of the device.
    NoSpc,
    /// The device does not know this operation.
    NotSupp,
    /// The medium cannot give back what was written.
    Medium,
    /// It would have to wait, and was told not to.
    Again,
    /// Given up on request before it was carried out.
    Canceled,
    /// Malformed: misaligned, of an impossible length, or with flags that exclude each other.
    Invalid,
    /// No memory for it just now.
    NoMem,
    /// The data does not match its checksum.
    Protection,
    /// The device is gone.
    Offline,
    /// Larger than the device takes.
    TooBig,
    /// The device may not be written to.
    ReadOnly,
    /// The device is busy with something that excludes it.
    Busy,
    /// The way to the device is broken.
    Transport,
    /// The device at the far end failed.
    Target,
    /// Another host has reserved the device.
    Conflict,
    /// The file may not become that large.
    FileTooBig,
}

/// Each status with its errno and its words: the one table (I1).
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

/// Row n of the table is status n, so that a lookup is an index.
const _: () = {
    let mut row = 0;
    while row < TABLE.len() {
        assert!(TABLE[row].0 as usize == row, "the table is in the order of the enum");
        row += 1;
    }
};

impl Status {
    /// Each status, `Ok` first.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.0)
    }

    /// The status whose number is `raw`, as stored by `status as u8`; anything else is `IoErr`.
    #[inline]
    #[must_use]
    pub fn from_u8(raw: u8) -> Self {
        TABLE.get(usize::from(raw)).map_or(Self::IoErr, |row| row.0)
    }

    /// True for `Ok`.
    #[inline]
    #[must_use]
    pub fn is_ok(self) -> bool {
        self as u8 == Self::Ok as u8
    }

    /// The errno, positive; 0 for `Ok` (I2).
    #[inline]
    #[must_use]
    pub fn errno(self) -> i32 {
        TABLE[self as usize].1
    }

    /// The status for an errno of either sign: users hold positive ones, rings and the kernel negative ones.
    /// One that has no status of its own is `IoErr`.
    #[must_use]
    pub fn from_errno(errno: i32) -> Self {
        let errno = errno.saturating_abs();
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

    /// True when the same request may succeed a little later on the same device without anybody's repair.
    #[inline]
    #[must_use]
    pub fn retry_helps(self) -> bool {
        matches!(self, Self::Again | Self::NoMem | Self::Busy | Self::Timeout | Self::Transport)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(TABLE[*self as usize].2)
    }
}

impl From<Status> for Errno {
    fn from(status: Status) -> Self {
        Self(status.errno())
    }
}

/// An errno, positive; prints as `ENOSPC: no space left on device`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Errno(pub i32);

impl Errno {
    /// The errno of an error of the standard library; `EIO` when it carries none.
    #[must_use]
    pub fn from_io(error: &std::io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EIO))
    }

    /// Its name, such as `ENOSPC`; `None` for a number that we do not know.
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

/// The errnos that block and socket I/O give, with their names and words.
#[rustfmt::skip]
const ERRNOS: &[(i32, &str, &str)] = &[
    (0, "OK", "success"),
    (libc::EPERM, "EPERM", "operation not permitted"),
    (libc::ENOENT, "ENOENT", "no such file or directory"),
    (libc::EINTR, "EINTR", "interrupted system call"),
    (libc::EIO, "EIO", "input/output error"),
    (libc::ENXIO, "ENXIO", "no such device or address"),
    (libc::E2BIG, "E2BIG", "request too large"),
    (libc::EBADF, "EBADF", "bad file descriptor"),
    (libc::EAGAIN, "EAGAIN", "resource temporarily unavailable"),
    (libc::ENOMEM, "ENOMEM", "cannot allocate memory"),
    (libc::EACCES, "EACCES", "permission denied"),
    (libc::EFAULT, "EFAULT", "bad address"),
    (libc::ENOTBLK, "ENOTBLK", "block device required"),
    (libc::EBUSY, "EBUSY", "device or resource busy"),
    (libc::EEXIST, "EEXIST", "file exists"),
    (libc::ENODEV, "ENODEV", "no such device"),
    (libc::ENOTDIR, "ENOTDIR", "not a directory"),
    (libc::EISDIR, "EISDIR", "is a directory"),
    (libc::EINVAL, "EINVAL", "invalid argument"),
    (libc::ENFILE, "ENFILE", "too many open files in system"),
    (libc::EMFILE, "EMFILE", "too many open files"),
    (libc::ENOTTY, "ENOTTY", "inappropriate ioctl for device"),
    (libc::EFBIG, "EFBIG", "file too large"),
    (libc::ENOSPC, "ENOSPC", "no space left on device"),
    (libc::ESPIPE, "ESPIPE", "illegal seek"),
    (libc::EROFS, "EROFS", "read-only file system or device"),
    (libc::EPIPE, "EPIPE", "broken pipe"),
    (libc::ERANGE, "ERANGE", "result out of range"),
    (libc::EDEADLK, "EDEADLK", "resource deadlock avoided"),
    (libc::ENAMETOOLONG, "ENAMETOOLONG", "file name too long"),
    (libc::ENOSYS, "ENOSYS", "function not implemented"),
    (libc::ENOTEMPTY, "ENOTEMPTY", "directory not empty"),
    (libc::ELOOP, "ELOOP", "too many levels of symbolic links"),
    (libc::EBADE, "EBADE", "invalid exchange"),
    (libc::ENODATA, "ENODATA", "no data available"),
    (libc::ETIME, "ETIME", "timer expired"),
    (libc::ENOLINK, "ENOLINK", "link has been severed"),
    (libc::EPROTO, "EPROTO", "protocol error"),
    (libc::EBADMSG, "EBADMSG", "bad message"),
    (libc::EOVERFLOW, "EOVERFLOW", "value too large for data type"),
    (libc::EBADFD, "EBADFD", "file descriptor in bad state"),
    (libc::EILSEQ, "EILSEQ", "data does not match its checksum"),
    (libc::ENOTSOCK, "ENOTSOCK", "socket operation on non-socket"),
    (libc::EMSGSIZE, "EMSGSIZE", "message too long"),
    (libc::EOPNOTSUPP, "EOPNOTSUPP", "operation not supported"),
    (libc::EADDRINUSE, "EADDRINUSE", "address already in use"),
    (libc::ECONNABORTED, "ECONNABORTED", "connection aborted"),
    (libc::ECONNRESET, "ECONNRESET", "connection reset by peer"),
    (libc::ENOBUFS, "ENOBUFS", "no buffer space available"),
    (libc::ENOTCONN, "ENOTCONN", "not connected"),
    (libc::ESHUTDOWN, "ESHUTDOWN", "shut down"),
    (libc::ETIMEDOUT, "ETIMEDOUT", "timed out"),
    (libc::ECONNREFUSED, "ECONNREFUSED", "connection refused"),
    (libc::EALREADY, "EALREADY", "operation already in progress"),
    (libc::EINPROGRESS, "EINPROGRESS", "operation now in progress"),
    (libc::EREMOTEIO, "EREMOTEIO", "remote I/O error"),
    (libc::EDQUOT, "EDQUOT", "disk quota exceeded"),
    (libc::ENOMEDIUM, "ENOMEDIUM", "no medium found"),
    (libc::ECANCELED, "ECANCELED", "operation canceled"),
];

#[cfg(test)]
mod tests;
