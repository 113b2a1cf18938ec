//! `sheave volume export-diff`: writes the changes between a snapshot and a later one, or the volume, as an RBD diff.
//!
//! The diff is made by [`sheave_daemon::copy::export_diff`].

use std::os::fd::AsFd;

use serde::{Deserialize, Serialize};
use sheave_base::sync::atomic::AtomicBool;
use sheave_base::units::fmt_bytes;
use sheave_daemon::api::types as t;
use sheave_daemon::copy::export_diff::{self, Written};
use sheave_daemon::copy::sink::Sink;
use sheave_daemon::failure::{self, Failure};
use sheave_daemon::place::Access;
use sheave_daemon::shapes::volume::VolumeJson;
use sheave_daemon::value;
use sheave_load::signals;
use sheave_vol::Pool;
use sheave_vol::rbd_diff::Version;

use crate::args::volume::diff::{DiffFormat, ExportDiffArgs};
use crate::control::opened::{By, Opened};
use crate::control::remote::Holder;
use crate::progress::Progress;
use crate::{confirm, output};

/// Result as JSON.
#[derive(Serialize)]
struct Exported<'a> {
    done: &'static str,
    volume: VolumeJson,
    file: String,
    from: Option<&'a str>,
    format: &'static str,
    /// Number of bytes that changed and are data now.
    copied_bytes: u64,
    /// Number of bytes that changed and read as zeroes now.
    zero_bytes: u64,
    /// Number of bytes that were read from both sides, because a map can differ where a copy only moved the data.
    compared_bytes: u64,
    seconds: f64,
}

/// Runs the command.
pub fn run(args: &ExportDiffArgs) -> Result<(), Failure> {
    let to_stdout = args.file == std::path::Path::new("-");
    if args.json && to_stdout {
        return Err(Failure::usage("--json and - both want stdout").fix("export to a file, or leave --json out"));
    }
    let stop = signals::stop_flag()?;
    let place = &args.volume;
    let pool = Opened::open(&place.pool, Access::Look)?;
    let outcome = match pool.by() {
        By::Us(pool) => here(pool, args, &stop),
        By::Them(holder) => there(&pool, holder, args, &stop),
    };
    let told = outcome.and_then(|done| Ok((done, pool.volume(&place.name)?)));
    let closed = pool.close();
    let ((Written { copied_bytes, zero_bytes, compared_bytes }, seconds), volume) = told?;
    closed?;
    let file = args.file.display().to_string();
    let from = args.from.as_deref().map(|from| value::snapshot_of(&place.name, from));
    if args.json {
        let (from, format) = (from.as_deref(), args.format.name());
        let done = "exported";
        let exported = Exported { done, volume, file, from, format, copied_bytes, zero_bytes, compared_bytes, seconds };
        return output::json(&exported);
    }
    let text = format!(
        "exported: {} since {}, to {}; {} of data, {} of zeroes; {seconds:.1} s\n",
        volume.in_short(),
        from.as_deref().unwrap_or("nothing"),
        if to_stdout { "stdout" } else { &file },
        fmt_bytes(copied_bytes),
        fmt_bytes(zero_bytes)
    );
    if to_stdout {
        output::say(format_args!("{text}"));
    } else {
        output::text(&text);
    }
    Ok(())
}

impl DiffFormat {
    fn version(self) -> Version {
        match self {
            DiffFormat::V1 => Version::V1,
            DiffFormat::V2 => Version::V2,
        }
    }

    fn name(self) -> &'static str {
        match self {
            DiffFormat::V1 => "v1",
            DiffFormat::V2 => "v2",
        }
    }
}

fn sink(args: &ExportDiffArgs) -> Result<Sink, Failure> {
    Sink::open(&args.file, 0, &mut |what| confirm::destroy(args.yes, what))
}

/// Exports from the pool that is open here. Returns the result, and the elapsed seconds.
fn here(pool: &Pool, args: &ExportDiffArgs, stop: &AtomicBool) -> Result<(Written, f64), Failure> {
    let place = &args.volume;
    let size = pool.volume_info(&place.name).map_err(failure::pool)?.size_bytes;
    let mut progress = Progress::new("export", args.progress, args.json, Some(size));
    let (from, version) = (args.from.as_deref(), args.format.version());
    let written = export_diff::write(pool, place, from, version, || sink(args), &mut progress, stop)?;
    Ok((written, progress.finish().as_secs_f64()))
}

/// Exports through the daemon that holds the pool. The file is opened here, and its descriptor passed.
fn there(pool: &Opened, holder: &Holder, args: &ExportDiffArgs, stop: &AtomicBool) -> Result<(Written, f64), Failure> {
    #[derive(Deserialize)]
    struct Reply {
        copied_bytes: u64,
        zero_bytes: u64,
        /// Missing in replies of older daemons, which do not compare data.
        #[serde(default)]
        compared_bytes: u64,
    }
    let volume = args.volume.name.clone();
    let from = args.from.as_deref().map(|from| value::snapshot_of(&volume, from));
    // If a volume does not exist, this fails before a file is created.
    let size = pool.volume(&volume)?.size_bytes;
    from.as_deref().map(|from| pool.volume(from)).transpose()?;
    let mut progress = Progress::new("export", args.progress, args.json, Some(size));
    let format = Some(args.format.name().to_owned());
    let sink = sink(args)?;
    let stream = sink.told_as_stream();
    let export = t::ExportDiff { pool: holder.pool.clone(), volume, from, format, stream };
    let Reply { copied_bytes, zero_bytes, compared_bytes } =
        holder.remote.long("ExportDiff", &export, &[sink.file()?.as_fd()], &mut progress, stop)?;
    sink.was_finished()?;
    Ok((Written { copied_bytes, zero_bytes, compared_bytes }, progress.finish().as_secs_f64()))
}
