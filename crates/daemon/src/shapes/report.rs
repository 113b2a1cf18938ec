//! JSON of the results of a check and a scrub. The field names are an interface.

use serde::{Deserialize, Serialize};
use sheave_vol::{Finding, Place, ScrubReport};

use crate::place::PoolPlace;

/// A finding as JSON.
#[derive(Debug, Serialize, Deserialize)]
pub struct FindingJson {
    /// Kind of the finding.
    pub kind: String,
    /// Description of the place.
    pub place: String,
    /// First byte in the pool.
    pub address: Option<u64>,
    /// Affected volume.
    pub volume: Option<String>,
    /// First affected byte in that volume.
    pub offset: Option<u64>,
    /// Number of affected bytes.
    pub length: Option<u64>,
    /// Consequence for users.
    pub means: String,
    /// Effect of a repair.
    pub repair: Option<String>,
}

impl FindingJson {
    /// Converts a finding of the check.
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

    /// Describes place and consequence.
    #[must_use]
    pub fn words(&self) -> String {
        let place = Place::new(&self.place)
            .address(self.address)
            .volume(self.volume.clone())
            .range(self.offset.zip(self.length));
        format!("{place}: {}", self.means)
    }
}

/// Result of a scrub as JSON.
#[derive(Debug, Serialize, Deserialize)]
pub struct ScrubJson {
    /// Name that was given on the command line.
    pub pool: String,
    /// `none` or `crc32c`.
    pub checksum: String,
    /// True if data was verified against checksums; false if it was only read.
    pub data_verified: bool,
    /// Bad copies of metadata pages that were rewritten from the other copy.
    #[serde(default)]
    pub mended_copies: u64,
    pub metadata_read_bytes: u64,
    /// Bytes of data that were read; shared data counts once.
    pub data_read_bytes: u64,
    /// Bytes of data that are corrupt or unreadable.
    pub bad_bytes: u64,
    /// The scrub was stopped before its end.
    pub interrupted: bool,
    /// Number of findings, including those beyond the list.
    pub found: u64,
    /// The first findings.
    pub findings: Vec<FindingJson>,
}

impl ScrubJson {
    /// Converts a report of the pool.
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
