//! `sheave pool scrub`: reads a whole pool, metadata and data, and reports damage.
//!
//! [`sheave_vol::scrub`] decides what is checked and what counts as a finding. The names of the JSON fields are an
//! interface.

use std::fmt::Write;
use std::ops::ControlFlow;

use serde::Deserialize;
use sheave_base::sync::atomic::{AtomicBool, Ordering};
use sheave_base::units::fmt_bytes;
use sheave_daemon::api::types as t;
use sheave_daemon::failure::{self, Failure};
use sheave_daemon::place::Access;
use sheave_daemon::shapes::report::ScrubJson;
use sheave_load::signals;
use sheave_vol::{Pool, ScrubOptions};

use crate::args::pool::ScrubArgs;
use crate::control::opened::{By, Opened};
use crate::control::remote::Holder;
use crate::output;
use crate::progress::Progress;

/// Runs the command.
pub fn run(args: &ScrubArgs) -> Result<(), Failure> {
    let stop = signals::stop_flag()?;
    let pool = Opened::open(&args.pool, Access::Look)?;
    let mut progress = Progress::new("scrub", args.progress, args.json, None);
    let scrubbed = match pool.by() {
        By::Us(pool) => here(pool, args, &mut progress, &stop),
        By::Them(holder) => there(holder, args, &mut progress, &stop),
    };
    let seconds = progress.finish().as_secs_f64();
    let closed = pool.close();
    let report = scrubbed?;
    closed?;
    if args.json {
        output::json(&report)?;
    } else {
        output::text(&words(&report, seconds));
    }
    match (report.found == 0, report.interrupted) {
        (true, false) => Ok(()),
        (true, true) => Err(Failure::interrupted("the scrub was ended before it had read everything")),
        (false, _) => Err(Failure::reported()),
    }
}

fn here(pool: &Pool, args: &ScrubArgs, progress: &mut Progress, stop: &AtomicBool) -> Result<ScrubJson, Failure> {
    let options = ScrubOptions::default().bytes_per_sec(args.rate);
    let scrubbed = pool.scrub(&options, &mut |at| {
        progress.set(at.done_bytes, at.total_bytes);
        // Relaxed: the flag carries nothing but itself.
        if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    Ok(ScrubJson::new(&args.pool, &scrubbed.map_err(failure::pool)?))
}

#[derive(Deserialize)]
struct Reply {
    report: ScrubJson,
}

/// Runs the scrub in the daemon that holds the pool, while it serves.
fn there(holder: &Holder, args: &ScrubArgs, progress: &mut Progress, stop: &AtomicBool) -> Result<ScrubJson, Failure> {
    let scrub = t::Scrub { pool: holder.pool.clone(), bytes_per_second: args.rate };
    let reply: Reply = holder.remote.long("ScrubPool", &scrub, &[], progress, stop)?;
    Ok(ScrubJson { pool: args.pool.to_string(), ..reply.report })
}

fn words(report: &ScrubJson, seconds: f64) -> String {
    let mut text = String::new();
    for (number, finding) in report.findings.iter().enumerate() {
        // Writing to a String does not fail.
        let _ = writeln!(text, "{:>3}. {}: {}", number + 1, finding.kind, finding.words());
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
        fmt_bytes(report.metadata_read_bytes),
        fmt_bytes(report.data_read_bytes),
        fmt_bytes(report.bad_bytes)
    );
    if report.mended_copies > 0 {
        let _ = writeln!(
            text,
            "{} copies of metadata pages, or of the superblock, were damaged or unreadable, and were written anew from \
             a good one: see to the device",
            report.mended_copies
        );
    }
    if !report.data_verified {
        text += "note: this pool has no checksums (pool create --checksum crc32c), so data cannot be verified: it was \
                 read, and what the device could not read would show\n";
    }
    let _ = match (report.found, report.interrupted) {
        (0, false) => writeln!(text, "clean"),
        (0, true) => writeln!(text, "nothing found so far; it was ended before its end"),
        (1, _) => writeln!(text, "1 thing is wrong"),
        (many, _) => writeln!(text, "{many} things are wrong"),
    };
    text
}

#[cfg(test)]
mod tests {
    use sheave_daemon::place::PoolPlace;
    use sheave_vol::{Checksum, Finding, FindingKind, Place, ScrubReport};

    use super::*;

    fn finding() -> Finding {
        let place = Place::new("data").address(Some(1 << 20)).volume(Some("disk".into())).range(Some((8192, 4096)));
        Finding::new(FindingKind::Data, place, "it does not match its checksum")
    }

    /// Returns a report that `fill` has filled in.
    fn report(fill: impl FnOnce(&mut ScrubReport)) -> ScrubReport {
        let mut report = ScrubReport::default();
        fill(&mut report);
        report
    }

    fn said(report: &ScrubReport) -> String {
        let place: PoolPlace = "p.img".parse().expect("a place");
        words(&ScrubJson::new(&place, report), 1.0)
    }

    #[test]
    fn what_is_wrong_is_told_with_its_places() {
        let report = report(|report| {
            report.findings = vec![finding()];
            report.found = 3;
            report.data_bytes = 1 << 20;
            report.bad_bytes = 12288;
            report.checksum = Checksum::Crc32c;
            report.completed = true;
        });
        let text = said(&report);
        assert!(text.contains("1. data: data at byte 1048576, volume 'disk', bytes 8192 to 12288: it does not match"));
        assert!(text.contains("and 2 more\n") && text.contains("12 KiB bad"), "{text}");
        assert!(text.ends_with("3 things are wrong\n") && !text.contains("no checksums"), "{text}");
    }

    #[test]
    fn a_pool_without_checksums_is_not_called_verified() {
        let report = report(|report| report.completed = true);
        let text = said(&report);
        assert!(text.contains("data cannot be verified") && text.ends_with("clean\n"), "{text}");
        let ended = said(&ScrubReport::default());
        assert!(ended.ends_with("ended before its end\n"), "{ended}");
    }
}
