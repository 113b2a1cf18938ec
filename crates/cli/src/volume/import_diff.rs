//! `sheave volume import-diff`: changes a volume from the state of one snapshot to that of the next, with a diff.
//!
//! The diff is applied by [`sheave_daemon::copy::import_diff`].

use std::os::fd::AsFd;

use serde::{Deserialize, Serialize};
use sheave_base::sync::atomic::AtomicBool;
use sheave_base::units::fmt_bytes;
use sheave_daemon::api::types as t;
use sheave_daemon::copy::import_diff::{self, Wanted};
use sheave_daemon::copy::source::Source;
use sheave_daemon::failure::Failure;
use sheave_daemon::place::Access;
use sheave_daemon::shapes::volume::VolumeJson;
use sheave_load::signals;
use sheave_vol::Pool;

use crate::args::volume::diff::ImportDiffArgs;
use crate::control::opened::{By, Opened};
use crate::control::remote::Holder;
use crate::output;
use crate::progress::Progress;
use crate::space::Warner;

/// Result as JSON.
#[derive(Serialize)]
struct ImportedJson {
    /// `imported`, or `finished` if an earlier import had left only the end to do, or `present` if it had done
    /// everything.
    done: String,
    volume: VolumeJson,
    from: Option<String>,
    to: Option<String>,
    format: String,
    copied_bytes: u64,
    zero_bytes: u64,
    /// Warnings about properties that could not be verified.
    warnings: Vec<String>,
    seconds: f64,
}

/// Result of the import, here or in a daemon.
#[derive(Deserialize)]
struct Done {
    done: String,
    from: Option<String>,
    to: Option<String>,
    format: String,
    copied_bytes: u64,
    zero_bytes: u64,
    warnings: Vec<String>,
}

/// Runs the command.
pub fn run(args: &ImportDiffArgs) -> Result<(), Failure> {
    let stop = signals::stop_flag()?;
    let source = Source::open(&args.file)?;
    let mut progress = Progress::new("import", args.progress, args.json, source.size());
    let place = &args.volume;
    let name = args.file.display().to_string();
    let (base, new) = (args.base.as_deref(), args.name.as_deref());
    let wanted = Wanted { file: &name, place, base, name: new };
    // The header is read before the pool is opened, so that an invalid diff has no effect on the pool. If a daemon
    // holds the pool, the daemon reads the header, because a stream can be read only once.
    let (pool, outcome) = match Opened::held(&place.pool)? {
        Some(pool) => {
            let By::Them(holder) = pool.by() else { return Err(Failure::run("a pool that a daemon holds was opened")) };
            let outcome = there(holder, args, &source, &mut progress, &stop);
            (pool, outcome)
        }
        None => {
            let begun = import_diff::begin(&wanted, source, &stop)?;
            let pool = Opened::open(&place.pool, Access::Change)?;
            let outcome = match pool.by() {
                By::Us(pool) => here(pool, &wanted, begun, &mut progress),
                By::Them(_) => {
                    Err(Failure::busy(format!("{} was taken by a server meanwhile", place.pool)).fix("try again"))
                }
            };
            (pool, outcome)
        }
    };
    let seconds = progress.finish().as_secs_f64();
    let told = outcome.and_then(|done| Ok((done, pool.volume(&place.name)?)));
    let closed = pool.close();
    let (Done { done, from, to, format, copied_bytes, zero_bytes, warnings }, volume) = told?;
    closed?;
    output::warn(&warnings);
    if args.json {
        let json = ImportedJson { done, volume, from, to, format, copied_bytes, zero_bytes, warnings, seconds };
        return output::json(&json);
    }
    output::text(&format!(
        "{done}: {} from {} to {}; {} of data, {} of zeroes; {seconds:.1} s\n",
        volume.in_short(),
        from.as_deref().unwrap_or("nothing"),
        to.as_deref().unwrap_or("no snapshot"),
        fmt_bytes(copied_bytes),
        fmt_bytes(zero_bytes),
    ));
    Ok(())
}

fn here(
    pool: &Pool,
    wanted: &Wanted<'_>,
    mut begun: import_diff::Begun<'_>,
    progress: &mut Progress,
) -> Result<Done, Failure> {
    progress.warn(Warner::new(&wanted.place.pool, pool));
    let mut imported = begun.into_pool(pool, wanted, progress)?;
    begun.read_rest(&mut imported, progress)?;
    let import_diff::Imported { done, from, to, format, copied_bytes, zero_bytes, warnings } = imported;
    Ok(Done { done: done.into(), from, to, format: format.into(), copied_bytes, zero_bytes, warnings })
}

/// Imports through the daemon that holds the pool. The file is opened here, and its descriptor passed.
fn there(
    holder: &Holder,
    args: &ImportDiffArgs,
    source: &Source,
    progress: &mut Progress,
    stop: &AtomicBool,
) -> Result<Done, Failure> {
    let import = t::ImportDiff {
        pool: holder.pool.clone(),
        volume: args.volume.name.clone(),
        base: args.base.clone(),
        name: args.name.clone(),
        force: Some(args.force),
        stream: source.told_as_stream(),
    };
    holder.remote.long("ImportDiff", &import, &[source.file()?.as_fd()], progress, stop)
}
