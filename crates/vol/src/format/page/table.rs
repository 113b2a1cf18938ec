//! Pages of the volume table: the volumes in the order of their numbers, as many a page as fit.
//!
//! Owns their encoding and what a volume's entry may say.

use std::borrow::Borrow;

use zerocopy::{FromBytes, IntoBytes};

use crate::format::block::{Block, require_zero_tail};
use crate::format::damage::{Damage, require};
use crate::format::page::{Expect, PagePlace, PageRef};
use crate::format::superblock::Geometry;
use crate::format::{
    BLOCK, HEADER, MAX_LEVEL, MAX_NAME, MAX_VOLUME_UNITS, MAX_VOLUMES, PAYLOAD, VOLUME_FLAGS, VOLUME_GROWS,
    VOLUME_SNAPSHOT, VolumeBody, kind, padded,
};

const BODY: usize = size_of::<VolumeBody>();

/// Bytes that a page of the table has at least when the next entry does not fit: the longest entry is not longer than
/// the rest.
pub(crate) const LEAST_BYTES: u64 = (PAYLOAD - BODY - padded(MAX_NAME)) as u64;

/// Bytes of entries that a page has room for.
pub(crate) const ROOM: u64 = PAYLOAD as u64;

/// Bytes of the entry of a volume of this name.
pub(crate) fn entry_bytes(name: &str) -> u64 {
    (BODY + padded(name.len())) as u64
}

/// A volume as the table has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeEntry {
    /// Number; never used again.
    pub id: u32,
    /// Cannot be written.
    pub snapshot: bool,
    /// Writes beyond its end make it larger.
    pub grows: bool,
    /// Bytes.
    pub size: u64,
    /// Most bytes it may be resized to, or that writes may make it.
    pub max_size: u64,
    /// Seconds since 1970.
    pub created: u64,
    /// What it was made of, while that exists; 0: nothing.
    pub origin: u32,
    /// The volume that all its relatives descend from; its own number if it was made from nothing. A copy has the
    /// family of its source. Only relatives share space, and only at the same place.
    pub family: u32,
    /// Root of its map.
    pub root: PageRef,
    /// Level of that page: 1 at least, 0 without one.
    pub root_level: u16,
    /// Name.
    pub name: String,
}

impl VolumeEntry {
    fn body(&self, name: &str) -> VolumeBody {
        VolumeBody {
            id: self.id.into(),
            flags: volume_flags(self.snapshot, self.grows).into(),
            size: self.size.into(),
            max_size: self.max_size.into(),
            created: self.created.into(),
            origin: self.origin.into(),
            family: self.family.into(),
            root: self.root.to_disk(),
            root_level: self.root_level as u8,
            name_len: name.len() as u8,
            reserved: 0.into(),
        }
    }

    fn check(&self, geometry: &Geometry) -> Result<(), Damage> {
        let limit = MAX_VOLUME_UNITS * u64::from(geometry.unit_bytes);
        require(self.id != 0, "volume.id", 0u64, "must not be 0")?;
        require(self.family != 0 && self.family <= self.id, "volume.family", self.family, "is no older volume")?;
        require(self.origin != self.id, "volume.origin", self.origin, "is the volume itself")?;
        require(self.size <= self.max_size, "volume.size", self.size, "is more than its largest size")?;
        require(self.max_size <= limit, "volume.max_size", self.max_size, "is more than a volume can have")?;
        require_blocks("volume.size", self.grows, self.size, self.max_size)?;
        require(self.root_level <= MAX_LEVEL, "volume.root_level", self.root_level, "is beyond the highest level")?;
        let level_fits = self.root.is_none() == (self.root_level == 0);
        require(level_fits, "volume.root_level", self.root_level, "does not fit the root")?;
        geometry.require_page(self.root, "volume.root")?;
        require(is_name(&self.name), "volume.name_len", self.name.len() as u64, "is a name that cannot be")
    }
}

/// The flags of a volume.
pub fn volume_flags(snapshot: bool, grows: bool) -> u32 {
    (if snapshot { VOLUME_SNAPSHOT } else { 0 }) | (if grows { VOLUME_GROWS } else { 0 })
}

