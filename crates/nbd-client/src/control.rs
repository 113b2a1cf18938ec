//! A connection with blocking I/O: the first one of a device, and those that query the block status.
//!
//! Owns the socket, the handshake, TLS, and the queries of block status. The rings own requests for data. The thread
//! that opens a device waits for the handshake, at most `connect=`; the thread that copies a device waits for each
//! answer, at most `timeout=`.
//!
//! Invariants:
//! - B1: a block status is accepted only if it follows the protocol: one chunk, of the context that was requested, with
//!   at least one extent, none of them empty, and none but the last reaching beyond the requested range.
//! - B2: an answer allocates nothing but the extents that are kept, at most [`MAX_EXTENTS`], and ends after at most
//!   [`MAX_CHUNKS`] chunks.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sheave::{DeviceError, Extent};
use sheave_nbd::handshake::Mode;
use sheave_nbd::tls::Fed;
use sheave_nbd::wire::{
    EXTENDED_REPLY_MAGIC, ExtendedReply, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, SimpleReply, StructuredReply,
    chunk, cmd, state,
};
use zerocopy::FromBytes;

use crate::negotiation::{Agreed, Export, Negotiation, Wish};
use crate::request;
use crate::socket::Stream;
use crate::spec::{Place, Target};
use crate::tls::Secure;

/// Largest number of extents that are kept at a time. The caller queries again from the end of the last one.
const MAX_EXTENTS: usize = 1 << 16;
/// Largest number of queries for one list of extents.
const MAX_ASKED: u32 = 64;
/// Number of bytes that one query covers.
const ASK_BYTES: u64 = 1 << 30;
const MAX_CHUNKS: u32 = 16;
/// Largest number of extents in one chunk, according to the protocol.
const MAX_IN_CHUNK: u64 = 1 << 20;
/// Length of the longest error chunk: errno and text length, text, offset.
const MAX_ERROR: u64 = 6 + 4096 + 8;
const READ_BYTES: usize = 16 << 10;

/// The reason why a connection ended.
#[derive(Debug)]
enum Ended {
    Io(io::Error),
    /// TLS ended, for this reason.
    Tls(String),
}

impl From<io::Error> for Ended {
    /// Maps EAGAIN to a timeout, because the kernel reports the end of a socket's time limit with it.
    fn from(error: io::Error) -> Ended {
        let late = error.kind() == io::ErrorKind::WouldBlock;
        Ended::Io(if late { io::ErrorKind::TimedOut.into() } else { error })
    }
}

/// The reason why a query has no answer.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The connection is lost.
    Lost(String),
    /// The server refused with an errno of the protocol.
    Refused(u32),
    /// The server violated the protocol.
    Lie(&'static str),
}

impl From<Ended> for Fault {
    fn from(ended: Ended) -> Fault {
        Fault::Lost(match ended {
            Ended::Io(error) => error.to_string(),
            Ended::Tls(why) => why,
        })
    }
}

/// The connection with which the device was opened, as long as no ring has it.
#[derive(Debug)]
pub(crate) struct First {
    pub(crate) fd: Arc<OwnedFd>,
    pub(crate) secure: Option<Box<Secure>>,
    pub(crate) mode: Mode,
    pub(crate) allocation: Option<u32>,
}

#[derive(Debug)]
pub(crate) struct Control {
    stream: Stream,
    secure: Option<Box<Secure>>,
    /// Received bytes that are not consumed.
    input: Vec<u8>,
    mode: Mode,
    allocation: Option<u32>,
    cookie: u64,
}

impl Control {
    /// Makes the first connection of a device, to the first address of the host at which a server answers. Later
    /// connections use the same address.
    ///
    /// # Errors
    ///
    /// Returns the cause. With several addresses it is that of the last one.
    pub(crate) fn first(target: &mut Target) -> Result<(Control, Export), DeviceError> {
        let mut others = std::mem::take(&mut target.others).into_iter();
        loop {
            let failed = match Control::connect(target, target.wish()) {
                Err(failed @ DeviceError::Host { .. }) => failed,
                done => return done,
            };
            target.place = Place::Tcp(others.next().ok_or(failed)?);
        }
    }

