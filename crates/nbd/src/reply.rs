//! Encoding of replies, in the format that was negotiated.
//!
//! If structured replies are negotiated, a success without data is still sent as a simple reply, because that is
//! shorter and the protocol permits it. Errors include a text if the format has a field for it.

use zerocopy::IntoBytes;
use zerocopy::byteorder::network_endian::{U16, U32, U64};

use crate::handshake::Mode;
use crate::session::{Refused, Request, Session};
use crate::wire::{
    EXTENDED_REPLY_MAGIC, Errno, ExtendedReply, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, SimpleReply,
    StructuredReply, chunk,
};

/// Maximum number of extents in a reply to BLOCK_STATUS.
pub const MAX_EXTENTS: usize = 4096;

/// Maximum length of the header before the data of a read.
pub const MAX_READ_HEADER: usize = size_of::<ExtendedReply>() + 8;

/// A range with its status in a metadata context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes, not 0.
    pub len: u64,
    pub status: u32,
}

impl Session {
    /// Writes the header for the data of a successful read so that it ends at the end of `place`. Returns its length.
    /// The data must follow immediately.
    ///
    /// # Panics
    ///
    /// Panics if `place` is shorter than [`MAX_READ_HEADER`].
    pub fn read_header(&self, request: &Request, place: &mut [u8]) -> usize {
        let mut header = [0; MAX_READ_HEADER];
        let len = self.write_read_header(request, &mut header);
        let start = place.len() - len;
        place[start..].copy_from_slice(&header[..len]);
        len
    }

    #[inline]
    fn write_read_header(&self, request: &Request, to: &mut [u8; MAX_READ_HEADER]) -> usize {
        let cookie = U64::new(request.cookie);
        let offset = U64::new(request.offset);
        // A data chunk must not be empty, so an empty read is answered without one.
        let (kind, more) = if request.len == 0 { (chunk::NONE, 0) } else { (chunk::OFFSET_DATA, 8) };
        let (flags, kind) = (U16::new(chunk::DONE), U16::new(kind));
        let head = match self.mode {
            Mode::Simple => {
                let reply = SimpleReply { magic: U32::new(SIMPLE_REPLY_MAGIC), error: U32::new(0), cookie };
                to[..16].copy_from_slice(reply.as_bytes());
                return 16;
            }
            Mode::Structured => {
                let len = U32::new(request.len as u32 + more);
                let magic = U32::new(STRUCTURED_REPLY_MAGIC);
                to[..20].copy_from_slice(StructuredReply { magic, flags, kind, cookie, len }.as_bytes());
                20
            }
            Mode::Extended => {
                let len = U64::new(request.len + u64::from(more));
                let magic = U32::new(EXTENDED_REPLY_MAGIC);
                to[..32].copy_from_slice(ExtendedReply { magic, flags, kind, cookie, offset, len }.as_bytes());
                32
            }
        };
        let end = head + more as usize;
        to[head..end].copy_from_slice(&offset.as_bytes()[..more as usize]);
        end
    }

    /// Writes the reply to a successful request without data.
    pub fn done(&self, request: &Request, out: &mut Vec<u8>) {
        if self.mode == Mode::Extended {
            return self.chunk(chunk::NONE, chunk::DONE, request.cookie, request.offset, &[], out);
        }
        simple(0, request.cookie, out);
    }

    /// Writes the reply to a request that failed.
    pub fn failed(&self, request: &Request, errno: Errno, why: &'static str, out: &mut Vec<u8>) {
        self.refused(&Refused { cookie: request.cookie, offset: request.offset, errno, why }, out);
    }

    /// Writes the reply to a request that was refused.
    pub fn refused(&self, refused: &Refused, out: &mut Vec<u8>) {
        let errno = refused.errno as u32;
        if self.mode == Mode::Simple {
            return simple(errno, refused.cookie, out);
        }
        let (errno, len) = (U32::new(errno), U16::new(refused.why.len() as u16));
        let parts = [errno.as_bytes(), len.as_bytes(), refused.why.as_bytes()];
        self.chunk(chunk::ERROR, chunk::DONE, refused.cookie, refused.offset, &parts, out);
    }

