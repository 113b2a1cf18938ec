//! The transmission phase: parses the bytes of a client into valid requests or refusals.
//!
//! Owns the rules for requests: the flags of each command, the range of the export, permission to write, and the length
//! of payloads. A client that did not request block sizes may send unaligned requests, because the minimum block size
//! of the protocol is then one byte.
//!
//! Does not own payloads. [`Session::next`] returns which bytes are data of the last write, and the caller moves them
//! to their destination. The caller may also receive them there directly, and report that ([`Session::received`]).
//!
//! A refused request is answered like any other, after its data was skipped. If the start of the next request cannot be
//! determined (wrong magic, data beyond [`MAX_PAYLOAD`]), the connection is to be closed.

mod handover;

use zerocopy::FromBytes;

use crate::catalog::MAX_CONTEXTS;
use crate::handshake::{Mode, Negotiated};
use crate::wire::{
    CompactRequest, EXTENDED_REQUEST_MAGIC, Errno, ExtendedRequest, MAX_PAYLOAD, REQUEST_MAGIC, cflag, cmd,
};

pub use handover::{SessionState, Skip};

/// Size of the ID of a metadata context in the payload of BLOCK_STATUS, and of the length field before the IDs.
const CONTEXT_BYTES: u64 = 4;
const STATUS_PAYLOAD_HEAD: u64 = 8;

/// Commands of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Read a range.
    Read,
    /// Write a range. The payload follows the request.
    Write,
    /// Make everything that was answered before durable.
    Flush,
    /// Discard a range.
    Trim,
    /// Prefetch a range, which will be read soon.
    Cache,
    /// Make a range read as zeroes.
    WriteZeroes,
    /// Return the status of a range in metadata contexts.
    BlockStatus,
}

/// A valid request: it lies within the export, and its flags are permitted for the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub command: Command,
    /// Flags of the protocol (constants in [`cflag`]).
    pub flags: u16,
    /// Number that the client chose, and that is copied into the reply.
    pub cookie: u64,
    pub offset: u64,
    /// Length in bytes. For a write it is also the length of the payload.
    pub len: u64,
    /// Metadata contexts of a BLOCK_STATUS, as a bitmap of their IDs.
    pub contexts: u32,
}

impl Request {
    /// Returns true if `flag` is set.
    #[must_use]
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// A request that is answered with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    pub cookie: u64,
    pub offset: u64,
    pub errno: Errno,
    /// The reason as text.
    pub why: &'static str,
}

/// Result of parsing the next bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// More bytes are needed; none were consumed.
    More,
    /// A request. The payload of a write follows.
    Request(Request),
    /// All consumed bytes are payload of the last write.
    Payload,
    /// The consumed bytes belong to a request that was refused, and are dropped.
    Skipped,
    /// A request to be answered with an error.
    Refused(Refused),
    /// The client disconnects: complete its outstanding requests, then close the connection.
    Disconnect,
    /// The bytes violate the protocol: close the connection.
    Broken(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Incoming {
    Header,
    /// Receiving the payload of a write.
    Payload {
        left: u64,
    },
    /// Skipping the payload of a request, which is refused after that.
    Skip {
        left: u64,
        refused: Refused,
    },
    Ended,
}

/// The transmission phase of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    pub(crate) mode: Mode,
    size: u64,
    min_block: u32,
    /// True if requests that transfer or change data must be aligned to blocks.
    keeps_to_blocks: bool,
    read_only: bool,
    /// Selected metadata contexts, as a bitmap of their IDs.
    contexts: u32,
    incoming: Incoming,
}

/// A request header.
#[derive(Clone, Copy)]
struct Raw {
    flags: u16,
    command: u16,
    cookie: u64,
    offset: u64,
    len: u64,
    /// Length of the header.
    header: usize,
}

impl Session {
    /// Begins the transmission phase on the export that was chosen.
    #[must_use]
    pub fn new(negotiated: &Negotiated) -> Session {
        let export = &negotiated.export;
        Session {
            mode: negotiated.mode,
            size: export.size,
            min_block: export.min_block.max(1),
            keeps_to_blocks: negotiated.keeps_to_blocks,
            read_only: export.read_only,
            contexts: (0..negotiated.contexts.len().min(MAX_CONTEXTS)).fold(0, |bits, number| bits | 1 << number),
            incoming: Incoming::Header,
        }
    }

    /// Returns the format of replies.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the minimum block size of the export, in bytes.
    #[must_use]
    pub fn block_bytes(&self) -> u32 {
        self.min_block
    }

    /// Returns true if requests that transfer or change data must be aligned to blocks.
    #[must_use]
    pub fn keeps_to_blocks(&self) -> bool {
        self.keeps_to_blocks
    }

