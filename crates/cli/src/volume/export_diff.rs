//! `sheave volume export-diff`: what changed between a snapshot and a later one, or the volume, as an RBD diff.
//!
//! Maps say what changed, and that alone is read. A few reads are in flight ahead of what is written.
//!
//! A diff between any two volumes of the pool is right, whatever happened between them: it says what reads differently.
//! So it may cross a rollback and a resize; whether it fits is the import's question.

use std::collections::VecDeque;

use serde::Serialize;
use sheave_base::sync::atomic::{AtomicBool, Ordering};
use sheave_base::units::fmt_bytes;
use sheave_daemon::copy::lanes::{LANE_BYTES, LANES, Lanes};
use sheave_daemon::copy::sink::Sink;
use sheave_daemon::failure::{self, Failure};
use sheave_daemon::place::Access;
use sheave_daemon::shapes::volume::VolumeJson;
use sheave_load::signals;
use sheave_vol::rbd_diff::{self, Header, Version};
use sheave_vol::{Extent, ExtentKind, Pool, Volume};

use crate::args::volume::diff::{DiffFormat, ExportDiffArgs};
use crate::pool::patience;
use crate::progress::Progress;
use crate::{confirm, output};

/// How much of the volume is compared at a time: bounds the memory for its extents.
const WINDOW: u64 = 16 << 30;

/// What was done, for programs.
#[derive(Serialize)]
struct Exported<'a> {
    done: &'static str,
    volume: VolumeJson,
    file: String,
    from: Option<&'a str>,
    format: &'static str,
    /// What changed and is data: that much was read.
    copied_bytes: u64,
    /// What changed and reads as zeroes now.
    zero_bytes: u64,
    seconds: f64,
}

