//! Applies the ranges of a diff to a volume.
//!
//! Handles ranges that do not begin and end on block boundaries: the partial blocks at their ends are read, modified in
//! memory and written back. Whole blocks are written as they arrive, and zeroes become holes.

use std::io::Read;

use sheave_base::sync::atomic::{AtomicBool, Ordering};
use sheave_vol::rbd_diff::{DiffError, Reader, Record};

use super::Meter;
use super::lanes::{LANE_BYTES, Lanes};
use super::source::GRAIN;
use crate::failure::Failure;

/// Size of the buffer for data that is skipped.
const PASSED: usize = 64 << 10;

/// Result of applying a diff.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Patched {
    pub copied_bytes: u64,
    pub zero_bytes: u64,
    pub stopped: bool,
}

/// A volume of `size` bytes, to which a diff is applied.
pub(super) struct Patch<'a> {
    pub lanes: &'a mut Lanes,
    pub size: u64,
    pub stop: &'a AtomicBool,
}

/// The failure for a diff that cannot be read or decoded.
pub(super) fn failed(name: &str, err: &DiffError) -> Failure {
    let fix = match err.io {
        Some(_) => "look at the file or at the program that writes it, then import again",
        None => "make the diff anew with sheave volume export-diff, or rbd export-diff; nothing was changed",
    };
    Failure::run(format!("{name}: {err}")).fix(fix)
}

/// Skips all remaining records of the stream; returns early when `stop` is set.
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
    /// Applies all records of the diff.
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
                        // The first piece ends on a block boundary, so that all later ones begin on one.
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

    /// Writes `len` bytes at `pos`, which `fill` provides. Together with the bytes before `pos` in its block they fit
    /// in a lane.
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
            // Read-modify-write of the partial blocks at the ends. An earlier record may just have written to them, so
            // those writes complete first.
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
        // The volume's last block may be partial; a range up to the end of the volume covers it.
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
