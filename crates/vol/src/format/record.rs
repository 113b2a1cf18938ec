//! Journal records: the changes since the checkpoint.
//!
//! Owns [`Record`], its encoding, and the meaning of each record in a replay. Records are absolute and replayed in
//! order. The checkpoint may contain the first ones already, so replaying a record a second time changes nothing: a
//! `Create` or `Copy` of a volume that exists, and any other record of a volume that does not exist, is skipped.

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::format::damage::{Damage, require};
use crate::format::page::leaf::check_entry;
use crate::format::page::table::{Interim, identity_from_disk, is_name, require_blocks, volume_flags};
use crate::format::record_kind as kinds;
use crate::format::superblock::Geometry;
use crate::format::*;

/// Most 64-bit words of written bits of an entry, reached by units of 1 MiB.
pub const MAX_ENTRY_WORDS: usize = MAX_UNIT_BYTES as usize / BLOCK / 64;

/// A change of the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Maps a unit of the volume to a unit of the pool with the given written blocks, or unmaps it.
    Set {
        /// Number of the volume.
        volume: u32,
        /// Unit of the volume.
        unit: u64,
        /// Unit of the pool; 0 to unmap.
        phys: u64,
        /// Written bits, one a block; words beyond those of the pool's unit are 0.
        written: [u64; MAX_ENTRY_WORDS],
    },
    /// Maps `count` units from `unit` on to the units of the pool from `phys` on, with all blocks written, or unmaps
    /// them.
    Run {
        /// Number of the volume.
        volume: u32,
        /// First unit of the volume.
        unit: u64,
        /// Number of units, at least 1.
        count: u64,
        /// First unit of the pool; 0 to unmap.
        phys: u64,
    },
    /// Creates a volume with an empty map and a family of its own.
    Create {
        /// Number of the new volume.
        volume: u32,
        /// True if writes beyond the end enlarge the volume.
        grows: bool,
        /// Size in bytes.
        size: u64,
        /// Largest size in bytes, for a resize and for growth by writes.
        max_size: u64,
        /// Time of creation in seconds since 1970.
        created: u64,
        /// Name of the volume.
        name: String,
    },
    /// Creates a volume with the map that `source` has at this point.
    Copy {
        /// Number of the new volume.
        volume: u32,
        /// Volume that is copied; it becomes the origin of the copy.
        source: u32,
        /// True if the copy is a snapshot, which cannot be written.
        snapshot: bool,
        /// True if writes beyond the end enlarge the copy; equal to the source's.
        grows: bool,
        /// Size in bytes.
        size: u64,
        /// Largest size in bytes, for a resize and for growth by writes.
        max_size: u64,
        /// Time of creation in seconds since 1970.
        created: u64,
        /// Name of the volume.
        name: String,
    },
    /// Renames the volume.
    Rename {
        /// Number of the volume.
        volume: u32,
        /// Name of the volume.
        name: String,
    },
    /// Sets the size of the volume and unmaps the units beyond it.
    Resize {
        /// Number of the volume.
        volume: u32,
        /// Size in bytes.
        size: u64,
    },
    /// Deletes the volume. Volumes and snapshots that have it as their origin have none any more.
    Delete {
        /// Number of the volume.
        volume: u32,
    },
    /// Sets the largest size of the volume.
    Limit {
        /// Number of the volume.
        volume: u32,
        /// Size in bytes up to which writes may enlarge the volume.
        max_size: u64,
    },
    /// Gives the volume the map, size and largest size that `source` has at this point.
    Rollback {
        /// Number of the volume.
        volume: u32,
        /// Volume or snapshot whose state is taken.
        source: u32,
    },
    /// Sets the origin of the volume.
    Origin {
        /// Number of the volume.
        volume: u32,
        /// Number of the origin; 0 for none.
        origin: u32,
    },
    /// Gives the volume its identity, which only its copies share.
    Identity {
        /// Number of the volume.
        volume: u32,
        /// Random bits, not all zero.
        identity: [u8; 16],
    },
    /// Makes the volume interim, or makes an interim volume an ordinary one.
    Interim {
        /// Number of the volume.
        volume: u32,
        /// Purpose of the interim volume; `None` makes it an ordinary volume.
        interim: Option<Interim>,
    },
    /// Marks blocks of the pool as bad, or removes their marks after they were written.
    Mark {
        /// True to mark, false to remove marks.
        bad: bool,
        /// First block of the pool.
        first: u64,
        /// Number of blocks, from 1 to [`MAX_MARKS`].
        count: u64,
    },
    /// Opens regions: their data may be written from here on, so their checksums in the checkpoint are not valid any
    /// more.
    Intent {
        /// First region.
        first: u64,
        /// Number of regions, at least 1.
        count: u64,
    },
}

