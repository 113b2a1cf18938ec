//! Pages of kept records: journal records, found after a crash, about entries of maps whose pages were damaged.
//!
//! Owns their encoding. The pages form a list: each has the reference to the next one, and the superblock has the
//! reference to the first. Records are `SET`, `RUN` without space, and `RESIZE`. A `RESIZE` has a special meaning here:
//! its size lies in some unit, and the blocks of that unit behind the size are marked as not written. It changes
//! neither other units nor the size of the volume.
//!
//! Written by checkpoints, read by recovery and by checks.

use zerocopy::{FromBytes, IntoBytes};

use crate::format::block::{Block, require_zero_tail};
use crate::format::damage::{Damage, require};
use crate::format::page::{Expect, PagePlace, PageRef};
use crate::format::record::Record;
use crate::format::superblock::Geometry;
use crate::format::{HEADER, KEPT_PAYLOAD, KeptHead, kind};

const START: usize = HEADER + size_of::<KeptHead>();

/// Encodes a page with `records`, at most [`KEPT_PAYLOAD`] bytes. `place.index` is the number of the page in the list.
pub fn encode(block: &mut Block, place: &PagePlace, next: PageRef, records: &[u8]) -> PageRef {
    block.fill(0);
    let (next, next_second) = next.to_disk();
    let head = KeptHead { next, next_second: next_second.into(), reserved: 0.into() };
    block[HEADER..START].copy_from_slice(head.as_bytes());
    block[START..START + records.len()].copy_from_slice(records);
    place.seal(block, kind::KEPT, 0, records.len())
}

/// Decodes a page and appends its records to `records`. Returns the reference to the next page.
pub fn decode(
    block: &Block,
    geometry: &Geometry,
    expect: &Expect,
    records: &mut Vec<Record>,
) -> Result<PageRef, Damage> {
    let head = expect.open(block, kind::KEPT, 0)?;
    require(head.owner == 0, "owner", head.owner, "must be 0")?;
    let (body, _) = KeptHead::ref_from_prefix(&block[HEADER..]).expect("a block has room for it");
    require(body.reserved.get() == 0, "reserved", body.reserved.get(), "must be 0")?;
    let next = PageRef::from_disk(&body.next, body.next_second.get());
    geometry.require_page(next, "next")?;
    let used = head.count as usize;
    require(used > 0 && used <= KEPT_PAYLOAD, "count", head.count, "is no number of bytes of records")?;
    require_zero_tail(&block[START..], used)?;
    let from = records.len();
    Record::decode_all(geometry, &block[START..START + used], records)?;
    let is_kept =
        |record: &Record| matches!(record, Record::Set { .. } | Record::Run { phys: 0, .. } | Record::Resize { .. });
    let stray = records[from..].iter().find(|record| !is_kept(record)).map(Record::volume);
    require(stray.is_none(), "record.volume", stray.unwrap_or(0), "has a record that is not kept")?;
    Ok(next)
}
