//! The ranges of a read that have arrived.
//!
//! Owns the ranges, of which there are few: chunks of a structured reply may come in any order, but servers send them
//! by offset, and neighbours become one range.

/// Largest number of ranges that do not touch. A read whose server scatters its chunks more than that fails.
const MAX_RANGES: usize = 64;

/// Ranges of bytes, in order, of which no two overlap or touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Covered(Vec<(u32, u32)>);

impl Covered {
    /// Adds the bytes `from..to`, a range that is not empty.
    pub(crate) fn add(&mut self, from: u32, to: u32) -> Result<(), &'static str> {
        let ranges = &mut self.0;
        let at = ranges.partition_point(|range| range.1 < from);
        // `at` is the first range that ends at `from` or later. From there on, the ranges that begin at `to` or before
        // touch the new one.
        let touches = ranges[at..].iter().take_while(|range| range.0 <= to).count();
        let mut whole = (from, to);
        for &(start, end) in &ranges[at..at + touches] {
            if start < to && from < end {
                return Err("it sent the same bytes of a read twice");
            }
            whole = (whole.0.min(start), whole.1.max(end));
        }
        if touches == 0 && ranges.len() == MAX_RANGES {
            return Err("it sent a read in too many pieces out of order");
        }
        ranges.splice(at..at + touches, [whole]);
        Ok(())
    }

    /// Returns true if all bytes up to `len` have arrived.
    pub(crate) fn is_whole(&self, len: u32) -> bool {
        self.0 == [(0, len)]
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests;
