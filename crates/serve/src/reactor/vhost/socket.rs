//! The socket of a front-end: messages with descriptors in, replies out. Nothing here waits.
//!
//! Owns the part of a message that has arrived. Does not own the meaning of messages.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use sheave_vhost::session::Header;
use sheave_vhost::wire::MAX_BODY;
use sheave_vhost::{Reply, Session};

/// Most descriptors of a message: one for each region of a table of memory.
const MAX_FDS: usize = 8;
const HEADER: usize = 12;

/// A message whose bytes have all arrived.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) header: Header,
    pub(super) body: Vec<u8>,
    pub(super) fds: Vec<OwnedFd>,
}

/// The state of a socket after a look.
#[derive(Debug)]
pub(super) enum Read {
    Message(Message),
    /// The rest of the message has not arrived.
    Later,
    /// The front-end has closed the connection.
    Closed,
    /// The front-end has broken the protocol, for this reason.
    Broken(String),
}

/// A message that is arriving.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
    header: Option<Header>,
    fds: Vec<OwnedFd>,
}

impl Inbox {
    /// Returns the bytes of the message that is arriving, and its descriptors.
    pub(super) fn into_parts(self) -> (Vec<u8>, Vec<OwnedFd>) {
        (self.bytes, self.fds)
    }

    /// Goes on with bytes and descriptors of a message that has arrived in part. Fails, with the reason, if these
    /// cannot be the beginning of a message.
    pub(super) fn from_parts(bytes: Vec<u8>, fds: Vec<OwnedFd>) -> Result<Inbox, String> {
        let mut inbox = Inbox { bytes, header: None, fds };
        if let Some(header) = inbox.bytes.first_chunk::<HEADER>() {
            inbox.header = Some(Session::header(*header).map_err(|broken| broken.to_string())?);
        }
        let whole = HEADER + inbox.header.as_ref().map_or(0, |header| header.len);
        match inbox.bytes.len() > whole || inbox.fds.len() > MAX_FDS {
            true => Err("more bytes or descriptors came than its message has".into()),
            false => Ok(inbox),
        }
    }

    /// Reads as much of the next message as has arrived. Never reads beyond its end, because descriptors belong to the
    /// message whose bytes they come with.
    pub(super) fn read(&mut self, socket: BorrowedFd<'_>) -> Read {
        loop {
            let whole = HEADER + self.header.as_ref().map_or(0, |header| header.len);
            if self.bytes.len() == whole {
                match self.next() {
                    Ok(Some(message)) => return Read::Message(message),
                    Ok(None) => continue,
                    Err(why) => return Read::Broken(why),
                }
            }
            match self.receive(socket, whole) {
                Ok(0) if self.bytes.is_empty() => return Read::Closed,
                Ok(0) => return Read::Broken("it closed the connection within a message".into()),
                Ok(_) if self.fds.len() > MAX_FDS => {
                    return Read::Broken(format!("it sent more than {MAX_FDS} descriptors with a message"));
                }
                Ok(_) => {}
                Err(Errno::AGAIN) => return Read::Later,
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => return Read::Closed,
                Err(errno) => return Read::Broken(format!("its socket cannot be read: {errno}")),
            }
        }
    }

    /// Called when header, or header and body, are complete. Returns the message once it is.
    fn next(&mut self) -> Result<Option<Message>, String> {
        if self.header.is_none() {
            let bytes: [u8; HEADER] = self.bytes[..HEADER].try_into().map_err(|_| String::from("no header"))?;
            let header = Session::header(bytes).map_err(|broken| broken.to_string())?;
            self.header = Some(header);
        }
        let Some(header) = self.header.take_if(|header| self.bytes.len() == HEADER + header.len) else {
            return Ok(None);
        };
        let body = self.bytes.split_off(HEADER);
        self.bytes.clear();
        Ok(Some(Message { header, body, fds: std::mem::take(&mut self.fds) }))
    }

