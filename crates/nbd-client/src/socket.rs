//! Creation of sockets, and the few calls on them that the standard library does not have.
//!
//! Owns sockets until they are connected, or until a ring connects them. Called when a device is opened and when a ring
//! makes a connection, never on the path of a request.
#![allow(unsafe_code)] // System calls that the standard library does not wrap.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::spec::Place;

/// Size of the kernel buffer of a Unix socket in each direction: large enough to send a batch of a few hundred requests
/// in one call.
const BUFFER_BYTES: libc::c_int = if cfg!(test) { 64 << 10 } else { 4 << 20 };

/// Number of unanswered keepalive probes after which a quiet connection counts as lost.
const PROBES: libc::c_int = 5;

/// Returns an unconnected socket for `place`, with TCP timeouts derived from the requests' `timeout`.
pub(crate) fn new(place: &Place, timeout: Duration) -> io::Result<OwnedFd> {
    let family = match place {
        Place::Unix(..) => libc::AF_UNIX,
        Place::Tcp(address) if address.is_ipv4() => libc::AF_INET,
        Place::Tcp(_) => libc::AF_INET6,
    };
    // SAFETY: no memory is passed.
    let raw = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor, which is nobody else's.
    let fd = unsafe { OwnedFd::from_raw_fd(raw) };
    set_up(&fd, place, timeout);
    Ok(fd)
}

/// Sets large buffers on a Unix socket, and TCP_NODELAY on TCP. TCP buffers are left to the kernel's autotuning. A size
/// set here would turn autotuning off, and would often be smaller (`net.core.rmem_max`). Errors are ignored, because
/// they only make I/O slower.
fn set_up(fd: &OwnedFd, place: &Place, timeout: Duration) {
    match place {
        Place::Unix(..) => {
            for name in [libc::SO_SNDBUF, libc::SO_RCVBUF] {
                set(fd, libc::SOL_SOCKET, name, &BUFFER_BYTES);
            }
        }
        Place::Tcp(_) => {
            set(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1);
            give_up_after(fd, timeout / 3);
        }
    }
}

/// Makes the socket fail if the other host has acknowledged nothing for `silence`, and makes it probe a quiet
/// connection. A host that is gone sends no error, and its requests must be sent again before they are overdue. The
/// time is at least a second, because TCP retransmits a lost packet only after a fraction of a second.
fn give_up_after(fd: &OwnedFd, silence: Duration) {
    let seconds = |time: Duration, most: u64| time.as_secs().clamp(1, most) as libc::c_int;
    let millis = silence.as_millis().clamp(1000, i32::MAX as u128) as libc::c_int;
    set(fd, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, &millis);
    // At most half a minute of quiet and half a minute of probes.
    set(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, &seconds(silence / 2, 30));
    set(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, &seconds(silence / 10, 6));
    set(fd, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, &PROBES);
    set(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, &1);
}

fn set<T: Copy>(fd: &OwnedFd, level: libc::c_int, name: libc::c_int, value: &T) {
    let (at, len) = ((&raw const *value).cast(), size_of::<T>() as libc::socklen_t);
    // SAFETY: the value is read during the call alone.
    let _ = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, at, len) };
}

