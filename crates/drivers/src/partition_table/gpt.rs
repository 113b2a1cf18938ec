//! The GPT: a header and an array of entries, each with a checksum, and a backup of both at the end of the disk.
//!
//! Owns the layout (UEFI 2.10, chapter 5). Keeps the invariants of the parent.

use super::disk::{Disk, MAX_ENTRIES, MAX_ENTRY_BYTES, Partition, le_u32, le_u64, refuse_overlaps};

const SIGNATURE: &[u8] = b"EFI PART";
/// Bytes of the header that are defined. A header may be longer.
const HEADER_BYTES: u32 = 92;
/// Smallest size of an entry in bytes. Other sizes are this one times a power of two.
const ENTRY_BYTES: u32 = 128;
/// Bytes of an entry that contain the name, in UTF-16.
const NAME: std::ops::Range<usize> = 56..128;

/// A header whose checksum is right.
#[derive(Clone, Copy, Debug)]
struct Header {
    other: u64,
    first_usable: u64,
    last_usable: u64,
    entries_at: u64,
    entries: u32,
    entry_bytes: u32,
    entries_crc: u32,
}

/// Returns all partitions of the table at the start of the disk, or of its backup (T3).
pub(super) fn partitions(disk: &mut Disk<'_>) -> Result<Vec<Partition>, String> {
    let last = (disk.size / u64::from(disk.block)).saturating_sub(1);
    let first = header(disk, 1);
    let array = first.clone().and_then(|header| Ok((header, entries(disk, &header)?)));
    let (header, array) = array.or_else(|damage| {
        let backup = first.map_or(last, |header| header.other);
        let by_backup = self::header(disk, backup).and_then(|header| Ok((header, entries(disk, &header)?)));
        by_backup.map_err(|also| format!("its GPT is damaged: {damage}; and of the backup: {also}"))
    })?;
    let each = array.chunks_exact(header.entry_bytes as usize);
    let mut found = Vec::new();
    for (number, entry) in (1..).zip(each) {
        if entry.iter().take(16).all(|byte| *byte == 0) {
            continue;
        }
        let (first, last) = (le_u64(entry, 32), le_u64(entry, 40));
        if first < header.first_usable || last > header.last_usable {
            let usable = (header.first_usable, header.last_usable);
            return Err(format!("partition {number} is blocks {first} to {last}, beyond the usable ones, {usable:?}"));
        }
        found.push(disk.range(number, first, last, Some(name(entry)))?);
    }
    refuse_overlaps(&found)?;
    Ok(found)
}

/// Reads and checks the header in this block.
fn header(disk: &mut Disk<'_>, lba: u64) -> Result<Header, String> {
    let block = disk.blocks(lba, HEADER_BYTES as usize)?;
    if !block.starts_with(SIGNATURE) {
        return Err(format!("block {lba} is no header"));
    }
    let bytes = le_u32(&block, 12);
    let in_use = block.get(..bytes as usize).filter(|_| bytes >= HEADER_BYTES);
    let mut in_use = in_use.ok_or_else(|| format!("the header in block {lba} is {bytes} bytes long"))?.to_vec();
    let crc = le_u32(&in_use, 16);
    in_use[16..20].fill(0);
    if crc32(&in_use) != crc {
        return Err(format!("the header in block {lba} has a wrong checksum"));
    }
    let own = le_u64(&block, 24);
    if own != lba {
        return Err(format!("the header in block {lba} says that it is in block {own}"));
    }
    let header = Header {
        other: le_u64(&block, 32),
        first_usable: le_u64(&block, 40),
        last_usable: le_u64(&block, 48),
        entries_at: le_u64(&block, 72),
        entries: le_u32(&block, 80),
        entry_bytes: le_u32(&block, 84),
        entries_crc: le_u32(&block, 88),
    };
    let Header { entries, entry_bytes, .. } = header;
    let is_size = entry_bytes.is_multiple_of(ENTRY_BYTES) && (entry_bytes / ENTRY_BYTES).is_power_of_two();
    if entries == 0 || entries > MAX_ENTRIES || !is_size || entry_bytes > MAX_ENTRY_BYTES {
        return Err(format!("the header in block {lba} has {entries} entries of {entry_bytes} bytes"));
    }
    // No partition may contain the header or the array of entries.
    let array = (u64::from(entries) * u64::from(entry_bytes)).div_ceil(u64::from(disk.block));
    let array_end = header.entries_at.saturating_add(array);
    let apart = array_end <= header.first_usable || header.entries_at > header.last_usable;
    let header_apart = lba < header.first_usable || lba > header.last_usable;
    if header.entries_at == 0 || header.first_usable < 2 || !apart || !header_apart {
        return Err(format!("the header in block {lba} has the table where partitions may be"));
    }
    Ok(header)
}

/// Reads the array of entries of a header, and checks its checksum.
fn entries(disk: &mut Disk<'_>, header: &Header) -> Result<Vec<u8>, String> {
    let bytes = header.entries as usize * header.entry_bytes as usize;
    let mut array = disk.blocks(header.entries_at, bytes)?;
    array.truncate(bytes);
    if crc32(&array) == header.entries_crc { Ok(array) } else { Err("its entries have a wrong checksum".into()) }
}

fn name(entry: &[u8]) -> String {
    let units = entry.get(NAME).unwrap_or_default().chunks_exact(2).map(|two| u16::from_le_bytes([two[0], two[1]]));
    char::decode_utf16(units.take_while(|unit| *unit != 0)).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
}

/// Returns the CRC-32 that the GPT uses, which is that of Ethernet and zip. Computed bit by bit, without lookup tables,
/// because a partition table has about 16 KiB and is read once.
pub(super) fn crc32(bytes: &[u8]) -> u32 {
    let byte = |crc: u32, byte: &u8| {
        let step = |crc: u32, _| crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 };
        (0..8).fold(crc ^ u32::from(*byte), step)
    };
    !bytes.iter().fold(u32::MAX, byte)
}
