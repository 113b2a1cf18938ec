//! Kinds of descriptors that a front-end may pass: those on which no call can wait for another process.
//!
//! A descriptor of a file system in user space (FUSE) would let the front-end hold up every thread that polls the
//! descriptor, asks for its size or touches its mapping. An eventfd and the memory of the kernel's own file systems do
//! not.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{fcntl_get_seals, readlink};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::sockopt::{socket_acceptconn, socket_domain, socket_type};
use rustix::net::{AddressFamily, SocketType};

use crate::Broken;

/// Checks that a descriptor is an eventfd, and makes signals to the eventfd non-blocking.
pub(crate) fn eventfd(fd: &OwnedFd) -> Result<(), Broken> {
    // The kernel alone gives names that do not begin with a slash.
    let name = readlink(format!("/proc/self/fd/{}", fd.as_raw_fd()), Vec::new()).map_err(Broken::Descriptor)?;
    if name.as_bytes() != b"anon_inode:[eventfd]" {
        return Err(Broken::NotEventfd);
    }
    ioctl_fionbio(fd, true).map_err(Broken::Descriptor)
}

/// Checks that a descriptor is one end of a connection of Unix sockets, for messages to the front-end.
pub(crate) fn channel(fd: &OwnedFd) -> Result<(), Broken> {
    let is_stream = socket_domain(fd) == Ok(AddressFamily::UNIX) && socket_type(fd) == Ok(SocketType::STREAM);
    if is_stream && socket_acceptconn(fd) == Ok(false) { Ok(()) } else { Err(Broken::NotSocket) }
}

/// Checks that a descriptor is memory of the kernel: of a memfd, of tmpfs, or of huge pages. Only these have seals.
pub(crate) fn memory(fd: impl AsFd) -> Result<(), Broken> {
    match fcntl_get_seals(fd) {
        Ok(_) => Ok(()),
        Err(Errno::INVAL) => Err(Broken::NotMemory),
        Err(errno) => Err(Broken::Descriptor(errno)),
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd as make};
    use rustix::fs::{MemfdFlags, OFlags, fcntl_getfl, memfd_create};

    use super::*;

    fn file() -> OwnedFd {
        std::fs::File::open("/proc/self/exe").expect("this program").into()
    }

    #[test]
    fn an_eventfd_is_taken_and_made_non_blocking() {
        let fd = make(0, EventfdFlags::empty()).expect("an eventfd");
        assert_eq!(eventfd(&fd), Ok(()));
        assert!(fcntl_getfl(&fd).expect("flags").contains(OFlags::NONBLOCK));
    }

    #[test]
    fn other_descriptors_are_no_eventfds() {
        let (read, write) = std::io::pipe().expect("a pipe");
        for fd in [file(), read.into(), write.into(), memfd_create("x", MemfdFlags::CLOEXEC).expect("a memfd")] {
            assert_eq!(eventfd(&fd), Err(Broken::NotEventfd));
        }
    }

    #[test]
    fn only_one_end_of_a_connection_is_taken_as_channel() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().expect("a pair");
        assert_eq!(channel(&one.into()), Ok(()));
        let (datagram, _other) = std::os::unix::net::UnixDatagram::pair().expect("a pair");
        let listens = std::net::TcpListener::bind("127.0.0.1:0").expect("it listens");
        let (read, _write) = std::io::pipe().expect("a pipe");
        for fd in [datagram.into(), listens.into(), read.into(), file()] {
            assert_eq!(channel(&fd), Err(Broken::NotSocket));
        }
    }

    #[test]
    fn only_memory_of_the_kernel_is_taken_as_memory() {
        assert_eq!(memory(memfd_create("x", MemfdFlags::CLOEXEC).expect("a memfd")), Ok(()));
        assert_eq!(memory(file()), Err(Broken::NotMemory));
        assert_eq!(memory(make(0, EventfdFlags::empty()).expect("an eventfd")), Err(Broken::NotMemory));
    }
}
