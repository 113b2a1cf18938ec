//! What changed between a snapshot and a later one, or the volume, as an RBD diff.
//!
//! Maps say what may have changed. Where a copy moved data, blocks are compared ([`Volume::differences_since`]); what
//! differs is read, and a few reads are in flight ahead of what is written.
//!
//! A diff between any two volumes of the pool is right, whatever happened between them: it says what reads differently.
//! So it may cross a rollback and a resize; whether it fits is the import's question.

use std::collections::VecDeque;

use sheave_base::sync::atomic::{AtomicBool, Ordering};
use sheave_vol::rbd_diff::{self, Header, Version};
use sheave_vol::{Extent, ExtentKind, Pool, Volume};

use super::Meter;
use super::lanes::{LANE_BYTES, LANES, Lanes};
use super::sink::Sink;
use crate::failure::{self, Failure};
use crate::place::VolumePlace;
use crate::value;

/// How much of the volume is compared at a time: bounds the memory for its extents, of which there is one for each
/// second block at worst.
const WINDOW: u64 = 1 << 30;

/// What a diff came to.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    /// What changed and is data: that much was read.
    pub copied_bytes: u64,
    /// What changed and reads as zeroes now.
    pub zero_bytes: u64,
    /// Read before that, of both sides, to tell what changed from what was copied as it was.
    pub compared_bytes: u64,
}

/// Writes the diff that leads to a volume, from a snapshot or from nothing.
///
/// # Errors
///
/// What of it failed, or that it was ended.
pub fn write(
    pool: &Pool,
    place: &VolumePlace,
    from: Option<&str>,
    version: Version,
    sink: impl FnOnce() -> Result<Sink, Failure>,
    meter: &mut dyn Meter,
    stop: &AtomicBool,
) -> Result<Written, Failure> {
    let from = from.map(|from| value::snapshot_of(&place.name, from));
    let from = from.as_deref();
    let info = pool.volume_info(&place.name).map_err(failure::pool)?;
    let volume = pool.open_volume(&place.name).map_err(failure::pool)?;
    let base = from.map(|from| base_of(pool, from)).transpose()?;
    let header = Header {
        from: from.map(|from| name_in(version, from)),
        to: info.snapshot.then(|| name_in(version, &info.name)),
        size: info.size_bytes,
        from_identity: base.as_ref().map(Volume::identity),
        to_identity: info.snapshot.then(|| volume.identity()),
    };
    let sink = sink()?;
    let name = sink.name().to_owned();
    let ahead = VecDeque::with_capacity(usize::from(LANES));
    let mut stream = Stream { sink, version, pos: 0, lanes: Lanes::new(&volume, place)?, ahead, sums: (0, 0) };
    stream.put(&rbd_diff::begin(stream.version, &header))?;
    let (mut at, mut compared_bytes) = (0, 0);
    while at < info.size_bytes {
        let len = WINDOW.min(info.size_bytes - at);
        let mut seen = at;
        let changed = match &base {
            Some(base) => {
                // Relaxed: the flag carries nothing but itself.
                let told = volume.differences_since(base, at, len, &mut |upto| {
                    meter.advance(upto - seen);
                    seen = upto;
                    !stop.load(Ordering::Relaxed)
                });
                let told = told.map_err(failure::pool)?;
                compared_bytes += told.read_bytes;
                told.extents
            }
            None => data_alone(volume.extents(at, len).map_err(failure::pool)?),
        };
        // Relaxed: as above. A comparison that was ended has not told all.
        if stop.load(Ordering::Relaxed) || !stream.extents(&changed, stop)? {
            return Err(Failure::interrupted(format!("the export was ended; {name} is not complete")));
        }
        at += len;
        meter.advance(at - seen);
    }
    stream.put(rbd_diff::END)?;
    let Stream { sink, pos, sums, .. } = stream;
    sink.finish(pos)?;
    Ok(Written { copied_bytes: sums.0, zero_bytes: sums.1, compared_bytes })
}

/// What a snapshot is called in a diff. Version 1 is for Ceph, whose names are those within an image and have no `@`.
fn name_in(version: Version, name: &str) -> String {
    match (version, value::split_snapshot(name)) {
        (Version::V1, Some((_, own))) => own.into(),
        _ => name.into(),
    }
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
