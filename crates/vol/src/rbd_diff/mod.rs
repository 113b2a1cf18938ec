//! The RBD diff format: a stream with the differences between two snapshots of a volume.
//!
//! Owns both versions of the format, which Ceph's `doc/dev/rbd-diff.rst` describes, and two records of Sheave in the
//! second version, which other readers skip: the [`Identity`] of a snapshot, and its random bits. Does not own the
//! application of records to a volume.
//!
//! ```text
//!   "rbd diff v1\n"                  "rbd diff v2\n"
//!   f  le32 n, name                  f  le64 4 + n,  le32 n, name      the snapshot to start from, if any
//!   t  le32 n, name                  t  le64 4 + n,  le32 n, name      the snapshot to end with, if any
//!   s  le64 size                     s  le64 8,      le64 size         the size at the end
//!                                    i  le64 80,     an identity       ours; other unknown records are skipped too
//!                                    i  le64 32,     its random bits   ours; older programs skip it
//!   w  le64 pos, le64 len, data      w  le64 16 + len, le64 pos, le64 len, data
//!   z  le64 pos, le64 len            z  le64 16,     le64 pos, le64 len
//!   e                                e
//! ```
//!
//! Rules that a [`Reader`] enforces on any stream:
//!
//! - D1: metadata comes first, each record at most once; the size is mandatory.
//! - D2: ranges ascend, do not overlap, and lie within the size.
//! - D3: the stream ends with `e`. A stream that was cut off is an error, not a shorter diff.
//! - D4: no length in the stream determines how much memory is allocated.

mod reader;
mod writer;

pub use reader::{Reader, Record};
pub use writer::{END, begin, data, zeroes};

use std::fmt;
use std::io;

/// First line of a stream, by version.
const BANNERS: [&[u8; 12]; 2] = [b"rbd diff v1\n", b"rbd diff v2\n"];
const MAX_NAME: usize = 4096;
/// Longest unknown record that is skipped, in bytes.
const MAX_SKIPPED: u64 = 1 << 20;
/// First bytes of an identity, which other programs' records of the same tag do not have.
const IDENTITY_MAGIC: &[u8; 8] = b"shv-id-1";
const IDENTITY_BYTES: usize = 80;
/// First bytes of the record with the random bits of an identity.
const UNIQUE_MAGIC: &[u8; 8] = b"shv-id-2";
/// Number of bytes of a record of random bits.
const UNIQUE_BYTES: usize = 32;

/// Version of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// The version that `rbd import-diff` and `rbd merge-diff` accept. It names snapshots and has no identities.
    V1,
    /// The version with a length before each record, so that readers can skip identities.
    V2,
}

/// Identity of a snapshot, independent of its name. The random bits distinguish it from all other snapshots; its copies
/// in other pools have the same bits. All other fields are computed from the map, without a read of data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Identity {
    /// Pool that the diff was made from. Informative only: a copy of the snapshot lies in another pool.
    pub pool: [u8; 16],
    /// Number of the snapshot in that pool. Informative only.
    pub volume: u32,
    /// Time at which the snapshot was taken, in seconds since 1970. Copies keep it.
    pub created: u64,
    /// Size in bytes.
    pub size: u64,
    /// Number of bytes that are written.
    pub written: u64,
    /// Hash of the positions of the written parts.
    pub layout: u64,
    /// Random bits, not all zero, which only copies of the snapshot in other pools share. `None` for a volume that can
    /// be written, and for snapshots of older programs.
    pub unique: Option<[u8; 16]>,
}

/// Result of comparing two snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Likeness {
    /// They are the same snapshot, or copies of each other.
    Same,
    /// Their times, sizes and layouts are equal, and one of them has no random bits that would prove that they are the
    /// same.
    Alike,
    /// They are different snapshots.
    Other,
}

sheave_base::setters!(Identity { pool: [u8; 16], volume: u32, created: u64, size: u64, written: u64, layout: u64,
    unique: Option<[u8; 16]>,
});

impl Identity {
    /// Compares two snapshots. If one of them has no random bits, only times, sizes and layouts are compared: a
    /// snapshot with other data in the same places, taken in the same second, is [`Likeness::Alike`] too.
    pub fn compare(&self, other: &Identity) -> Likeness {
        let alike = self.created == other.created && self.is_same_layout(other);
        match (self.unique, other.unique) {
            _ if !alike => Likeness::Other,
            (Some(one), Some(other)) if one == other => Likeness::Same,
            (Some(_), Some(_)) => Likeness::Other,
            _ => Likeness::Alike,
        }
    }

    /// Returns true if both have the same size, and data in the same places.
    pub fn is_same_layout(&self, other: &Identity) -> bool {
        (self.size, self.written, self.layout) == (other.size, other.written, other.layout)
    }
}

/// Metadata of a stream, which precedes the ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Snapshot that the diff starts from; `None` if it starts from an empty volume.
    pub from: Option<String>,
    /// Snapshot that the diff leads to; `None` if it leads to the state of a volume without a snapshot.
    pub to: Option<String>,
    /// Size of the volume at the end of the diff, in bytes.
    pub size: u64,
    /// Identity of the snapshot that the diff starts from.
    pub from_identity: Option<Identity>,
    /// Identity of the snapshot that the diff leads to.
    pub to_identity: Option<Identity>,
}

/// Error of a stream that is not a valid diff, or cannot be read.
#[derive(Debug)]
pub struct DiffError {
    /// Position in the stream at which the error was found, in bytes.
    pub at: u64,
    /// Message that names the cause.
    pub what: String,
    /// Kind of the I/O error; `None` if the bytes were read and are wrong.
    pub io: Option<io::ErrorKind>,
}

impl fmt::Display for DiffError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at byte {} of the diff: {}", self.at, self.what)
    }
}

impl std::error::Error for DiffError {}

#[cfg(all(test, not(shuttle)))]
mod tests;
