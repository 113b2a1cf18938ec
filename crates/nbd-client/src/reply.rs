//! The decoder of replies.
//!
//! Owns the three forms: simple, structured and extended. Does not own the meaning of a cookie, nor the check that data
//! lies within its read: both are the queue's. Nothing here allocates or keeps anything.
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

/// Longest text of an error.
const MAX_TEXT: u64 = 4096;
/// The most bytes that [`next`] looks at: the longest header, an error with its text, and its offset.
pub const MAX_ITEM: usize = size_of::<ExtendedReply>() + 6 + MAX_TEXT as usize + 8;
/// Longest data of one chunk.
const MAX_DATA: u64 = 32 << 20;

// Chunk types that a server never decodes, so `sheave_nbd` has no names for them.
const OFFSET_HOLE: u16 = 2;
const ERROR_BIT: u16 = 1 << 15;

/// One reply, or one chunk of a reply, without the data behind it.
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

/// Status for an NBD error. Numbers outside the protocol become `IoErr`: as Linux errnos some would mean "not tried"
/// (EAGAIN, ECANCELED), which a server must not be able to claim.
pub(crate) fn status_of(errno: u32) -> Status {
    match errno {
        // EPERM, EIO, ENOMEM, EINVAL, ENOSPC, EOVERFLOW, ENOTSUP and ESHUTDOWN: all errors of the protocol.
        1 | 5 | 12 | 22 | 28 | 75 | 95 | 108 => Status::from_errno(Errno(errno as i32)),
        _ => Status::IoErr,
    }
}

/// Returns the length of the shortest item that data can follow. A receive of this length leaves the data behind it in
/// the socket.
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
/// The server's violation of the protocol. Nothing behind it can be decoded.
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
mod tests;
