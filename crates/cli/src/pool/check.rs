//! `sheave pool check`: verifies a closed pool, reports the findings, and repairs only what it has reported before.
//!
//! The names of the JSON fields are an interface.

use std::fmt::Write;

use serde::Serialize;
use sheave_base::units::fmt_bytes;
use sheave_blk::claim::Sharing;
use sheave_daemon::failure::{self, Failure};
use sheave_daemon::shapes::pool::MemberJson;
use sheave_daemon::shapes::report::FindingJson;
use sheave_vol::{CheckOptions, CheckReport, Totals, check_device_with};

use crate::args::pool::CheckArgs;
use crate::control::remote::{not_while_served, refuse_name};
use crate::patience;
use crate::progress::Progress;
use crate::{confirm, output};

#[derive(Debug, Serialize)]
struct ReportJson {
    pool: String,
    uuid: Option<String>,
    /// True if there are no problems, or if none are left after the repair.
    clean: bool,
    repaired: bool,
    findings: Vec<FindingJson>,
    notes: Vec<String>,
    members: Vec<MemberJson>,
    totals: TotalsJson,
}

#[derive(Debug, Serialize)]
struct TotalsJson {
    size_bytes: u64,
    block_bytes: u64,
    /// Bytes of data of volumes, like in `pool info`; shared data counts once.
    data_bytes: u64,
    /// Bytes of that data that volumes share.
    shared_bytes: u64,
    /// Bytes of superblocks, labels, journal and pages, like in `pool info`.
    metadata_bytes: u64,
    /// All other bytes, which `pool info` divides into free, pending and reserve.
    unused_bytes: u64,
    pages: u64,
    volumes: u64,
    entries: u64,
    records: u64,
    generation: u64,
}

impl TotalsJson {
    fn new(totals: &Totals) -> Self {
        let bytes = |units: u64| units.saturating_mul(totals.unit_bytes);
        Self {
            size_bytes: totals.size_bytes,
            block_bytes: totals.unit_bytes,
            data_bytes: bytes(totals.data_units),
            shared_bytes: bytes(totals.shared_units),
            metadata_bytes: bytes(totals.reserved_units + totals.metadata_units),
            unused_bytes: bytes(totals.free_units),
            pages: totals.pages,
            volumes: totals.volumes,
            entries: totals.entries,
            records: totals.records,
            generation: totals.generation,
        }
    }
}

const ALONE: &str = "a check wants a pool that nobody changes";

/// Runs the command.
pub fn run(args: &CheckArgs) -> Result<(), Failure> {
    args.pool.refuse_volatile()?;
    let instead = format!("sheave pool scrub '{}' verifies a pool that is served; or ", args.pool);
    refuse_name(&args.pool, ALONE, &instead)?;
    args.pool.expect_there()?;
    if args.repair && args.dry_run {
        return Err(Failure::usage("--repair and --dry-run exclude each other")
            .fix("look with --dry-run first, then run --repair"));
    }
    let (options, sharing) = match args.repair {
        true => ("", Sharing::Alone),
        false => (",readonly=on", Sharing::WithReaders),
    };
    let device = args.pool.open_device(options)?;
    let _claim = patience::until_free(|| device.claim(sharing).map_err(failure::device))
        .map_err(|busy| not_while_served(&args.pool, ALONE, &instead, busy))?;
    let look = |repair: bool| {
        let mut progress = Progress::new(if repair { "repair" } else { "check" }, args.progress, args.json, None);
        let options = CheckOptions::default().repair(repair);
        let report = check_device_with(&device, &options, &mut |at| progress.set(at.done_bytes, at.total_bytes));
        progress.finish();
        report.map_err(failure::pool)
    };
    let mut report = look(false)?;
    // A pool is repaired completely or not at all, because a partly repaired one would be harder to understand.
    let wants_repair = args.repair && !report.is_clean() && report.is_repairable();
    if wants_repair {
        if !args.json {
            output::text(&words(args, &report));
        }
        confirm::destroy(args.yes, "the repairs shown above change the pool, and cannot be undone")?;
        report = look(true)?;
    }
    // After a repair the pool is checked again, and the result of the second check counts.
    let left = match report.repaired {
        true => look(false)?,
        false => report.clone(),
    };
    tell(args, &report, &left, wants_repair)?;
    if left.is_clean() { Ok(()) } else { Err(Failure::reported()) }
}

/// Prints the findings, and those that are left after a repair.
fn tell(args: &CheckArgs, report: &CheckReport, left: &CheckReport, repaired: bool) -> Result<(), Failure> {
    if args.json {
        return output::json(&ReportJson {
            pool: args.pool.to_string(),
            uuid: report.uuid.clone(),
            clean: left.is_clean(),
            repaired: report.repaired,
            findings: report.findings.iter().map(FindingJson::new).collect(),
            notes: report.notes.clone(),
            members: left.members.iter().map(MemberJson::new).collect(),
            totals: TotalsJson::new(&left.totals),
        });
    }
    match repaired {
        false => output::text(&words(args, report)),
        true if left.is_clean() => output::text("repaired; checked again: clean\n"),
        true => output::text(&format!("what could be repaired was; this is left:\n{}", words(args, left))),
    }
    Ok(())
}

/// Lists the findings, then the totals.
fn words(args: &CheckArgs, report: &CheckReport) -> String {
    let mut text = String::new();
    for (number, finding) in report.findings.iter().enumerate() {
        // Writing to a String does not fail.
        let _ = writeln!(text, "{:>3}. {}: {finding}", number + 1, finding.kind.name());
        let _ = match &finding.repair {
            Some(repair) if args.dry_run || args.repair => writeln!(text, "     repair would: {repair}"),
            Some(_) => writeln!(text, "     can be repaired: --dry-run tells how"),
            None => writeln!(text, "     cannot be repaired"),
        };
    }
    for note in &report.notes {
        let _ = writeln!(text, "note: {note}");
    }
    let t = TotalsJson::new(&report.totals);
    let _ = writeln!(
        text,
        "{}: {} {}; of {}: {} of data ({} shared), {} of metadata, {} unused",
        args.pool,
        t.volumes,
        if t.volumes == 1 { "volume" } else { "volumes" },
        fmt_bytes(t.size_bytes),
        fmt_bytes(t.data_bytes),
        fmt_bytes(t.shared_bytes),
        fmt_bytes(t.metadata_bytes),
        fmt_bytes(t.unused_bytes),
    );
    if report.members.len() > 1 {
        let sizes: Vec<String> = report.members.iter().map(|member| fmt_bytes(member.size_bytes)).collect();
        let _ = writeln!(text, "members: {}", sizes.join(", "));
    }
    let _ = match report.findings.len() {
        0 => writeln!(text, "clean"),
        1 => writeln!(text, "1 thing is wrong"),
        many => writeln!(text, "{many} things are wrong"),
    };
    if args.repair && !report.is_repairable() {
        let _ =
            writeln!(text, "nothing was repaired: not all of it can be. Export what can be read, or restore a copy");
    }
    text
}
