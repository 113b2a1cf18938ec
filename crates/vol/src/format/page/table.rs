//! Pages of the volume table: entries in the order of their volumes' numbers, as many in each page as fit.
//!
//! Owns their encoding, and the rules for a volume's entry.

use std::borrow::Borrow;

use zerocopy::{FromBytes, IntoBytes};

use crate::format::block::{Block, require_zero_tail};
use crate::format::damage::{Damage, require};
use crate::format::page::{Expect, PagePlace, PageRef};
use crate::format::superblock::Geometry;
use crate::format::{
    BLOCK, HEADER, INTERIM_IMPORT, INTERIM_IMPORT_DIFF, INTERIM_NONE, IdentityBody, InterimBody, MAX_LEVEL, MAX_NAME,
    MAX_VOLUME_UNITS, MAX_VOLUMES, PAYLOAD, VOLUME_FLAGS, VOLUME_GROWS, VOLUME_IDENTITY, VOLUME_INTERIM,
    VOLUME_SNAPSHOT, VolumeBody, kind, padded,
};

const BODY: usize = size_of::<VolumeBody>();
/// Largest number of bytes between a [`VolumeBody`] and the name.
const EXTRAS: usize = size_of::<IdentityBody>() + size_of::<InterimBody>();

/// Smallest number of bytes of entries in a full page of the table: one to which the longest possible entry cannot be
/// added.
pub(crate) const LEAST_BYTES: u64 = (PAYLOAD - BODY - EXTRAS - padded(MAX_NAME)) as u64;

/// Largest number of bytes of entries in a page.
pub(crate) const ROOM: u64 = PAYLOAD as u64;

/// Returns the bytes of the entry of a volume with this name, identity and purpose.
pub(crate) fn entry_bytes(name: &str, identity: Option<[u8; 16]>, interim: Option<Interim>) -> u64 {
    (BODY + extra_bytes(identity, interim) + padded(name.len())) as u64
}

fn extra_bytes(identity: Option<[u8; 16]>, interim: Option<Interim>) -> usize {
    identity.map_or(0, |_| size_of::<IdentityBody>()) + interim.map_or(0, |_| size_of::<InterimBody>())
}

/// Purpose of an interim volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Purpose {
    /// An image is being imported into the volume.
    Import,
    /// A diff is being imported into the volume.
    ImportDiff,
}

impl Purpose {
    /// Returns the name of the purpose: `import` or `import-diff`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Purpose::Import => "import",
            Purpose::ImportDiff => "import-diff",
        }
    }
}

/// Property of a volume that is temporary: its maker deletes it when its purpose has ended. If the maker does not, the
/// next opening of the pool for writing deletes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Interim {
    /// Purpose of the volume.
    pub purpose: Purpose,
    /// Number of the volume that this one is made for; 0 if that does not exist yet.
    pub owner: u32,
}

impl Interim {
    /// Creates the property; `owner` is the number of the volume that the interim one is made for, or 0.
    #[must_use]
    pub fn new(purpose: Purpose, owner: u32) -> Interim {
        Interim { purpose, owner }
    }

    /// Encodes the property. `None` gives the body of a record that makes the volume an ordinary one.
    pub(crate) fn to_disk(interim: Option<Interim>) -> InterimBody {
        let purpose = match interim.map(|interim| interim.purpose) {
            None => INTERIM_NONE,
            Some(Purpose::Import) => INTERIM_IMPORT,
            Some(Purpose::ImportDiff) => INTERIM_IMPORT_DIFF,
        };
        InterimBody { purpose: purpose.into(), owner: interim.map_or(0, |interim| interim.owner).into() }
    }

    pub(crate) fn from_disk(body: &InterimBody) -> Result<Option<Interim>, Damage> {
        let owner = body.owner.get();
        let purpose = match body.purpose.get() {
            INTERIM_NONE => {
                require(owner == 0, "interim.owner", owner, "is that of no interim volume")?;
                return Ok(None);
            }
            INTERIM_IMPORT => Purpose::Import,
            INTERIM_IMPORT_DIFF => Purpose::ImportDiff,
            other => return Err(Damage::field("interim.purpose", other, "is not known")),
        };
        Ok(Some(Interim { purpose, owner }))
    }
}

/// Decodes an identity, which must not be all zero.
pub(crate) fn identity_from_disk(body: &IdentityBody) -> Result<[u8; 16], Damage> {
    require(body.identity != [0; 16], "identity", 0u64, "must not be 0")?;
    Ok(body.identity)
}

/// Entry of a volume in the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeEntry {
    /// Number of the volume, never reused.
    pub id: u32,
    /// True for a snapshot, which cannot be written.
    pub snapshot: bool,
    /// True if writes beyond the end enlarge the volume.
    pub grows: bool,
    /// Size in bytes.
    pub size: u64,
    /// Largest size in bytes, for a resize and for growth by writes.
    pub max_size: u64,
    /// Time of creation in seconds since 1970.
    pub created: u64,
    /// Volume or snapshot that this one was copied from, as long as that exists; 0 if none.
    pub origin: u32,
    /// Volume that this one and its relatives descend from; its own number if it is no copy. A copy has the family of
    /// its source. Only relatives share space, and only at the same place.
    pub family: u32,
    /// Root page of the map.
    pub root: PageRef,
    /// Level of the root page, at least 1; 0 if there is none.
    pub root_level: u16,
    /// Random bits that only the volume's copies share; `None` in volumes of older programs.
    pub identity: Option<[u8; 16]>,
    /// Set for an interim volume.
    pub interim: Option<Interim>,
    /// Name of the volume.
    pub name: String,
}