impl Record {
    /// Returns the length of the encoding in bytes.
    pub fn bytes(&self, geometry: &Geometry) -> usize {
        let body = match self {
            Record::Set { phys: 0, .. } => size_of::<SetBody>(),
            Record::Set { .. } => size_of::<SetBody>() + 8 * geometry.entry_words,
            Record::Run { .. } => size_of::<RunBody>(),
            Record::Create { name, .. } | Record::Copy { name, .. } => size_of::<CreateBody>() + padded(name.len()),
            Record::Rename { name, .. } => padded(name.len()),
            Record::Resize { .. } | Record::Limit { .. } => size_of::<ResizeBody>(),
            Record::Delete { .. } => 0,
            Record::Rollback { .. } | Record::Origin { .. } => size_of::<SourceBody>(),
            Record::Identity { .. } => size_of::<IdentityBody>(),
            Record::Interim { .. } => size_of::<InterimBody>(),
            Record::Intent { .. } => size_of::<IntentBody>(),
            Record::Mark { .. } => size_of::<MarkBody>(),
        };
        size_of::<RecordHead>() + body
    }

    /// Returns the number of the volume that the record is about; 0 for a record about the pool.
    pub fn volume(&self) -> u32 {
        match *self {
            Record::Set { volume, .. }
            | Record::Run { volume, .. }
            | Record::Create { volume, .. }
            | Record::Copy { volume, .. }
            | Record::Rename { volume, .. }
            | Record::Resize { volume, .. }
            | Record::Limit { volume, .. }
            | Record::Delete { volume }
            | Record::Rollback { volume, .. }
            | Record::Origin { volume, .. }
            | Record::Identity { volume, .. }
            | Record::Interim { volume, .. } => volume,
            Record::Intent { .. } | Record::Mark { .. } => 0,
        }
    }

    /// Encodes the record into the beginning of `to`. Returns its length, or `None` if it does not fit.
    pub fn encode(&self, geometry: &Geometry, to: &mut [u8]) -> Option<usize> {
        let len = self.bytes(geometry);
        let to = to.get_mut(..len)?;
        to.fill(0);
        let (kind, name) = self.kind_and_name();
        let head =
            RecordHead { kind, name_len: name.len() as u8, len: (len as u16).into(), volume: self.volume().into() };
        let (head_bytes, body) = to.split_at_mut(size_of::<RecordHead>());
        head_bytes.copy_from_slice(head.as_bytes());
        let name_at = body.len() - padded(name.len());
        body[name_at..][..name.len()].copy_from_slice(name.as_bytes());
        self.encode_body(geometry, body);
        Some(len)
    }

    fn kind_and_name(&self) -> (u8, &str) {
        match self {
            Record::Set { .. } => (kinds::SET, ""),
            Record::Run { .. } => (kinds::RUN, ""),
            Record::Create { name, .. } => (kinds::CREATE, name),
            Record::Copy { name, .. } => (kinds::COPY, name),
            Record::Rename { name, .. } => (kinds::RENAME, name),
            Record::Resize { .. } => (kinds::RESIZE, ""),
            Record::Limit { .. } => (kinds::LIMIT, ""),
            Record::Delete { .. } => (kinds::DELETE, ""),
            Record::Rollback { .. } => (kinds::ROLLBACK, ""),
            Record::Origin { .. } => (kinds::ORIGIN, ""),
            Record::Identity { .. } => (kinds::IDENTITY, ""),
            Record::Interim { .. } => (kinds::INTERIM, ""),
            Record::Intent { .. } => (kinds::INTENT, ""),
            Record::Mark { bad: true, .. } => (kinds::MARK, ""),
            Record::Mark { .. } => (kinds::UNMARK, ""),
        }
    }

