//! The RBD diff format: what changed between two snapshots of a volume, as a stream.
//!
//! Owns both versions of the format, as Ceph's `doc/dev/rbd-diff.rst` describes them, and a record of our own in the
//! second: the [`Identity`] of a snapshot, which readers that do not know it skip. Does not own what a record does to a
//! volume.
//!
//! ```text
//!   "rbd diff v1\n"                  "rbd diff v2\n"
//!   f  le32 n, name                  f  le64 4 + n,  le32 n, name      the snapshot that it begins at, if any
//!   t  le32 n, name                  t  le64 4 + n,  le32 n, name      the snapshot that it leads to, if any
//!   s  le64 size                     s  le64 8,      le64 size         the size that it leads to
//!                                    i  le64 80,     an identity       ours; other unknown records are skipped too
//!                                    i  le64 32,     its random bits   ours; programs before these skip it
//!   w  le64 pos, le64 len, data      w  le64 16 + len, le64 pos, le64 len, data
//!   z  le64 pos, le64 len            z  le64 16,     le64 pos, le64 len
//!   e                                e
//! ```
//!
//! What a [`Reader`] accepts, whatever the bytes are:
//!
//! - D1: metadata comes first, each record once; there is a size.
//! - D2: ranges ascend, do not overlap, and lie within the size.
//! - D3: the stream ends with `e`: one that was cut off is an error, never a shorter diff.
//! - D4: no length in the stream decides how much memory is taken.

mod reader;
mod writer;

pub use reader::{Reader, Record};
pub use writer::{END, begin, data, zeroes};

use std::fmt;
use std::io;

/// First line of a stream, by version.
const BANNERS: [&[u8; 12]; 2] = [b"rbd diff v1\n", b"rbd diff v2\n"];
/// Longest name that is read.
const MAX_NAME: usize = 4096;
/// Longest record that is skipped.
const MAX_SKIPPED: u64 = 1 << 20;
/// Begins an identity, and tells it from records of other programs.
const IDENTITY_MAGIC: &[u8; 8] = b"shv-id-1";
/// Bytes of an identity record.
const IDENTITY_BYTES: usize = 80;
/// Begins the random bits of an identity.
const UNIQUE_MAGIC: &[u8; 8] = b"shv-id-2";
/// Bytes of a record of random bits.
const UNIQUE_BYTES: usize = 32;

/// Which format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// What `rbd import-diff` and `rbd merge-diff` take. Snapshots have names only.
    V1,
    /// With lengths before all records, so that identities fit in.
    V2,
}

/// What a snapshot is, beside its name. Its random bits tell it from all others; its copies in other pools keep them.
/// The rest is computed from the map; no data is read for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Identity {
    /// The pool that the diff was made of. For people: a copy is elsewhere.
    pub pool: [u8; 16],
    /// Number of the snapshot in that pool. For people too.
    pub volume: u32,
    /// When it was taken, seconds since 1970. Copies keep it.
    pub created: u64,
    /// Its bytes.
    pub size: u64,
    /// Bytes of it that are written.
    pub written: u64,
    /// A hash of which parts are written.
    pub layout: u64,
    /// Random bits, not all zero: equal for a snapshot and its copies in other pools alone. None for what can be
    /// written, and for snapshots of older programs.
    pub unique: Option<[u8; 16]>,
}

/// Whether two snapshots are one, or copies of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Likeness {
    /// They are.
    Same,
    /// They look alike, and one of them has no random bits that would prove it.
    Alike,
    /// They are not.
    Other,
}

sheave_base::setters!(Identity { pool: [u8; 16], volume: u32, created: u64, size: u64, written: u64, layout: u64,
    unique: Option<[u8; 16]>,
});

impl Identity {
    /// Whether two snapshots are the same or copies of each other. Where one of them has no random bits, time, sizes
    /// and places are all that is known: other data in the same places, of the same second, looks alike.
    pub fn compare(&self, other: &Identity) -> Likeness {
        let alike = self.created == other.created && self.is_same_layout(other);
        match (self.unique, other.unique) {
            _ if !alike => Likeness::Other,
            (Some(one), Some(other)) if one == other => Likeness::Same,
            (Some(_), Some(_)) => Likeness::Other,
            _ => Likeness::Alike,
        }
    }

    /// Whether they have the same size, and data in the same places.
    pub fn is_same_layout(&self, other: &Identity) -> bool {
        (self.size, self.written, self.layout) == (other.size, other.written, other.layout)
    }
}

/// What stands before the ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The snapshot that it begins at; `None`: at nothing.
    pub from: Option<String>,
    /// The snapshot that it leads to; `None`: to a volume as it was.
    pub to: Option<String>,
    /// Bytes of the volume that it leads to.
    pub size: u64,
    /// Of the snapshot that it begins at.
    pub from_identity: Option<Identity>,
    /// Of the snapshot that it leads to.
    pub to_identity: Option<Identity>,
}

/// A stream that is no diff, or cannot be read.
#[derive(Debug)]
pub struct DiffError {
    /// The byte of the stream at which that showed.
    pub at: u64,
    /// What is wrong.
    pub what: String,
    /// Reading failed in this way; `None`: what was read is wrong.
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
