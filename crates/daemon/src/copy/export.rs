//! The content of a volume becomes a raw image, with holes where it has no data.
//!
//! The extents say what to read; reads are several ahead of what is written, and are written in order, so that a stream
//! gets the same bytes as a file. A device gets whole blocks of its own: those that have data in a part are read as a
//! whole, and so are holes where it cannot make zeroes itself.

use std::collections::VecDeque;

use sheave_base::sync::atomic::{AtomicBool, Ordering};
use sheave_vol::{ExtentKind, Pool, Volume};

use super::Meter;
use super::lanes::{LANE_BYTES, LANES, Lanes};
use super::rescue::{Bad, Instead, Rescue};
use super::sink::Sink;
use crate::failure::{self, Failure};
use crate::place::VolumePlace;

/// How much of the volume is asked for its extents at a time: bounds the memory for them.
const WINDOW: u64 = 16 << 30;

/// What a copy came to.
pub struct Copied {
    /// What was read and written.
    pub bytes: u64,
    /// What could not be read, in a rescue.
    pub bad: Bad,
}

/// What is read ahead, or a hole.
enum Next {
    Read { lane: u16, pos: u64, len: usize },
    Hole { pos: u64, len: u64 },
}

/// Copies a volume of this size to a sink, in a rescue past what cannot be read.
///
/// # Errors
///
/// What of it failed, or that it was ended.
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
    /// What comes next in the image, oldest first.
    ahead: VecDeque<Next>,
    meter: &'a mut dyn Meter,
    copied: u64,
    /// The sink is a device, which the ring of the volume writes too.
    to_device: bool,
    /// What is put begins and ends at a multiple of this; 1 where the sink takes all bytes.
    block: u64,
    /// The sink takes holes as such.
    makes_zeroes: bool,
}

impl Copy<'_> {
    /// False when it was stopped.
    fn run(&mut self, volume: &Volume, place: &VolumePlace, size: u64, stop: &AtomicBool) -> Result<bool, Failure> {
        // All before `pos` was put. Windows begin at blocks.
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
                    // A hole's last block that is not whole goes with what follows it.
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

    /// A lane that no read ahead is in.
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
