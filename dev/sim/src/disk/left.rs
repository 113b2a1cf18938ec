//! What the death of a process leaves of its memory of recent changes.
//!
//! Owns [`Left`]. The layout is that of `crates/vol/src/format/recent.rs`.

use std::ops::Range;

use sheave_base::lasting::Lasting;

/// Index of the first record.
const RECORDS: usize = 64;
/// Count of numbers in the ring of records.
const RING: u64 = (4 << 20) / 8;
/// Count of numbers of the memory.
pub const NUMBERS: usize = RECORDS + RING as usize;
const HEAD: usize = 10;
/// Index of the first number of each mark. That number is 1 if the mark is valid; the fourth is its position.
const MARKS: [usize; 3] = [12, 16, 20];

/// The numbers that a recovery may read.
#[derive(Clone, Debug)]
pub struct Left {
    head: Vec<u64>,
    /// Position of the first of the records, and their numbers.
    records: (u64, Vec<u64>),
}

impl Left {
    #[must_use]
    pub fn of(recent: &Lasting) -> Left {
        let head: Vec<u64> = (0..RECORDS).map(|at| recent.get(at)).collect();
        let valid = MARKS.into_iter().filter(|mark| head[*mark] == 1).map(|mark| head[mark + 3]);
        let first = valid.min().unwrap_or(head[HEAD]);
        let records = positions(first..head[HEAD]).map(|at| recent.get(at)).collect();
        Left { head, records: (first, records) }
    }

    /// Stores the numbers.
    pub fn put(&self, to: &Lasting) {
        let (first, records) = &self.records;
        let at = positions(*first..self.head[HEAD]).chain(0..RECORDS);
        at.zip(records.iter().chain(&self.head)).for_each(|(at, number)| to.put(at, *number));
    }

    /// Returns true if nothing is missing: everything that was acknowledged survives.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.head[0] != 0 && self.head[HEAD + 1] == 0
    }
}

fn positions(range: Range<u64>) -> impl Iterator<Item = usize> {
    range.map(|position| RECORDS + (position % RING) as usize)
}
