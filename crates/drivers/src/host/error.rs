//! Errors of opening a path as a device: each names the path, the cause and the fix.
//!
//! Control path only; I/O that fails later has its errno in its completion.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use sheave_base::status::Errno;
use sheave_blk::DeviceError;

/// Value of `what` in `HostError::from_io` for a file that is to be created.
pub(super) const CREATE: &str = "create";

/// Kinds of errors, for programs; users read the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum HostErrorKind {
    /// The file does not exist, or the directory to create it in.
    NotFound,
    /// The permissions forbid it.
    Permission,
    /// The path is that of a directory, socket, pipe or character device.
    WrongType,
    /// The file system, device or file is read-only.
    ReadOnly,
    /// The device is mounted, or claimed by another process.
    Busy,
    /// The size is 0, not a multiple of the block, or larger than the device or file system allows.
    BadSize,
    /// The file system is full, or the quota is used up.
    NoSpace,
    /// O_DIRECT was demanded, and is not possible.
    NoDirect,
    /// Another error of the system.
    Other,
}

/// Reason why a path cannot be used as a device.
#[derive(Debug)]
pub struct HostError {
    kind: HostErrorKind,
    path: PathBuf,
    cause: String,
    fix: &'static str,
    errno: Option<Errno>,
}

impl From<HostError> for DeviceError {
    fn from(error: HostError) -> DeviceError {
        DeviceError::Driver(error.into())
    }
}

impl HostError {
    pub(super) fn new(kind: HostErrorKind, path: &Path, cause: impl Into<String>, fix: &'static str) -> Self {
        Self { kind, path: path.to_owned(), cause: cause.into(), fix, errno: None }
    }

    /// Converts the system's error of the action `what` ("open", "read the size of").
    pub(super) fn from_io(path: &Path, what: &str, error: &io::Error) -> Self {
        let errno = error.raw_os_error();
        let (kind, mut fix) = explain(errno.unwrap_or(0));
        if kind == HostErrorKind::Permission && what == CREATE {
            fix = "name a directory that you may write to, or run as a user that may";
        }
        Self { kind, path: path.to_owned(), cause: format!("cannot {what} it: {error}"), fix, errno: errno.map(Errno) }
    }

    /// Returns the kind of the failure.
    pub fn kind(&self) -> HostErrorKind {
        self.kind
    }

    /// Returns the system's errno, if the system refused.
    pub fn errno(&self) -> Option<Errno> {
        self.errno
    }

    /// Returns the path of the file or device.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.path.display(), self.cause, self.fix)
    }
}

impl std::error::Error for HostError {
    /// Returns the errno, if the system refused.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.errno.as_ref().map(|errno| errno as _)
    }
}

fn explain(errno: i32) -> (HostErrorKind, &'static str) {
    use HostErrorKind as K;
    match errno {
        libc::ENOENT => (K::NotFound, "check the path, or give a size (size=1G) to have the file made"),
        libc::ENOTDIR => (K::NotFound, "a part of the path is not a directory; check the path"),
        libc::ELOOP => (K::NotFound, "its symbolic links go in a circle; check the path"),
        libc::ENAMETOOLONG => (K::NotFound, "the name is too long for this file system; use a shorter one"),
        libc::ENXIO | libc::ENODEV => (K::NotFound, "the device behind it is gone or not configured"),
        libc::EACCES => {
            (K::Permission, "change its owner or mode, run as a user that may, or, to read only, add readonly=on")
        }
        libc::EPERM => (K::Permission, "it is sealed or immutable (see `lsattr`), or a sandbox forbids it"),
        libc::EROFS => (K::ReadOnly, "its file system or device is read-only: remount it, or add readonly=on"),
        libc::ETXTBSY => (K::Busy, "it is a program that is running; stop it, or add readonly=on"),
        libc::EBUSY => (K::Busy, "it is in use: unmount it or stop what holds it (see `lsblk`), or add readonly=on"),
        libc::ENOSPC => (K::NoSpace, "its file system is full: free some space, or use another"),
        libc::EDQUOT => (K::NoSpace, "your quota there is used up: free some space, or use another file system"),
        libc::EFBIG => (
            K::BadSize,
            "its file system has no files that large, or this process may have none (`ulimit -f`): ask for less, raise \
             the limit, or use another file system (XFS)",
        ),
        libc::EISDIR => (K::WrongType, "name a file or a block device"),
        libc::EMFILE | libc::ENFILE => (K::Other, "raise the limit on open files with `ulimit -n`"),
        _ => (K::Other, "see `dmesg` for what the kernel says about it"),
    }
}