    /// Returns the number of payload bytes of the last write that have not been received yet.
    #[must_use]
    pub fn payload_left(&self) -> u64 {
        match self.incoming {
            Incoming::Payload { left } => left,
            _ => 0,
        }
    }

    /// Reports that `bytes` of the payload, at most [`Session::payload_left`], were received directly.
    pub fn received(&mut self, bytes: u64) {
        if let Incoming::Payload { left } = self.incoming {
            let left = left.saturating_sub(bytes);
            self.incoming = if left == 0 { Incoming::Header } else { Incoming::Payload { left } };
        }
    }

    /// Parses the front of `input`. Returns the number of bytes consumed.
    #[inline]
    pub fn next(&mut self, input: &[u8]) -> (usize, Step) {
        match self.incoming {
            Incoming::Header => self.request(input),
            Incoming::Payload { left } => {
                let many = left.min(input.len() as u64);
                self.received(many);
                (many as usize, if many == 0 { Step::More } else { Step::Payload })
            }
            Incoming::Skip { left, refused } => self.skip(left, refused, input),
            Incoming::Ended => (0, Step::Disconnect),
        }
    }

    fn skip(&mut self, left: u64, refused: Refused, input: &[u8]) -> (usize, Step) {
        let many = left.min(input.len() as u64);
        let left = left - many;
        if left == 0 {
            self.incoming = Incoming::Header;
            return (many as usize, Step::Refused(refused));
        }
        self.incoming = Incoming::Skip { left, refused };
        (many as usize, if many == 0 { Step::More } else { Step::Skipped })
    }

    #[inline]
    fn request(&mut self, input: &[u8]) -> (usize, Step) {
        let raw = match self.raw(input) {
            Ok(Some(raw)) => raw,
            Ok(None) => return (0, Step::More),
            Err(why) => {
                self.incoming = Incoming::Ended;
                return (0, Step::Broken(why));
            }
        };
        if raw.command == cmd::DISC {
            self.incoming = Incoming::Ended;
            return (raw.header, Step::Disconnect);
        }
        let payload = self.payload(&raw);
        if payload > u64::from(MAX_PAYLOAD) {
            self.incoming = Incoming::Ended;
            return (0, Step::Broken("more data in one request than the server takes"));
        }
        if raw.command == cmd::BLOCK_STATUS && payload != 0 {
            return self.filtered_status(&raw, payload, input);
        }
        match self.check(&raw, payload) {
            Ok(request) => {
                if payload != 0 {
                    self.incoming = Incoming::Payload { left: payload };
                }
                (raw.header, Step::Request(request))
            }
            Err((errno, why)) => self.refuse(&raw, payload, errno, why),
        }
    }

    fn refuse(&mut self, raw: &Raw, payload: u64, errno: Errno, why: &'static str) -> (usize, Step) {
        let refused = Refused { cookie: raw.cookie, offset: raw.offset, errno, why };
        if payload == 0 {
            return (raw.header, Step::Refused(refused));
        }
        self.incoming = Incoming::Skip { left: payload, refused };
        (raw.header, Step::Skipped)
    }

