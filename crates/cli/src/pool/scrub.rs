//! `sheave pool scrub`: reads a pool through, metadata and data, and tells what has rotted.
//!
//! What is looked at, and when something is a finding, is the pool's matter ([`sheave::vol::scrub`]). The names of the
//! JSON fields are an interface.

use std::fmt::Write;
use std::ops::ControlFlow;

use serde::Serialize;
use sheave::base::sync::atomic::Ordering;
use sheave::base::units::fmt_bytes;
use sheave::vol::{Checksum, ScrubOptions, ScrubReport};

use super::check::FindingJson;
use super::place::Access;
use crate::args::pool::ScrubArgs;
use crate::failure::{self, Failure};
use crate::output;
use crate::progress::Progress;
use sheave_load::signals;

#[derive(Debug, Serialize)]
struct ReportJson {
    pool: String,
    checksum: &'static str,
    /// Whether data could be verified; else it was read only.
    data_verified: bool,
    /// Metadata that was read.
    metadata_read_bytes: u64,
    /// Data that was read; what several share once.
    data_read_bytes: u64,
    /// Data that is not what was written, or cannot be read.
    bad_bytes: u64,
    /// Ended before its end.
    interrupted: bool,
    /// Findings, those beyond the list included.
    found: u64,
    findings: Vec<FindingJson>,
}

impl ReportJson {
    fn new(args: &ScrubArgs, report: &ScrubReport) -> Self {
        Self {
            pool: args.pool.to_string(),
            checksum: match report.checksum {
                Checksum::None => "none",
                Checksum::Crc32c => "crc32c",
            },
            data_verified: report.verified_data(),
            metadata_read_bytes: report.metadata_bytes,
            data_read_bytes: report.data_bytes,
            bad_bytes: report.bad_bytes,
            interrupted: !report.completed,
            found: report.found,
            findings: report.findings.iter().map(FindingJson::new).collect(),
        }
    }
}

/// Does it.
pub fn run(args: &ScrubArgs) -> Result<(), Failure> {
    let stop = signals::stop_flag()?;
    let pool = args.pool.open(Access::Look)?;
    let options = ScrubOptions { bytes_per_sec: args.rate, ..ScrubOptions::default() };
    let mut progress = Progress::new("scrub", args.progress, args.json, None);
    let scrubbed = pool.scrub(&options, &mut |at| {
        progress.set(at.done_bytes, at.total_bytes);
        // Relaxed: the flag carries nothing but itself.
        if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let seconds = progress.finish().as_secs_f64();
    let closed = pool.close().map_err(failure::pool);
    let report = scrubbed.map_err(failure::pool)?;
    closed?;
    if args.json {
        output::json(&ReportJson::new(args, &report))?;
    } else {
        output::text(&words(&report, seconds));
    }
    match (report.is_clean(), report.completed) {
        (true, true) => Ok(()),
        (true, false) => Err(Failure::interrupted("the scrub was ended before it had read everything")),
        (false, _) => Err(Failure::reported()),
    }
}

fn words(report: &ScrubReport, seconds: f64) -> String {
    let mut text = String::new();
    for (number, finding) in report.findings.iter().enumerate() {
        // Writing to a String does not fail.
        let _ = writeln!(text, "{:>3}. {}: {finding}", number + 1, finding.kind.name());
        if let Some(repair) = &finding.repair {
            let _ = writeln!(text, "     fix: {repair}");
        }
    }
    let unlisted = report.found - report.findings.len() as u64;
    if unlisted > 0 {
        let _ = writeln!(text, "and {unlisted} more");
    }
    let _ = writeln!(
        text,
        "{} of metadata and {} of data read in {seconds:.1} s, {} bad",
        fmt_bytes(report.metadata_bytes),
        fmt_bytes(report.data_bytes),
        fmt_bytes(report.bad_bytes)
    );
    if !report.verified_data() {
        text += "note: this pool has no checksums (pool create --checksum crc32c), so data cannot be verified: it was \
                 read, and what the device could not read would show\n";
    }
    let _ = match (report.found, report.completed) {
        (0, true) => writeln!(text, "clean"),
        (0, false) => writeln!(text, "nothing found so far; it was ended before its end"),
        (1, _) => writeln!(text, "1 thing is wrong"),
        (many, _) => writeln!(text, "{many} things are wrong"),
    };
    text
}

#[cfg(test)]
mod tests;
