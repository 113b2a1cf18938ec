//! Partition tables: GPT and MBR, as whoever had the disk before has left them.
//!
//! Owns the decoding: from a number or a name to a range of bytes. Does not read: it is given a function that does, so
//! a fuzzer can be the disk. A table says what it likes, so everything is checked before it counts:
//!
//! - T1: a range is in the device, and behind the table. Partitions of one table do not overlap; if two do, none is
//!   given out, for nobody can say which is right.
//! - T2: every loop is bounded: [`MAX_ENTRIES`] entries of a GPT, [`MAX_LOGICAL`] logical partitions, whose chain must
//!   not come to one place twice.
//! - T3: a GPT counts if the checksums of its header and its entries are right. If those at the beginning are not, the
//!   backup counts that the header names, or the one in the last block.
//! - T4: numbers of blocks become bytes by checked arithmetic alone.
//!
//! Addresses in a table are in logical blocks of the device, 512 to 4,096 bytes and more.

mod disk;
mod gpt;
mod mbr;

use std::fmt;

pub use disk::{Disk, MAX_ENTRIES, MAX_ENTRY_BYTES, MAX_LOGICAL, Partition};

/// The partition that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted<'a> {
    /// By its number in the table, from 1 on; logical partitions of an MBR from 5 on, as Linux counts them.
    Number(u32),
    /// By its name, which only a GPT has.
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

/// All partitions of the table, in the order of their numbers.
///
/// # Errors
///
/// There is no table, the device cannot be read, or the table is damaged or contradicts itself: in words.
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

/// The partition that is asked for.
///
/// # Errors
///
/// As of [`partitions`]; or the table has no such partition, or several of that name.
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