    /// Writes the status of a range in one metadata context. `last` is true for the last context of the request.
    /// `extents` has at least one entry and at most [`MAX_EXTENTS`], and begins at the request's offset. Extents beyond
    /// the end of the request are cut off.
    pub fn status(&self, request: &Request, context: u32, extents: &[Extent], last: bool, out: &mut Vec<u8>) {
        let mut left = request.len;
        let mut list = Vec::with_capacity(extents.len() * 16);
        let mut many = 0u32;
        let one = request.has(crate::wire::cflag::REQ_ONE);
        for extent in extents.iter().take(if one { 1 } else { MAX_EXTENTS }) {
            let len = extent.len.min(left);
            if len == 0 {
                break;
            }
            left -= len;
            many += 1;
            if self.mode == Mode::Extended {
                list.extend_from_slice(&len.to_be_bytes());
                list.extend_from_slice(&u64::from(extent.status).to_be_bytes());
            } else {
                // Fits, because the length of a compact request has 32 bits.
                list.extend_from_slice(&(len as u32).to_be_bytes());
                list.extend_from_slice(&extent.status.to_be_bytes());
            }
        }
        let flags = if last { chunk::DONE } else { 0 };
        let (id, many) = (U32::new(context), U32::new(many));
        if self.mode == Mode::Extended {
            let parts = [id.as_bytes(), many.as_bytes(), &list];
            return self.chunk(chunk::BLOCK_STATUS_EXT, flags, request.cookie, request.offset, &parts, out);
        }
        self.chunk(chunk::BLOCK_STATUS, flags, request.cookie, request.offset, &[id.as_bytes(), &list], out);
    }

    /// Writes one chunk of a structured or extended reply.
    fn chunk(&self, kind: u16, flags: u16, cookie: u64, offset: u64, parts: &[&[u8]], out: &mut Vec<u8>) {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let (flags, kind, cookie) = (U16::new(flags), U16::new(kind), U64::new(cookie));
        if self.mode == Mode::Extended {
            let (offset, len) = (U64::new(offset), U64::new(len as u64));
            let magic = U32::new(EXTENDED_REPLY_MAGIC);
            out.extend_from_slice(ExtendedReply { magic, flags, kind, cookie, offset, len }.as_bytes());
        } else {
            let (magic, len) = (U32::new(STRUCTURED_REPLY_MAGIC), U32::new(len as u32));
            out.extend_from_slice(StructuredReply { magic, flags, kind, cookie, len }.as_bytes());
        }
        parts.iter().for_each(|part| out.extend_from_slice(part));
    }
}

