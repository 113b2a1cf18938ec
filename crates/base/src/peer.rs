//! Credentials of the process at the other end of a unix socket.
//!
//! Owns nothing. For a process of another PID namespace, such as one in a container, the kernel returns process 0.
//! `rustix` keeps the number in a type without 0, so this module makes the system call itself.
#![allow(unsafe_code)] // The call has no wrapper that takes every answer.

use std::io;
use std::num::NonZero;
use std::os::fd::{AsFd, AsRawFd};

/// The process that connected, or that listened when this end connected. The values are those at the time of the
/// connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Process number; `None` if the process cannot be seen from this namespace.
    pub pid: Option<NonZero<u32>>,
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
}

/// Returns the peer of a connected unix socket.
///
/// # Errors
///
/// If `socket` is not a unix socket.
pub fn peer(socket: impl AsFd) -> io::Result<Peer> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let place = std::ptr::from_mut(&mut found).cast();
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: `place` points to `len` bytes of a struct of plain numbers, which the kernel fills; both live until the
    // call returns.
    let res = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, place, &raw mut len) };
    if res != 0 {
        return Err(io::Error::last_os_error());
    }
    // For a socket of another family the kernel returns -1 as the user.
    if found.uid == u32::MAX {
        return Err(io::ErrorKind::NotConnected.into());
    }
    let pid = u32::try_from(found.pid).ok().and_then(NonZero::new);
    Ok(Peer { pid, uid: found.uid, gid: found.gid })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_end_of_a_pair_is_this_process() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let found = peer(&one).expect("it has a peer");
        assert_eq!(found.pid, NonZero::new(std::process::id()));
        assert_eq!(found.uid, std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").expect("proc")));
        let file = std::fs::File::open("/").expect("it is there");
        assert!(peer(&file).is_err(), "a file has no peer");
    }
}