/// A stream with blocking calls, each with a timeout.
#[derive(Debug)]
pub(crate) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    /// Connects within the time `within`. `timeout` is that of requests, like in [`new`].
    pub(crate) fn connect(place: &Place, within: Duration, timeout: Duration) -> io::Result<Stream> {
        match place {
            Place::Unix(path, _) => connect_unix(place, path, (within, timeout)).map(Stream::Unix),
            Place::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, within)?;
                let fd = OwnedFd::from(stream);
                set_up(&fd, place, timeout);
                Ok(Stream::Tcp(TcpStream::from(fd)))
            }
        }
    }

    /// Wraps a connected socket.
    pub(crate) fn of(fd: OwnedFd, place: &Place) -> Stream {
        match place {
            Place::Unix(..) => Stream::Unix(fd.into()),
            Place::Tcp(_) => Stream::Tcp(fd.into()),
        }
    }

    /// Sets the timeout of each following call.
    pub(crate) fn limit(&self, to: Duration) -> io::Result<()> {
        let to = Some(to.max(Duration::from_millis(1)));
        match self {
            Stream::Unix(stream) => stream.set_read_timeout(to).and_then(|()| stream.set_write_timeout(to)),
            Stream::Tcp(stream) => stream.set_read_timeout(to).and_then(|()| stream.set_write_timeout(to)),
        }
    }

    /// Returns the descriptor, without timeouts.
    pub(crate) fn into_fd(self) -> io::Result<OwnedFd> {
        match self {
            Stream::Unix(stream) => {
                stream.set_read_timeout(None).and_then(|()| stream.set_write_timeout(None))?;
                Ok(stream.into())
            }
            Stream::Tcp(stream) => {
                stream.set_read_timeout(None).and_then(|()| stream.set_write_timeout(None))?;
                Ok(stream.into())
            }
        }
    }
}

impl io::Read for Stream {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => stream.read(to),
            Stream::Tcp(stream) => stream.read(to),
        }
    }
}

impl io::Write for Stream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => stream.write(from),
            Stream::Tcp(stream) => stream.write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns true if the peer has closed one of these sockets.
pub(crate) fn any_ended(sockets: &[Arc<OwnedFd>]) -> bool {
    let of = |fd: &Arc<OwnedFd>| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
    let mut all: Vec<libc::pollfd> = sockets.iter().map(of).collect();
    loop {
        // SAFETY: `all` has `all.len()` entries and is used during the call alone; a timeout of 0 makes it return at
        // once.
        let ready = unsafe { libc::poll(all.as_mut_ptr(), all.len() as libc::nfds_t, 0) };
        // An error counts as closed: a flush then fails for nothing, but never reports lost writes as durable.
        if ready >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return ready != 0;
        }
    }
}

/// Connects to a Unix socket, and waits at most `within` for the server to accept. That works because the kernel
/// applies the send timeout to `connect`.
fn connect_unix(place: &Place, path: &str, (within, timeout): (Duration, Duration)) -> io::Result<UnixStream> {
    let fd = new(place, timeout)?;
    let limit = libc::timeval { tv_sec: within.as_secs() as libc::time_t, tv_usec: within.subsec_micros().into() };
    set(&fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO, &limit);
    // SAFETY: the structure is of integers alone, for which zeroes are right.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    if path.len() >= address.sun_path.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    address.sun_path.iter_mut().zip(path.bytes()).for_each(|(to, from)| *to = from as libc::c_char);
    let len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    let until = Instant::now() + within;
    loop {
        // SAFETY: the address is read during the call alone.
        let connected = unsafe { libc::connect(fd.as_raw_fd(), (&raw const address).cast(), len) };
        if connected == 0 {
            return Ok(UnixStream::from(fd));
        }
        let error = io::Error::last_os_error();
        // A signal interrupts the wait for `accept` before anything is connected, so the call can be repeated.
        if error.kind() != io::ErrorKind::Interrupted || Instant::now() >= until {
            return Err(error);
        }
    }
}

/// Sends without waiting and ignores errors. Called before a socket is closed.
pub(crate) fn send_now(fd: &OwnedFd, bytes: &[u8]) {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the bytes are read during the call alone.
    let _ = unsafe { libc::send(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
}

#[cfg(test)]
mod tests {
    use rustix::net::sockopt;

    use super::*;

    #[test]
    fn the_kernel_sizes_the_buffers_of_tcp_itself() {
        let place = Place::Tcp(([127, 0, 0, 1], 1).into());
        let ours = new(&place, Duration::from_secs(30)).expect("a socket");
        let untouched = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None);
        let untouched = untouched.expect("a socket");
        let size = |fd: &OwnedFd| (sockopt::socket_send_buffer_size(fd), sockopt::socket_recv_buffer_size(fd));
        assert_eq!(size(&ours), size(&untouched));
        assert!(sockopt::socket_keepalive(&ours).expect("asked"));
    }
}
