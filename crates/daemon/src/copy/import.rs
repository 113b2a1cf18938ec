//! Imports a raw image into a volume; zeroes are not allocated.
//!
//! A volume that does not exist is created as an [interim](super::interim) one, `NAME.importing`, and renamed when all
//! of it is durable, so half an image is never visible under the name. The interim volume is deleted when the copy
//! fails or is stopped.
//!
//! Invariant I1: [`split`] finds every 4 KiB block that is not all zeroes, and no other.

use std::collections::VecDeque;

use sheave::Device;
use sheave_base::sync::atomic::{AtomicBool, Ordering};
use sheave_base::units::fmt_bytes;
use sheave_base::zeroes::is_zero;
use sheave_vol::{Pool, Purpose};

use super::interim::Interim;
use super::lanes::{LANE_BYTES, LANES, Lanes};
use super::source::{GRAIN, Piece, Source, Span, Spans};
use super::{Ask, Meter};
use crate::failure::{self, Failure};
use crate::place::VolumePlace;

/// Initial size of a new volume when the size of the image is unknown.
const UNKNOWN: u64 = 64 << 30;
/// Reads of a device in flight at a time. The other half of the lanes is left for writes.
const READ_AHEAD: usize = LANES as usize / 2;
/// Suffix of the interim volume's name.
const SUFFIX: &str = ".importing";

/// Target of an import.
pub struct Wanted<'a> {
    pub place: &'a VolumePlace,
    /// Size of a new volume; by default the size of the image.
    pub size: Option<u64>,
}

/// Result of an import.
pub struct Copied {
    /// Size of the image.
    pub image_bytes: u64,
    /// Bytes written, which are those in blocks with data.
    pub copied_bytes: u64,
    stopped: bool,
}

/// Copies the image into the existing volume (`exists`) or into a new one. If another client creates the volume during
/// the copy, the final rename fails, and that volume is not touched.
///
/// # Errors
///
/// A read or write failed, or `stop` was set. A new volume that was begun is deleted again.
pub fn into_pool(
    pool: &Pool,
    wanted: &Wanted<'_>,
    exists: bool,
    ask: Ask<'_>,
    source: &mut Source,
    meter: &mut dyn Meter,
    stop: &AtomicBool,
) -> Result<Copied, Failure> {
    source.refuse_locked()?;
    if exists { over(pool, wanted, ask, source, meter, stop) } else { anew(pool, wanted, source, meter, stop) }
}

/// Imports into a new volume.
fn anew(
    pool: &Pool,
    wanted: &Wanted<'_>,
    source: &mut Source,
    meter: &mut dyn Meter,
    stop: &AtomicBool,
) -> Result<Copied, Failure> {
    let place = wanted.place;
    let fitting = source.size().map(|len| len.max(1).next_multiple_of(GRAIN));
    if let (Some(size), Some(fitting)) = (wanted.size, fitting)
        && size < fitting
    {
        return Err(Failure::usage(format!("--size {size} is less than the {fitting} bytes of the image"))
            .fix("leave --size out, or give more"));
    }
    let size = wanted.size.or(fitting);
    let mark = sheave_vol::Interim::new(Purpose::Import, 0);
    let make = |name: &str| pool.create_interim(name, size.unwrap_or(UNKNOWN), mark);
    let interim = Interim::make(pool, &place.name, SUFFIX, make)?;
    let fill = |source: &mut Source, meter: &mut dyn Meter| {
        let mut lanes = Lanes::new(&interim.volume()?, place)?;
        let mut now = size.unwrap_or(UNKNOWN);
        let mut room = |end: u64| {
            if size.is_some() || end <= now {
                return Ok(());
            }
            now = (2 * now).max(end);
            pool.resize(interim.name(), now).map_err(failure::pool)
        };
        let copied = copy(&mut lanes, source, meter, stop, size, &mut room, false)?;
        lanes.sync()?;
        Ok::<_, Failure>(copied)
    };
    let copied = fill(source, meter)?;
    if copied.stopped {
        return Err(Failure::interrupted(format!("the import was ended; {place} was not made")));
    }
    if size.is_none() {
        let fitting = copied.image_bytes.max(1).next_multiple_of(GRAIN);
        pool.resize(interim.name(), fitting).map_err(failure::pool)?;
    }
    interim.become_volume(&place.name)?;
    Ok(copied)
}