    /// Connects and negotiates the export.
    ///
    /// # Errors
    ///
    /// Returns the cause if that fails.
    pub(crate) fn connect(target: &Target, wish: Wish) -> Result<(Control, Export), DeviceError> {
        let failed = |source| DeviceError::Host {
            what: format!("connecting to the {}", target.words()),
            fix: "Is the server there, and does it take one more client?".into(),
            source,
        };
        let refused = |why: String| DeviceError::Driver(format!("{}: {why}", target.words()).into());
        let ended = |ended| match ended {
            Ended::Io(error) => failed(error),
            Ended::Tls(why) => refused(why),
        };
        let until = Instant::now() + target.connect;
        let stream = Stream::connect(&target.place, target.connect, target.timeout).map_err(failed)?;
        let (mode, input) = (Mode::Simple, Vec::new());
        let mut control = Control { stream, secure: None, input, mode, allocation: None, cookie: 0 };
        let mut negotiation = Negotiation::new(&target.export, wish, target.block_status);
        let mut out = Vec::new();
        loop {
            let (used, agreed) = negotiation.step(&control.input, &mut out).map_err(refused)?;
            control.input.drain(..used);
            match agreed {
                Some(Agreed::Export(export)) => {
                    (control.mode, control.allocation) = (export.mode, export.allocation);
                    return Ok((control, export));
                }
                Some(Agreed::Tls) => {
                    control.begin_tls(target, until).map_err(ended)?;
                    negotiation.secured(&mut out);
                }
                None if used > 0 => {}
                None => {
                    let more = control.say(&out, until).and_then(|()| control.more(until));
                    more.map_err(|why| ended(control.why_it_ended(why, until)))?;
                    out.clear();
                }
            }
        }
    }

    /// Returns the reason why a connection with TLS ended. With TLS 1.3 a server checks its client's certificate after
    /// the client has continued, so the server's alert may be readable only after the error of a write.
    fn why_it_ended(&mut self, ended: Ended, until: Instant) -> Ended {
        let error = match ended {
            Ended::Io(error) if self.secure.is_some() && error.kind() != io::ErrorKind::TimedOut => error,
            ended => return ended,
        };
        // The first read may return the socket's error once more. Only the next read then returns the bytes before it.
        for _ in 0..2 {
            if let Err(Ended::Tls(why)) = self.more(until) {
                return Ended::Tls(why);
            }
        }
        Ended::Tls(format!(
            "it ended the connection when TLS had begun ({error}). If it wants a certificate of its clients, give one \
             by cert=PATH and key=PATH that is issued by an authority that it knows"
        ))
    }

    /// Turns the first connection, which no ring has taken, into a control connection.
    ///
    /// # Errors
    ///
    /// Returns an error if this process has too many open files.
    pub(crate) fn of_first(first: First, target: &Target) -> io::Result<Control> {
        let First { fd, secure, mode, allocation } = first;
        // Another ring may be checking the socket just now, and then has a reference to it.
        let fd = Arc::try_unwrap(fd).or_else(|fd| fd.try_clone())?;
        let stream = Stream::of(fd, &target.place);
        Ok(Control { stream, secure, input: Vec::new(), mode, allocation, cookie: 0 })
    }

