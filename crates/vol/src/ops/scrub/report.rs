//! What a scrub is asked, and what it tells.

use std::sync::Arc;

use super::pace::{RealClock, ScrubClock};
use crate::finding::Finding;
use crate::format::settings::Checksum;

/// How a pool is scrubbed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ScrubOptions {
    /// Bytes that it may read in a second; `None`: as fast as the device goes.
    pub bytes_per_sec: Option<u64>,
    /// Findings that the report lists; those that come then are counted.
    pub max_findings: usize,
    /// What the rate is kept by.
    pub clock: Arc<dyn ScrubClock>,
}

sheave_base::setters!(ScrubOptions { bytes_per_sec: Option<u64>, max_findings: usize, clock: Arc<dyn ScrubClock> });

impl Default for ScrubOptions {
    fn default() -> ScrubOptions {
        ScrubOptions { bytes_per_sec: None, max_findings: 1000, clock: Arc::new(RealClock::default()) }
    }
}

/// What a scrub is busy with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScrubPhase {
    /// Superblocks, their copies, labels, journal, pages.
    Metadata,
    /// What volumes have written.
    Data,
}

/// How far a scrub is.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ScrubProgress<'a> {
    /// What it is busy with.
    pub phase: ScrubPhase,
    /// Bytes looked at.
    pub done_bytes: u64,
    /// Of about so many: the pool changes meanwhile.
    pub total_bytes: u64,
    /// Findings so far, listed or not.
    pub found: u64,
    /// Those listed.
    pub findings: &'a [Finding],
}

/// What a scrub found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScrubReport {
    /// What is wrong, each with volume, offset, place on the device and cause.
    pub findings: Vec<Finding>,
    /// How many there were, those that are not listed included.
    pub found: u64,
    /// Copies of pages of metadata and of the superblock that were damaged or could not be read, and were written anew
    /// from a good one.
    pub mended_copies: u64,
    /// Metadata looked at.
    pub metadata_bytes: u64,
    /// Data read; compared with its checksums, if the pool keeps them.
    pub data_bytes: u64,
    /// Of that, what is not what was written, or cannot be read.
    pub bad_bytes: u64,
    /// Data that was written to each time it was looked at: new, and not verified.
    pub busy_bytes: u64,
    /// Checksums of the pool's data. With none of them only unreadable data can be noticed.
    pub checksum: Checksum,
    /// It came to its end; else it was cancelled, and the rest was not looked at.
    pub completed: bool,
}

impl ScrubReport {
    /// Nothing is wrong, as far as it looked.
    pub fn is_clean(&self) -> bool {
        self.found == 0
    }
}
