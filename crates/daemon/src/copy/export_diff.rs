//! Exports the changes between a snapshot and a later one, or the volume, as an RBD diff.
//!
//! The maps of the volumes tell which ranges may have changed. Ranges whose data a copy moved are compared block by
//! block ([`Volume::differences_since`]). Changed data is read, with a few reads in flight ahead of the write position.
//!
//! A diff between any two volumes of a pool is correct, whatever happened between them, since it lists the ranges that
//! read differently. So it may cross a rollback or a resize; the import decides whether it applies.

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

/// Length of the range that is compared at a time; bounds the memory for its extents, at worst one for every second
/// block.
const WINDOW: u64 = 1 << 30;

/// Result of an export.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    /// Bytes that changed and are data now.
    pub copied_bytes: u64,
    /// Bytes that changed and read as zeroes now.
    pub zero_bytes: u64,
    /// Bytes read from both sides for comparison, to tell changed data from data that a copy moved.
    pub compared_bytes: u64,
}

/// Writes the diff from the snapshot `from`, or from nothing, to the volume at `place`.
///
/// # Errors
///
/// A read, comparison or write failed, or `stop` was set.
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
        // Relaxed: as above. A comparison that was stopped has not returned all changes.
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

/// Returns the name of a snapshot in the diff. Version 1 is read by Ceph, whose snapshot names are relative to an image
/// and have no `@`.
fn name_in(version: Version, name: &str) -> String {
    match (version, value::split_snapshot(name)) {
        (Version::V1, Some((_, own))) => own.into(),
        _ => name.into(),
    }
}

/// Removes holes from `extents`: without a base, a hole is no change.
fn data_alone(mut extents: Vec<Extent>) -> Vec<Extent> {
    extents.retain(|extent| extent.kind == ExtentKind::Data);
    extents
}

/// Opens the snapshot that the diff begins at. A volume is refused, since it may change before the diff is imported.
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
    /// Bytes written so far.
    pos: u64,
    lanes: Lanes,
    /// Reads in flight, oldest first: lane, position and length of each.
    ahead: VecDeque<(u16, u64, usize)>,
    /// Total bytes of data, and of zeroes.
    sums: (u64, u64),
}

impl Stream {
    /// Writes the records of changed extents. Returns false if `stop` was set.
    fn extents(&mut self, changed: &[Extent], stop: &AtomicBool) -> Result<bool, Failure> {
        for extent in changed {
            if extent.kind != ExtentKind::Data {
                // Data that precedes the zeroes goes first: the records of a diff are ordered by position.
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

    /// Returns a lane that no read ahead occupies. One exists while there are fewer reads than lanes.
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