    /// Returns the connection in the form that a ring needs.
    ///
    /// # Errors
    ///
    /// Returns an error if the server has sent more than requested, or if the kernel does not remove the timeout.
    pub(crate) fn into_first(self) -> io::Result<First> {
        if !self.input.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the server sent what nobody asked for"));
        }
        let fd = Arc::new(self.stream.into_fd()?);
        Ok(First { fd, secure: self.secure, mode: self.mode, allocation: self.allocation })
    }

    fn begin_tls(&mut self, target: &Target, until: Instant) -> Result<(), Ended> {
        let tls = target.tls.as_ref().ok_or_else(|| Ended::Tls("it was not asked for TLS".into()))?;
        self.secure = Some(Box::new(Secure::new(tls).map_err(Ended::Tls)?));
        while self.secure.as_ref().is_some_and(|secure| !secure.is_established()) {
            self.pass_records(until)?;
            self.more(until)?;
        }
        self.pass_records(until)
    }

    /// Sends the records that are ready.
    fn pass_records(&mut self, until: Instant) -> Result<(), Ended> {
        let Some(secure) = &mut self.secure else { return Ok(()) };
        limit(&self.stream, until)?;
        if let Some(records) = secure.take_to_send() {
            self.stream.write_all(records)?;
            secure.sent();
        }
        Ok(())
    }

    fn say(&mut self, bytes: &[u8], until: Instant) -> Result<(), Ended> {
        let Some(secure) = &mut self.secure else {
            limit(&self.stream, until)?;
            return Ok(self.stream.write_all(bytes)?);
        };
        let mut left = bytes;
        let more = |place: &mut [u8]| {
            let (now, rest) = left.split_at(left.len().min(place.len()));
            place[..now.len()].copy_from_slice(now);
            left = rest;
            now.len()
        };
        secure.encrypt(more).map_err(Ended::Tls)?;
        self.pass_records(until)
    }

    /// Waits for more bytes.
    fn more(&mut self, until: Instant) -> Result<(), Ended> {
        limit(&self.stream, until)?;
        let mut buffer = [0; READ_BYTES];
        let room = match &mut self.secure {
            Some(secure) => secure.room(),
            None => &mut buffer,
        };
        let many = match self.stream.read(room) {
            // The kernel does not restart a call with a timeout after a signal, such as one from a ring of this thread.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            read => read?,
        };
        let closed = || {
            let words = "it closed the connection; in the handshake a server without that export may do so";
            Ended::Io(io::Error::new(io::ErrorKind::UnexpectedEof, words))
        };
        if many == 0 {
            return Err(closed());
        }
        let Control { secure, input, .. } = self;
        let Some(secure) = secure else {
            input.extend_from_slice(&buffer[..many]);
            return Ok(());
        };
        match secure.received(many, |said| input.extend_from_slice(said)) {
            Ok(Fed::Open) => self.pass_records(until),
            Ok(Fed::Closed) => Err(closed()),
            Err(why) => {
                // Send the server the alert that names its error, if it still receives.
                let _ = secure.received(0, |_| {});
                let _ = self.pass_records(until);
                Err(Ended::Tls(why))
            }
        }
    }

    /// Returns the next `N` received bytes. Waits for them if necessary.
    fn take<const N: usize>(&mut self, until: Instant) -> Result<[u8; N], Ended> {
        loop {
            if let Some(bytes) = self.input.first_chunk() {
                let bytes = *bytes;
                self.input.drain(..N);
                return Ok(bytes);
            }
            self.more(until)?;
        }
    }

    fn skip(&mut self, mut many: u64, until: Instant) -> Result<(), Ended> {
        while many > 0 {
            if self.input.is_empty() {
                self.more(until)?;
            }
            let now = many.min(self.input.len() as u64);
            self.input.drain(..now as usize);
            many -= now;
        }
        Ok(())
    }

    /// Appends the extents from `from` on that a few queries return, but none beyond `end`.
    ///
    /// # Errors
    ///
    /// Returns the cause. Extents of earlier queries stay in the list.
    pub(crate) fn extents(
        &mut self,
        (from, end): (u64, u64),
        timeout: Duration,
        extents: &mut Vec<Extent>,
    ) -> Result<(), Fault> {
        let mut at = from;
        for _ in 0..MAX_ASKED {
            if at >= end || extents.len() >= MAX_EXTENTS {
                break;
            }
            at += self.ask((at, end), Instant::now() + timeout, extents)?;
        }
        Ok(())
    }

    /// Sends one query. Returns the number of bytes that the kept extents cover.
    fn ask(&mut self, (from, end): (u64, u64), until: Instant, extents: &mut Vec<Extent>) -> Result<u64, Fault> {
        let asked = (end - from).min(ASK_BYTES);
        self.cookie += 1;
        let (head, len) = request::head(self.mode, (cmd::BLOCK_STATUS, 0), self.cookie, from, asked as u32);
        self.say(&head[..len], until)?;
        let (mut covered, mut failed) = (None, None);
        for _ in 0..MAX_CHUNKS {
            let (kind, done, len) = self.chunk(until)?;
            match kind {
                chunk::NONE if len == 0 => {}
                chunk::BLOCK_STATUS | chunk::BLOCK_STATUS_EXT if covered.is_some() => {
                    return Err(Fault::Lie("it tells its extents twice"));
                }
                chunk::BLOCK_STATUS | chunk::BLOCK_STATUS_EXT => {
                    let extended = kind == chunk::BLOCK_STATUS_EXT;
                    covered = Some(self.statuses(extended, len, (asked, end - from), until, extents)?);
                }
                _ if kind & (1 << 15) != 0 && (6..=MAX_ERROR).contains(&len) => {
                    failed = Some(u32::from_be_bytes(self.take(until)?));
                    self.skip(len - 4, until)?;
                }
                _ => return Err(Fault::Lie("it answers with a chunk that nobody asked for, or of the wrong length")),
            }
            match (done, failed, covered) {
                (false, ..) => {}
                (true, Some(errno), _) => return Err(Fault::Refused(errno)),
                (true, None, Some(covered)) => return Ok(covered),
                (true, None, None) => return Err(Fault::Lie("it answers without an extent")),
            }
        }
        Err(Fault::Lie("its answer does not come to an end"))
    }

    /// Reads the header of the next chunk. Returns its type, true if it is the last, and its length. Refuses simple
    /// replies, which have an error or no extents.
    fn chunk(&mut self, until: Instant) -> Result<(u16, bool, u64), Fault> {
        const OTHER: Fault = Fault::Lie("it answers what it was not asked");
        loop {
            let magic = self.input.first_chunk().map(|magic| u32::from_be_bytes(*magic));
            let found = match (magic, self.mode) {
                (None, _) => None,
                (Some(SIMPLE_REPLY_MAGIC), Mode::Structured) => {
                    SimpleReply::read_from_prefix(&self.input).ok().map(|(head, _)| match head.error.get() {
                        _ if head.cookie.get() != self.cookie => Err(OTHER),
                        0 => Err(Fault::Lie("it answers without an extent")),
                        errno => Err(Fault::Refused(errno)),
                    })
                }
                (Some(STRUCTURED_REPLY_MAGIC), Mode::Structured) => {
                    StructuredReply::read_from_prefix(&self.input).ok().map(|(head, _)| {
                        let of = (head.kind.get(), head.flags.get() & chunk::DONE != 0, u64::from(head.len.get()));
                        Ok((size_of_val(&head), head.cookie.get(), of))
                    })
                }
                (Some(EXTENDED_REPLY_MAGIC), Mode::Extended) => {
                    ExtendedReply::read_from_prefix(&self.input).ok().map(|(head, _)| {
                        let of = (head.kind.get(), head.flags.get() & chunk::DONE != 0, head.len.get());
                        Ok((size_of_val(&head), head.cookie.get(), of))
                    })
                }
                _ => return Err(Fault::Lie("it sent what is no reply")),
            };
            match found {
                None => self.more(until)?,
                Some(found) => {
                    let (head, cookie, of) = found?;
                    self.input.drain(..head);
                    return if cookie == self.cookie { Ok(of) } else { Err(OTHER) };
                }
            }
        }
    }

    /// Reads the extents of a chunk (B1). Returns the number of bytes that the kept extents cover.
    fn statuses(
        &mut self,
        extended: bool,
        len: u64,
        (asked, left): (u64, u64),
        until: Instant,
        extents: &mut Vec<Extent>,
    ) -> Result<u64, Fault> {
        let (head, each) = if extended { (8, 16) } else { (4, 8) };
        let many = len.saturating_sub(head) / each;
        if extended && self.mode != Mode::Extended || many == 0 || many > MAX_IN_CHUNK || len != head + many * each {
            return Err(Fault::Lie("it tells its extents in an impossible length"));
        }
        if Some(u32::from_be_bytes(self.take(until)?)) != self.allocation {
            return Err(Fault::Lie("it tells of a metadata context that it was not asked for"));
        }
        if extended {
            let told = u64::from(u32::from_be_bytes(self.take(until)?));
            if told != 0 && told != many {
                return Err(Fault::Lie("it tells another number of extents than it sends"));
            }
        }
        let (mut told, mut kept) = (0u64, 0);
        for _ in 0..many {
            let (bytes, flags) = if extended {
                (u64::from_be_bytes(self.take(until)?), u64::from_be_bytes(self.take(until)?))
            } else {
                let (bytes, flags) = (self.take(until)?, self.take(until)?);
                (u64::from(u32::from_be_bytes(bytes)), u64::from(u32::from_be_bytes(flags)))
            };
            if bytes == 0 {
                return Err(Fault::Lie("it tells of an extent of no bytes"));
            }
            if told >= asked {
                return Err(Fault::Lie("it tells of extents behind those that it was asked for"));
            }
            // The last extent may reach beyond the query, but none beyond the end of the export.
            let bytes = bytes.min(left - told);
            told += bytes;
            let zero = flags & u64::from(state::ZERO) != 0;
            // An extent that continues the last one is merged into it, so it fits even into a full list.
            let is_full = extents.len() >= MAX_EXTENTS;
            match extents.last_mut() {
                _ if kept + bytes != told => continue, // An earlier extent was dropped, and a gap must not be skipped.
                Some(last) if last.zero == zero => last.len += bytes,
                _ if is_full => continue,
                _ => extents.push(Extent::new(bytes, zero)),
            }
            kept = told;
        }
        Ok(kept)
    }
}