    fn encode_body(&self, geometry: &Geometry, body: &mut [u8]) {
        let mut put = |bytes: &[u8]| body[..bytes.len()].copy_from_slice(bytes);
        match *self {
            Record::Set { unit, phys, ref written, .. } => {
                put(SetBody { unit: unit.into(), phys: phys.into() }.as_bytes());
                if phys != 0 {
                    let words = body[size_of::<SetBody>()..].chunks_exact_mut(8);
                    for (to, word) in words.zip(&written[..geometry.entry_words]) {
                        to.copy_from_slice(&word.to_le_bytes());
                    }
                }
            }
            Record::Run { unit, count, phys, .. } => {
                put(RunBody { unit: unit.into(), count: count.into(), phys: phys.into() }.as_bytes());
            }
            Record::Create { grows, size, max_size, created, .. } => {
                put(create_body(size, max_size, created, volume_flags(false, grows), 0).as_bytes());
            }
            Record::Copy { source, snapshot, grows, size, max_size, created, .. } => {
                put(create_body(size, max_size, created, volume_flags(snapshot, grows), source).as_bytes());
            }
            Record::Resize { size, .. } | Record::Limit { max_size: size, .. } => {
                put(ResizeBody { size: size.into() }.as_bytes())
            }
            Record::Rollback { source, .. } | Record::Origin { origin: source, .. } => {
                put(SourceBody { source: source.into(), reserved: 0.into() }.as_bytes());
            }
            Record::Identity { identity, .. } => put(IdentityBody { identity }.as_bytes()),
            Record::Interim { interim, .. } => put(Interim::to_disk(interim).as_bytes()),
            Record::Intent { first, count } => put(IntentBody { first: first.into(), count: count.into() }.as_bytes()),
            Record::Mark { first, count, .. } => put(MarkBody { first: first.into(), count: count.into() }.as_bytes()),
            Record::Rename { .. } | Record::Delete { .. } => {}
        }
    }

    /// Decodes the record at the beginning of `from`. Returns the record and its length in bytes.
    #[inline]
    pub fn decode(geometry: &Geometry, from: &[u8]) -> Result<(Record, usize), Damage> {
        let cut = Damage::field("record.len", from.len() as u64, "goes beyond the block");
        let (head, _) = RecordHead::ref_from_prefix(from).map_err(|_| cut)?;
        let len = usize::from(head.len.get());
        let whole = from.get(..len).ok_or(cut)?;
        let body = whole.get(size_of::<RecordHead>()..).ok_or(cut)?;
        let named = matches!(head.kind, kinds::CREATE | kinds::COPY | kinds::RENAME);
        require(named == (head.name_len > 0), "record.name_len", head.name_len, "does not fit the kind")?;
        let (body, name) = if named { split_name(body, usize::from(head.name_len))? } else { (body, "") };
        let volume = head.volume.get();
        let of_none = matches!(head.kind, kinds::INTENT | kinds::MARK | kinds::UNMARK);
        require((volume == 0) == of_none, "record.volume", volume, "is no volume, or one where none belongs")?;
        let record = decode_body(geometry, head.kind, volume, body, name)?;
        // Encoding the record again must give the same length: no bytes are left over in it.
        require(record.bytes(geometry) == len, "record.len", len as u64, "does not fit the kind")?;
        Ok((record, len))
    }

    /// Decodes all records in `from` and appends them to `to`. After an error `to` has those before the wrong one.
    ///
    /// A journal has millions of records, and nearly all of them consist of three numbers. Valid ones of that form take
    /// a fast path without an error branch for each field; all others take [`Record::decode`].
    pub fn decode_all(geometry: &Geometry, mut from: &[u8], to: &mut Vec<Record>) -> Result<(), Damage> {
        while !from.is_empty() {
            if let Some(record) = decode_plain(geometry, from) {
                to.push(record);
                from = &from[size_of::<PlainRecord>()..];
                continue;
            }
            let (record, len) = Record::decode(geometry, from)?;
            to.push(record);
            from = &from[len..];
        }
        Ok(())
    }
}

/// A record with a body of three numbers: a `SET` with space, of a unit of at most 64 blocks, or a `RUN`.
#[derive(Clone, Copy, FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct PlainRecord {
    head: RecordHead,
    numbers: [U64; 3],
}

