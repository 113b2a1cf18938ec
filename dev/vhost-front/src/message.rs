//! Messages of the vhost-user protocol on a socket: their numbers, their header, and descriptors beside their bytes.
//!
//! Owns [`Channel`], which sends and receives any message, also malformed ones. The front-end, the back-end channel and
//! programs that stand for a back-end use it. Its callers make the payloads. All numbers of the protocol have
//! the byte order of the machine, and this crate runs on little-endian machines only.
//!
//! - M1: a received message has at most [`MOST_BYTES`] bytes and [`MOST_FDS`] descriptors.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

use crate::error::{Error, Result};

/// Number of bytes of a header.
pub const HEADER_LEN: usize = 12;
/// Largest payload that is received.
pub const MOST_BYTES: usize = 64 << 10;
/// Largest number of descriptors that a message carries.
pub const MOST_FDS: usize = 32;

/// Version of the protocol, in the flags of each message.
pub const VERSION: u32 = 1;
/// Flag of a reply.
pub const REPLY: u32 = 1 << 2;
/// Flag that asks for an acknowledgement.
pub const NEED_REPLY: u32 = 1 << 3;

/// Time that a call waits for a back-end, unless [`Channel::set_timeout`] changes it.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Declares the numbers of messages, and their names for errors.
macro_rules! requests {
    ($($name:ident = $number:literal,)*) => {
        $(#[doc = concat!("Number of the message ", stringify!($name), ".")]
        pub const $name: u32 = $number;)*

        /// Returns the name of a message of the front-end, or "a message without a name".
        pub fn name(request: u32) -> &'static str {
            match request {
                $($number => stringify!($name),)*
                _ => "a message without a name",
            }
        }
    };
}

/// Messages of the front-end.
pub mod request {
    requests! {
        GET_FEATURES = 1,
        SET_FEATURES = 2,
        SET_OWNER = 3,
        RESET_OWNER = 4,
        SET_MEM_TABLE = 5,
        SET_LOG_BASE = 6,
        SET_LOG_FD = 7,
        SET_VRING_NUM = 8,
        SET_VRING_ADDR = 9,
        SET_VRING_BASE = 10,
        GET_VRING_BASE = 11,
        SET_VRING_KICK = 12,
        SET_VRING_CALL = 13,
        SET_VRING_ERR = 14,
        GET_PROTOCOL_FEATURES = 15,
        SET_PROTOCOL_FEATURES = 16,
        GET_QUEUE_NUM = 17,
        SET_VRING_ENABLE = 18,
        SET_BACKEND_REQ_FD = 21,
        GET_CONFIG = 24,
        SET_CONFIG = 25,
        GET_INFLIGHT_FD = 31,
        SET_INFLIGHT_FD = 32,
        RESET_DEVICE = 34,
        GET_MAX_MEM_SLOTS = 36,
        ADD_MEM_REG = 37,
        REM_MEM_REG = 38,
        SET_STATUS = 39,
        GET_STATUS = 40,
    }
}

/// Messages of the back-end.
pub mod backend_request {
    requests! {
        IOTLB_MSG = 1,
        CONFIG_CHANGE_MSG = 2,
    }
}

/// A received message.
#[derive(Debug)]
pub struct Message {
    /// Number of the message.
    pub request: u32,
    /// Version, and the flags [`REPLY`] and [`NEED_REPLY`].
    pub flags: u32,
    /// Payload.
    pub body: Vec<u8>,
    /// Descriptors that came beside the payload.
    pub fds: Vec<OwnedFd>,
}

impl Message {
    /// Returns the 32-bit number at an offset of the payload, or `None` if the payload is too short.
    pub fn u32_at(&self, offset: usize) -> Option<u32> {
        Some(u32::from_ne_bytes(self.body.get(offset..offset + 4)?.try_into().ok()?))
    }

    /// Returns the 64-bit number at an offset of the payload, or `None` if the payload is too short.
    pub fn u64_at(&self, offset: usize) -> Option<u64> {
        Some(u64::from_ne_bytes(self.body.get(offset..offset + 8)?.try_into().ok()?))
    }
}

/// A connected socket for messages.
#[derive(Debug)]
pub struct Channel {
    socket: UnixStream,
}

