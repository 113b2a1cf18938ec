//! `sheave volume export`: the content of a volume becomes a raw image, with holes where it has no data.
//!
//! The extents say what to read; reads are several ahead of what is written, and are written in order, so that a stream
//! gets the same bytes as a file.

use std::collections::VecDeque;
use std::os::fd::AsFd;

use serde::{Deserialize, Serialize};
use sheave_base::sync::atomic::{AtomicBool, Ordering};
use sheave_base::units::fmt_bytes;
use sheave_vol::{ExtentKind, Pool, Volume};

use super::lanes::{LANE_BYTES, LANES, Lanes};
use super::rescue::{Bad, BadRange, Rescue};
use super::sink::Sink;
use crate::args::volume::{BadBlocks, ExportArgs};
use crate::control::opened::{By, Opened};
use crate::control::remote::Holder;
use crate::control::types as t;
use crate::failure::{self, Failure};
use crate::output;
use crate::pool::place::{Access, VolumePlace};
use crate::progress::Progress;
use crate::shapes::volume::VolumeJson;
use sheave_load::signals;

/// How much of the volume is asked for its extents at a time: bounds the memory for them.
const WINDOW: u64 = 16 << 30;

/// What was done, for programs.
#[derive(Serialize)]
struct Exported {
    done: &'static str,
    volume: VolumeJson,
    file: String,
    /// What was read and written; the rest is holes.
    copied_bytes: u64,
    /// What could not be read, with `--rescue`.
    #[serde(skip_serializing_if = "Option::is_none")]
    bad: Option<Vec<BadRange>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bad_bytes: Option<u64>,
    /// What is not certain of a pool that did not open otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    unsure: Option<Vec<String>>,
    seconds: f64,
}

/// What a copy came to.
struct Copied {
    bytes: u64,
    bad: Bad,
    seconds: f64,
}

/// What is read ahead, or a hole.
enum Next {
    Read { lane: u16, pos: u64, len: usize },
    Hole { pos: u64, len: u64 },
}

/// Does it.
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
    let progress = |size| Progress::new("export", args.progress, args.json, Some(size));
    let outcome = match pool.by() {
        By::Us(pool) => {
            let open = |size| Sink::open(&args.file, size, args.yes);
            copy_all(pool, args, open, progress, &stop)
        }
        By::Them(holder) => there(&pool, holder, args, progress, &stop),
    };
    if args.json && outcome.is_err() {
        // The object of a failure has no place for them, and a volume that is missing is missing because of them.
        output::warn(&unsure);
    }
    let told = outcome.and_then(|done| Ok((done, pool.volume(&place.name)?)));
    let closed = pool.close();
    let (Copied { bytes: copied_bytes, bad, seconds }, volume) = told?;
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
            bad: rescue.then_some(bad.ranges),
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

/// By the daemon that holds the pool, which gets the open image.
fn there(
    pool: &Opened,
    holder: &Holder,
    args: &ExportArgs,
    progress: impl FnOnce(u64) -> Progress,
    stop: &AtomicBool,
) -> Result<Copied, Failure> {
    let name = &args.volume.name;
    let size = pool.volume(name)?.size_bytes;
    let sink = Sink::open(&args.file, size, args.yes)?;
    let mut progress = progress(size);
    #[derive(Deserialize)]
    struct Reply {
        copied_bytes: u64,
    }
    let of = t::OfVolume { pool: holder.pool.clone(), volume: name.clone() };
    let Reply { copied_bytes } =
        holder.remote.long("ExportVolume", &of, &[sink.file().as_fd()], &mut progress, stop)?;
    sink.was_finished();
    Ok(Copied { bytes: copied_bytes, bad: Bad::default(), seconds: progress.finish().as_secs_f64() })
}

/// Copies to a sink that is open; the bytes that were read and written.
pub fn copy_to(
    pool: &Pool,
    args: &ExportArgs,
    sink: Sink,
    progress: Progress,
    stop: &AtomicBool,
) -> Result<u64, Failure> {
    Ok(copy_all(pool, args, |_| Ok(sink), |_| progress, stop)?.bytes)
}