/// Fast path of [`Record::decode`]: decodes a valid `SET` or unmapping `RUN` of three numbers. Returns `None` for any
/// other record, valid or not.
#[inline]
fn decode_plain(geometry: &Geometry, from: &[u8]) -> Option<Record> {
    let (plain, _) = PlainRecord::ref_from_prefix(from).ok()?;
    let (head, [first, second, third]) = (&plain.head, plain.numbers.map(U64::get));
    let (volume, len) = (head.volume.get(), usize::from(head.len.get()));
    if volume == 0 || head.name_len != 0 || len != size_of::<PlainRecord>() {
        return None;
    }
    match head.kind {
        kinds::SET => {
            let bits = third != 0 && third & !geometry.full_word() == 0;
            let right = geometry.entry_words == 1 && first < MAX_VOLUME_UNITS && geometry.is_unit(second) && bits;
            right.then_some(Record::Set { volume, unit: first, phys: second, written: [third, 0, 0, 0] })
        }
        kinds::RUN => {
            let inside = first.checked_add(second).is_some_and(|end| end <= MAX_VOLUME_UNITS);
            let right = second > 0 && inside && third == 0;
            right.then_some(Record::Run { volume, unit: first, count: second, phys: 0 })
        }
        _ => None,
    }
}

/// Splits a body into its fixed part and the name at its end.
fn split_name(body: &[u8], name_len: usize) -> Result<(&[u8], &str), Damage> {
    let cut = Damage::field("record.len", body.len() as u64, "is too short for its name");
    let name_at = body.len().checked_sub(padded(name_len)).ok_or(cut)?;
    let (body, name) = body.split_at(name_at);
    let (name, fill) = name.split_at(name_len);
    require(fill.iter().all(|&byte| byte == 0), "record.name", 1u64, "has bytes after it that must be 0")?;
    let name = std::str::from_utf8(name).ok().filter(|name| is_name(name));
    Ok((body, name.ok_or(Damage::field("record.name", 0u64, "cannot be a name"))?))
}

fn create_body(size: u64, max_size: u64, created: u64, flags: u32, source: u32) -> CreateBody {
    CreateBody {
        size: size.into(),
        max_size: max_size.into(),
        created: created.into(),
        flags: flags.into(),
        source: source.into(),
    }
}

/// Reads the fixed part at the beginning of a body.
fn fixed<T: FromBytes + zerocopy::KnownLayout + zerocopy::Immutable + zerocopy::Unaligned>(
    body: &[u8],
) -> Result<&T, Damage> {
    let (fixed, _) = T::ref_from_prefix(body)
        .map_err(|_| Damage::field("record.len", body.len() as u64, "is too short for the kind"))?;
    Ok(fixed)
}

#[inline]
fn decode_body(geometry: &Geometry, kind: u8, volume: u32, body: &[u8], name: &str) -> Result<Record, Damage> {
    match kind {
        kinds::SET => decode_set(geometry, volume, body),
        kinds::RUN => decode_run(geometry, volume, body),
        kinds::CREATE | kinds::COPY => decode_create(geometry, kind, volume, body, name),
        kinds::RENAME => Ok(Record::Rename { volume, name: name.to_owned() }),
        kinds::RESIZE | kinds::LIMIT => {
            let size = fixed::<ResizeBody>(body)?.size.get();
            require_size(geometry, "record.size", size)?;
            let limit = kind == kinds::LIMIT;
            require_blocks("record.size", limit, size, size)?;
            Ok(if limit { Record::Limit { volume, max_size: size } } else { Record::Resize { volume, size } })
        }
        kinds::DELETE => Ok(Record::Delete { volume }),
        kinds::ROLLBACK | kinds::ORIGIN => {
            let other = fixed::<SourceBody>(body)?;
            let source = other.source.get();
            require(other.reserved.get() == 0, "record.reserved", other.reserved.get(), "must be 0")?;
            require(source != volume, "record.source", source, "is the volume itself")?;
            if kind == kinds::ORIGIN {
                return Ok(Record::Origin { volume, origin: source });
            }
            require(source != 0, "record.source", source, "is no volume")?;
            Ok(Record::Rollback { volume, source })
        }
        kinds::IDENTITY => Ok(Record::Identity { volume, identity: identity_from_disk(fixed::<IdentityBody>(body)?)? }),
        kinds::INTERIM => Ok(Record::Interim { volume, interim: Interim::from_disk(fixed::<InterimBody>(body)?)? }),
        kinds::INTENT => {
            let body = fixed::<IntentBody>(body)?;
            let (first, count) = (body.first.get(), body.count.get());
            let regions = geometry.regions(MAX_POOL_UNITS);
            let inside = first.checked_add(count).is_some_and(|end| end <= regions);
            require(count > 0 && inside, "record.count", count, "is 0 or beyond the largest pool")?;
            Ok(Record::Intent { first, count })
        }
        kinds::MARK | kinds::UNMARK => decode_mark(geometry, kind == kinds::MARK, body),
        _ => Err(Damage::field("record.kind", kind, "is no kind of record")),
    }
}

