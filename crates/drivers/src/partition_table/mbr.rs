//! The MBR: four partitions, one of which may be a container of a chain of logical partitions.
//!
//! Owns the layout of the block. Keeps the invariants of the parent.

use super::disk::{Disk, MAX_LOGICAL, Partition, le_u32, refuse_overlaps};

/// Offset of the four entries in the block.
const ENTRIES: usize = 446;
const ENTRY_BYTES: usize = 16;
/// Type of the entry of a protective MBR, which announces a GPT.
const PROTECTIVE: u8 = 0xee;
/// Types of containers.
const EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];

/// An entry that is used.
#[derive(Clone, Copy, Debug)]
struct Entry {
    kind: u8,
    first: u64,
    blocks: u64,
}

impl Entry {
    fn is_container(&self) -> bool {
        EXTENDED.contains(&self.kind)
    }

    fn end(&self) -> u64 {
        self.first + self.blocks
    }
}

/// First block of a disk, or the block that describes a logical partition. Ends with the bytes 55 aa.
#[derive(Debug)]
pub(super) struct Sector<'a>(&'a [u8]);

impl Sector<'_> {
    /// Returns `None` if the bytes do not end with 55 aa.
    pub(super) fn new(bytes: &[u8]) -> Option<Sector<'_>> {
        (bytes.get(510..512)? == [0x55, 0xaa]).then_some(Sector(bytes))
    }

    /// Returns entry `at` (0 to 3), if it is used.
    fn entry(&self, at: usize) -> Option<Entry> {
        let entry = self.0.get(ENTRIES + at * ENTRY_BYTES..)?;
        let (kind, first, blocks) = (*entry.get(4)?, le_u32(entry, 8).into(), le_u32(entry, 12).into());
        (kind != 0 && blocks != 0).then_some(Entry { kind, first, blocks })
    }

    /// Returns true if the block announces a GPT.
    pub(super) fn is_protective(&self) -> bool {
        (0..4).any(|at| self.entry(at).is_some_and(|entry| entry.kind == PROTECTIVE))
    }
}

/// Returns all partitions except containers.
pub(super) fn partitions(disk: &mut Disk<'_>, sector: &Sector<'_>) -> Result<Vec<Partition>, String> {
    let (mut found, mut containers) = (Vec::new(), Vec::new());
    for (number, at) in (1..).zip(0..4) {
        let Some(entry) = sector.entry(at) else { continue };
        if entry.first == 0 {
            return Err(format!("partition {number} begins where the table is"));
        }
        let part = disk.range(number, entry.first, entry.end() - 1, None)?;
        if entry.is_container() {
            containers.push((part, entry));
        } else {
            found.push(part);
        }
    }
    let [primaries, rest] = [found.clone(), containers.iter().map(|(part, _)| part.clone()).collect()];
    refuse_overlaps(&[primaries, rest].concat())?;
    match containers.as_slice() {
        [] => {}
        [(_, container)] => found.extend(logical(disk, container)?),
        _ => return Err("it has more than one extended partition, and logical ones need one".into()),
    }
    refuse_overlaps(&found)?;
    Ok(found)
}

/// Returns the logical partitions of a container. Each has a block before it, whose first entry describes the partition
/// and whose second entry leads to the block of the next one.
fn logical(disk: &mut Disk<'_>, container: &Entry) -> Result<Vec<Partition>, String> {
    let (mut found, mut seen) = (Vec::new(), Vec::new());
    let mut at = container.first;
    let mut number = 5;
    loop {
        if seen.contains(&at) {
            return Err(format!("its logical partitions go round in a circle: block {at} comes twice"));
        }
        if seen.len() == MAX_LOGICAL {
            return Err(format!("it has more than {MAX_LOGICAL} logical partitions"));
        }
        seen.push(at);
        let block = disk.blocks(at, 512)?;
        let sector = Sector::new(&block).ok_or_else(|| format!("block {at}, of a logical partition, is damaged"))?;
        if let Some(entry) = sector.entry(0).filter(|entry| !entry.is_container()) {
            let (first, end) = (at + entry.first, at + entry.end());
            if entry.first == 0 || end > container.end() {
                return Err(format!("logical partition {number} is blocks {first} to {end}, beyond its container"));
            }
            found.push(disk.range(number, first, end - 1, None)?);
            number += 1;
        }
        match sector.entry(1) {
            None => return Ok(found),
            Some(next) if next.is_container() && next.end() <= container.blocks => at = container.first + next.first,
            Some(_) => return Err(format!("the way from block {at} to the next logical partition leads elsewhere")),
        }
    }
}
