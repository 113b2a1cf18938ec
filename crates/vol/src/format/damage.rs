//! Reasons why a metadata block is refused.
//!
//! Owns [`Damage`] and its messages. Every decoder returns one. Callers add which block is damaged and what follows
//! from that: opening a pool, and [`check`](mod@crate::check).

use thiserror::Error;

use crate::format::VERSION;

/// Damaged or unreadable pages of a volume's map. The addresses of the data that they map are unknown, so the volume
/// does not open.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MapDamage {
    /// Address of the first of these pages in the pool, in bytes.
    pub at: u64,
    /// Damage of the first of these pages, in words.
    pub why: String,
    /// Range of the volume that the first of these pages maps: first byte, and number of bytes.
    pub range: (u64, u64),
    /// Number of damaged pages.
    pub pages: u64,
}

/// Damage of a metadata block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Damage {
    /// The block is all zeroes.
    #[error("it is all zeroes: the block was never written, or its write was lost")]
    Blank,
    /// The block is no metadata block of any pool.
    #[error("it does not begin as a metadata block does: something else was written there")]
    Alien,
    /// The checksum does not match the content.
    #[error("its checksum is {computed:#010x} and should be {stored:#010x}: bits have changed, or a write was torn")]
    Checksum {
        /// Checksum in the block's header.
        stored: u32,
        /// Checksum computed over the block.
        computed: u32,
    },
    /// The block has a later version of the format.
    #[error("it has format version {version} and this program knows versions up to {VERSION}. Use a newer sheave")]
    TooNew {
        /// Version of the block.
        version: u16,
    },
    /// The pool uses features that this program does not know.
    #[error("the pool uses features ({bits:#x}) that this program does not know. Use a newer sheave")]
    Features {
        /// Bits of the unknown features.
        bits: u32,
    },
    /// The block belongs to another pool.
    #[error("it belongs to another pool: it was left from an older format, or a write went to the wrong device")]
    Foreign,
    /// The block is of another kind than its place requires.
    #[error("it is a block of kind {found} where one of kind {wanted} should be")]
    Kind {
        /// Kind of the block.
        found: u16,
        /// Kind that its place requires.
        wanted: u16,
    },
    /// The block was written for another address.
    #[error("it was written for byte {says}: a write or a read went to the wrong place")]
    Misplaced {
        /// Address in the block's header.
        says: u64,
    },
    /// The block is intact, and is not the version that its parent refers to.
    #[error("it is intact but of generation {generation} and not the one that was written last: a write was lost")]
    Stale {
        /// Generation in the block's header.
        generation: u64,
    },
    /// The member is an older copy of itself.
    #[error(
        "it is an older copy of this member: the pool has written checkpoint {wanted} with it, and the last that the \
         copy has is {found}"
    )]
    OldMember {
        /// Checkpoint in the member's label.
        found: u64,
        /// Lowest checkpoint that an up-to-date label can have.
        wanted: u64,
    },
    /// The member is newer than the superblock.
    #[error(
        "it has checkpoint {found}, and the superblock knows of none after {known}: the first member of the pool is an \
         older copy"
    )]
    OldSuperblock {
        /// Checkpoint in the member's label.
        found: u64,
        /// Newest checkpoint that can follow this superblock.
        known: u64,
    },
    /// A field has an invalid value.
    #[error("its field '{field}' is {value}, which {why}")]
    Field {
        /// Name of the field in `docs/reference/on-disk-format.md`.
        field: &'static str,
        /// Value of the field.
        value: u64,
        /// Reason why the value is invalid; completes the sentence "field is value, which ...".
        why: &'static str,
    },
}

impl Damage {
    pub(crate) fn field(field: &'static str, value: impl Into<u64>, why: &'static str) -> Damage {
        Damage::Field { field, value: value.into(), why }
    }

    /// Returns true if a member is intact, but older or newer than the rest of the pool.
    pub fn is_old_member(&self) -> bool {
        matches!(self, Damage::OldMember { .. } | Damage::OldSuperblock { .. })
    }

    /// Returns true if nothing is broken and a newer program can read the block.
    pub fn is_too_new(&self) -> bool {
        matches!(self, Damage::TooNew { .. } | Damage::Features { .. })
    }
}

/// Returns [`Damage::Field`] for `field` unless `holds`.
pub(crate) fn require(
    holds: bool,
    field: &'static str,
    value: impl Into<u64>,
    why: &'static str,
) -> Result<(), Damage> {
    if holds { Ok(()) } else { Err(Damage::field(field, value, why)) }
}

impl std::error::Error for MapDamage {}

impl std::fmt::Display for MapDamage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let MapDamage { at, why, range: (pos, len), pages } = self;
        write!(f, "its page at byte {at}, for bytes {pos} to {} of the volume: {why}", pos.saturating_add(*len))?;
        match pages.saturating_sub(1) {
            0 => Ok(()),
            more => write!(f, " (and {more} more pages)"),
        }
    }
}
