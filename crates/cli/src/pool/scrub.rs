//! `sheave pool scrub`: reads all data of all volumes, which compares it with its checksums.
//!
//! Every block is read once, whoever shares it, through a ring and the volume like any other read. A piece that fails
//! is read again block by block, so that what is reported is what is lost.

use std::sync::Arc;

use serde::Serialize;
use sheave::base::status::Errno;
use sheave::base::sync::atomic::{AtomicBool, Ordering};
use sheave::base::units::fmt_bytes;
use sheave::vol::{Checksum, Extent, ExtentKind};
use sheave::{Buf, Fd, Pool, Ring, Volume, op};

use super::place::Access;
use crate::args::pool::ScrubArgs;
use crate::failure::{self, Failure};
use crate::volume::progress::Progress;
use crate::{output, signals};

/// Bytes of a read, and reads in flight.
const PIECE: u64 = 512 << 10;
const DEPTH: usize = 16;
/// What is tracked, and the least that is read.
const BLOCK: u64 = 4096;
/// Bad ranges that are listed; what comes then is counted.
const MAX_LISTED: usize = 1000;

/// A range that cannot be read as it was written.
#[derive(Debug, Serialize)]
struct Bad {
    volume: String,
    offset: u64,
    length: u64,
    error: String,
}

#[derive(Debug, Serialize)]
struct Report {
    pool: String,
    checksum: &'static str,
    read_bytes: u64,
    bad_bytes: u64,
    interrupted: bool,
    bad: Vec<Bad>,
}

/// Does it.
pub fn run(args: &ScrubArgs) -> Result<(), Failure> {
    let stop = signals::stop_flag()?;
    let pool = args.pool.open(Access::Look)?;
    let info = pool.info();
    let checksum = match info.checksum {
        Checksum::None => "none",
        Checksum::Crc32c => "crc32c",
    };
    let mut report = Report {
        pool: args.pool.to_string(),
        checksum,
        read_bytes: 0,
        bad_bytes: 0,
        interrupted: false,
        bad: Vec::new(),
    };
    let mut progress = Progress::new("scrub", args.progress, args.json, Some(info.data_bytes));
    let mut seen = Seen::new(info.size_bytes);
    let mut outcome = Ok(());
    for volume in pool.volumes() {
        outcome = scrub_volume(&pool, &volume.name, &mut seen, &mut report, &mut progress, &stop);
        if outcome.is_err() || report.interrupted {
            break;
        }
    }
    let seconds = progress.finish().as_secs_f64();
    let closed = pool.close().map_err(failure::pool);
    outcome?;
    closed?;
    if args.json {
        output::json(&report)?;
    } else {
        output::text(&words(&report, seconds));
    }
    match (report.bad_bytes, report.interrupted) {
        (0, false) => Ok(()),
        (0, true) => Err(Failure::interrupted("the scrub was ended before it had read everything")),
        _ => Err(Failure::reported()),
    }
}

fn words(report: &Report, seconds: f64) -> String {
    let mut text = String::new();
    for bad in &report.bad {
        text += &format!("{}: bytes {} to {}: {}\n", bad.volume, bad.offset, bad.offset + bad.length, bad.error);
    }
    text += &format!("{} read in {seconds:.1} s, {} bad\n", fmt_bytes(report.read_bytes), fmt_bytes(report.bad_bytes));
    if report.checksum == "none" {
        text +=
            "note: this pool has no checksums (pool create --checksum crc32c): only unreadable data was looked for\n";
    }
    if report.bad_bytes > 0 {
        text += "what is bad was written otherwise, or the disk cannot read it: restore it from a copy\n";
    }
    text
}

/// Which blocks of the pool were read: 32 MiB for a TiB.
struct Seen(Vec<u64>);

impl Seen {
    fn new(pool_bytes: u64) -> Self {
        Self(vec![0; (pool_bytes / BLOCK).div_ceil(64) as usize])
    }

    /// Marks a range; true when all of it was marked already.
    fn mark(&mut self, addr: u64, len: u64) -> bool {
        let mut all = true;
        for block in addr / BLOCK..(addr + len).div_ceil(BLOCK) {
            let Some(word) = self.0.get_mut((block / 64) as usize) else { return false };
            all &= *word >> (block % 64) & 1 == 1;
            *word |= 1 << (block % 64);
        }
        all
    }
}

fn scrub_volume(
    pool: &Pool,
    name: &str,
    seen: &mut Seen,
    report: &mut Report,
    progress: &mut Progress,
    stop: &AtomicBool,
) -> Result<(), Failure> {
    /// Extents that are asked for at a time.
    const WINDOW: u64 = 16 << 30;
    let volume = pool.open_volume(name).map_err(failure::pool)?;
    let size = pool.volume_info(name).map_err(failure::pool)?.size_bytes;
    let mut reader = Reader::new(&volume, name)?;
    for window in (0..size).step_by(WINDOW as usize) {
        let extents = volume.extents(window, WINDOW.min(size - window)).map_err(failure::pool)?;
        for extent in extents.iter().filter(|extent| extent.kind == ExtentKind::Data) {
            for (pos, len) in pieces(extent) {
                // Relaxed: the flag carries nothing but itself.
                report.interrupted = stop.load(Ordering::Relaxed);
                if report.interrupted {
                    return reader.finish(report);
                }
                if !seen.mark(extent.addr + (pos - extent.pos), len) {
                    reader.start(pos, len, report)?;
                    progress.advance(len);
                }
            }
        }
    }
    reader.finish(report)
}

