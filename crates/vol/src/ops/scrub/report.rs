//! Options, progress and result of a scrub.

use std::sync::Arc;

use super::pace::{RealClock, ScrubClock};
use crate::finding::Finding;
use crate::format::settings::Checksum;

/// Options of a scrub.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ScrubOptions {
    /// Largest number of bytes that are read in a second; `None`: as fast as the device permits.
    pub bytes_per_sec: Option<u64>,
    /// Largest number of findings that the report lists; further ones are only counted.
    pub max_findings: usize,
    /// Clock that measures the rate.
    pub clock: Arc<dyn ScrubClock>,
}

sheave_base::setters!(ScrubOptions { bytes_per_sec: Option<u64>, max_findings: usize, clock: Arc<dyn ScrubClock> });

impl Default for ScrubOptions {
    fn default() -> ScrubOptions {
        ScrubOptions { bytes_per_sec: None, max_findings: 1000, clock: Arc::new(RealClock::default()) }
    }
}

/// Part of a pool that a scrub is reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScrubPhase {
    /// Superblocks, their copies, labels, journal, pages.
    Metadata,
    /// Written blocks of volumes.
    Data,
}

/// Progress of a scrub.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ScrubProgress<'a> {
    /// Part that is being read.
    pub phase: ScrubPhase,
    /// Bytes read so far.
    pub done_bytes: u64,
    /// Estimate of the total number of bytes to read. The pool may change during the scrub.
    pub total_bytes: u64,
    /// Number of findings so far, listed or not.
    pub found: u64,
    /// Findings that are listed so far.
    pub findings: &'a [Finding],
}

/// Result of a scrub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScrubReport {
    /// Findings, each with volume, offset, place on the device and cause.
    pub findings: Vec<Finding>,
    /// Number of findings, including those that are not listed.
    pub found: u64,
    /// Number of copies of metadata pages and of the superblock that were damaged or unreadable, and were rewritten
    /// from a good copy.
    pub mended_copies: u64,
    /// Bytes of metadata that were read.
    pub metadata_bytes: u64,
    /// Bytes of data that were read, and compared with their checksums if the pool has any.
    pub data_bytes: u64,
    /// Bytes of data that do not match their checksums or cannot be read.
    pub bad_bytes: u64,
    /// Bytes of data that were being written at each look. They are new, and were not verified.
    pub busy_bytes: u64,
    /// Checksums of the pool's data. Without any, only unreadable data can be found.
    pub checksum: Checksum,
    /// True if the scrub reached its end. False if it was cancelled: the rest was not read.
    pub completed: bool,
}

impl ScrubReport {
    /// Returns true if nothing wrong was found.
    pub fn is_clean(&self) -> bool {
        self.found == 0
    }
}