/// Imports into an existing volume, whose content is replaced.
fn over(
    pool: &Pool,
    wanted: &Wanted<'_>,
    ask: Ask<'_>,
    source: &mut Source,
    meter: &mut dyn Meter,
    stop: &AtomicBool,
) -> Result<Copied, Failure> {
    let place = wanted.place;
    if wanted.size.is_some() {
        return Err(Failure::usage(format!("{place} exists, and --size is for a new volume"))
            .fix("leave it out; sheave volume resize changes the size of one that is there"));
    }
    let info = pool.volume_info(&place.name).map_err(failure::pool)?;
    if info.snapshot {
        return Err(Failure::run(format!("{place} is a snapshot, which cannot be written"))
            .fix("choose another name, or import into a clone of it"));
    }
    if source.size().is_some_and(|len| len > info.size_bytes) {
        let len = source.size().unwrap_or_default();
        return Err(Failure::run(format!("the image has {len} bytes, {place} {}", info.size_bytes))
            .fix(format!("sheave volume resize '{place}' {}", len.next_multiple_of(GRAIN))));
    }
    if info.written_bytes > 0 {
        let written = fmt_bytes(info.written_bytes);
        ask(&format!("{place} holds {written} of data; the import replaces it"))?;
    }
    let volume = pool.open_volume(&place.name).map_err(failure::pool)?;
    let mut lanes = Lanes::new(&volume, place)?;
    let has_data = info.written_bytes > 0;
    let copied = copy(&mut lanes, source, meter, stop, Some(info.size_bytes), &mut |_| Ok(()), has_data)?;
    // The part of the volume behind the image becomes zeroes, as in a new volume.
    let end = copied.image_bytes.next_multiple_of(GRAIN);
    if has_data && !copied.stopped && end < info.size_bytes {
        lanes.punch(end, info.size_bytes - end)?;
    }
    lanes.sync()?;
    if copied.stopped {
        let at = fmt_bytes(copied.image_bytes);
        return Err(Failure::interrupted(format!("the import was ended; {place} has the first {at} of the image")));
    }
    Ok(copied)
}

/// Copies until the image ends. `limit` is the size of a volume that must not grow; `room` grows a new volume to the
/// given size; `has_data` means that the volume has old data, which zeroes of the image must overwrite.
fn copy(
    lanes: &mut Lanes,
    source: &mut Source,
    meter: &mut dyn Meter,
    stop: &AtomicBool,
    limit: Option<u64>,
    room: &mut dyn FnMut(u64) -> Result<(), Failure>,
    has_data: bool,
) -> Result<Copied, Failure> {
    let mut copied = Copied { image_bytes: 0, copied_bytes: 0, stopped: false };
    if let Some(device) = source.device() {
        fits(device.size_bytes(), limit)?;
        copy_device(lanes, device, meter, stop, has_data, &mut copied)?;
        return Ok(copied);
    }
    loop {
        let lane = lanes.take()?;
        let pos = source.pos();
        let piece = source.next(lanes.bytes_mut(lane), stop)?;
        let len = match piece {
            Piece::End => break,
            Piece::Stopped => {
                copied.stopped = true;
                break;
            }
            Piece::Hole(len) => len,
            Piece::Data(len) => len as u64,
        };
        fits(pos + len, limit)?;
        let end = (pos + len).next_multiple_of(GRAIN);
        room(end)?;
        match piece {
            Piece::Hole(_) if has_data => lanes.punch(pos, end - pos)?,
            Piece::Data(bytes) => put(lanes, (lane, bytes, pos), has_data, &mut copied)?,
            _ => {}
        }
        copied.image_bytes = pos + len;
        meter.advance(len);
    }
    lanes.drain()?;
    if copied.image_bytes == 0 && !copied.stopped {
        return Err(source.empty());
    }
    Ok(copied)
}

fn fits(end: u64, limit: Option<u64>) -> Result<(), Failure> {
    if limit.is_some_and(|limit| end > limit) {
        return Err(Failure::run(format!("the image is longer than the volume, {} bytes", limit.unwrap_or(0)))
            .fix("give a larger --size, or resize the volume"));
    }
    Ok(())
}