fn simple(error: u32, cookie: u64, out: &mut Vec<u8>) {
    let (magic, error, cookie) = (U32::new(SIMPLE_REPLY_MAGIC), U32::new(error), U64::new(cookie));
    out.extend_from_slice(SimpleReply { magic, error, cookie }.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Command;
    use crate::session::tests::session;

    fn request(command: Command, len: u64) -> Request {
        Request { command, flags: 0, cookie: u64::from_be_bytes(*b"cookie!!"), offset: 0x1000, len, contexts: 3 }
    }

    fn header(mode: Mode, len: u64) -> Vec<u8> {
        let mut place = [0xaa; 64];
        let many = session(mode, false, vec![]).read_header(&request(Command::Read, len), &mut place);
        assert!(place[..64 - many].iter().all(|&byte| byte == 0xaa));
        place[64 - many..].to_vec()
    }

    fn written(mode: Mode, write: impl FnOnce(&Session, &mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        write(&session(mode, false, vec![0]), &mut out);
        out
    }

    #[test]
    fn what_stands_before_the_data_of_a_read() {
        assert_eq!(header(Mode::Simple, 512), b"\x67\x44\x66\x98\0\0\0\0cookie!!");
        assert_eq!(
            header(Mode::Structured, 512),
            b"\x66\x8e\x33\xef\0\x01\0\x01cookie!!\0\0\x02\x08\0\0\0\0\0\0\x10\0"
        );
        assert_eq!(
            header(Mode::Extended, 512),
            b"\x6e\x8a\x27\x8c\0\x01\0\x01cookie!!\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\x02\x08\0\0\0\0\0\0\x10\0"
        );
    }

    #[test]
    fn a_read_of_nothing_has_no_chunk_of_data() {
        assert_eq!(header(Mode::Structured, 0), b"\x66\x8e\x33\xef\0\x01\0\0cookie!!\0\0\0\0");
        assert_eq!(header(Mode::Extended, 0).len(), 32);
    }

    #[test]
    fn success_without_data() {
        let done = |session: &Session, out: &mut Vec<u8>| session.done(&request(Command::Write, 512), out);
        for mode in [Mode::Simple, Mode::Structured] {
            assert_eq!(written(mode, done), b"\x67\x44\x66\x98\0\0\0\0cookie!!");
        }
        assert_eq!(
            written(Mode::Extended, done),
            b"\x6e\x8a\x27\x8c\0\x01\0\0cookie!!\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\0\0"
        );
    }

    #[test]
    fn errors_have_words_where_there_is_a_place_for_them() {
        let failed = |session: &Session, out: &mut Vec<u8>| {
            session.failed(&request(Command::Write, 512), Errno::NoSpc, "full", out)
        };
        assert_eq!(written(Mode::Simple, failed), b"\x67\x44\x66\x98\0\0\0\x1ccookie!!");
        assert_eq!(
            written(Mode::Structured, failed),
            b"\x66\x8e\x33\xef\0\x01\x80\x01cookie!!\0\0\0\x0a\0\0\0\x1c\0\x04full"
        );
        let wide = written(Mode::Extended, failed);
        assert_eq!(&wide[24..], b"\0\0\0\0\0\0\0\x0a\0\0\0\x1c\0\x04full");
    }

    #[test]
    fn extents_never_go_beyond_the_question() {
        // CVE-2025-47711 of nbdkit: an extent whose length exceeds 32 bits.
        let long = [Extent { len: 512, status: 3 }, Extent { len: 1 << 33, status: 0 }];
        let status = |session: &Session, out: &mut Vec<u8>| {
            session.status(&request(Command::BlockStatus, 0xffff_fe00), 0, &long, true, out)
        };
        assert_eq!(
            written(Mode::Structured, status),
            b"\x66\x8e\x33\xef\0\x01\0\x05cookie!!\0\0\0\x14\0\0\0\0\0\0\x02\0\0\0\0\x03\xff\xff\xfc\0\0\0\0\0"
        );
        let wide = written(Mode::Extended, status);
        assert_eq!(wide.len(), 32 + 8 + 2 * 16);
        assert_eq!(&wide[32..40], b"\0\0\0\0\0\0\0\x02");
    }

    #[test]
    fn one_extent_where_one_is_asked_for() {
        let two = [Extent { len: 512, status: 3 }, Extent { len: 512, status: 0 }];
        let one = Request { flags: crate::wire::cflag::REQ_ONE, ..request(Command::BlockStatus, 1024) };
        let out = written(Mode::Structured, |session, out| session.status(&one, 0, &two, false, out));
        assert_eq!(out, b"\x66\x8e\x33\xef\0\0\0\x05cookie!!\0\0\0\x0c\0\0\0\0\0\0\x02\0\0\0\0\x03");
    }

    #[test]
    fn a_reply_has_a_bounded_number_of_extents() {
        let many = vec![Extent { len: 1, status: 0 }; MAX_EXTENTS + 5];
        let ask = request(Command::BlockStatus, 1 << 20);
        let out = written(Mode::Structured, |session, out| session.status(&ask, 0, &many, true, out));
        assert_eq!(out.len(), 20 + 4 + 8 * MAX_EXTENTS);
    }
}
