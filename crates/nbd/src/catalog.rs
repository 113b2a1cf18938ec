//! What a server tells about its exports, and what it looks up for a client.

use crate::wire::tflag;

/// Most metadata contexts that one client can select.
pub const MAX_CONTEXTS: usize = 32;
/// Most metadata contexts that one answer to LIST_META_CONTEXT tells.
pub const MAX_LISTED: usize = 512;

/// What a client is told about an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// The server's own number of it.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// A line for people.
    pub description: String,
    /// Bytes.
    pub size: u64,
    /// Writes, trims and zeroes are refused.
    pub read_only: bool,
    /// Zeroes are written without sending any, quickly, to ranges in whole blocks.
    pub fast_zero: bool,
    /// Bytes of the smallest block, a power of two up to 65536. Reads, writes, trims and zeroes of clients that have
    /// asked for it lie in whole ones.
    pub min_block: u32,
    /// Bytes of requests that need nothing read first, or more. A power of two.
    pub preferred_block: u32,
}

impl ExportInfo {
    /// The transmission flags, but for those that depend on what else was negotiated.
    pub(crate) fn flags(&self) -> u16 {
        let always = tflag::HAS_FLAGS | tflag::SEND_FLUSH | tflag::SEND_FUA | tflag::CAN_MULTI_CONN | tflag::SEND_CACHE;
        if self.read_only {
            return always | tflag::READ_ONLY;
        }
        always | tflag::SEND_TRIM | tflag::SEND_WRITE_ZEROES | tflag::SEND_FAST_ZERO
    }
}

/// The exports of a server, as the handshake asks for them.
pub trait Catalog {
    /// The export of this name; an empty one asks for the default, if there is one.
    fn find(&self, name: &[u8]) -> Option<ExportInfo>;

    /// Tells name and description of each export.
    fn list(&self, each: &mut dyn FnMut(&str, &str));

    /// How many exports there are, about.
    fn exports(&self) -> usize;

    /// Tells the names of the metadata contexts of an export, those of most use first. What comes after the first
    /// [`MAX_LISTED`] is not told to clients. There may be others that only [`Catalog::context`] finds.
    fn contexts(&self, export: u32, each: &mut dyn FnMut(&str));

    /// The server's own number of a metadata context of an export, if the export has one of this name.
    fn context(&self, export: u32, name: &[u8]) -> Option<u64>;

    /// Whether the server is about to end.
    fn is_ending(&self) -> bool {
        false
    }
}
