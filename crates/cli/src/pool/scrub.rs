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
mod tests;