fn copy_all(
    pool: &Pool,
    args: &ExportArgs,
    sink: impl FnOnce(u64) -> Result<Sink, Failure>,
    progress: impl FnOnce(u64) -> Progress,
    stop: &AtomicBool,
) -> Result<Copied, Failure> {
    let place = &args.volume;
    let size = pool.volume_info(&place.name).map_err(failure::pool)?.size_bytes;
    let volume = pool.open_volume(&place.name).map_err(failure::pool)?;
    let mut copy = Copy {
        sink: sink(size)?,
        lanes: Lanes::new(&volume, place)?,
        ahead: VecDeque::with_capacity(usize::from(LANES)),
        progress: progress(size),
        copied: 0,
    };
    let mut bad = Bad::default();
    let ended = match args.rescue {
        None => copy.run(&volume, place, size, stop)?,
        Some(instead) => {
            let Copy { sink, lanes, progress, .. } = &mut copy;
            let mut rescue = Rescue { sink, lanes, progress, instead, copied: 0, bad };
            let ended = rescue.run(&volume, size, stop)?;
            (copy.copied, bad) = (rescue.copied, rescue.bad);
            ended
        }
    };
    if !ended {
        return Err(Failure::interrupted(format!("the export was ended; {} is not complete", args.file.display())));
    }
    copy.sink.finish(size)?;
    Ok(Copied { bytes: copy.copied, bad, seconds: copy.progress.finish().as_secs_f64() })
}

struct Copy {
    sink: Sink,
    lanes: Lanes,
    /// What comes next in the image, oldest first.
    ahead: VecDeque<Next>,
    progress: Progress,
    copied: u64,
}

impl Copy {
    /// False when it was stopped.
    fn run(&mut self, volume: &Volume, place: &VolumePlace, size: u64, stop: &AtomicBool) -> Result<bool, Failure> {
        let mut window = 0;
        while window < size {
            let len = WINDOW.min(size - window);
            let extents = volume.extents(window, len).map_err(failure::pool)?;
            let covered: u64 = extents.iter().map(|extent| extent.len).sum();
            if covered != len {
                return Err(Failure::run(format!("{place}: its extents cover {covered} of {len} bytes"))
                    .fix("sheave pool check tells what is wrong with the pool"));
            }
            for extent in extents {
                if extent.kind != ExtentKind::Data {
                    self.put(Next::Hole { pos: extent.pos, len: extent.len })?;
                    continue;
                }
                let mut pos = extent.pos;
                while pos < extent.pos + extent.len {
                    // Relaxed: the flag carries nothing but itself.
                    if stop.load(Ordering::Relaxed) {
                        return Ok(false);
                    }
                    let len = (extent.pos + extent.len - pos).min(LANE_BYTES as u64) as usize;
                    let lane = self.lane()?;
                    self.lanes.read(lane, len, pos)?;
                    self.put(Next::Read { lane, pos, len })?;
                    pos += len as u64;
                }
            }
            window += len;
        }
        while !self.ahead.is_empty() {
            self.write_oldest()?;
        }
        Ok(true)
    }

    /// A lane that no read ahead is in.
    fn lane(&mut self) -> Result<u16, Failure> {
        loop {
            let used =
                |lane: &u16| self.ahead.iter().any(|next| matches!(next, Next::Read { lane: at, .. } if at == lane));
            if let Some(lane) = (0..LANES).find(|lane| !used(lane)) {
                return Ok(lane);
            }
            self.write_oldest()?;
        }
    }

    fn put(&mut self, next: Next) -> Result<(), Failure> {
        if self.ahead.len() == usize::from(LANES) {
            self.write_oldest()?;
        }
        self.ahead.push_back(next);
        Ok(())
    }

    fn write_oldest(&mut self) -> Result<(), Failure> {
        match self.ahead.pop_front() {
            None => Ok(()),
            Some(Next::Hole { pos, len }) => {
                self.progress.advance(len);
                self.sink.hole(pos, len)
            }
            Some(Next::Read { lane, pos, len }) => {
                self.lanes.wait_for(lane)?;
                self.sink.data(pos, &self.lanes.bytes(lane)[..len])?;
                self.copied += len as u64;
                self.progress.advance(len as u64);
                Ok(())
            }
        }
    }
}
