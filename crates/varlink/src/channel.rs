//! A connection: messages and descriptors, sent and received with a deadline.
//!
//! Descriptors are sent as `SCM_RIGHTS` together with bytes, and belong to the next complete message. Descriptors that
//! are not taken are closed. A deadline applies to a complete message, so a peer gains no time by sending or receiving
//! single bytes now and then.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

use crate::framer::Framer;

/// Maximum number of descriptors that wait for the end of their message.
pub const MAX_FDS: usize = 4;
/// Size of the receive buffer.
const AT_ONCE: usize = 16 << 10;

/// A received message.
#[derive(Debug)]
pub struct Received {
    /// The message without its NUL.
    pub bytes: Vec<u8>,
    /// Descriptors that were passed with it.
    pub fds: Vec<OwnedFd>,
}

/// One end of a connection.
#[derive(Debug)]
pub struct Channel {
    stream: UnixStream,
    framer: Framer,
    fds: Vec<OwnedFd>,
}

impl Channel {
    /// Wraps a socket, for messages of at most `message_bytes`.
    ///
    /// # Errors
    ///
    /// Returns an error if the socket cannot be made non-blocking.
    pub fn new(stream: UnixStream, message_bytes: usize) -> io::Result<Channel> {
        stream.set_nonblocking(true)?;
        Ok(Channel { stream, framer: Framer::new(message_bytes), fds: Vec::new() })
    }

    /// Returns the socket.
    #[must_use]
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Returns true if the other end has disconnected.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        let mut polled = [PollFd::new(&self.stream, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let found = rustix::event::poll(&mut polled, Some(&now));
        found.is_ok() && polled[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR)
    }

    /// Returns true if a message was received in part, or was not taken yet.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.framer.has_begun()
    }

    /// Receives the next message. Returns `None` if the other end disconnected between messages. The message must begin
    /// within `idle`, and be complete within `whole` after that.
    ///
    /// # Errors
    ///
    /// Returns an error that ends the connection: a timeout, a message that is too long, too many descriptors, or a
    /// disconnect within a message.
    pub fn receive(&mut self, idle: Option<Duration>, whole: Duration) -> io::Result<Option<Received>> {
        let mut until = idle.map(|idle| Instant::now() + idle);
        let mut begun = self.framer.has_begun();
        if begun {
            until = Some(Instant::now() + whole);
        }
        loop {
            if let Some(bytes) = self.framer.take().map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))? {
                return Ok(Some(Received { bytes, fds: std::mem::take(&mut self.fds) }));
            }
            wait(self.stream.as_fd(), PollFlags::IN, until)?;
            match self.take_some() {
                Ok(0) if self.framer.has_begun() => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(0) => return Ok(None),
                Ok(_) if !begun => {
                    begun = true;
                    until = Some(Instant::now() + whole);
                }
                Ok(_) => {}
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn take_some(&mut self) -> Result<usize, Errno> {
        let mut bytes = [0; AT_ONCE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut vectors = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let got = rustix::net::recvmsg(&self.stream, &mut vectors, &mut control, flags)?.bytes;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.fds.extend(fds);
            }
        }
        if self.fds.len() > MAX_FDS {
            return Err(Errno::TOOMANYREFS);
        }
        self.framer.push(&bytes[..got]);
        Ok(got)
    }

    /// Sends a message, which the other end must receive within `whole`.
    ///
    /// # Errors
    ///
    /// Returns an error that ends the connection.
    pub fn send(&self, message: &[u8], fds: &[BorrowedFd<'_>], whole: Duration) -> io::Result<()> {
        let until = Some(Instant::now() + whole);
        let bytes = [message, &[0]].concat();
        let (mut at, mut fds) = (0, fds);
        while at < bytes.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors for one message"));
            }
            let vectors = [IoSlice::new(&bytes[at..])];
            match rustix::net::sendmsg(&self.stream, &vectors, &mut control, SendFlags::NOSIGNAL) {
                Ok(sent) => {
                    at += sent;
                    fds = &[];
                }
                Err(Errno::AGAIN) => wait(self.stream.as_fd(), PollFlags::OUT, until)?,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Waits until the socket is ready, or until the deadline.
fn wait(fd: BorrowedFd<'_>, flags: PollFlags, until: Option<Instant>) -> io::Result<()> {
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let left = left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
        match rustix::event::poll(&mut [PollFd::from_borrowed_fd(fd, flags)], left.as_ref()) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}
