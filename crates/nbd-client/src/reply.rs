//! The decoder of replies.
//!
//! Owns the three forms: simple, structured and extended. The queue interprets cookies, and checks that data lies
//! within its read. Nothing here allocates or keeps anything.
//!
//! Invariant:
//! - R1: [`next`] never needs more than [`MAX_ITEM`] bytes to go on.

use sheave::{Errno, Status};
use sheave_nbd::handshake::Mode;
use sheave_nbd::wire::{
    EXTENDED_REPLY_MAGIC, ExtendedReply, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, SimpleReply, StructuredReply,
    chunk,
};
use zerocopy::FromBytes;

/// Length of the longest text of an error.
const MAX_TEXT: u64 = 4096;
/// Largest number of bytes that [`next`] reads: the longest header, an error with its text, and its offset.
pub const MAX_ITEM: usize = size_of::<ExtendedReply>() + 6 + MAX_TEXT as usize + 8;
/// Length of the longest data of one chunk.
const MAX_DATA: u64 = 32 << 20;

// Chunk types that a server never decodes, so `sheave_nbd` has no names for them.
const OFFSET_HOLE: u16 = 2;
const ERROR_BIT: u16 = 1 << 15;

/// One reply, or one chunk of a reply, without the data after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// The cookie of the request.
    pub cookie: u64,
    /// True for the last item of the request; data may still follow this item.
    pub done: bool,
    pub what: What,
}

/// The content of an [`Item`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A simple reply without an error. For a read, all of its data follows.
    Simple,
    /// Neither data nor an error.
    Nothing,
    /// The request has failed with this errno, which is not 0 and should be one of the protocol's.
    Failed(u32),
    /// Data of a read follows: its offset in the export, and its length, which is at least 1.
    Data(u64, u32),
    /// A part of a read is zeroes: its offset in the export, and its length, which is at least 1.
    Zeroes(u64, u32),
}

/// Returns the status for an NBD error. Numbers outside the protocol become `IoErr`. As Linux errnos some of them would
/// mean "not tried" (EAGAIN, ECANCELED), which a server must not be able to claim.
pub(crate) fn status_of(errno: u32) -> Status {
    match errno {
        // EPERM, EIO, ENOMEM, EINVAL, ENOSPC, EOVERFLOW, ENOTSUP and ESHUTDOWN: all errors of the protocol.
        1 | 5 | 12 | 22 | 28 | 75 | 95 | 108 => Status::from_errno(Errno(errno as i32)),
        _ => Status::IoErr,
    }
}

/// Returns the length of the shortest item that data can follow. A receive of this length leaves the data after the
/// item in the socket.
pub(crate) fn head_bytes(mode: Mode) -> usize {
    match mode {
        Mode::Simple => size_of::<SimpleReply>(),
        // OFFSET_DATA has its offset before the data.
        Mode::Structured => size_of::<StructuredReply>() + 8,
        Mode::Extended => size_of::<ExtendedReply>() + 8,
    }
}

