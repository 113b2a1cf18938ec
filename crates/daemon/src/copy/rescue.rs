//! `sheave volume export --rescue`: copies everything of a volume that can be read.
//!
//! A read that fails is repeated block by block, and the blocks that fail again are listed. Only one read is in flight
//! at a time, so that a failure identifies the blocks concerned.
//!
//! - R1: a block is listed if and only if it could not be read, by its position in the volume. After [`MOST_LISTED`]
//!   ranges the others are only counted.

use serde::Serialize;
use sheave_base::sync::atomic::{AtomicBool, Ordering};
use sheave_vol::{ExtentKind, Volume};

use super::Meter;
use super::lanes::{LANE_BYTES, Lanes};
use super::sink::Sink;
use super::source::GRAIN;
use crate::failure::{self, Failure};

/// Length of the range whose extents are queried at a time; bounds the memory for them.
const WINDOW: u64 = 16 << 30;
/// Maximum number of bad ranges in the list; the others are only counted.
const MOST_LISTED: usize = 1 << 16;

/// A range of adjacent unreadable blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BadRange {
    pub offset: u64,
    pub length: u64,
}

/// Replacement for a block that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instead {
    Zeroes,
    /// Leaves the old content of the target in place.
    Nothing,
}

/// The blocks that could not be read.
#[derive(Debug, Default)]
pub struct Bad {
    /// The first ranges, in ascending order.
    pub listed: Vec<BadRange>,
    /// Number of all bad ranges.
    pub ranges: u64,
    /// Bytes in all bad ranges.
    pub bytes: u64,
    /// End of the last range.
    end: u64,
}

/// State of a rescue.
pub(super) struct Rescue<'a> {
    pub sink: &'a mut Sink,
    pub lanes: &'a mut Lanes,
    pub meter: &'a mut dyn Meter,
    pub instead: Instead,
    pub copied: u64,
    pub bad: Bad,
}

impl Rescue<'_> {
    /// Copies everything that can be read. Returns false if `stop` was set.
    pub fn run(&mut self, volume: &Volume, size: u64, stop: &AtomicBool) -> Result<bool, Failure> {
        let mut window = 0;
        while window < size {
            let len = WINDOW.min(size - window);
            for extent in volume.extents(window, len).map_err(failure::pool)? {
                if extent.kind != ExtentKind::Data {
                    self.sink.hole(extent.pos, extent.len)?;
                    self.meter.advance(extent.len);
                    continue;
                }
                let (mut pos, end) = (extent.pos, extent.pos + extent.len);
                while pos < end {
                    // Relaxed: the flag carries nothing but itself.
                    if stop.load(Ordering::Relaxed) {
                        return Ok(false);
                    }
                    let len = (end - pos).min(LANE_BYTES as u64);
                    self.piece(pos, len)?;
                    self.meter.advance(len);
                    pos += len;
                }
            }
            window += len;
        }
        Ok(true)
    }

    fn piece(&mut self, pos: u64, len: u64) -> Result<(), Failure> {
        if self.try_copy(pos, len)? {
            return Ok(());
        }
        let (mut at, end) = (pos, pos + len);
        while at < end {
            let len = (GRAIN - at % GRAIN).min(end - at);
            if !self.try_copy(at, len)? {
                self.give_up(at, len)?;
            }
            at += len;
        }
        Ok(())
    }

    /// Copies a range with one read. Returns false if the range could not be read.
    fn try_copy(&mut self, pos: u64, len: u64) -> Result<bool, Failure> {
        if !self.lanes.try_read(0, len as usize, pos)? {
            return Ok(false);
        }
        self.sink.data(pos, &self.lanes.bytes(0)[..len as usize])?;
        self.copied += len;
        Ok(true)
    }

    fn give_up(&mut self, pos: u64, len: u64) -> Result<(), Failure> {
        self.bad.add(pos, len);
        match self.instead {
            Instead::Zeroes => self.sink.hole(pos, len),
            Instead::Nothing => Ok(()),
        }
    }
}

impl Bad {
    /// Adds a bad block. Blocks come in ascending order.
    fn add(&mut self, pos: u64, len: u64) {
        let is_new = self.ranges == 0 || self.end != pos;
        let is_listed = self.ranges == self.listed.len() as u64;
        (self.bytes, self.ranges, self.end) = (self.bytes + len, self.ranges + u64::from(is_new), pos + len);
        if is_new && self.listed.len() < MOST_LISTED {
            self.listed.push(BadRange { offset: pos, length: len });
        } else if let Some(last) = self.listed.last_mut().filter(|_| !is_new && is_listed) {
            last.length += len;
        }
    }

    /// Describes the bad ranges for the user.
    pub fn words(&self) -> String {
        use std::fmt::Write;
        let mut text = String::new();
        for range in &self.listed {
            // Writing to a String does not fail.
            let _ = writeln!(text, "  bad: {} bytes at byte {} of the volume", range.length, range.offset);
        }
        let unlisted = self.ranges - self.listed.len() as u64;
        if unlisted > 0 {
            let _ = writeln!(text, "  and {unlisted} more");
        }
        if self.bytes > 0 {
            let _ = writeln!(text, "{} bytes could not be read, in {} ranges", self.bytes, self.ranges);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_one_range() {
        let mut bad = Bad::default();
        for block in [0, 1, 3, 4, 9] {
            bad.add(block * GRAIN, GRAIN);
        }
        let listed = [(0, 2), (3, 2), (9, 1)].map(|(at, len)| BadRange { offset: at * GRAIN, length: len * GRAIN });
        assert_eq!((bad.listed.as_slice(), bad.ranges, bad.bytes), (listed.as_slice(), 3, 5 * GRAIN));
        assert!(bad.words().ends_with("20480 bytes could not be read, in 3 ranges\n"), "{}", bad.words());
        assert!(!bad.words().contains("more"), "{}", bad.words());
    }

    #[test]
    fn ranges_beyond_the_list_are_counted() {
        let mut bad = Bad::default();
        let last = MOST_LISTED as u64;
        for number in 0..=last {
            bad.add(number * 2 * GRAIN, GRAIN);
        }
        assert_eq!((bad.listed.len(), bad.ranges, bad.bytes), (MOST_LISTED, last + 1, (last + 1) * GRAIN));
        // A block adjacent to the last, unlisted range belongs to that range, and does not extend a listed one.
        bad.add((last * 2 + 1) * GRAIN, GRAIN);
        let at_end = bad.listed.last().map(|range| (range.offset, range.length));
        assert_eq!((bad.ranges, at_end), (last + 1, Some(((last - 1) * 2 * GRAIN, GRAIN))));
        let words = bad.words();
        assert!(
            words.ends_with("  and 1 more\n268443648 bytes could not be read, in 65537 ranges\n"),
            "{}",
            &words[words.len() - 200..]
        );
    }
}