impl Channel {
    /// Closes the connection in both directions.
    pub fn hang_up(&self) {
        // Fails if the back-end has closed it already.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }

    /// Connects to a socket.
    pub fn connect(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let socket = UnixStream::connect(path)
            .map_err(|error| Error::system(format!("cannot connect to {}", path.display()), error))?;
        Channel::new(socket)
    }

    /// Uses a connected socket.
    pub fn new(socket: UnixStream) -> Result<Self> {
        let channel = Channel { socket };
        channel.set_timeout(PATIENCE)?;
        Ok(channel)
    }

    /// Returns two channels that are connected with each other.
    pub fn pair() -> Result<(Self, Self)> {
        let (a, b) = UnixStream::pair().map_err(|error| Error::system("cannot make a pair of sockets", error))?;
        Ok((Channel::new(a)?, Channel::new(b)?))
    }

    /// Returns the socket.
    pub fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Sets the time that [`Channel::receive`] and [`Channel::send`] wait.
    pub fn set_timeout(&self, timeout: Duration) -> Result<()> {
        let set = self.socket.set_read_timeout(Some(timeout));
        set.and_then(|()| self.socket.set_write_timeout(Some(timeout)))
            .map_err(|error| Error::system("cannot set the timeout of a socket", error))
    }

    /// Sends a message with a correct length in its header.
    pub fn send(&self, request: u32, flags: u32, body: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
        let header = [request, flags, body.len() as u32].map(u32::to_ne_bytes).concat();
        self.send_bytes(&[&header[..], body].concat(), fds)
    }

    /// Sends bytes as they are. The descriptors go with the first byte.
    pub fn send_bytes(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(beside.push(SendAncillaryMessage::ScmRights(fds)), "at most {MOST_FDS} descriptors (M1)");
        }
        let mut sent = 0;
        while sent < bytes.len() {
            match sendmsg(&self.socket, &[IoSlice::new(&bytes[sent..])], &mut beside, SendFlags::NOSIGNAL) {
                Ok(count) => {
                    sent += count;
                    beside.clear();
                }
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(Error::Closed("while a message was sent")),
                Err(Errno::AGAIN) => return Err(Error::Timeout("the socket takes no message")),
                Err(error) => return Err(Error::system("cannot send a message", error)),
            }
        }
        Ok(())
    }

    /// Receives the next message.
    pub fn receive(&self) -> Result<Message> {
        let (mut header, mut fds) = ([0; HEADER_LEN], Vec::new());
        self.receive_exact(&mut header, &mut fds)?;
        let word = |at: usize| u32::from_ne_bytes(std::array::from_fn(|n| header[at + n]));
        let (request, flags, len) = (word(0), word(4), word(8) as usize);
        if len > MOST_BYTES {
            let why = format!("its payload has {len} bytes, and at most {MOST_BYTES} are received");
            return Err(Error::Reply { request: request::name(request), why });
        }
        let mut body = vec![0; len];
        self.receive_exact(&mut body, &mut fds)?;
        Ok(Message { request, flags, body, fds })
    }

    fn receive_exact(&self, into: &mut [u8], fds: &mut Vec<OwnedFd>) -> Result<()> {
        let mut filled = 0;
        while filled < into.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
            let mut beside = RecvAncillaryBuffer::new(&mut space);
            let part = &mut [IoSliceMut::new(&mut into[filled..])];
            match recvmsg(&self.socket, part, &mut beside, RecvFlags::CMSG_CLOEXEC) {
                Ok(received) if received.bytes == 0 => return Err(Error::Closed("before it sent a message")),
                Ok(received) => filled += received.bytes,
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => return Err(Error::Closed("before it sent a message")),
                Err(Errno::AGAIN) => return Err(Error::Timeout("no message arrived")),
                Err(error) => return Err(Error::system("cannot receive a message", error)),
            }
            for message in beside.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = message {
                    fds.extend(rights);
                }
            }
        }
        Ok(())
    }

    /// Waits until the other end has closed the connection, and skips messages that arrive before. Returns false if the
    /// connection is open after `timeout` without a message.
    pub fn is_closed(&self, timeout: Duration) -> Result<bool> {
        self.set_timeout(timeout)?;
        let closed = loop {
            match self.receive() {
                Ok(_) => {}
                Err(Error::Closed(_)) => break true,
                Err(Error::Timeout(_)) => break false,
                Err(error) => return Err(error),
            }
        };
        self.set_timeout(PATIENCE)?;
        Ok(closed)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_message_arrives_with_its_bytes_and_descriptors() {
        let (a, b) = Channel::pair().expect("a pair");
        let file = tempfile::tempfile().expect("a file");
        a.send(request::SET_MEM_TABLE, VERSION | NEED_REPLY, &[7; 72], &[file.as_fd(), file.as_fd()]).expect("sent");
        a.send(request::GET_FEATURES, VERSION, &[], &[]).expect("sent");
        let first = b.receive().expect("received");
        assert_eq!((first.request, first.flags, &first.body[..], first.fds.len()), (5, 9, &[7; 72][..], 2));
        let second = b.receive().expect("received");
        assert_eq!((second.request, second.body.len(), second.fds.len()), (1, 0, 0));
    }

    #[test]
    fn an_announced_payload_beyond_the_bound_is_an_error() {
        let (a, b) = Channel::pair().expect("a pair");
        let header = [1, VERSION, u32::MAX].map(u32::to_ne_bytes).concat();
        a.send_bytes(&header, &[]).expect("sent");
        let error = b.receive().unwrap_err().to_string();
        assert!(error.contains("GET_FEATURES") && error.contains("4294967295"), "{error}");
    }

    #[test]
    fn a_closed_connection_is_told_from_a_silent_one() {
        let (a, b) = Channel::pair().expect("a pair");
        assert!(!b.is_closed(Duration::from_millis(1)).expect("asked"));
        a.send(request::SET_OWNER, VERSION, &[], &[]).expect("sent");
        drop(a);
        assert!(b.is_closed(PATIENCE).expect("asked"));
        assert!(matches!(b.send(1, VERSION, &[], &[]), Err(Error::Closed(_))));
    }
}