    /// Parses the header, if it is complete.
    #[inline]
    fn raw(&self, input: &[u8]) -> Result<Option<Raw>, &'static str> {
        const WRONG: &str = "that is no request";
        if self.mode == Mode::Extended {
            let Ok((sent, _)) = ExtendedRequest::read_from_prefix(input) else { return Ok(None) };
            if sent.magic.get() != EXTENDED_REQUEST_MAGIC {
                return Err(WRONG);
            }
            let (flags, command, len) = (sent.flags.get(), sent.command.get(), sent.len.get());
            let (cookie, offset) = (sent.cookie.get(), sent.offset.get());
            return Ok(Some(Raw { flags, command, cookie, offset, len, header: size_of::<ExtendedRequest>() }));
        }
        let Ok((sent, _)) = CompactRequest::read_from_prefix(input) else { return Ok(None) };
        if sent.magic.get() != REQUEST_MAGIC {
            return Err(WRONG);
        }
        let (flags, command, len) = (sent.flags.get(), sent.command.get(), u64::from(sent.len.get()));
        let (cookie, offset) = (sent.cookie.get(), sent.offset.get());
        Ok(Some(Raw { flags, command, cookie, offset, len, header: size_of::<CompactRequest>() }))
    }

    /// Returns the length of the payload after the header.
    fn payload(&self, raw: &Raw) -> u64 {
        // A write has a payload even if its extended header lacks the mandatory flag; QEMU omits it.
        let marked = self.mode == Mode::Extended && raw.flags & cflag::PAYLOAD_LEN != 0;
        let follows = marked || raw.command == cmd::WRITE;
        if follows { raw.len } else { 0 }
    }

    /// Handles BLOCK_STATUS with a payload that selects contexts and has the length of the range.
    fn filtered_status(&mut self, raw: &Raw, payload: u64, input: &[u8]) -> (usize, Step) {
        const WRONG: &str = "the contexts asked for were not selected, or are named twice";
        let most = STATUS_PAYLOAD_HEAD + CONTEXT_BYTES * u64::from(u32::BITS);
        let whole = payload > STATUS_PAYLOAD_HEAD && (payload - STATUS_PAYLOAD_HEAD).is_multiple_of(CONTEXT_BYTES);
        if self.contexts == 0 || !whole || payload > most {
            return self.refuse(raw, payload, Errno::Inval, WRONG);
        }
        let end = raw.header + payload as usize;
        let Some(data) = input.get(raw.header..end) else { return (0, Step::More) };
        let Some((len, numbers)) = data.split_first_chunk::<8>() else { return (0, Step::More) };
        let mut wanted = 0u32;
        for number in numbers.chunks_exact(4) {
            let number = u32::from_be_bytes([number[0], number[1], number[2], number[3]]);
            let bit = 1u32.checked_shl(number).unwrap_or(0);
            if bit & self.contexts == 0 || bit & wanted != 0 {
                let refused = Refused { cookie: raw.cookie, offset: raw.offset, errno: Errno::Inval, why: WRONG };
                return (end, Step::Refused(refused));
            }
            wanted |= bit;
        }
        let inner = Raw { len: u64::from_be_bytes(*len), flags: raw.flags & !cflag::PAYLOAD_LEN, ..*raw };
        match self.check(&inner, 0) {
            Ok(request) => (end, Step::Request(Request { contexts: wanted, ..request })),
            Err((errno, why)) => (end, Step::Refused(Refused { cookie: raw.cookie, offset: raw.offset, errno, why })),
        }
    }

    /// Checks a request.
    #[inline]
    fn check(&self, raw: &Raw, payload: u64) -> Result<Request, (Errno, &'static str)> {
        const INVAL: Errno = Errno::Inval;
        let df = if self.mode == Mode::Simple { 0 } else { cflag::DF };
        let payload_len = if self.mode == Mode::Extended { cflag::PAYLOAD_LEN } else { 0 };
        let (command, flags) = match raw.command {
            cmd::READ => (Command::Read, df),
            cmd::WRITE => (Command::Write, payload_len),
            cmd::FLUSH => (Command::Flush, 0),
            cmd::TRIM => (Command::Trim, 0),
            cmd::CACHE => (Command::Cache, 0),
            cmd::WRITE_ZEROES => (Command::WriteZeroes, cflag::NO_HOLE | cflag::FAST_ZERO),
            cmd::BLOCK_STATUS => (Command::BlockStatus, cflag::REQ_ONE),
            _ => return Err((INVAL, "the server does not know this command")),
        };
        if raw.flags & !(flags | cflag::FUA) != 0 {
            return Err((INVAL, "this command does not have that flag"));
        }
        let writes = matches!(command, Command::Write | Command::Trim | Command::WriteZeroes);
        if writes && self.read_only {
            return Err((Errno::Perm, "the export is read-only"));
        }
        if command == Command::Flush && (raw.offset | raw.len) != 0 {
            return Err((INVAL, "a flush has no range"));
        }
        if raw.offset.checked_add(raw.len).is_none_or(|end| end > self.size) {
            let grows = matches!(command, Command::Write | Command::WriteZeroes);
            return Err((if grows { Errno::NoSpc } else { INVAL }, "the range ends beyond the export"));
        }
        let in_blocks = (raw.offset | raw.len) & u64::from(self.min_block - 1) == 0;
        if !in_blocks && self.keeps_to_blocks && (writes || command == Command::Read) {
            return Err((INVAL, "the range does not lie in whole blocks of the export"));
        }
        if command == Command::Read && raw.len > u64::from(MAX_PAYLOAD) {
            let errno = if self.mode == Mode::Simple { INVAL } else { Errno::Overflow };
            return Err((errno, "more data in one reply than the server sends"));
        }
        if command == Command::BlockStatus && (self.contexts == 0 || raw.len == 0) {
            return Err((INVAL, "no metadata context was selected, or the range is empty"));
        }
        debug_assert!(command == Command::Write || payload == 0, "who has a payload and is no write has a wrong flag");
        let Raw { flags, cookie, offset, len, .. } = *raw;
        Ok(Request { command, flags, cookie, offset, len, contexts: self.contexts })
    }
}

#[cfg(test)]
pub(crate) mod tests;