/// Decodes the item at the front of `bytes`. Returns its length and the item, or `None` if more bytes are needed.
///
/// # Errors
///
/// Returns the server's violation of the protocol. Nothing after it can be decoded.
pub fn next(mode: Mode, bytes: &[u8]) -> Result<Option<(usize, Item)>, &'static str> {
    const WRONG: &str = "it sent what is no reply";
    let Some(magic) = bytes.first_chunk() else { return Ok(None) };
    let (head, flags, kind, cookie, len) = match (u32::from_be_bytes(*magic), mode) {
        (SIMPLE_REPLY_MAGIC, Mode::Simple | Mode::Structured) => return Ok(simple(bytes)),
        (STRUCTURED_REPLY_MAGIC, Mode::Structured) => {
            let Ok((head, _)) = StructuredReply::read_from_prefix(bytes) else { return Ok(None) };
            (size_of_val(&head), head.flags.get(), head.kind.get(), head.cookie.get(), u64::from(head.len.get()))
        }
        (EXTENDED_REPLY_MAGIC, Mode::Extended) => {
            let Ok((head, _)) = ExtendedReply::read_from_prefix(bytes) else { return Ok(None) };
            (size_of_val(&head), head.flags.get(), head.kind.get(), head.cookie.get(), head.len.get())
        }
        _ => return Err(WRONG),
    };
    let done = flags & chunk::DONE != 0;
    let body = &bytes[head..];
    let (used, what) = match kind {
        chunk::NONE if len == 0 && done => (0, What::Nothing),
        chunk::OFFSET_DATA if (9..=8 + MAX_DATA).contains(&len) => {
            let Some(offset) = body.first_chunk() else { return Ok(None) };
            (8, What::Data(u64::from_be_bytes(*offset), (len - 8) as u32))
        }
        OFFSET_HOLE if len == 12 => {
            let Some(hole) = body.first_chunk::<12>() else { return Ok(None) };
            let [offset @ .., a, b, c, d] = *hole;
            match u32::from_be_bytes([a, b, c, d]) {
                0 => return Err("it told of a hole of no bytes"),
                bytes => (12, What::Zeroes(u64::from_be_bytes(offset), bytes)),
            }
        }
        _ if kind & ERROR_BIT != 0 => match failed(len, body)? {
            Some(failed) => failed,
            None => return Ok(None),
        },
        _ => return Err("it sent a chunk that nobody asked for, or of the wrong length"),
    };
    Ok(Some((head + used, Item { cookie, done, what })))
}

fn simple(bytes: &[u8]) -> Option<(usize, Item)> {
    let (head, _) = SimpleReply::read_from_prefix(bytes).ok()?;
    let what = match head.error.get() {
        0 => What::Simple,
        errno => What::Failed(errno),
    };
    Some((size_of_val(&head), Item { cookie: head.cookie.get(), done: true, what }))
}

