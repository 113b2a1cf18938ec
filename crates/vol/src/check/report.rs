//! Options, progress and result of a check.
//!
//! Owns these types. Defects are described by [findings](crate::finding).

use crate::finding::Finding;
use crate::info::MemberInfo;
/// Options of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckOptions {
    /// True to carry out the repairs that the findings describe. Otherwise nothing is written.
    pub repair: bool,
}

sheave_base::setters!(CheckOptions { repair: bool });

/// Progress of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckProgress {
    /// Bytes of metadata that were read.
    pub done_bytes: u64,
    /// Number of bytes of metadata to read, as far as it is known. Nearly all metadata is leaves, and these are all
    /// known before the first one is read. A repair reads everything again.
    pub total_bytes: u64,
}

/// Progress of a check, and the function that is called with it.
pub(crate) struct Progress<'a> {
    pub(crate) at: CheckProgress,
    pub(crate) tell: &'a mut dyn FnMut(CheckProgress),
}

impl Progress<'_> {
    /// Adds bytes that are to be read.
    pub(crate) fn more(&mut self, bytes: u64) {
        self.at.total_bytes += bytes;
    }

    /// Adds bytes that were read, and reports the progress.
    pub(crate) fn done(&mut self, bytes: u64) {
        self.at.done_bytes += bytes;
        (self.tell)(self.at);
    }
}

/// Result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckReport {
    /// Identity of the pool, as 32 hexadecimal digits; `None` if no superblock could be read.
    pub uuid: Option<String>,
    /// Everything that is wrong, in the order of the walk.
    pub findings: Vec<Finding>,
    /// Observations that are no defects.
    pub notes: Vec<String>,
    /// Devices that the pool is made of, in order.
    pub members: Vec<MemberInfo>,
    /// Counts, as far as the pool could be walked.
    pub totals: Totals,
    /// True if the repairs were carried out.
    pub repaired: bool,
}

impl CheckReport {
    /// Returns true if nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    /// Returns true if everything that is wrong can be repaired.
    pub fn is_repairable(&self) -> bool {
        self.findings.iter().all(|finding| finding.repair.is_some())
    }
}

/// Counts of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// Bytes of the pool.
    pub size_bytes: u64,
    /// Bytes of an allocation unit.
    pub unit_bytes: u64,
    /// Number of allocation units.
    pub units: u64,
    /// Number of units of superblocks, journal and labels.
    pub reserved_units: u64,
    /// Number of units with pages of metadata.
    pub metadata_units: u64,
    /// Number of units with data of volumes.
    pub data_units: u64,
    /// Number of units with data that several maps have.
    pub shared_units: u64,
    /// Number of free units: the rest.
    pub free_units: u64,
    /// Number of pages of metadata.
    pub pages: u64,
    /// Number of volumes and snapshots.
    pub volumes: u64,
    /// Number of entries of all maps, shared leaves counted once.
    pub entries: u64,
    /// Number of journal records that opening would replay.
    pub records: u64,
    /// Superblock generation.
    pub generation: u64,
}
