//! Why a metadata block is not accepted.
//!
//! Owns [`Damage`] and its plain words. Every decoder gives one; who knows which block it was and what follows from it
//! (opening, [`check`](mod@crate::check)) says so around it.

use thiserror::Error;

use crate::format::VERSION;

/// Pages of a volume's map that are damaged or cannot be read: where the data behind them lies is not known, so the
/// volume does not open.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MapDamage {
    /// First byte of the first of these pages in the pool.
    pub at: u64,
    /// What is wrong with it.
    pub why: String,
    /// First byte and bytes of the volume whose places that page had.
    pub range: (u64, u64),
    /// How many there are.
    pub pages: u64,
}

/// What is wrong with a metadata block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Damage {
    /// All zeroes.
    #[error("it is all zeroes: the block was never written, or its write was lost")]
    Blank,
    /// No block of any pool.
    #[error("it does not begin as a metadata block does: something else was written there")]
    Alien,
    /// Its bytes are not what was written.
    #[error("its checksum is {computed:#010x} and should be {stored:#010x}: bits have changed, or a write was torn")]
    Checksum {
        /// In the block.
        stored: u32,
        /// Of the block.
        computed: u32,
    },
    /// Of a later format.
    #[error("it has format version {version} and this program knows versions up to {VERSION}. Use a newer sheave")]
    TooNew {
        /// The version.
        version: u16,
    },
    /// With features that must be known.
    #[error("the pool uses features ({bits:#x}) that this program does not know. Use a newer sheave")]
    Features {
        /// Those unknown.
        bits: u32,
    },
    /// Of another pool.
    #[error("it belongs to another pool: it was left from an older format, or a write went to the wrong device")]
    Foreign,
    /// Of another kind.
    #[error("it is a block of kind {found} where one of kind {wanted} should be")]
    Kind {
        /// What it is.
        found: u16,
        /// What it should be.
        wanted: u16,
    },
    /// Written for another place.
    #[error("it was written for byte {says}: a write or a read went to the wrong place")]
    Misplaced {
        /// Its own address.
        says: u64,
    },
    /// Intact, but not the one that is referred to.
    #[error("it is intact but of generation {generation} and not the one that was written last: a write was lost")]
    Stale {
        /// Its generation.
        generation: u64,
    },
    /// Of a member that is an older copy.
    #[error(
        "it is an older copy of this member: the pool has written checkpoint {wanted} with it, and the last that the \
         copy has is {found}"
    )]
    OldMember {
        /// The checkpoint that its label has.
        found: u64,
        /// The checkpoint that it has at least.
        wanted: u64,
    },
    /// Of a member that is newer than the superblock.
    #[error(
        "it has checkpoint {found}, and the superblock knows of none after {known}: the first member of the pool is an \
         older copy"
    )]
    OldSuperblock {
        /// The checkpoint that its label has.
        found: u64,
        /// The newest that the superblock may know of.
        known: u64,
    },
    /// A value that cannot be.
    #[error("its field '{field}' is {value}, which {why}")]
    Field {
        /// As in `docs/on-disk-format.md`.
        field: &'static str,
        /// What is there.
        value: u64,
        /// What is wrong with it.
        why: &'static str,
    },
}

impl Damage {
    /// A value that cannot be.
    pub(crate) fn field(field: &'static str, value: impl Into<u64>, why: &'static str) -> Damage {
        Damage::Field { field, value: value.into(), why }
    }

    /// Whether a member is intact and of another time than the pool.
    pub fn is_old_member(&self) -> bool {
        matches!(self, Damage::OldMember { .. } | Damage::OldSuperblock { .. })
    }

    /// Whether a newer program could read it: nothing is broken.
    pub fn is_too_new(&self) -> bool {
        matches!(self, Damage::TooNew { .. } | Damage::Features { .. })
    }
}

/// `Ok` if the condition holds, else the field that is wrong.
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
