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

/// Largest number of 64-bit words of written bits of an entry, reached by units of 1 MiB.
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
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::block::samples;
    use crate::format::page::table::{Interim, Purpose};

    fn geometry(unit_bytes: u32) -> Geometry {
        Geometry::new(unit_bytes, 1 << 20, 16)
    }

    fn round_trip(geometry: &Geometry, record: &Record) {
        let mut bytes = [0xAA; JOURNAL_PAYLOAD];
        let len = record.encode(geometry, &mut bytes).expect("there is room");
        assert_eq!(len, record.bytes(geometry));
        assert!(len.is_multiple_of(8), "records are aligned");
        assert_eq!(Record::decode(geometry, &bytes[..len]), Ok((record.clone(), len)));
        assert_eq!(Record::decode(geometry, &bytes), Ok((record.clone(), len)));
        assert_eq!(record.encode(geometry, &mut bytes[..len - 1]), None);
        for cut in 0..len {
            assert!(Record::decode(geometry, &bytes[..cut]).is_err(), "{record:?} cut at {cut}");
        }
    }

    /// Compares [`Record::decode_all`] with decoding one record at a time: same records, same error.
    fn all_at_once(geometry: &Geometry, bytes: &[u8]) {
        let (mut one_by_one, mut rest) = (Vec::new(), bytes);
        let result = loop {
            match Record::decode(geometry, rest) {
                _ if rest.is_empty() => break Ok(()),
                Err(damage) => break Err(damage),
                Ok((record, len)) => {
                    one_by_one.push(record);
                    rest = &rest[len..];
                }
            }
        };
        let mut at_once = Vec::new();
        assert_eq!(Record::decode_all(geometry, bytes, &mut at_once), result);
        assert_eq!(at_once, one_by_one);
    }

    /// Tries each number of a record at its bounds and beyond them.
    #[test]
    fn records_are_decoded_at_once_as_they_are_one_by_one() {
        let units = [0, 1, MAX_VOLUME_UNITS - 1, MAX_VOLUME_UNITS, u64::MAX];
        let counts = [0, 1, MAX_VOLUME_UNITS, u64::MAX];
        let places = [0, 2, (1 << 20) - 1, 1 << 20, u64::MAX];
        let bits = [0, 1, 1 << 15, 1 << 16, u64::MAX];
        for unit_bytes in [4096, 65536, 1 << 18, 1 << 19] {
            let geometry = geometry(unit_bytes);
            let good = Record::Delete { volume: 3 };
            let check = |kind: u8, volume: u32, numbers: [u64; 3]| {
                for (name_len, len) in [(0, 32), (1, 32), (0, 24), (0, 40)] {
                    let head = RecordHead { kind, name_len, len: len.into(), volume: volume.into() };
                    let mut bytes = [0; 64];
                    bytes[..8].copy_from_slice(head.as_bytes());
                    for (to, number) in bytes[8..].chunks_exact_mut(8).zip(numbers) {
                        to.copy_from_slice(&number.to_le_bytes());
                    }
                    good.encode(&geometry, &mut bytes[32..]);
                    [31, 32, 40].into_iter().for_each(|end| all_at_once(&geometry, &bytes[..end]));
                }
            };
            for unit in units {
                for volume in [0, 1] {
                    for second in places.into_iter().chain(counts) {
                        bits.into_iter().for_each(|third| check(kinds::SET, volume, [unit, second, third]));
                        places.into_iter().for_each(|third| check(kinds::RUN, volume, [unit, second, third]));
                    }
                }
            }
            (0..=16).for_each(|kind| check(kind, 1, [1, 2, 3]));
        }
    }

    #[test]
    fn one_of_each_kind() {
        for unit in [4096, 65536, 1 << 19, 1 << 20] {
            let geometry = geometry(unit);
            samples::records(geometry.entry_words).iter().for_each(|record| round_trip(&geometry, record));
        }
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let g = geometry(65536);
        let mut written = [0; MAX_ENTRY_WORDS];
        written[0] = 1 << 16;
        let none = [0; MAX_ENTRY_WORDS];
        let one = [1, 0, 0, 0];
        let name = || "n".to_owned();
        let cases = [
            ("written", Record::Set { volume: 1, unit: 0, phys: 5, written }),
            ("written", Record::Set { volume: 1, unit: 0, phys: 5, written: none }),
            ("entry", Record::Set { volume: 1, unit: 0, phys: 1, written: one }),
            ("entry", Record::Set { volume: 1, unit: 0, phys: 1 << 20, written: one }),
            ("record.unit", Record::Set { volume: 1, unit: MAX_VOLUME_UNITS, phys: 0, written: none }),
            ("record.volume", Record::Set { volume: 0, unit: 0, phys: 0, written: none }),
            ("record.count", Record::Run { volume: 1, unit: 0, count: 0, phys: 0 }),
            ("record.count", Record::Run { volume: 1, unit: 1, count: u64::MAX, phys: 0 }),
            ("record.count", Record::Run { volume: 1, unit: 1, count: MAX_VOLUME_UNITS, phys: 0 }),
            ("record.phys", Record::Run { volume: 1, unit: 0, count: 2, phys: (1 << 20) - 1 }),
            ("record.phys", Record::Run { volume: 1, unit: 0, count: 1, phys: 1 }),
            ("record.size", Record::Resize { volume: 1, size: u64::MAX }),
            ("record.size", Record::Limit { volume: 1, max_size: u64::MAX }),
            ("record.size", Record::Limit { volume: 1, max_size: 4096 + 512 }),
            ("record.size", Record::Create { volume: 1, grows: false, size: 2, max_size: 1, created: 0, name: name() }),
            (
                "record.size",
                Record::Create { volume: 1, grows: true, size: 2, max_size: 4096, created: 0, name: name() },
            ),
            ("record.name", Record::Rename { volume: 1, name: "a\nb".into() }),
            ("record.name_len", Record::Rename { volume: 1, name: String::new() }),
            ("record.count", Record::Mark { bad: true, first: 1600, count: 0 }),
            ("record.count", Record::Mark { bad: true, first: 1600, count: MAX_MARKS + 1 }),
            ("record.first", Record::Mark { bad: true, first: 0, count: 1 }),
            ("record.first", Record::Mark { bad: false, first: (16 << 20) - 1, count: 2 }),
            ("record.first", Record::Mark { bad: false, first: u64::MAX, count: 2 }),
            ("identity", Record::Identity { volume: 1, identity: [0; 16] }),
            ("record.volume", Record::Interim { volume: 0, interim: None }),
            ("record.source", Record::Rollback { volume: 1, source: 0 }),
            ("record.source", Record::Rollback { volume: 1, source: 1 }),
            (
                "record.source",
                Record::Copy {
                    volume: 2,
                    source: 2,
                    snapshot: false,
                    grows: false,
                    size: 0,
                    max_size: 0,
                    created: 0,
                    name: name(),
                },
            ),
        ];
        for (field, record) in cases {
            let mut bytes = [0; 512];
            let len = record.encode(&g, &mut bytes).expect("there is room");
            match Record::decode(&g, &bytes[..len]) {
                Err(Damage::Field { field: found, .. }) => assert_eq!(found, field, "{record:?}"),
                other => panic!("{record:?}: {other:?}"),
            }
        }
        let unknown = [77, 0, 8, 0, 1, 0, 0, 0];
        assert_eq!(Record::decode(&g, &unknown), Err(Damage::field("record.kind", 77u8, "is no kind of record")));
    }

    fn name() -> impl Strategy<Value = String> {
        "[a-zA-Z0-9äß@._-]{1,100}"
    }

    fn any_record(words: usize) -> impl Strategy<Value = Record> {
        let id = 1u32..;
        let word = 1u64..0x1_0000;
        prop_oneof![
            (id.clone(), 0..MAX_VOLUME_UNITS, 2u64..1 << 20, proptest::collection::vec(word, words)).prop_map(
                move |(volume, unit, phys, bits)| {
                    let mut written = [0; MAX_ENTRY_WORDS];
                    written[..words].copy_from_slice(&bits);
                    Record::Set { volume, unit, phys, written }
                }
            ),
            (id.clone(), 0u64..1 << 33, 1u64..1 << 19, 2u64..1 << 19)
                .prop_map(|(volume, unit, count, phys)| Record::Run { volume, unit, count, phys }),
            (2u32.., any::<bool>(), 0u64..1 << 46, any::<u64>(), name()).prop_map(
                |(volume, snapshot, size, created, name)| {
                    let grows = size % 4096 == 0;
                    Record::Copy { volume, source: volume / 2, snapshot, grows, size, max_size: size, created, name }
                }
            ),
            (id.clone(), 0u64..1 << 45, any::<u64>(), name()).prop_map(|(volume, size, created, name)| {
                Record::Create { volume, grows: size % 4096 == 0, size, max_size: size * 2, created, name }
            }),
            (id.clone(), name()).prop_map(|(volume, name)| Record::Rename { volume, name }),
            (id.clone(), 0u64..1 << 46).prop_map(|(volume, size)| Record::Resize { volume, size }),
            (id.clone(), 0u64..1 << 34).prop_map(|(volume, blocks)| Record::Limit { volume, max_size: blocks << 12 }),
            (any::<bool>(), 600u64..1 << 20, 1..=MAX_MARKS).prop_map(|(bad, first, count)| Record::Mark {
                bad,
                first,
                count
            }),
            (id.clone(), 1u128..).prop_map(|(volume, bits)| Record::Identity { volume, identity: bits.to_le_bytes() }),
            (id.clone(), any::<bool>(), any::<u32>()).prop_map(|(volume, some, owner)| Record::Interim {
                volume,
                interim: some.then_some(Interim { purpose: Purpose::ImportDiff, owner }),
            }),
            id.prop_map(|volume| Record::Delete { volume }),
        ]
    }

    proptest! {
        #[test]
        fn any_round_trips(small in any_record(1), large in any_record(4)) {
            round_trip(&geometry(65536), &small);
            round_trip(&geometry(1 << 20), &large);
        }

        #[test]
        fn garbage_never_panics(
            bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 0u8..17, words in 0u16..30,
        ) {
            let mut bytes = bytes;
            for fix in [false, true] {
                if fix && bytes.len() >= 8 {
                    bytes[0] = kind;
                    bytes[2..4].copy_from_slice(&(words * 8).to_le_bytes());
                }
                for unit in [4096, 65536, 1 << 19] {
                    all_at_once(&geometry(unit), &bytes);
                }
                if let Ok((record, len)) = Record::decode(&geometry(65536), &bytes) {
                    let mut again = vec![0; len];
                    prop_assert_eq!(record.encode(&geometry(65536), &mut again), Some(len));
                    prop_assert_eq!(&again[..], &bytes[..len], "one encoding for one record");
                }
            }
        }
    }
}
