//! `sheave volume import`: copies a raw image into a volume, without allocating zeroes.
//!
//! The copy is made by [`sheave_daemon::copy::import`].

use std::os::fd::AsFd;

use serde::{Deserialize, Serialize};
use sheave_base::sync::atomic::AtomicBool;
use sheave_base::units::fmt_bytes;
use sheave_daemon::api::types as t;
use sheave_daemon::copy::import::{Wanted, into_pool};
use sheave_daemon::copy::source::Source;
use sheave_daemon::failure::Failure;
use sheave_daemon::place::Access;
use sheave_daemon::shapes::volume::VolumeJson;
use sheave_load::signals;

use crate::args::volume::ImportArgs;
use crate::control::opened::{By, Opened};
use crate::control::remote::Holder;
use crate::progress::Progress;
use crate::space::Warner;
use crate::{confirm, output};

/// Result as JSON.
#[derive(Serialize)]
struct Imported {
    done: &'static str,
    volume: VolumeJson,
    image_bytes: u64,
    /// Number of bytes in blocks with data, which were written.
    copied_bytes: u64,
    seconds: f64,
}

/// Runs the command.
pub fn run(args: &ImportArgs) -> Result<(), Failure> {
    let stop = signals::stop_flag()?;
    let mut source = Source::open(&args.file)?;
    let place = &args.volume;
    let pool = Opened::open(&place.pool, Access::Change)?;
    let mut progress = Progress::new("import", args.progress, args.json, source.size());
    let mut copy = || match pool.by() {
        By::Us(pool) => {
            progress.warn(Warner::new(&place.pool, pool));
            let exists = pool.volumes().iter().any(|volume| volume.name == place.name);
            let wanted = Wanted { place, size: args.size };
            let mut ask = |what: &str| confirm::destroy(args.yes, what);
            let copied = into_pool(pool, &wanted, exists, &mut ask, &mut source, &mut progress, &stop)?;
            Ok((copied.image_bytes, copied.copied_bytes))
        }
        By::Them(holder) => there(&pool, holder, args, &source, &mut progress, &stop),
    };
    let outcome = copy();
    let seconds = progress.finish().as_secs_f64();
    let told = outcome.and_then(|copied| Ok((copied, pool.volume(&place.name)?)));
    let closed = pool.close();
    let ((image_bytes, copied_bytes), volume) = told?;
    closed?;
    if args.json {
        return output::json(&Imported { done: "imported", volume, image_bytes, copied_bytes, seconds });
    }
    output::text(&format!(
        "imported: {}; {} of the image's {} were not zeroes; {seconds:.1} s, {}/s\n",
        volume.in_short(),
        fmt_bytes(copied_bytes),
        fmt_bytes(image_bytes),
        // The speed is that of the copied bytes only, because holes take no time.
        fmt_bytes((copied_bytes as f64 / seconds.max(1e-9)) as u64),
    ));
    Ok(())
}

/// Imports through the daemon that holds the pool. The image is opened here, and its descriptor passed.
fn there(
    pool: &Opened,
    holder: &Holder,
    args: &ImportArgs,
    source: &Source,
    progress: &mut Progress,
    stop: &AtomicBool,
) -> Result<(u64, u64), Failure> {
    let place = &args.volume;
    let found = pool.volumes()?.into_iter().find(|volume| volume.name == place.name);
    if let Some(volume) = found.filter(|volume| volume.written_bytes > 0) {
        let written = fmt_bytes(volume.written_bytes);
        confirm::destroy(args.yes, &format!("{place} holds {written} of data; the import replaces it"))?;
    }
    let import = t::Import {
        pool: holder.pool.clone(),
        volume: place.name.clone(),
        size_bytes: args.size,
        force: Some(args.force),
        stream: source.told_as_stream(),
    };
    #[derive(Deserialize)]
    struct Reply {
        image_bytes: u64,
        copied_bytes: u64,
    }
    let Reply { image_bytes, copied_bytes } =
        holder.remote.long("ImportVolume", &import, &[source.file()?.as_fd()], progress, stop)?;
    Ok((image_bytes, copied_bytes))
}