/// Whether the sizes are those of a volume that grows: whole blocks, so that what lies beyond its end has none.
pub fn require_blocks(field: &'static str, grows: bool, size: u64, max_size: u64) -> Result<(), Damage> {
    let whole = (size | max_size) & (BLOCK as u64 - 1) == 0;
    require(!grows || whole, field, size, "is not in whole blocks, and the volume grows by them")
}

/// What can be stored as a name: 1 to 255 bytes, no control characters. Users' names are held to narrower rules.
pub fn is_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len()) && !name.chars().any(char::is_control)
}

/// Encodes as many of the volumes as fit, which are sorted by number; how many those are, at least 1 of any.
pub fn encode(block: &mut Block, place: &PagePlace, volumes: &[VolumeEntry]) -> (PageRef, usize) {
    encode_each(block, place, volumes.iter().map(|volume| (volume, &*volume.name)))
}

/// Encodes as many of the volumes as fit, whose names stand beside their entries so that none is copied.
pub(crate) fn encode_each<'a, V: Borrow<VolumeEntry>>(
    block: &mut Block,
    place: &PagePlace,
    volumes: impl Iterator<Item = (V, &'a str)>,
) -> (PageRef, usize) {
    block.fill(0);
    let mut at = HEADER;
    let mut count = 0;
    for (volume, name) in volumes {
        let from = at;
        let bytes = BODY + padded(name.len());
        if from + bytes > BLOCK {
            break;
        }
        at += bytes;
        let body = volume.borrow().body(name);
        block[from..from + BODY].copy_from_slice(body.as_bytes());
        block[from + BODY..][..name.len()].copy_from_slice(name.as_bytes());
        count += 1;
    }
    (place.seal(block, kind::TABLE, 0, count), count)
}

/// Appends the volumes of a page.
pub fn decode(
    block: &Block,
    geometry: &Geometry,
    expect: &Expect,
    volumes: &mut Vec<VolumeEntry>,
) -> Result<usize, Damage> {
    let head = expect.open(block, kind::TABLE, 0)?;
    require(head.owner == 0, "owner", head.owner, "must be 0")?;
    let most = (PAYLOAD / BODY) as u32;
    require((1..=most).contains(&head.count), "count", head.count, "is no number of volumes of a page")?;
    let room = (MAX_VOLUMES as usize).saturating_sub(volumes.len());
    require(head.count as usize <= room, "count", head.count, "makes more volumes than a pool can have")?;
    let payload = &block[HEADER..];
    let mut at = 0;
    let mut last = volumes.last().map_or(0, |volume| volume.id);
    for _ in 0..head.count {
        let volume = decode_one(payload, &mut at)?;
        volume.check(geometry)?;
        require(volume.id > last, "volume.id", volume.id, "is not above the one before it")?;
        last = volume.id;
        volumes.push(volume);
    }
    require_zero_tail(payload, at)?;
    Ok(head.count as usize)
}

fn decode_one(payload: &[u8], at: &mut usize) -> Result<VolumeEntry, Damage> {
    let cut = || Damage::field("count", *at as u64, "goes beyond the page");
    let (body, rest) = VolumeBody::ref_from_prefix(&payload[*at..]).map_err(|_| cut())?;
    let len = usize::from(body.name_len);
    let (name, rest) = rest.split_at_checked(len).ok_or_else(cut)?;
    let fill = rest.get(..padded(len) - len).ok_or_else(cut)?;
    require(fill.iter().all(|&byte| byte == 0), "volume.name", 1u64, "has bytes after it that must be 0")?;
    let flags = body.flags.get();
    require(flags & !VOLUME_FLAGS == 0, "volume.flags", flags, "has unknown bits")?;
    require(body.reserved.get() == 0, "volume.reserved", body.reserved.get(), "must be 0")?;
    let name = std::str::from_utf8(name).map_err(|_| Damage::field("volume.name", 0u64, "is no UTF-8"))?;
    *at += BODY + padded(len);
    Ok(VolumeEntry {
        id: body.id.get(),
        snapshot: flags & VOLUME_SNAPSHOT != 0,
        grows: flags & VOLUME_GROWS != 0,
        size: body.size.get(),
        max_size: body.max_size.get(),
        created: body.created.get(),
        origin: body.origin.get(),
        family: body.family.get(),
        root: PageRef::from_disk(&body.root),
        root_level: u16::from(body.root_level),
        name: name.to_owned(),
    })
}