#[inline]
fn decode_set(geometry: &Geometry, volume: u32, body: &[u8]) -> Result<Record, Damage> {
    let set = fixed::<SetBody>(body)?;
    let (unit, phys) = (set.unit.get(), set.phys.get());
    require(unit < MAX_VOLUME_UNITS, "record.unit", unit, "is beyond the largest volume")?;
    let mut written = [0; MAX_ENTRY_WORDS];
    if phys != 0 {
        let words = body[size_of::<SetBody>()..].chunks_exact(8);
        for (to, from) in written[..geometry.entry_words].iter_mut().zip(words) {
            let mut raw = [0; 8];
            raw.copy_from_slice(from);
            *to = u64::from_le_bytes(raw);
        }
    }
    check_entry(geometry, phys, &written[..geometry.entry_words])?;
    Ok(Record::Set { volume, unit, phys, written })
}

fn decode_mark(geometry: &Geometry, bad: bool, body: &[u8]) -> Result<Record, Damage> {
    let body = fixed::<MarkBody>(body)?;
    let (first, count) = (body.first.get(), body.count.get());
    require((1..=MAX_MARKS).contains(&count), "record.count", count, "is 0 or more than the blocks of a unit")?;
    let unit = |block: u64| block / geometry.unit_blocks as u64;
    let last = first.checked_add(count - 1).filter(|last| geometry.is_unit(unit(*last)));
    require(geometry.is_unit(unit(first)) && last.is_some(), "record.first", first, "is no block of data of the pool")?;
    Ok(Record::Mark { bad, first, count })
}

fn decode_run(geometry: &Geometry, volume: u32, body: &[u8]) -> Result<Record, Damage> {
    let run = fixed::<RunBody>(body)?;
    let (unit, count, phys) = (run.unit.get(), run.count.get(), run.phys.get());
    let end = unit.checked_add(count).filter(|&end| end <= MAX_VOLUME_UNITS);
    require(count > 0 && end.is_some(), "record.count", count, "is 0 or beyond the largest volume")?;
    if phys != 0 {
        let last = phys.checked_add(count - 1).filter(|&last| geometry.is_unit(last));
        require(geometry.is_unit(phys) && last.is_some(), "record.phys", phys, "is no run of units of the pool")?;
    }
    Ok(Record::Run { volume, unit, count, phys })
}

fn decode_create(geometry: &Geometry, kind: u8, volume: u32, body: &[u8], name: &str) -> Result<Record, Damage> {
    let create = fixed::<CreateBody>(body)?;
    let (size, max_size, created) = (create.size.get(), create.max_size.get(), create.created.get());
    let (flags, source, name) = (create.flags.get(), create.source.get(), name.to_owned());
    require_size(geometry, "record.max_size", max_size)?;
    require(size <= max_size, "record.size", size, "is more than its largest size")?;
    require(flags & !MADE_FLAGS == 0, "record.flags", flags, "has unknown bits")?;
    let grows = flags & VOLUME_GROWS != 0;
    require_blocks("record.size", grows, size, max_size)?;
    if kind == kinds::CREATE {
        require(flags & VOLUME_SNAPSHOT == 0, "record.flags", flags, "must not be those of a snapshot")?;
        require(source == 0, "record.source", source, "must be 0")?;
        return Ok(Record::Create { volume, grows, size, max_size, created, name });
    }
    require(source != 0 && source < volume, "record.source", source, "is no older volume")?;
    let snapshot = flags & VOLUME_SNAPSHOT != 0;
    Ok(Record::Copy { volume, source, snapshot, grows, size, max_size, created, name })
}

fn require_size(geometry: &Geometry, field: &'static str, size: u64) -> Result<(), Damage> {
    let limit = MAX_VOLUME_UNITS * u64::from(geometry.unit_bytes);
    require(size <= limit, field, size, "is more than a volume can have")
}

#[cfg(all(test, not(shuttle)))]
mod tests;