/// Does it.
pub fn run(args: &ExportDiffArgs) -> Result<(), Failure> {
    let to_stdout = args.file == std::path::Path::new("-");
    if args.json && to_stdout {
        return Err(Failure::usage("--json and - both want stdout").fix("export to a file, or leave --json out"));
    }
    let stop = signals::stop_flag()?;
    let place = &args.volume;
    let pool = patience::open(&place.pool, Access::Look)?;
    let outcome = write_all(&pool, args, &stop);
    let info = outcome.and_then(|done| Ok((done, pool.volume_info(&place.name).map_err(failure::pool)?)));
    let closed = pool.close().map_err(failure::pool);
    let ((copied_bytes, zero_bytes, seconds), info) = info?;
    closed?;
    let volume = VolumeJson::new(&place.pool, &info);
    let file = args.file.display().to_string();
    if args.json {
        let (from, format) = (args.from.as_deref(), args.format.name());
        let done = "exported";
        return output::json(&Exported { done, volume, file, from, format, copied_bytes, zero_bytes, seconds });
    }
    let text = format!(
        "exported: {} since {}, to {}; {} of data, {} of zeroes; {seconds:.1} s\n",
        volume.in_short(),
        args.from.as_deref().unwrap_or("nothing"),
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

/// The bytes of data and of zeroes, and the seconds it took.
fn write_all(pool: &Pool, args: &ExportDiffArgs, stop: &AtomicBool) -> Result<(u64, u64, f64), Failure> {
    let place = &args.volume;
    let info = pool.volume_info(&place.name).map_err(failure::pool)?;
    let volume = pool.open_volume(&place.name).map_err(failure::pool)?;
    let base = args.from.as_deref().map(|from| base_of(pool, from)).transpose()?;
    let header = Header {
        from: args.from.clone(),
        to: info.snapshot.then(|| info.name.clone()),
        size: info.size_bytes,
        from_identity: base.as_ref().map(Volume::identity),
        to_identity: info.snapshot.then(|| volume.identity()),
    };
    let mut stream = Stream {
        sink: Sink::open(&args.file, 0, &mut |what| confirm::destroy(args.yes, what))?,
        version: args.format.version(),
        pos: 0,
        lanes: Lanes::new(&volume, place)?,
        ahead: VecDeque::with_capacity(usize::from(LANES)),
        progress: Progress::new("export", args.progress, args.json, Some(info.size_bytes)),
        sums: (0, 0),
    };
    stream.put(&rbd_diff::begin(stream.version, &header))?;
    let mut at = 0;
    while at < info.size_bytes {
        let len = WINDOW.min(info.size_bytes - at);
        let changed = match &base {
            Some(base) => volume.changes_since(base, at, len),
            None => volume.extents(at, len).map(data_alone),
        };
        if !stream.extents(&changed.map_err(failure::pool)?, stop)? {
            let file = args.file.display();
            return Err(Failure::interrupted(format!("the export was ended; {file} is not complete")));
        }
        at += len;
        stream.progress.set(at, info.size_bytes);
    }
    stream.put(rbd_diff::END)?;
    let Stream { sink, pos, progress, sums, .. } = stream;
    sink.finish(pos)?;
    Ok((sums.0, sums.1, progress.finish().as_secs_f64()))
}

/// Where nothing was before, holes are no change.
fn data_alone(mut extents: Vec<Extent>) -> Vec<Extent> {
    extents.retain(|extent| extent.kind == ExtentKind::Data);
    extents
}

/// The snapshot to begin at: a volume would be another thing by the time of the import.
fn base_of(pool: &Pool, from: &str) -> Result<Volume, Failure> {
    if !pool.volume_info(from).map_err(failure::pool)?.snapshot {
        return Err(Failure::usage(format!("--from '{from}' is a volume, and a diff begins at a snapshot"))
            .fix("name a snapshot; sheave volume diff compares any two"));
    }
    pool.open_volume(from).map_err(failure::pool)
}

struct Stream {
    sink: Sink,
    version: Version,
    /// Bytes written.
    pos: u64,
    lanes: Lanes,
    /// Reads in flight, oldest first: their lanes, places and lengths.
    ahead: VecDeque<(u16, u64, usize)>,
    progress: Progress,
    /// Bytes of data and of zeroes.
    sums: (u64, u64),
}

impl Stream {
    /// False when it was stopped.
    fn extents(&mut self, changed: &[Extent], stop: &AtomicBool) -> Result<bool, Failure> {
        for extent in changed {
            if extent.kind != ExtentKind::Data {
                // In the order of their places.
                self.write_all_read()?;
                self.put(&rbd_diff::zeroes(self.version, extent.pos, extent.len))?;
                self.sums.1 += extent.len;
                continue;
            }
            let (mut pos, end) = (extent.pos, extent.pos + extent.len);
            while pos < end {
                // Relaxed: the flag carries nothing but itself.
                if stop.load(Ordering::Relaxed) {
                    return Ok(false);
                }
                let len = (end - pos).min(LANE_BYTES as u64) as usize;
                if self.ahead.len() == usize::from(LANES) {
                    self.write_oldest()?;
                }
                let lane = self.free_lane();
                self.lanes.read(lane, len, pos)?;
                self.ahead.push_back((lane, pos, len));
                pos += len as u64;
            }
        }
        self.write_all_read()?;
        Ok(true)
    }

    /// A lane that no read ahead is in; there is one when there are fewer of them than lanes.
    fn free_lane(&self) -> u16 {
        let used = |lane: u16| self.ahead.iter().any(|(at, ..)| *at == lane);
        (0..LANES).find(|lane| !used(*lane)).unwrap_or(0)
    }

    fn write_all_read(&mut self) -> Result<(), Failure> {
        while !self.ahead.is_empty() {
            self.write_oldest()?;
        }
        Ok(())
    }

    fn write_oldest(&mut self) -> Result<(), Failure> {
        let Some((lane, pos, len)) = self.ahead.pop_front() else { return Ok(()) };
        self.lanes.wait_for(lane)?;
        let head = rbd_diff::data(self.version, pos, len as u64);
        self.put(&head)?;
        self.sink.data(self.pos, &self.lanes.bytes(lane)[..len])?;
        self.pos += len as u64;
        self.sums.0 += len as u64;
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.sink.data(self.pos, bytes)?;
        self.pos += bytes.len() as u64;
        Ok(())
    }
}