impl VolumeEntry {
    fn body(&self, name: &str) -> VolumeBody {
        let (root, root_second) = self.root.to_disk();
        VolumeBody {
            id: self.id.into(),
            flags: self.flags().into(),
            size: self.size.into(),
            max_size: self.max_size.into(),
            created: self.created.into(),
            origin: self.origin.into(),
            family: self.family.into(),
            root,
            root_level: self.root_level as u8,
            name_len: name.len() as u8,
            root_second: root_second.into(),
        }
    }

    fn flags(&self) -> u32 {
        let identity = if self.identity.is_some() { VOLUME_IDENTITY } else { 0 };
        let interim = if self.interim.is_some() { VOLUME_INTERIM } else { 0 };
        volume_flags(self.snapshot, self.grows) | identity | interim
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

/// Returns the flags of a new volume.
pub fn volume_flags(snapshot: bool, grows: bool) -> u32 {
    (if snapshot { VOLUME_SNAPSHOT } else { 0 }) | (if grows { VOLUME_GROWS } else { 0 })
}

/// Returns an error for a growing volume whose sizes are not whole blocks: no block of it may lie partly beyond its
/// end.
pub fn require_blocks(field: &'static str, grows: bool, size: u64, max_size: u64) -> Result<(), Damage> {
    let whole = (size | max_size) & (BLOCK as u64 - 1) == 0;
    require(!grows || whole, field, size, "is not in whole blocks, and the volume grows by them")
}

/// Returns true for a name that can be stored: 1 to 255 bytes, no control characters. Stricter rules apply to names
/// that users choose.
pub fn is_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len()) && !name.chars().any(char::is_control)
}

/// Encodes as many volumes as fit the page. `volumes` are sorted by number. Returns the number encoded, at least 1 if
/// there are any.
pub fn encode(block: &mut Block, place: &PagePlace, volumes: &[VolumeEntry]) -> (PageRef, usize) {
    encode_each(block, place, volumes.iter().map(|volume| (volume, &*volume.name)))
}

/// Does what [`encode`] does for entries whose names are passed separately, so that no name is copied.
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
        let volume = volume.borrow();
        let bytes = entry_bytes(name, volume.identity, volume.interim) as usize;
        if from + bytes > BLOCK {
            break;
        }
        at += bytes;
        let mut next = from;
        let mut put = |bytes: &[u8]| {
            block[next..next + bytes.len()].copy_from_slice(bytes);
            next += bytes.len();
        };
        put(volume.body(name).as_bytes());
        if let Some(identity) = volume.identity {
            put(IdentityBody { identity }.as_bytes());
        }
        if volume.interim.is_some() {
            put(Interim::to_disk(volume.interim).as_bytes());
        }
        put(name.as_bytes());
        count += 1;
    }
    (place.seal(block, kind::TABLE, 0, count), count)
}

/// Decodes a page and appends its volumes to `volumes`. Returns their number.
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
    let flags = body.flags.get();
    require(flags & !VOLUME_FLAGS == 0, "volume.flags", flags, "has unknown bits")?;
    let (mut identity, mut interim, mut rest) = (None, None, rest);
    if flags & VOLUME_IDENTITY != 0 {
        let (found, behind) = IdentityBody::ref_from_prefix(rest).map_err(|_| cut())?;
        (identity, rest) = (Some(identity_from_disk(found)?), behind);
    }
    if flags & VOLUME_INTERIM != 0 {
        let (found, behind) = InterimBody::ref_from_prefix(rest).map_err(|_| cut())?;
        (interim, rest) = (Interim::from_disk(found)?, behind);
        require(interim.is_some(), "interim.purpose", 0u64, "is none of an interim volume")?;
    }
    let len = usize::from(body.name_len);
    let (name, rest) = rest.split_at_checked(len).ok_or_else(cut)?;
    let fill = rest.get(..padded(len) - len).ok_or_else(cut)?;
    require(fill.iter().all(|&byte| byte == 0), "volume.name", 1u64, "has bytes after it that must be 0")?;
    let name = std::str::from_utf8(name).map_err(|_| Damage::field("volume.name", 0u64, "is no UTF-8"))?;
    *at += BODY + extra_bytes(identity, interim) + padded(len);
    Ok(VolumeEntry {
        id: body.id.get(),
        snapshot: flags & VOLUME_SNAPSHOT != 0,
        grows: flags & VOLUME_GROWS != 0,
        size: body.size.get(),
        max_size: body.max_size.get(),
        created: body.created.get(),
        origin: body.origin.get(),
        family: body.family.get(),
        root: PageRef::from_disk(&body.root, body.root_second.get()),
        root_level: u16::from(body.root_level),
        identity,
        interim,
        name: name.to_owned(),
    })
}
