//! `sheave volume export`: writes a volume to a raw image, sparse where it has no data.
//!
//! The copy is made by [`sheave_daemon::copy::export`].

use std::os::fd::AsFd;

use serde::{Deserialize, Serialize};
use sheave_base::sync::atomic::AtomicBool;
use sheave_base::units::fmt_bytes;
use sheave_daemon::api::types as t;
use sheave_daemon::copy::export::{Copied, copy_to};
use sheave_daemon::copy::rescue::{Bad, BadRange, Instead};
use sheave_daemon::copy::sink::Sink;
use sheave_daemon::failure::{self, Failure};
use sheave_daemon::place::Access;
use sheave_daemon::shapes::volume::VolumeJson;
use sheave_load::signals;
use sheave_vol::Pool;

use crate::args::volume::{BadBlocks, ExportArgs};
use crate::control::opened::{By, Opened};
use crate::control::remote::Holder;
use crate::progress::Progress;
use crate::{confirm, output};

/// Result as JSON.
#[derive(Serialize)]
struct Exported {
    done: &'static str,
    volume: VolumeJson,
    file: String,
    /// Number of bytes that were read and written; the rest is holes.
    copied_bytes: u64,
    /// Ranges that could not be read, with `--rescue`.
    #[serde(skip_serializing_if = "Option::is_none")]
    bad: Option<Vec<BadRange>>,
    /// Number of ranges that could not be read, including those that the list does not have.
    #[serde(skip_serializing_if = "Option::is_none")]
    bad_ranges: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bad_bytes: Option<u64>,
    /// Warnings about the contents of a damaged pool that was opened for the rescue.
    #[serde(skip_serializing_if = "Option::is_none")]
    unsure: Option<Vec<String>>,
    seconds: f64,
}

/// Runs the command.
pub fn run(args: &ExportArgs) -> Result<(), Failure> {
    let to_stdout = args.file == std::path::Path::new("-");
    if args.json && to_stdout {
        return Err(Failure::usage("--json and - both want stdout").fix("export to a file, or leave --json out"));
    }
    if to_stdout && args.rescue == Some(BadBlocks::Skip) {
        return Err(Failure::usage("--rescue=skip leaves what is there, and a stream has nothing there")
            .fix("--rescue=zero, or export to a file or device"));
    }
    let stop = signals::stop_flag()?;
    let place = &args.volume;
    let pool = Opened::open(&place.pool, if args.rescue.is_some() { Access::Rescue } else { Access::Look })?;
    let unsure = pool.unsure();
    if !args.json {
        output::warn(&unsure);
    }
    let outcome = match pool.by() {
        By::Us(pool) => here(pool, args, &stop),
        By::Them(holder) => there(&pool, holder, args, &stop),
    };
    if args.json && outcome.is_err() {
        // The JSON object of a failure has no field for these warnings, and they may explain why a volume is missing.
        output::warn(&unsure);
    }
    let told = outcome.and_then(|done| Ok((done, pool.volume(&place.name)?)));
    let closed = pool.close();
    let ((Copied { bytes: copied_bytes, bad }, seconds), volume) = told?;
    closed?;
    let whole = if bad.bytes == 0 { Ok(()) } else { Err(Failure::reported()) };
    let file = args.file.display().to_string();
    if args.json {
        let rescue = args.rescue.is_some();
        output::json(&Exported {
            done: "exported",
            volume,
            file,
            copied_bytes,
            bad_bytes: rescue.then_some(bad.bytes),
            bad_ranges: rescue.then_some(bad.ranges),
            bad: rescue.then_some(bad.listed),
            unsure: rescue.then_some(unsure),
            seconds,
        })?;
        return whole;
    }
    let text = format!(
        "exported: {} to {}; {} of data, the rest is holes; {seconds:.1} s\n{}",
        volume.in_short(),
        if to_stdout { "stdout" } else { &file },
        fmt_bytes(copied_bytes),
        bad.words(),
    );
    if to_stdout {
        output::say(format_args!("{text}"));
    } else {
        output::text(&text);
    }
    whole
}

fn open(args: &ExportArgs, size: u64) -> Result<(Sink, Progress), Failure> {
    let sink = Sink::open(&args.file, size, &mut |what| confirm::destroy(args.yes, what))?;
    Ok((sink, Progress::new("export", args.progress, args.json, Some(size))))
}

/// Exports from the pool that is open here. Returns the result, and the elapsed seconds.
fn here(pool: &Pool, args: &ExportArgs, stop: &AtomicBool) -> Result<(Copied, f64), Failure> {
    let place = &args.volume;
    let size = pool.volume_info(&place.name).map_err(failure::pool)?.size_bytes;
    // If the volume cannot be opened, this fails before a file is created.
    drop(pool.open_volume(&place.name).map_err(failure::pool)?);
    let (sink, mut progress) = open(args, size)?;
    let rescue = args.rescue.map(|instead| match instead {
        BadBlocks::Zero => Instead::Zeroes,
        BadBlocks::Skip => Instead::Nothing,
    });
    let copied = copy_to(pool, place, size, rescue, sink, &mut progress, stop)?;
    Ok((copied, progress.finish().as_secs_f64()))
}

/// Exports through the daemon that holds the pool. The image is opened here, and its descriptor passed.
fn there(pool: &Opened, holder: &Holder, args: &ExportArgs, stop: &AtomicBool) -> Result<(Copied, f64), Failure> {
    let name = &args.volume.name;
    let (sink, mut progress) = open(args, pool.volume(name)?.size_bytes)?;
    #[derive(Deserialize)]
    struct Reply {
        copied_bytes: u64,
    }
    let export = t::Export { pool: holder.pool.clone(), volume: name.clone(), stream: sink.told_as_stream() };
    let Reply { copied_bytes } =
        holder.remote.long("ExportVolume", &export, &[sink.file()?.as_fd()], &mut progress, stop)?;
    sink.was_finished()?;
    Ok((Copied { bytes: copied_bytes, bad: Bad::default() }, progress.finish().as_secs_f64()))
}