fn pieces(extent: &Extent) -> impl Iterator<Item = (u64, u64)> + use<> {
    let (start, end) = (extent.pos, extent.pos + extent.len);
    (start..end).step_by(PIECE as usize).map(move |pos| (pos, PIECE.min(end - pos)))
}

/// Reads of one volume, several in flight.
struct Reader<'a> {
    name: &'a str,
    ring: Ring,
    fd: Fd,
    /// Place and length, by user data.
    in_flight: Vec<Option<(u64, u64)>>,
    failed: Vec<(u64, u64)>,
}

impl<'a> Reader<'a> {
    fn new(volume: &Volume, name: &'a str) -> Result<Self, Failure> {
        let fail = |err| Failure::run(format!("{name}: cannot set a ring up: {err}"));
        let mut ring = Ring::builder().entries(DEPTH as u32).build().map_err(fail)?;
        let fd = ring.attach_file(Arc::new(volume.clone())).map_err(fail)?;
        Ok(Self { name, ring, fd, in_flight: vec![None; DEPTH], failed: Vec::new() })
    }

    fn start(&mut self, pos: u64, len: u64, report: &mut Report) -> Result<(), Failure> {
        let at = loop {
            match self.in_flight.iter().position(Option::is_none) {
                Some(at) => break at,
                None => self.reap(report)?,
            }
        };
        let buf = Buf::zeroed(len as usize, BLOCK as usize)
            .map_err(|err| Failure::run(format!("no memory for a buffer: {err}")))?;
        self.in_flight[at] = Some((pos, len));
        self.push(op::read(self.fd, buf).offset(pos).user_data(at as u64))?;
        self.ring.submit().map(|_| ()).map_err(|err| self.refused(&err))
    }

    fn push(&mut self, entry: sheave::uring::prep::Entry) -> Result<(), Failure> {
        match self.ring.push(entry) {
            Ok(()) => Ok(()),
            Err(full) => Err(self.refused(&full.error)),
        }
    }

    fn refused(&self, err: &dyn std::fmt::Display) -> Failure {
        Failure::run(format!("{}: the ring refuses: {err}", self.name))
    }

    /// Waits for one read at least.
    fn reap(&mut self, report: &mut Report) -> Result<(), Failure> {
        self.ring.wait(1, None);
        for done in self.ring.completions() {
            let Some((pos, len)) = self.in_flight[done.user_data as usize].take() else { continue };
            if u64::try_from(done.res) == Ok(len) {
                report.read_bytes += len;
            } else {
                self.failed.push((pos, len));
            }
        }
        Ok(())
    }

    /// Waits for all, then looks closely at what failed.
    fn finish(mut self, report: &mut Report) -> Result<(), Failure> {
        while self.in_flight.iter().any(Option::is_some) {
            self.reap(report)?;
        }
        for (pos, len) in std::mem::take(&mut self.failed) {
            for at in (pos..pos + len).step_by(BLOCK as usize) {
                let len = BLOCK.min(pos + len - at);
                let res = self.one(at, len)?;
                report.read_bytes += len;
                if u64::try_from(res) != Ok(len) {
                    self.note(at, len, res, report);
                }
            }
        }
        Ok(())
    }

    fn one(&mut self, pos: u64, len: u64) -> Result<i32, Failure> {
        let buf = Buf::zeroed(len as usize, BLOCK as usize)
            .map_err(|err| Failure::run(format!("no memory for a buffer: {err}")))?;
        self.push(op::read(self.fd, buf).offset(pos))?;
        self.ring.submit_and_wait(1).map_err(|err| self.refused(&err))?;
        let done = self.ring.completions().next();
        Ok(done.map_or(-libc::EIO, |done| done.res))
    }

    /// A bad block; one that follows another of the same kind makes that longer.
    fn note(&self, pos: u64, len: u64, res: i32, report: &mut Report) {
        report.bad_bytes += len;
        let error = match res {
            0.. => "it ends early".to_owned(),
            _ if -res == libc::EILSEQ => "the checksum does not match the data".to_owned(),
            _ => Errno(-res).to_string(),
        };
        let listed = report.bad.len();
        match report.bad.last_mut() {
            Some(last) if last.volume == self.name && last.offset + last.length == pos && last.error == error => {
                last.length += len;
            }
            _ if listed < MAX_LISTED => {
                report.bad.push(Bad { volume: self.name.to_owned(), offset: pos, length: len, error });
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
