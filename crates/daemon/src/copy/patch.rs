//! Puts the ranges of a diff into a volume.
//!
//! Owns what becomes of ranges that do not begin and end at blocks: the blocks at their ends are read, changed in
//! memory and written. All else is written as it comes, and zeroes become holes.

use std::io::Read;

use sheave_base::sync::atomic::{AtomicBool, Ordering};
use sheave_vol::rbd_diff::{DiffError, Reader, Record};

use super::Meter;
use super::lanes::{LANE_BYTES, Lanes};
use super::source::GRAIN;
use crate::failure::Failure;

/// Bytes that are passed over at a time.
const PASSED: usize = 64 << 10;

/// What the ranges came to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Patched {
    pub copied_bytes: u64,
    pub zero_bytes: u64,
    pub stopped: bool,
}

/// A volume that is changed, `size` bytes large.
pub(super) struct Patch<'a> {
    pub lanes: &'a mut Lanes,
    pub size: u64,
    pub stop: &'a AtomicBool,
}

/// A diff that is none, or cannot be read, in words.
pub(super) fn failed(name: &str, err: &DiffError) -> Failure {
    let fix = match err.io {
        Some(_) => "look at the file or at the program that writes it, then import again",
        None => "make the diff anew with sheave volume export-diff, or rbd export-diff; nothing was changed",
    };
    Failure::run(format!("{name}: {err}")).fix(fix)
}

/// Reads over the ranges that there are, up to the end of the stream; ends early when `stop` is set.
pub(super) fn pass_over<R: Read>(
    reader: &mut Reader<R>,
    meter: &mut dyn Meter,
    stop: &AtomicBool,
) -> Result<(), DiffError> {
    loop {
        let begun = reader.at();
        let record = reader.next()?;
        if let Record::Data { mut len, .. } = record {
            let mut passed = vec![0; PASSED];
            // Relaxed: the flag carries nothing but itself.
            while len > 0 && !stop.load(Ordering::Relaxed) {
                match reader.data(&mut passed)? as u64 {
                    0 => break,
                    now => len -= now,
                }
            }
        }
        // Relaxed: as above.
        if record == Record::End || stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        meter.advance(reader.at() - begun);
    }
}

impl Patch<'_> {
    /// Puts in all ranges there are.
    pub(super) fn all<R: Read>(
        &mut self,
        reader: &mut Reader<R>,
        name: &str,
        meter: &mut dyn Meter,
    ) -> Result<Patched, Failure> {
        let fail = |err: DiffError| failed(name, &err);
        let mut sums = Patched::default();
        loop {
            let begun = reader.at();
            match reader.next().map_err(fail)? {
                Record::End => return self.lanes.drain().map(|()| sums),
                Record::Zeroes { pos, len } => {
                    self.zeroes(pos, len)?;
                    sums.zero_bytes += len;
                }
                Record::Data { mut pos, len } => {
                    let end = pos + len;
                    while pos < end {
                        // Relaxed: the flag carries nothing but itself.
                        if self.stop.load(Ordering::Relaxed) {
                            return Ok(Patched { stopped: true, ..sums });
                        }
                        // Up to a block's end first, so that all that follows begins at one.
                        let most = LANE_BYTES as u64 - pos % GRAIN;
                        let now = (end - pos).min(most) as usize;
                        self.data(pos, now, |bytes| fill(reader, bytes).map_err(fail))?;
                        pos += now as u64;
                    }
                    sums.copied_bytes += len;
                }
            }
            meter.advance(reader.at() - begun);
        }
    }

    /// `len` bytes at `pos`, which with what stands before them in their block fit a lane.
    fn data(
        &mut self,
        pos: u64,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let start = pos - pos % GRAIN;
        let end = (pos + len as u64).next_multiple_of(GRAIN).min(self.size);
        let (from, to) = ((pos - start) as usize, (pos - start) as usize + len);
        let whole = (end - start) as usize;
        let lane = if from == 0 && to == whole {
            self.lanes.take()?
        } else {
            // The rest of the first and last block stays: it may have been put there just now.
            self.lanes.drain()?;
            let lane = self.lanes.take()?;
            self.lanes.read(lane, whole, start)?;
            self.lanes.wait_for(lane)?;
            lane
        };
        fill(&mut self.lanes.bytes_mut(lane)[from..to])?;
        self.lanes.write(lane, 0..whole, start)
    }

    fn zeroes(&mut self, pos: u64, len: u64) -> Result<(), Failure> {
        let end = pos + len;
        // The last block may be short, and is whole all the same.
        let whole = if end == self.size { end } else { end - end % GRAIN };
        let (first, last) = (pos.next_multiple_of(GRAIN).min(end), whole.max(pos));
        if first > last || first == end {
            return if len == 0 { Ok(()) } else { self.data(pos, len as usize, zero) };
        }
        if pos < first {
            self.data(pos, (first - pos) as usize, zero)?;
        }
        self.lanes.drain()?;
        self.lanes.punch(first, last - first)?;
        self.lanes.drain()?;
        if last < end {
            self.data(last, (end - last) as usize, zero)?;
        }
        Ok(())
    }
}

fn zero(bytes: &mut [u8]) -> Result<(), Failure> {
    bytes.fill(0);
    Ok(())
}

fn fill<R: Read>(reader: &mut Reader<R>, bytes: &mut [u8]) -> Result<(), DiffError> {
    let mut have = 0;
    while have < bytes.len() {
        match reader.data(&mut bytes[have..])? {
            0 => break,
            now => have += now,
        }
    }
    Ok(())
}
