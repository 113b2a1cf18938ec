//! Format of messages on the socket: a request of 32 bytes, followed by the data of a write; a reply of 16 bytes,
//! followed by the data of a successful read. Numbers are little-endian.
//!
//! Owns both formats. The queue finds the request that belongs to a cookie.

/// Bytes of a request.
pub const REQUEST: usize = 32;
/// Bytes of a reply.
pub const REPLY: usize = 16;
/// Longest data of a request.
pub const MAX_DATA: u32 = 1 << 20;

const REQUEST_MAGIC: u32 = 0x5e4b_0001;
const REPLY_MAGIC: u32 = 0x5e4b_0002;

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Sends data from the server.
    Read,
    /// Sends data to the server.
    Write,
    /// Makes written data durable.
    Flush,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The kind of request.
    pub command: Command,
    /// Number that identifies the request in the reply.
    pub cookie: u64,
    /// Position in bytes.
    pub at: u64,
    /// Length in bytes.
    pub len: u32,
}

/// A reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replied {
    /// The cookie of the request.
    pub cookie: u64,
    /// 0, or a positive errno.
    pub errno: u32,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

impl Asked {
    /// Encodes the request.
    pub fn to_bytes(self) -> [u8; REQUEST] {
        let mut bytes = [0; REQUEST];
        bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_le_bytes());
        bytes[4] = self.command as u8;
        bytes[8..16].copy_from_slice(&self.cookie.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.at.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// Decodes a request; `None` if it is malformed.
    pub fn from_bytes(bytes: &[u8; REQUEST]) -> Option<Asked> {
        let command = match bytes[4] {
            0 => Command::Read,
            1 => Command::Write,
            2 => Command::Flush,
            _ => return None,
        };
        let len = u32_at(bytes, 24);
        let asked = Asked { command, cookie: u64_at(bytes, 8), at: u64_at(bytes, 16), len };
        (u32_at(bytes, 0) == REQUEST_MAGIC && len <= MAX_DATA).then_some(asked)
    }
}

impl Replied {
    /// Encodes the reply.
    pub fn to_bytes(self) -> [u8; REPLY] {
        let mut bytes = [0; REPLY];
        bytes[..4].copy_from_slice(&REPLY_MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.errno.to_le_bytes());
        bytes[8..].copy_from_slice(&self.cookie.to_le_bytes());
        bytes
    }

    /// Decodes a reply; `None` if it is malformed.
    pub fn from_bytes(bytes: &[u8]) -> Option<Replied> {
        let replied = Replied { errno: u32_at(bytes, 4), cookie: u64_at(bytes, 8) };
        (u32_at(bytes, 0) == REPLY_MAGIC).then_some(replied)
    }
}
