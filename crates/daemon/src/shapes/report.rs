//! What a check and a scrub have found, as programs are told of it; the names of the fields are an interface.

use serde::{Deserialize, Serialize};
use sheave_vol::{Finding, Place, ScrubReport};

use crate::place::PoolPlace;

/// Something that is wrong, for programs.
#[derive(Debug, Serialize, Deserialize)]
pub struct FindingJson {
    /// What kind of thing it is.
    pub kind: String,
    /// Where, in words.
    pub place: String,
    /// The first byte in the pool.
    pub address: Option<u64>,
    /// The volume that has it.
    pub volume: Option<String>,
    /// The first byte in that volume.
    pub offset: Option<u64>,
    /// Bytes from there.
    pub length: Option<u64>,
    /// What it means for users.
    pub means: String,
    /// What a repair would do.
    pub repair: Option<String>,
}

impl FindingJson {
    /// From what the check tells.
    #[must_use]
    pub fn new(finding: &Finding) -> Self {
        Self {
            kind: finding.kind.name().into(),
            place: finding.place.what.clone(),
            address: finding.place.address,
            volume: finding.place.volume.clone(),
            offset: finding.place.range.map(|(pos, _)| pos),
            length: finding.place.range.map(|(_, len)| len),
            means: finding.means.clone(),
            repair: finding.repair.clone(),
        }
    }

    /// Where and what, for people.
    #[must_use]
    pub fn words(&self) -> String {
        let place = Place::new(&self.place)
            .address(self.address)
            .volume(self.volume.clone())
            .range(self.offset.zip(self.length));
        format!("{place}: {}", self.means)
    }
}

/// What was found, for programs.
#[derive(Debug, Serialize, Deserialize)]
pub struct ScrubJson {
    /// As it was named.
    pub pool: String,
    /// `none` or `crc32c`.
    pub checksum: String,
    /// Whether data could be verified; else it was read only.
    pub data_verified: bool,
    /// Copies of pages of metadata that were not good, and were written anew from the other copy.
    #[serde(default)]
    pub mended_copies: u64,
    /// Metadata that was read.
    pub metadata_read_bytes: u64,
    /// Data that was read; what several share once.
    pub data_read_bytes: u64,
    /// Data that is not what was written, or cannot be read.
    pub bad_bytes: u64,
    /// Ended before its end.
    pub interrupted: bool,
    /// Findings, those beyond the list included.
    pub found: u64,
    /// The first of them.
    pub findings: Vec<FindingJson>,
}

impl ScrubJson {
    /// From what the pool tells.
    pub fn new(place: &PoolPlace, report: &ScrubReport) -> Self {
        Self {
            pool: place.to_string(),
            checksum: report.checksum.name().into(),
            data_verified: report.verified_data(),
            mended_copies: report.mended_copies,
            metadata_read_bytes: report.metadata_bytes,
            data_read_bytes: report.data_bytes,
            bad_bytes: report.bad_bytes,
            interrupted: !report.completed,
            found: report.found,
            findings: report.findings.iter().map(FindingJson::new).collect(),
        }
    }
}