    /// Receives bytes until `whole` are there. Returns the number received.
    fn receive(&mut self, socket: BorrowedFd<'_>, whole: usize) -> Result<usize, Errno> {
        let mut bytes = [0; HEADER + MAX_BODY];
        let wanted = &mut bytes[..whole - self.bytes.len()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS + 1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let got = recvmsg(socket, &mut [IoSliceMut::new(wanted)], &mut control, flags)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.fds.extend(fds);
            }
        }
        if got.flags.contains(ReturnFlags::CTRUNC) && self.fds.len() <= MAX_FDS {
            // Descriptors were lost: this process has no room for more.
            return Err(Errno::MFILE);
        }
        self.bytes.extend_from_slice(&bytes[..got.bytes]);
        Ok(got.bytes)
    }
}

/// Sends a reply. Fails, in words, if the front-end has left, or takes no replies: a reply is short, and it sends no
/// more than one request before it reads the reply.
pub(super) fn send(socket: BorrowedFd<'_>, reply: &Reply) -> Result<(), String> {
    let fd = reply.fd.as_ref().map(|fd| [fd.as_fd()]);
    send_bytes(socket, &reply.bytes, fd.as_ref())
}

/// Sends bytes, and a descriptor if there is one.
pub(super) fn send_bytes(socket: BorrowedFd<'_>, bytes: &[u8], fd: Option<&[BorrowedFd<'_>; 1]>) -> Result<(), String> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if let Some(fd) = fd {
        let fits = control.push(SendAncillaryMessage::ScmRights(fd));
        debug_assert!(fits, "there is room for one");
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags) {
        Ok(sent) if sent == bytes.len() => Ok(()),
        Ok(_) | Err(Errno::AGAIN) => Err("it does not read its replies".into()),
        Err(errno) => Err(format!("a reply could not be sent: {errno}")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// The bytes of GET_FEATURES, and of a message with a body of 8 bytes.
    fn messages() -> (Vec<u8>, Vec<u8>) {
        let header = |request: u32, len: u32| [request, 1, len].map(u32::to_ne_bytes).concat();
        (header(1, 0), [header(2, 8), vec![7; 8]].concat())
    }

    #[test]
    fn a_message_is_complete_when_its_last_byte_has_come() {
        let (mut client, server) = UnixStream::pair().expect("a pair");
        let (short, long) = messages();
        let mut inbox = Inbox::default();
        for byte in [&short[..], &long].concat().chunks(1) {
            assert!(matches!(inbox.read(server.as_fd()), Read::Later));
            client.write_all(byte).expect("sent");
            if let Read::Message(message) = inbox.read(server.as_fd()) {
                assert!(message.body.is_empty() || message.body == [7; 8], "{message:?}");
            }
        }
        client.write_all(&[&long[..], &short].concat()).expect("sent");
        for len in [8, 0] {
            let Read::Message(message) = inbox.read(server.as_fd()) else { panic!("both are there") };
            assert_eq!(message.body.len(), len);
        }
        client.write_all(&long[..13]).expect("sent");
        drop(client);
        assert!(matches!(inbox.read(server.as_fd()), Read::Broken(_)), "it ends within a message");
    }

    #[test]
    fn too_many_descriptors_break_the_connection() {
        let (client, server) = UnixStream::pair().expect("a pair");
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [client.as_fd(); 32];
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(&client, &[IoSlice::new(&messages().0)], &mut control, SendFlags::empty()).expect("sent");
        assert!(matches!(Inbox::default().read(server.as_fd()), Read::Broken(_)));
    }

    #[test]
    fn a_front_end_that_reads_nothing_gets_no_endless_replies() {
        let (_client, server) = UnixStream::pair().expect("a pair");
        let failed = (0..100_000).any(|_| send_bytes(server.as_fd(), &[0; 200], None).is_err());
        assert!(failed, "the socket takes more than 20 MB");
    }
}
