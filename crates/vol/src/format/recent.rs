//! The file of recent changes: records that no commit has made durable yet, in memory that outlives the process.
//!
//! Owns the layout of the file. The [state](crate::state::recent) writes it while the pool is open; recovery reads it
//! after the process has died. It is no part of the pool: without the file the pool is as after a crash of the machine.
//!
//! The file is an array of 64-bit numbers:
//!
//! | number | content |
//! |---:|---|
//! | 0 | [`MAGIC`]; written last |
//! | 1, 2 | UUID of the pool |
//! | 3, 4 | boot of the machine, since page caches do not survive one |
//! | 5, 6 | storage of the pool on this machine: a copy of the pool has another |
//! | 7 | incarnation of the opening |
//! | 8, 9 | owner number of the opening |
//! | 10 | head: the count of numbers that were ever appended |
//! | 11 | 1 if changes are missing, else 0 |
//! | 12 to 23 | three marks |
//! | from 64 on | records as in the journal, in a ring |
//!
//! A mark has four numbers: 1 if it is valid, the generation and the journal number of a commit, and the position of
//! the first record after that commit. A record that would not fit before the end of the ring begins anew, after a 0.
//!
//! - F1: a position counts the numbers since the beginning, so it never wraps. `head` is stored after the numbers
//!   before it.
//! - F2: a mark is invalid while it is written. At least one valid mark names the durable commit of the pool, unless
//!   changes are missing.

use sheave_base::lasting::Lasting;

use crate::format::damage::Damage;
use crate::format::record::Record;
use crate::format::superblock::{Geometry, Superblock};

pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"SHVRCNT1");
pub(crate) const HEAD: usize = 10;
pub(crate) const MISSING: usize = 11;
pub(crate) const MARKS: [usize; 3] = [12, 16, 20];
/// Index of the first record.
pub(crate) const RECORDS: usize = 64;
/// Count of numbers in the ring, a power of two: 4 MiB, some 130,000 first writes.
pub(crate) const RING: usize = (4 << 20) / 8;
/// Count of numbers of the file.
pub(crate) const NUMBERS: usize = RECORDS + RING;

/// The opening that a file of recent changes belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opening {
    numbers: [u64; 9],
}

impl Opening {
    /// Returns the opening whose superblock this is. `boot` and `storage` identify the machine's boot and the storage.
    pub(crate) fn new(sb: &Superblock, boot: [u64; 2], storage: [u64; 2]) -> Opening {
        let ([pool, owner], mut numbers) = ([sb.pool, sb.owner].map(halves), [0; 9]);
        numbers[..2].copy_from_slice(&pool);
        numbers[2..4].copy_from_slice(&boot);
        numbers[4..6].copy_from_slice(&storage);
        numbers[6] = sb.incarnation;
        numbers[7..].copy_from_slice(&owner);
        Opening { numbers }
    }

    /// Writes the numbers of the opening, without the magic.
    pub(crate) fn put(&self, to: &Lasting) {
        self.numbers.iter().enumerate().for_each(|(at, number)| to.put(1 + at, *number));
    }

    fn is_in(&self, from: &Lasting) -> bool {
        from.len() >= NUMBERS
            && from.get(0) == MAGIC
            && self.numbers.iter().enumerate().all(|(at, number)| from.get(1 + at) == *number)
    }
}

fn halves(bytes: [u8; 16]) -> [u64; 2] {
    let (low, high) = bytes.split_at(8);
    [low, high].map(|half| half.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

/// A commit of the pool, and the position of the first record that it does not contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Generation of the first superblock of the checkpoint.
    pub(crate) generation: u64,
    /// Number of the journal block behind the commit.
    pub(crate) seq: u64,
    pub(crate) position: u64,
}

impl Mark {
    /// Stores the mark in one of the places (F2).
    pub(crate) fn put(&self, to: &Lasting, place: usize) {
        let at = MARKS[place];
        to.put(at, 0);
        to.put(at + 1, self.generation);
        to.put(at + 2, self.seq);
        to.put(at + 3, self.position);
        to.put(at, 1);
    }

    /// Makes the mark in one of the places invalid.
    pub(crate) fn clear(to: &Lasting, place: usize) {
        to.put(MARKS[place], 0);
    }

    fn get(from: &Lasting, place: usize) -> Option<Mark> {
        let at = MARKS[place];
        let mark = Mark { generation: from.get(at + 1), seq: from.get(at + 2), position: from.get(at + 3) };
        (from.get(at) == 1).then_some(mark)
    }

    /// Returns true if a pool whose newest superblock has `generation`, and whose journal ends before `seq`, has this
    /// commit as its last one. A checkpoint has two generations: that of its second superblock is one higher.
    fn is_of(&self, generation: u64, seq: u64) -> bool {
        self.seq == seq && generation.checked_sub(self.generation).is_some_and(|more| more <= 1)
    }
}

/// Returns the records that an opening has left, and that no commit contains; `None` if the file is of another opening,
/// or if changes are missing in it. `sb` is the newest superblock, and `seq` the number behind its journal.
pub(crate) fn read(
    from: &Lasting,
    opening: &Opening,
    sb: &Superblock,
    seq: u64,
) -> Result<Option<Vec<Record>>, Damage> {
    if !opening.is_in(from) || from.get(MISSING) != 0 {
        return Ok(None);
    }
    let marks = (0..MARKS.len()).filter_map(|place| Mark::get(from, place));
    let Some(mark) = marks.filter(|mark| mark.is_of(sb.generation, seq)).max_by_key(|mark| mark.position) else {
        return Ok(None);
    };
    let (geometry, head, ring) = (sb.geometry(), from.get(HEAD), RING as u64);
    if head.checked_sub(mark.position).is_none_or(|count| count > ring) {
        return Err(Damage::field("recent.head", head, "is not within a ring behind the mark"));
    }
    let (mut at, mut records) = (mark.position, Vec::new());
    while at < head {
        let offset = at % ring;
        if from.get(RECORDS + offset as usize) == 0 {
            at += ring - offset;
            continue;
        }
        let most = (head - at).min(ring - offset).min(MOST_NUMBERS as u64) as usize;
        let mut bytes = [0; 8 * MOST_NUMBERS];
        for (to, number) in bytes.chunks_exact_mut(8).zip(0..most) {
            to.copy_from_slice(&from.get(RECORDS + offset as usize + number).to_le_bytes());
        }
        let (record, len) = Record::decode(&geometry, &bytes[..8 * most])?;
        records.push(record);
        at += len as u64 / 8;
    }
    Ok(Some(records))
}

/// Numbers of the longest record: a volume with a name of 255 bytes.
pub(crate) const MOST_NUMBERS: usize = 48;

/// Encodes a record into numbers. Returns their count.
pub(crate) fn encode(geometry: &Geometry, record: &Record, to: &mut [u64; MOST_NUMBERS]) -> usize {
    let mut bytes = [0; 8 * MOST_NUMBERS];
    let len = record.encode(geometry, &mut bytes).unwrap_or(0);
    for (number, from) in to.iter_mut().zip(bytes[..len].chunks(8)) {
        *number = from.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
    }
    len.div_ceil(8)
}

/// Returns the first number of a record that maps a unit with `numbers` numbers in all.
pub(crate) fn set_head(volume: u32, numbers: usize) -> u64 {
    u64::from(crate::format::record_kind::SET) | (8 * numbers as u64) << 16 | u64::from(volume) << 32
}
