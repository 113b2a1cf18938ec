//! What a check tells.
//!
//! Owns the options, the progress and the report. What is wrong is told in [findings](crate::finding).

use crate::finding::Finding;
use crate::info::MemberInfo;
/// How a pool is checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckOptions {
    /// Carry out what the findings' `repair` says. Without it nothing is written.
    pub repair: bool,
}

sheave_base::setters!(CheckOptions { repair: bool });

/// How far a check is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckProgress {
    /// Metadata read.
    pub done_bytes: u64,
    /// Of so much, as far as it is known: leaves, almost all of it, are known before the first is read. A repair reads
    /// everything again.
    pub total_bytes: u64,
}

/// How far a check is, and who hears of it.
pub(crate) struct Progress<'a> {
    pub(crate) at: CheckProgress,
    pub(crate) tell: &'a mut dyn FnMut(CheckProgress),
}

impl Progress<'_> {
    /// So much more is to be read.
    pub(crate) fn more(&mut self, bytes: u64) {
        self.at.total_bytes += bytes;
    }

    /// So much of it is.
    pub(crate) fn done(&mut self, bytes: u64) {
        self.at.done_bytes += bytes;
        (self.tell)(self.at);
    }
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckReport {
    /// Identity of the pool, as 32 hexadecimal digits; none when no superblock could be read.
    pub uuid: Option<String>,
    /// What is wrong, in the order of the walk; the worst damage first hides nothing behind it.
    pub findings: Vec<Finding>,
    /// What is not wrong and worth knowing.
    pub notes: Vec<String>,
    /// The devices that the pool is made of, in order.
    pub members: Vec<MemberInfo>,
    /// Counts, as far as the pool could be walked.
    pub totals: Totals,
    /// The repairs were carried out.
    pub repaired: bool,
}

impl CheckReport {
    /// Nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    /// Everything wrong can be repaired.
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
    /// Allocation units.
    pub units: u64,
    /// Of those, for superblocks, journal and labels.
    pub reserved_units: u64,
    /// Of those, with pages of metadata.
    pub metadata_units: u64,
    /// Of those, with data of volumes.
    pub data_units: u64,
    /// Of the units with data, those that several maps have.
    pub shared_units: u64,
    /// Free: the rest.
    pub free_units: u64,
    /// Pages of metadata.
    pub pages: u64,
    /// Volumes and snapshots.
    pub volumes: u64,
    /// Entries of all maps, shared leaves counted once.
    pub entries: u64,
    /// Journal records that opening would replay.
    pub records: u64,
    /// Superblock generation.
    pub generation: u64,
}