/// Decodes an error chunk: its errno, the length of a text, the text, and for some types an offset.
fn failed(len: u64, body: &[u8]) -> Result<Option<(usize, What)>, &'static str> {
    if !(6..=6 + MAX_TEXT + 8).contains(&len) {
        return Err("it told an error of an impossible length");
    }
    let Some(body) = body.get(..len as usize) else { return Ok(None) };
    let Some(&[a, b, c, d, e, f]) = body.first_chunk() else { return Ok(None) };
    if u64::from(u16::from_be_bytes([e, f])) > len - 6 {
        return Err("the text of an error is longer than the error");
    }
    match u32::from_be_bytes([a, b, c, d]) {
        0 => Err("it told an error that is none"),
        errno => Ok(Some((len as usize, What::Failed(errno)))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sheave_nbd::Errno;
    use sheave_nbd::handshake::{Mode, Negotiated};
    use sheave_nbd::session::{Command, Request, Session};
    use sheave_nbd::{ExportInfo, wire};

    use super::{Item, MAX_ITEM, What, head_bytes, next};

    fn session(mode: Mode) -> Session {
        let export = ExportInfo {
            id: 0,
            name: String::new(),
            description: String::new(),
            size: 1 << 30,
            read_only: false,
            fast_zero: false,
            min_block: 1,
            preferred_block: 4096,
        };
        Session::new(&Negotiated { export, mode, contexts: Vec::new(), keeps_to_blocks: true })
    }

    fn request(command: Command) -> Request {
        Request { command, flags: 0, cookie: 77, offset: 8192, len: 4096, contexts: 0 }
    }

    #[test]
    fn replies_of_our_server_decode_only_once_they_are_whole() {
        for mode in [Mode::Simple, Mode::Structured, Mode::Extended] {
            let session = session(mode);
            let mut place = [0; sheave_nbd::reply::MAX_READ_HEADER];
            let len = session.read_header(&request(Command::Read), &mut place);
            let read = place[place.len() - len..].to_vec();
            assert_eq!(read.len(), head_bytes(mode));
            let (mut done, mut failed) = (Vec::new(), Vec::new());
            session.done(&request(Command::Write), &mut done);
            session.failed(&request(Command::Write), Errno::NoSpc, "the pool is full", &mut failed);
            let data = if mode == Mode::Simple { What::Simple } else { What::Data(8192, 4096) };
            let nothing = if mode == Mode::Extended { What::Nothing } else { What::Simple };
            for (bytes, what) in [(read, data), (done, nothing), (failed, What::Failed(28))] {
                for cut in 0..bytes.len() {
                    assert_eq!(next(mode, &bytes[..cut]), Ok(None), "{mode:?} {what:?} {cut}");
                }
                let item = Item { cookie: 77, done: true, what };
                let more = [bytes.clone(), vec![0xff; 9]].concat();
                assert_eq!(next(mode, &more), Ok(Some((bytes.len(), item))), "{mode:?}");
            }
        }
    }

    fn chunk(flags: u16, kind: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = wire::STRUCTURED_REPLY_MAGIC.to_be_bytes().to_vec();
        bytes.extend(flags.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend(5u64.to_be_bytes());
        bytes.extend((body.len() as u32).to_be_bytes());
        bytes.extend(body);
        bytes
    }

    #[test]
    fn holes_and_errors_with_offsets_are_understood() {
        let hole = [4096u64.to_be_bytes().as_slice(), &512u32.to_be_bytes()].concat();
        let bytes = chunk(0, 2, &hole);
        let item = Item { cookie: 5, done: false, what: What::Zeroes(4096, 512) };
        assert_eq!(next(Mode::Structured, &bytes), Ok(Some((bytes.len(), item))));
        let error = [5u32.to_be_bytes().as_slice(), &3u16.to_be_bytes(), b"bad", &9u64.to_be_bytes()].concat();
        let bytes = chunk(1, (1 << 15) + 2, &error);
        let item = Item { cookie: 5, done: true, what: What::Failed(5) };
        assert_eq!(next(Mode::Structured, &bytes), Ok(Some((bytes.len(), item))));
    }

    #[test]
    fn a_malformed_reply_is_refused() {
        let zero_hole = [0u8; 12];
        let wrong = [
            chunk(1, 1, &[0; 8]),                                                     // data of no bytes
            chunk(1, 2, &zero_hole),                                                  // a hole of no bytes
            chunk(1, 5, &[0; 12]),                                                    // a status that nobody asked for
            chunk(1, 0, &[1]),                                                        // nothing, with something in it
            chunk(0, 0, &[]),                                                         // nothing, and not the end
            chunk(1, (1 << 15) + 1, &[0, 0, 0, 0, 0, 0]),                             // an error that is none
            chunk(1, (1 << 15) + 1, &[0, 0, 0, 5, 0, 9]),                             // a text longer than its chunk
            chunk(1, (1 << 15) + 1, &[0; 3]),                                         // too short for an errno
            [wire::EXTENDED_REPLY_MAGIC.to_be_bytes().as_slice(), &[0; 28]].concat(), // of another mode
            b"HTTP/1.1 400 Bad Request".to_vec(),
        ];
        for bytes in wrong {
            assert!(next(Mode::Structured, &bytes).is_err(), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic_it_nor_make_it_wait_for_more_than_an_item(
            mode in prop::sample::select(vec![Mode::Simple, Mode::Structured, Mode::Extended]),
            known in any::<bool>(),
            kind in any::<u16>(),
            len in any::<u32>(),
            mut bytes in prop::collection::vec(any::<u8>(), MAX_ITEM..MAX_ITEM + 64),
        ) {
            if known {
                let magic = match mode {
                    Mode::Simple => wire::SIMPLE_REPLY_MAGIC,
                    Mode::Structured => wire::STRUCTURED_REPLY_MAGIC,
                    Mode::Extended => wire::EXTENDED_REPLY_MAGIC,
                };
                bytes[..4].copy_from_slice(&magic.to_be_bytes());
                let kind = if kind & 1 == 0 { kind % 8 } else { kind | 1 << 15 };
                bytes[6..8].copy_from_slice(&kind.to_be_bytes());
                let at = if mode == Mode::Extended { 28 } else { 16 };
                bytes[at..at + 4].copy_from_slice(&(len % 5000).to_be_bytes());
            }
            match next(mode, &bytes) {
                Ok(Some((used, _))) => prop_assert!(used <= MAX_ITEM && used > 0),
                Ok(None) => prop_assert!(false, "R1"),
                Err(_) => {}
            }
        }
    }
}
