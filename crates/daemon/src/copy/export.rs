//! Exports a volume as a raw image, sparse where the volume has no data.
//!
//! Only extents with data are read. Several reads are in flight ahead of the write position, and are written in order,
//! so a stream gets the same bytes as a file. A device is written in whole blocks of its own: a block that has any data
//! is read in full, and so are holes if the device cannot write zeroes itself.

use std::collections::VecDeque;

use sheave_base::sync::atomic::{AtomicBool, Ordering};
use sheave_vol::{ExtentKind, Pool, Volume};

use super::Meter;
use super::lanes::{LANE_BYTES, LANES, Lanes};
use super::rescue::{Bad, Instead, Rescue};
use super::sink::Sink;
use crate::failure::{self, Failure};
use crate::place::VolumePlace;

/// Length of the range whose extents are queried at a time; bounds the memory for them.
const WINDOW: u64 = 16 << 30;

/// Result of an export.
pub struct Copied {
    /// Bytes read and written.
    pub bytes: u64,
    /// Blocks that a rescue could not read.
    pub bad: Bad,
}

/// An item of the queue between reads and writes.
enum Next {
    Read { lane: u16, pos: u64, len: usize },
    Hole { pos: u64, len: u64 },
}

/// Copies the first `size` bytes of a volume to `sink`. With `rescue`, the copy continues past unreadable blocks.
///
/// # Errors
///
/// A read or write failed, or `stop` was set.
pub fn copy_to(
    pool: &Pool,
    place: &VolumePlace,
    size: u64,
    rescue: Option<Instead>,
    sink: Sink,
    meter: &mut dyn Meter,
    stop: &AtomicBool,
) -> Result<Copied, Failure> {
    let volume = pool.open_volume(&place.name).map_err(failure::pool)?;
    let name = sink.name().to_owned();
    let ahead = VecDeque::with_capacity(usize::from(LANES));
    let mut lanes = Lanes::new(&volume, place)?;
    let device = sink.device().filter(|_| rescue.is_none());
    device.map(|device| lanes.attach_image(device)).transpose()?;
    let to_device = device.is_some();
    let (block, makes_zeroes) = device
        .map_or((1, true), |device| (u64::from(device.limits().logical_block), device.capabilities().write_zeroes));
    let mut copy = Copy { sink, lanes, ahead, meter, copied: 0, to_device, block, makes_zeroes };
    let mut bad = Bad::default();
    let ended = match rescue {
        None => copy.run(&volume, place, size, stop)?,
        Some(instead) => {
            let Copy { sink, lanes, meter, .. } = &mut copy;
            let mut rescue = Rescue { sink, lanes, meter: *meter, instead, copied: 0, bad };
            let ended = rescue.run(&volume, size, stop)?;
            (copy.copied, bad) = (rescue.copied, rescue.bad);
            ended
        }
    };
    if !ended {
        return Err(Failure::interrupted(format!("the export was ended; {name} is not complete")));
    }
    if copy.to_device {
        copy.lanes.sync_image()?;
    }
    copy.sink.finish(size)?;
    Ok(Copied { bytes: copy.copied, bad })
}

struct Copy<'a> {
    sink: Sink,
    lanes: Lanes,
    /// Items to write, in the order of their positions.
    ahead: VecDeque<Next>,
    meter: &'a mut dyn Meter,
    copied: u64,
    /// True if the sink is a device that is written through the ring of the volume.
    to_device: bool,
    /// Alignment of everything that is written; 1 if the sink takes any length.
    block: u64,
    /// True if the sink can be told to make a range of zeroes.
    makes_zeroes: bool,
}

impl Copy<'_> {
    /// Copies the first `size` bytes of the volume. Returns false if `stop` was set.
    fn run(&mut self, volume: &Volume, place: &VolumePlace, size: u64, stop: &AtomicBool) -> Result<bool, Failure> {
        // Everything before `pos` was put; windows begin on block boundaries.
        let (mut window, mut pos) = (0, 0);
        while window < size {
            let len = WINDOW.min(size - window);
            let extents = volume.extents(window, len).map_err(failure::pool)?;
            let covered: u64 = extents.iter().map(|extent| extent.len).sum();
            if covered != len {
                return Err(Failure::run(format!("{place}: its extents cover {covered} of {len} bytes"))
                    .fix("sheave pool check tells what is wrong with the pool"));
            }
            for extent in extents {
                let end = extent.pos + extent.len;
                let rest = end % self.block;
                if extent.kind != ExtentKind::Data && self.makes_zeroes {
                    // The partial block at the end of a hole is copied together with the extent behind it.
                    let end = end - rest;
                    if end > pos {
                        self.put(Next::Hole { pos, len: end - pos })?;
                        pos = end;
                    }
                    continue;
                }
                let end = if rest == 0 { end } else { (end - rest + self.block).min(size) };
                while pos < end {
                    // Relaxed: the flag carries nothing but itself.
                    if stop.load(Ordering::Relaxed) {
                        return Ok(false);
                    }
                    let len = (end - pos).min(LANE_BYTES as u64) as usize;
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

    /// Returns a lane that no read ahead occupies, after writing the oldest items if necessary.
    fn lane(&mut self) -> Result<u16, Failure> {
        loop {
            let ahead = &self.ahead;
            let mut used = |lane| ahead.iter().any(|next| matches!(next, Next::Read { lane: at, .. } if *at == lane));
            if (0..LANES).any(|lane| !used(lane)) {
                return self.lanes.take_but(&mut used);
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
                self.meter.advance(len);
                if self.to_device { self.lanes.zero_image(pos, len) } else { self.sink.hole(pos, len) }
            }
            Some(Next::Read { lane, pos, len }) => {
                self.lanes.wait_for(lane)?;
                if self.to_device {
                    self.lanes.write_image(lane, len, pos)?;
                } else {
                    self.sink.data(pos, &self.lanes.bytes(lane)[..len])?;
                }
                self.copied += len as u64;
                self.meter.advance(len as u64);
                Ok(())
            }
        }
    }
}
