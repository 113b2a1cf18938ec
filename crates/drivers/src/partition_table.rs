//! Partition tables of a disk: GPT and MBR.
//!
//! Owns the decoding, from a number or a name to a range of bytes. Does not read the disk itself but calls a function
//! of its caller, so that a fuzzer can stand in for the disk. The content of a table is not trusted:
//!
//! - T1: the range of a partition lies within the device and outside the table. If two partitions of a table overlap,
//!   none is returned, because nothing shows which is right.
//! - T2: every loop is bounded: [`MAX_ENTRIES`] entries of a GPT, [`MAX_LOGICAL`] logical partitions, whose chain must
//!   not lead to a block twice.
//! - T3: a GPT is accepted if the checksums of its header and its entries are right. If those at the start of the disk
//!   are wrong, the backup is used: the one that the header names, or else the one in the last block.
//! - T4: block numbers are converted to bytes by checked arithmetic only.
//!
//! Addresses in a table are in logical blocks of the device, 512 to 4,096 bytes and more.

mod disk;
mod gpt;
mod mbr;

use std::fmt;

pub use disk::{Disk, MAX_ENTRIES, MAX_ENTRY_BYTES, MAX_LOGICAL, Partition};

/// Number or name of the partition to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted<'a> {
    /// Number in the table, from 1 on. Logical partitions of an MBR are numbered from 5 on, as in Linux.
    Number(u32),
    /// Name of the partition, which only a GPT has.
    Name(&'a str),
}

impl fmt::Display for Wanted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wanted::Number(number) => write!(f, "partition {number}"),
            Wanted::Name(name) => write!(f, "a partition named '{name}'"),
        }
    }
}

/// Returns all partitions of the table, in the order of their numbers.
///
/// # Errors
///
/// The cause in words: there is no table, the device cannot be read, or the table is damaged or contradicts itself.
pub fn partitions(disk: &mut Disk<'_>) -> Result<Vec<Partition>, String> {
    let first = disk.blocks(0, 512)?;
    let found = match mbr::Sector::new(&first) {
        None if first.len() < 512 => return Err("its blocks are too small for a partition table".into()),
        None => return Err("it has no partition table: its first block does not end with 55 aa".into()),
        Some(sector) if sector.is_protective() => gpt::partitions(disk)?,
        Some(sector) => mbr::partitions(disk, &sector)?,
    };
    Ok(found)
}

/// Returns the partition with this number or name.
///
/// # Errors
///
/// Those of [`partitions`]; the table has no such partition, or several of that name.
pub fn find(disk: &mut Disk<'_>, wanted: Wanted<'_>) -> Result<Partition, String> {
    let all = partitions(disk)?;
    let is_it = |have: &&Partition| match wanted {
        Wanted::Number(number) => have.number == number,
        Wanted::Name(name) => have.name.as_deref() == Some(name),
    };
    let mut found = all.iter().filter(is_it);
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one.clone()),
        (Some(one), Some(other)) => {
            Err(format!("partitions {} and {} have this name. Give the number", one.number, other.number))
        }
        (None, _) if all.is_empty() => Err("its partition table is empty".into()),
        (None, _) => {
            let each = all.iter().take(16).map(|have| match &have.name {
                Some(name) if !name.is_empty() => format!("{} ({name})", have.number),
                _ => have.number.to_string(),
            });
            let names = if all.iter().any(|have| have.name.is_some()) { "" } else { ", which have no names" };
            let each: Vec<String> = each.collect();
            Err(format!("it has no such partition. It has {}{names}", each.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests;