/// Sets the timeout of the next call so that it ends at `until`.
fn limit(stream: &Stream, until: Instant) -> Result<(), Ended> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(Ended::Io(io::ErrorKind::TimedOut.into()));
    }
    Ok(stream.limit(left)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use sheave_nbd::wire;

    use super::*;

    use crate::rig::Server;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_first_connection_goes_to_the_address_that_has_the_server() {
        let server = Server::start(1 << 20, Mode::Structured);
        let (port, accepted) = server.front();
        // An address where nobody listens, and one that accepts connections and sends nothing.
        let mute = std::net::TcpListener::bind(("127.0.0.3", port)).expect("listening");
        let mut target = Target {
            spec: "nbd:host/disk".into(),
            place: Place::Tcp(([127, 0, 0, 2], port).into()),
            others: vec![mute.local_addr().expect("an address"), ([127, 0, 0, 1], port).into()],
            export: "disk".into(),
            connections: 1,
            timeout: SECOND,
            connect: SECOND / 4,
            read_only: false,
            assume_multi: false,
            block_status: true,
            tls: None,
        };
        let (_, export) = Control::first(&mut target).expect("connected");
        assert_eq!((export.size, accepted.lock().expect("nobody panics with it").len()), (1 << 20, 1));
        assert!(target.words().contains(&format!("127.0.0.1:{port}")), "later ones go there: {}", target.words());
        target.place = Place::Tcp(([127, 0, 0, 2], port).into());
        let error = Control::first(&mut target).expect_err("it has no other address").to_string();
        assert!(error.contains("127.0.0.2"), "{error}");
    }

    /// Queries a server that sends one of `answers` for each query.
    fn asked(mode: Mode, end: u64, answers: Vec<Vec<u8>>) -> (Vec<Extent>, Result<(), Fault>, Vec<u64>) {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        let server = std::thread::spawn(move || {
            let mut offsets = Vec::new();
            for answer in answers {
                let mut request = vec![0; if mode == Mode::Extended { 32 } else { 28 }];
                if theirs.read_exact(&mut request).is_err() {
                    break;
                }
                assert_eq!(request[6..8], cmd::BLOCK_STATUS.to_be_bytes());
                assert_eq!(request[8..16], (offsets.len() as u64 + 1).to_be_bytes(), "the cookie");
                offsets.push(u64::from_be_bytes(request[16..24].try_into().expect("eight bytes")));
                // The client closes the connection once it has refused an answer.
                let _ = theirs.write_all(&answer);
            }
            offsets
        });
        let stream = Stream::Unix(ours);
        let mut control = Control { stream, secure: None, input: Vec::new(), mode, allocation: Some(7), cookie: 0 };
        let mut extents = Vec::new();
        let result = control.extents((0, end), SECOND, &mut extents);
        drop(control);
        (extents, result, server.join().expect("the server did not panic"))
    }

    fn chunk_of(mode: Mode, cookie: u64, done: bool, kind: u16, body: &[u8]) -> Vec<u8> {
        let head = (u16::from(done), kind, cookie);
        let mut bytes = Vec::new();
        let magic = if mode == Mode::Extended { wire::EXTENDED_REPLY_MAGIC } else { wire::STRUCTURED_REPLY_MAGIC };
        bytes.extend(magic.to_be_bytes());
        bytes.extend(head.0.to_be_bytes());
        bytes.extend(head.1.to_be_bytes());
        bytes.extend(head.2.to_be_bytes());
        if mode == Mode::Extended {
            bytes.extend(0u64.to_be_bytes());
            bytes.extend((body.len() as u64).to_be_bytes());
        } else {
            bytes.extend((body.len() as u32).to_be_bytes());
        }
        bytes.extend(body);
        bytes
    }

    fn list(context: u32, extents: &[(u32, u32)]) -> Vec<u8> {
        let mut body = context.to_be_bytes().to_vec();
        extents.iter().for_each(|(len, flags)| body.extend([len.to_be_bytes(), flags.to_be_bytes()].concat()));
        body
    }

    /// Returns an answer in one chunk.
    fn status(cookie: u64, context: u32, extents: &[(u32, u32)]) -> Vec<u8> {
        chunk_of(Mode::Structured, cookie, true, chunk::BLOCK_STATUS, &list(context, extents))
    }

    fn shown(extents: &[Extent]) -> Vec<(u64, bool)> {
        extents.iter().map(|extent| (extent.len, extent.zero)).collect()
    }

    #[test]
    fn neighbours_become_one_and_what_is_missing_is_asked_for() {
        let answers = vec![
            // A hole without the zero flag may hold any data.
            status(1, 7, &[(4096, 3), (4096, 2), (8192, 1), (512, 0)]),
            status(2, 7, &[(100_000, 3)]),
        ];
        let (extents, result, offsets) = asked(Mode::Structured, 65_536, answers);
        assert!(result.is_ok(), "{result:?}");
        assert_eq!(shown(&extents), [(8192, true), (8704, false), (65_536 - 16_896, true)], "cut at the end");
        assert_eq!(offsets, [0, 16_896]);
    }

    #[test]
    fn extended_replies_are_understood() {
        let mut body = [7u32.to_be_bytes(), 2u32.to_be_bytes()].concat();
        for number in [4096u64, 3, 1 << 40, 0] {
            body.extend(number.to_be_bytes());
        }
        let answer = chunk_of(Mode::Extended, 1, true, chunk::BLOCK_STATUS_EXT, &body);
        let (extents, result, _) = asked(Mode::Extended, 1 << 30, vec![answer]);
        assert!(result.is_ok(), "{result:?}");
        assert_eq!(shown(&extents), [(4096, true), ((1 << 30) - 4096, false)]);
    }

    #[test]
    fn more_extents_than_are_kept_are_asked_for_again_and_none_is_missing() {
        let many = (MAX_EXTENTS + 10) as u32;
        let all: Vec<(u32, u32)> = (0..many).map(|number| (512, 2 * (number % 2))).collect();
        let (extents, result, offsets) = asked(Mode::Structured, u64::from(many) * 512, vec![status(1, 7, &all)]);
        assert!(result.is_ok(), "{result:?}");
        assert_eq!((extents.len(), offsets.len()), (MAX_EXTENTS, 1));
        assert!(extents.iter().enumerate().all(|(at, extent)| extent.len == 512 && extent.zero == (at % 2 == 1)));
    }

    #[test]
    fn a_violation_of_the_protocol_is_named() {
        let of = |cookie, done, kind, body: &[u8]| chunk_of(Mode::Structured, cookie, done, kind, body);
        let good = list(7, &[(4096, 0)]);
        for (answer, says) in [
            (status(1, 8, &[(4096, 0)]), "metadata context that it was not asked for"),
            (status(1, 7, &[]), "impossible length"),
            (status(1, 7, &[(4096, 0), (0, 3)]), "extent of no bytes"),
            (status(1, 7, &[(65_536, 0), (4096, 3)]), "behind those that it was asked for"),
            (status(2, 7, &[(4096, 0)]), "what it was not asked"),
            (of(1, true, chunk::BLOCK_STATUS, &good[..10]), "impossible length"),
            (of(1, true, chunk::BLOCK_STATUS_EXT, &[good.as_slice(), &[0; 12]].concat()), "impossible length"),
            (of(1, true, chunk::OFFSET_DATA, &[0; 12]), "nobody asked for"),
            (of(1, true, chunk::NONE, &[]), "without an extent"),
            ([of(1, false, chunk::BLOCK_STATUS, &good), of(1, true, chunk::BLOCK_STATUS, &good)].concat(), "twice"),
            (of(1, false, chunk::NONE, &[]).repeat(20), "come to an end"),
            (of(1, true, chunk::ERROR, &[0; 3]), "wrong length"),
            (vec![0x55; 64], "no reply"),
        ] {
            match asked(Mode::Structured, 65_536, vec![answer]).1 {
                Err(Fault::Lie(why)) => assert!(why.contains(says), "{why}, not: {says}"),
                other => panic!("{says}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_server_that_cannot_tell_says_so() {
        let simple = [wire::SIMPLE_REPLY_MAGIC.to_be_bytes(), 95u32.to_be_bytes(), [0; 4], 1u32.to_be_bytes()].concat();
        let text = [22u32.to_be_bytes().as_slice(), &3u16.to_be_bytes(), b"no!"].concat();
        let chunk = chunk_of(Mode::Structured, 1, true, chunk::ERROR, &text);
        for (answer, errno) in [(simple, 95), (chunk, 22)] {
            let (extents, result, _) = asked(Mode::Structured, 65_536, vec![answer]);
            assert!(extents.is_empty() && matches!(result, Err(Fault::Refused(found)) if found == errno), "{result:?}");
        }
        assert!(matches!(asked(Mode::Structured, 65_536, Vec::new()).1, Err(Fault::Lost(_))));
    }

    #[test]
    fn a_connection_with_bytes_that_nobody_asked_for_goes_to_no_ring() {
        for input in [Vec::new(), vec![0x44]] {
            let (ours, _theirs) = UnixStream::pair().expect("a pair");
            let (stream, wanted) = (Stream::Unix(ours), input.is_empty());
            let control = Control { stream, secure: None, input, mode: Mode::Simple, allocation: None, cookie: 0 };
            assert_eq!(control.into_first().is_ok(), wanted);
        }
    }
}
