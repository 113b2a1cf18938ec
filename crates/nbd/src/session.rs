//! The transmission phase: bytes of a client become requests that are right, or refusals.
//!
//! Owns the rules for requests: which flags a command has, what lies within the export, what of it may be written, and
//! how long a payload may be. A client that did not ask for block sizes may ask for any bytes, for the protocol's
//! smallest block is one byte then. Does not own payloads: [`Session::next`] says which bytes are data of the last
//! write, and who has them puts them where they belong; or receives them there, and says so ([`Session::received`]).
//!
//! A request that is refused is answered like any other, after its data was skipped. After what leaves no way to find
//! the next request (a wrong magic, data beyond [`MAX_PAYLOAD`]) the connection is to be closed.

use zerocopy::FromBytes;

use crate::catalog::MAX_CONTEXTS;
use crate::handshake::{Mode, Negotiated};
use crate::wire::{
    CompactRequest, EXTENDED_REQUEST_MAGIC, Errno, ExtendedRequest, MAX_PAYLOAD, REQUEST_MAGIC, cflag, cmd,
};

/// Bytes of a metadata context's number in the payload of BLOCK_STATUS, and those before them.
const CONTEXT_BYTES: u64 = 4;
const STATUS_PAYLOAD_HEAD: u64 = 8;

/// What a client may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Data of a range.
    Read,
    /// Data for a range; its payload follows.
    Write,
    /// All that was answered before becomes durable.
    Flush,
    /// A range is not needed any more.
    Trim,
    /// A range will be read soon.
    Cache,
    /// A range reads as zeroes from now on.
    WriteZeroes,
    /// The status of a range in metadata contexts.
    BlockStatus,
}

/// A request that may be carried out: it lies within the export, and its flags belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What is asked for.
    pub command: Command,
    /// Flags of the protocol ([`cflag`]).
    pub flags: u16,
    /// Comes back in the reply.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes; also those of a write's payload.
    pub len: u64,
    /// Of BLOCK_STATUS: the metadata contexts asked for, a bit for each number.
    pub contexts: u32,
}

impl Request {
    /// Whether it has this flag.
    #[must_use]
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// A request that is answered with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Of the request.
    pub cookie: u64,
    /// Of the request.
    pub offset: u64,
    /// What is wrong with it.
    pub errno: Errno,
    /// What is wrong with it, in words.
    pub why: &'static str,
}

/// What comes next from the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// More bytes are needed; nothing was consumed.
    More,
    /// A request. Of a write, the payload comes next.
    Request(Request),
    /// All consumed bytes are payload of the last write.
    Payload,
    /// Consumed bytes belong to a request that was refused, and are nothing to anybody.
    Skipped,
    /// A request that gets an error.
    Refused(Refused),
    /// The client says goodbye: what it asked for is finished, then the connection closed.
    Disconnect,
    /// What the client sends is not the protocol: close the connection.
    Broken(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Incoming {
    Header,
    /// Data of a write.
    Payload {
        left: u64,
    },
    /// Data of a request that is refused when all of it was skipped.
    Skip {
        left: u64,
        refused: Refused,
    },
    Ended,
}

/// A client in the transmission phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    pub(crate) mode: Mode,
    size: u64,
    min_block: u32,
    /// Reads, writes, trims and zeroes must lie in whole blocks.
    keeps_to_blocks: bool,
    read_only: bool,
    /// The selected contexts, a bit for each number.
    contexts: u32,
    incoming: Incoming,
}

/// A request as it was sent.
#[derive(Clone, Copy)]
struct Raw {
    flags: u16,
    command: u16,
    cookie: u64,
    offset: u64,
    len: u64,
    /// Bytes of its header.
    header: usize,
}

impl Session {
    /// The session of a client that has chosen its export.
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

    /// Which replies it gets.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Bytes of the smallest block of the export.
    #[must_use]
    pub fn block_bytes(&self) -> u32 {
        self.min_block
    }

    /// Bytes of the last write's payload that have not come yet.
    #[must_use]
    pub fn payload_left(&self) -> u64 {
        match self.incoming {
            Incoming::Payload { left } => left,
            _ => 0,
        }
    }

    /// So many bytes of the payload were received elsewhere, at most [`Session::payload_left`].
    pub fn received(&mut self, bytes: u64) {
        if let Incoming::Payload { left } = self.incoming {
            let left = left.saturating_sub(bytes);
            self.incoming = if left == 0 { Incoming::Header } else { Incoming::Payload { left } };
        }
    }

    /// Takes the next thing that the client says from the front of `input`; how many bytes it was.
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

    /// The header, if it is there.
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

    /// Bytes of data behind the header.
    fn payload(&self, raw: &Raw) -> u64 {
        // A write has data, also one with an extended header and without the flag that it must have: QEMU sends such.
        let marked = self.mode == Mode::Extended && raw.flags & cflag::PAYLOAD_LEN != 0;
        let follows = marked || raw.command == cmd::WRITE;
        if follows { raw.len } else { 0 }
    }

    /// BLOCK_STATUS whose payload names the contexts that are wanted, and the range's length.
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

    /// The rules for a request.
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
