//! The state of a request until it ends, the queue of requests to be sent, and the two forms of a header.
//!
//! Owns the form and the order of what is sent. The queue chooses the connection and the time.

use std::collections::VecDeque;

use sheave::drivers::RequestId;
use sheave::{Op, Status};
use sheave_nbd::handshake::Mode;
use sheave_nbd::wire::{CompactRequest, EXTENDED_REQUEST_MAGIC, ExtendedRequest, REQUEST_MAGIC, cflag, cmd};
use zerocopy::IntoBytes;
use zerocopy::byteorder::network_endian::{U16, U32, U64};

pub(crate) const MAX_HEAD: usize = 32;
/// Length from which on a read is received straight into its memory, because copying would take longer than another
/// system call.
pub(crate) const BIG: u32 = 32 << 10;

/// Value of `acked` when a flush was sent. The flush covers the writes that were counted until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Covers(pub(crate) u64);

/// A request that has not ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) id: RequestId,
    /// The cookie that the server returns; a new one each time the request is sent (Q2).
    pub(crate) cookie: u64,
    pub(crate) op: Op,
    pub(crate) fua: bool,
    /// Offset of the first byte in the export.
    pub(crate) at: u64,
    pub(crate) len: u32,
    pub(crate) conn: Option<usize>,
    /// An error that a chunk has reported, while more chunks follow.
    pub(crate) failed: Option<Status>,
    /// Set for a flush that was sent.
    pub(crate) covers: Option<Covers>,
}

impl Entry {
    /// Converts data at `offset` of the export to a range of the request. Returns `None` if the data does not lie
    /// within a read.
    pub(crate) fn within(&self, offset: u64, len: u32) -> Option<(u32, u32)> {
        let from = u32::try_from(offset.checked_sub(self.at)?).ok()?;
        let to = from.checked_add(len)?;
        (self.op == Op::Read && from < to && to <= self.len).then_some((from, to))
    }

    /// Returns the number of bytes that the request adds to the load of its connection.
    pub(crate) fn load(&self) -> u64 {
        let data = if matches!(self.op, Op::Read | Op::Write) { u64::from(self.len) } else { 0 };
        data + MAX_HEAD as u64
    }

    /// Returns 1 for a read whose data is received straight into its memory, else 0.
    pub(crate) fn big(&self) -> u32 {
        u32::from(self.op == Op::Read && self.len >= BIG)
    }

    /// Returns the header, and its length.
    pub(crate) fn head(&self, mode: Mode) -> ([u8; MAX_HEAD], usize) {
        let command = match self.op {
            Op::Read => cmd::READ,
            Op::Write => cmd::WRITE,
            Op::Discard => cmd::TRIM,
            Op::WriteZeroes => cmd::WRITE_ZEROES,
            _ => cmd::FLUSH,
        };
        let mut flags = if self.fua { cflag::FUA } else { 0 };
        if mode == Mode::Extended && self.op == Op::Write {
            flags |= cflag::PAYLOAD_LEN;
        }
        let (at, len) = if command == cmd::FLUSH { (0, 0) } else { (self.at, self.len) };
        head(mode, (command, flags), self.cookie, at, len)
    }
}

/// Requests that wait to be sent. Flushes are in a list of their own, because only the first connection may send them
/// (Q4).
#[derive(Debug)]
pub(crate) struct Waiting {
    flushes: VecDeque<RequestId>,
    others: VecDeque<RequestId>,
}

