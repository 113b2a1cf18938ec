//! A disk as a decoder of partition tables reads it, and the partitions found there.
//!
//! Owns the bounds that hold for every kind of table, and keeps the invariants T1, T2 and T4 of the parent.

use std::fmt;

/// Largest number of entries of a GPT. The standard requires room for at least 128.
pub const MAX_ENTRIES: u32 = 4096;
/// Largest size of a GPT entry in bytes. The usual size is 128.
pub const MAX_ENTRY_BYTES: u32 = 1024;
/// Largest number of logical partitions of an MBR.
pub const MAX_LOGICAL: usize = 128;

/// One partition of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Number in the table.
    pub number: u32,
    /// First byte on the device.
    pub start: u64,
    /// Length in bytes, not 0.
    pub len: u64,
    /// Name, for a partition of a GPT.
    pub name: Option<String>,
}

impl Partition {
    pub(super) fn end(&self) -> u64 {
        self.start + self.len
    }
}

/// Access to a disk, for a decoder.
pub struct Disk<'a> {
    /// Reads bytes: the arguments are the first byte and the length, both in whole blocks.
    pub read: &'a mut dyn FnMut(u64, usize) -> Result<Vec<u8>, String>,
    /// Bytes of a logical block.
    pub block: u32,
    /// Size of the device in bytes.
    pub size: u64,
}

impl fmt::Debug for Disk<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk").field("block", &self.block).field("size", &self.size).finish_non_exhaustive()
    }
}

impl Disk<'_> {
    /// Reads the blocks from number `lba` on, as many as contain `bytes` bytes.
    pub(super) fn blocks(&mut self, lba: u64, bytes: usize) -> Result<Vec<u8>, String> {
        let block = u64::from(self.block);
        let start = self.bytes(lba)?;
        let len = (bytes as u64).next_multiple_of(block);
        if start.checked_add(len).is_none_or(|end| end > self.size) {
            return Err(format!("the table leads to block {lba}, which is not on the device"));
        }
        let read = (self.read)(start, len as usize)?;
        if read.len() as u64 == len { Ok(read) } else { Err(format!("block {lba} was read in part only")) }
    }

    /// Converts a number of blocks to bytes (T4).
    fn bytes(&self, blocks: u64) -> Result<u64, String> {
        blocks
            .checked_mul(u64::from(self.block))
            .ok_or_else(|| format!("the table leads to block {blocks}, which is not on the device"))
    }

    /// Makes the partition of the blocks `first..=last`, if they are on the device (T1).
    pub(super) fn range(&self, number: u32, first: u64, last: u64, name: Option<String>) -> Result<Partition, String> {
        let (start, end) = (self.bytes(first)?, self.bytes(last.saturating_add(1))?);
        if first > last || end > self.size {
            return Err(format!("partition {number} is blocks {first} to {last}, which are not on the device"));
        }
        Ok(Partition { number, start, len: end - start, name })
    }
}

/// Returns an error if two partitions overlap (T1).
pub(super) fn refuse_overlaps(found: &[Partition]) -> Result<(), String> {
    let mut by_start: Vec<&Partition> = found.iter().collect();
    by_start.sort_by_key(|part| part.start);
    match by_start.windows(2).find(|pair| pair[0].end() > pair[1].start) {
        None => Ok(()),
        Some(pair) => Err(format!(
            "partitions {} and {} overlap. Mend the table (sfdisk --verify), or give start and size",
            pair[0].number, pair[1].number
        )),
    }
}

pub(super) fn le_u32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |four| u32::from_le_bytes(four.try_into().unwrap_or_default()))
}

pub(super) fn le_u64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |eight| u64::from_le_bytes(eight.try_into().unwrap_or_default()))
}
