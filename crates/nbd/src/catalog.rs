//! Exports of a server, from which the handshake chooses one for a client.

use crate::wire::tflag;

/// Maximum number of metadata contexts that a client can select.
pub const MAX_CONTEXTS: usize = 32;
/// Maximum number of metadata contexts in one reply to LIST_META_CONTEXT.
pub const MAX_LISTED: usize = 512;

/// Properties of an export that a client gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// Number that the server uses for the export.
    pub id: u32,
    pub name: String,
    /// One-line description for users.
    pub description: String,
    /// Size in bytes.
    pub size: u64,
    /// True if writes, trims and zeroes are refused.
    pub read_only: bool,
    /// True if ranges of whole blocks can be zeroed quickly, without writing data.
    pub fast_zero: bool,
    /// Minimum block size in bytes, a power of two up to 65536. Clients that requested block sizes align reads, writes,
    /// trims and zeroes to it.
    pub min_block: u32,
    /// Request size in bytes, a power of two, from which on a request needs no read-modify-write.
    pub preferred_block: u32,
}

impl ExportInfo {
    /// Returns the transmission flags, without those that depend on negotiated options.
    pub(crate) fn flags(&self) -> u16 {
        let always = tflag::HAS_FLAGS | tflag::SEND_FLUSH | tflag::SEND_FUA | tflag::CAN_MULTI_CONN | tflag::SEND_CACHE;
        if self.read_only {
            return always | tflag::READ_ONLY;
        }
        always | tflag::SEND_TRIM | tflag::SEND_WRITE_ZEROES | tflag::SEND_FAST_ZERO
    }
}

/// The exports of a server. Called by the handshake.
pub trait Catalog {
    /// Returns the export with this name. An empty name stands for the default export, if there is one.
    fn find(&self, name: &[u8]) -> Option<ExportInfo>;

    /// Calls `each` with name and description of every export.
    fn list(&self, each: &mut dyn FnMut(&str, &str));

    /// Returns the approximate number of exports.
    fn exports(&self) -> usize;

    /// Calls `each` with the names of the metadata contexts of an export, the most useful ones first. Clients get the
    /// first [`MAX_LISTED`]. There may be more contexts, which only [`Catalog::context`] finds.
    fn contexts(&self, export: u32, each: &mut dyn FnMut(&str));

    /// Returns the number that the server uses for a metadata context of an export, if it exists.
    fn context(&self, export: u32, name: &[u8]) -> Option<u64>;

    /// Returns true if the server is shutting down.
    fn is_ending(&self) -> bool {
        false
    }
}
