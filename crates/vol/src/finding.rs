//! Findings of checks and scrubs.
//!
//! Owns the kinds and texts of findings, which checks and scrubs share. Each finding names its place, its consequence
//! for the data, and the effect of a repair.

use std::fmt;

/// One defect of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// Kind of the defect.
    pub kind: FindingKind,
    /// Place of the defect.
    pub place: Place,
    /// Description of the defect, and of what it means for the data.
    pub means: String,
    /// Description of what repairing does. `None` if it cannot be repaired: `means` says what can be done.
    pub repair: Option<String>,
}

impl Finding {
    /// Creates a finding that cannot be repaired.
    pub fn new(kind: FindingKind, place: Place, means: impl Into<String>) -> Finding {
        Finding { kind, place, means: means.into(), repair: None }
    }
}

sheave_base::setters!(Finding { repair: Option<String> });

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.means)
    }
}

/// Kinds of findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FindingKind {
    /// There is no pool, or both superblocks are damaged, or the pool is of a newer format.
    NoPool,
    /// One superblock is damaged.
    Superblock,
    /// The superblocks contradict each other.
    SuperblocksDiffer,
    /// The newest superblock is lost, and the older one cannot stand for it.
    SuperblockLost,
    /// A member's label is damaged, or the member is not the one it should be.
    Label,
    /// A journal block with acknowledged records is damaged.
    Journal,
    /// A page of the volume table is damaged: its volumes are lost.
    TablePage,
    /// A page of a volume's map is damaged: what it maps is lost.
    MapPage,
    /// A page of data checksums is damaged.
    SumsPage,
    /// One of the two copies of a page is damaged or cannot be read, and the other is good.
    PageCopy,
    /// A page or unit could not be read.
    Unreadable,
    /// An entry of the volume table is impossible.
    Volume,
    /// A volume has space beyond its end.
    BeyondEnd,
    /// A unit or page is claimed by two that may not share it.
    SharedWrongly,
    /// A unit is claimed for data, but lies in a place of metadata or of the pool itself.
    InMetadata,
    /// Counts disagree.
    Totals,
    /// Data does not match its checksum.
    Data,
}

impl FindingKind {
    /// Returns the name that reports and scripts use.
    pub fn name(self) -> &'static str {
        match self {
            FindingKind::NoPool => "no-pool",
            FindingKind::Superblock => "superblock",
            FindingKind::SuperblocksDiffer => "superblocks-differ",
            FindingKind::SuperblockLost => "superblock-lost",
            FindingKind::Label => "label",
            FindingKind::Journal => "journal",
            FindingKind::TablePage => "table-page",
            FindingKind::MapPage => "map-page",
            FindingKind::SumsPage => "sums-page",
            FindingKind::PageCopy => "page-copy",
            FindingKind::Unreadable => "unreadable",
            FindingKind::Volume => "volume",
            FindingKind::BeyondEnd => "beyond-end",
            FindingKind::SharedWrongly => "shared-wrongly",
            FindingKind::InMetadata => "in-metadata",
            FindingKind::Totals => "totals",
            FindingKind::Data => "data",
        }
    }
}

/// Place of a defect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// Name of the block or thing, such as `superblock A`.
    pub what: String,
    /// First byte in the pool.
    pub address: Option<u64>,
    /// Volume that is concerned.
    pub volume: Option<String>,
    /// First byte and length of the part of the volume that is concerned.
    pub range: Option<(u64, u64)>,
}

impl Place {
    /// Creates a place that is a block or thing, without an address.
    pub fn new(what: impl Into<String>) -> Place {
        Place { what: what.into(), ..Place::default() }
    }
}

sheave_base::setters!(Place { address: Option<u64>, volume: Option<String>, range: Option<(u64, u64)> });

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if let Some(address) = self.address {
            write!(f, " at byte {address}")?;
        }
        if let Some(volume) = &self.volume {
            write!(f, ", volume '{volume}'")?;
        }
        if let Some((pos, len)) = self.range {
            write!(f, ", bytes {pos} to {}", pos.saturating_add(len))?;
        }
        Ok(())
    }
}