impl Waiting {
    pub(crate) fn new(depth: usize) -> Waiting {
        Waiting { flushes: VecDeque::with_capacity(1), others: VecDeque::with_capacity(depth) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.flushes.is_empty() && self.others.is_empty()
    }

    pub(crate) fn has_flush(&self) -> bool {
        !self.flushes.is_empty()
    }

    /// Returns true if there is a request that any connection may send.
    pub(crate) fn has_others(&self) -> bool {
        !self.others.is_empty()
    }

    /// Takes the next request for connection number `conn`.
    pub(crate) fn pop_for(&mut self, conn: usize) -> Option<RequestId> {
        let flush = if conn == 0 { self.flushes.pop_front() } else { None };
        flush.or_else(|| self.others.pop_front())
    }

    fn of(&mut self, op: Op) -> &mut VecDeque<RequestId> {
        if op == Op::Flush { &mut self.flushes } else { &mut self.others }
    }

    pub(crate) fn push_back(&mut self, op: Op, id: RequestId) {
        self.of(op).push_back(id);
    }

    /// Puts a request that was sent before in front of those that were not sent yet.
    pub(crate) fn push_front(&mut self, op: Op, id: RequestId) {
        self.of(op).push_front(id);
    }

    pub(crate) fn remove(&mut self, id: RequestId) {
        [&mut self.flushes, &mut self.others].into_iter().for_each(|queue| queue.retain(|other| *other != id));
    }

    pub(crate) fn clear(&mut self) {
        self.flushes.clear();
        self.others.clear();
    }
}

/// Returns the header that tells the server to end the connection.
pub(crate) fn goodbye(mode: Mode) -> ([u8; MAX_HEAD], usize) {
    head(mode, (cmd::DISC, 0), 0, 0, 0)
}

pub(crate) fn head(
    mode: Mode,
    (command, flags): (u16, u16),
    cookie: u64,
    at: u64,
    len: u32,
) -> ([u8; MAX_HEAD], usize) {
    let (flags, command) = (U16::new(flags), U16::new(command));
    let (cookie, offset) = (U64::new(cookie), U64::new(at));
    let mut place = [0; MAX_HEAD];
    if mode == Mode::Extended {
        let (magic, len) = (U32::new(EXTENDED_REQUEST_MAGIC), U64::new(u64::from(len)));
        place.copy_from_slice(ExtendedRequest { magic, flags, command, cookie, offset, len }.as_bytes());
        return (place, MAX_HEAD);
    }
    let compact = CompactRequest { magic: U32::new(REQUEST_MAGIC), flags, command, cookie, offset, len: U32::new(len) };
    let bytes = compact.as_bytes();
    place[..bytes.len()].copy_from_slice(bytes);
    (place, bytes.len())
}

#[cfg(test)]
mod tests {
    use sheave_nbd::ExportInfo;
    use sheave_nbd::handshake::{Mode, Negotiated};
    use sheave_nbd::session::{Command, Session, Step};
    use sheave_nbd::wire::{cflag, cmd};

    use super::{goodbye, head};

    fn session(mode: Mode) -> Session {
        let export = ExportInfo {
            id: 0,
            name: String::new(),
            description: String::new(),
            size: 1 << 40,
            read_only: false,
            fast_zero: false,
            min_block: 512,
            preferred_block: 4096,
        };
        Session::new(&Negotiated { export, mode, contexts: Vec::new(), keeps_to_blocks: true })
    }

    #[test]
    fn our_server_understands_what_is_sent() {
        for mode in [Mode::Simple, Mode::Structured, Mode::Extended] {
            let payload = if mode == Mode::Extended { cflag::PAYLOAD_LEN } else { 0 };
            for (number, flags, command) in [
                (cmd::READ, 0, Command::Read),
                (cmd::WRITE, cflag::FUA | payload, Command::Write),
                (cmd::TRIM, 0, Command::Trim),
                (cmd::WRITE_ZEROES, cflag::FUA, Command::WriteZeroes),
            ] {
                let (bytes, len) = head(mode, (number, flags), 0x1234_5678_9abc_0007, 5 << 33, 4096);
                let (used, step) = session(mode).next(&bytes[..len]);
                let Step::Request(request) = step else { panic!("{mode:?} {number}: {step:?}") };
                assert_eq!((used, request.command, request.flags), (len, command, flags));
                assert_eq!((request.cookie, request.offset, request.len), (0x1234_5678_9abc_0007, 5 << 33, 4096));
            }
            let (bytes, len) = goodbye(mode);
            assert_eq!(session(mode).next(&bytes[..len]), (len, Step::Disconnect));
        }
    }
}