/// Starts writing the `bytes` in `lane` to position `pos` of the volume, without blocks of zeroes.
fn put(
    lanes: &mut Lanes,
    (lane, bytes, pos): (u16, usize, u64),
    has_data: bool,
    copied: &mut Copied,
) -> Result<(), Failure> {
    let padded = bytes.next_multiple_of(GRAIN as usize);
    lanes.bytes_mut(lane)[bytes..padded].fill(0);
    for run in split(&lanes.bytes(lane)[..padded]) {
        let at = pos + run.start as u64;
        if run.zero && has_data {
            lanes.punch(at, run.len as u64)?;
        } else if !run.zero {
            // The image may end within its last grain; the padding is not counted.
            copied.copied_bytes += run.len.min(bytes - run.start) as u64;
            lanes.write(lane, run.start..run.start + run.len, at)?;
        }
    }
    Ok(())
}

/// Copies a device that the ring of the volume reads too: the buffer that a read filled is written to the volume.
fn copy_device(
    lanes: &mut Lanes,
    device: &Device,
    meter: &mut dyn Meter,
    stop: &AtomicBool,
    has_data: bool,
    copied: &mut Copied,
) -> Result<(), Failure> {
    lanes.attach_image(device)?;
    let size = device.size_bytes();
    let mut spans = Spans::of(device);
    let mut ahead: VecDeque<Ahead> = VecDeque::with_capacity(READ_AHEAD);
    let mut next = 0;
    loop {
        // Relaxed: the flag carries nothing but itself.
        copied.stopped |= stop.load(Ordering::Relaxed);
        while next < size && ahead.len() < READ_AHEAD && !copied.stopped {
            let (lane, bytes) = match spans.next(next)? {
                Span::Hole(bytes) => (None, bytes),
                Span::Data(bytes) => {
                    let kept = &mut |lane| ahead.iter().any(|part| part.lane == Some(lane));
                    let (lane, bytes) = (lanes.take_but(kept)?, bytes.min(LANE_BYTES as u64));
                    lanes.read_image(lane, bytes as usize, next)?;
                    (Some(lane), bytes)
                }
            };
            ahead.push_back(Ahead { lane, bytes, pos: next });
            next += bytes;
        }
        let Some(Ahead { lane, bytes, pos }) = ahead.pop_front() else { break };
        match lane {
            Some(lane) => {
                lanes.wait_for(lane)?;
                put(lanes, (lane, bytes as usize, pos), has_data, copied)?;
            }
            // The volume has whole grains, so the last one may extend beyond the image.
            None if has_data => lanes.punch(pos, bytes.next_multiple_of(GRAIN))?,
            None => {}
        }
        copied.image_bytes = pos + bytes;
        meter.advance(bytes);
    }
    lanes.drain()
}

/// A range of the device that is being read into a lane, or a hole.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    lane: Option<u16>,
    bytes: u64,
    pos: u64,
}

/// A run of blocks that are all zeroes, or all not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    start: usize,
    len: usize,
    zero: bool,
}

/// Splits `bytes` into runs (I1).
fn split(bytes: &[u8]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::with_capacity(8);
    for (number, block) in bytes.chunks(GRAIN as usize).enumerate() {
        let zero = is_zero(block);
        match runs.last_mut() {
            Some(run) if run.zero == zero => run.len += block.len(),
            _ => runs.push(Run { start: number * GRAIN as usize, len: block.len(), zero }),
        }
    }
    runs
}

/// A lane holds whole grains, so `put` can pad a read of any length within its lane.
const _: () = assert!(LANE_BYTES.is_multiple_of(GRAIN as usize));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_zeroes_and_of_data() {
        let grain = GRAIN as usize;
        let mut bytes = vec![0; 8 * grain];
        assert_eq!(split(&bytes), [Run { start: 0, len: 8 * grain, zero: true }]);
        // Also a block whose only nonzero byte is its last counts as data.
        bytes[2 * grain - 1] = 1;
        bytes[2 * grain] = 1;
        bytes[7 * grain + 1000] = 1;
        let run = |start: usize, len: usize, zero| Run { start: start * grain, len: len * grain, zero };
        assert_eq!(split(&bytes), [run(0, 1, true), run(1, 2, false), run(3, 4, true), run(7, 1, false)]);
        assert_eq!(split(&[]), []);
    }
}
