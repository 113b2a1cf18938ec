//! The on-disk format: every offset, size, magic number and limit of a pool.
//!
//! Owns the structures as they lie on the device (little-endian, no padding, no alignment) and the numbers that bound
//! them. [`superblock`], [`record`], [`journal`] and [`page`] encode and decode them; no other module reads or writes
//! their bytes. `docs/reference/on-disk-format.md` has the same tables with the reason for each field; a test compares
//! the two.
//!
//! Invariants:
//! - F1: each metadata block is 4 KiB at a multiple of 4 KiB and begins with a [`Header`], whose CRC32C covers the
//!   block. Offset and algorithm of that checksum are the same in every version of the format: a reader verifies it
//!   before it uses any field but the magic.
//! - F2: reserved bytes are written as zero; a decoder refuses a block in which they are not zero.
//! - F3: a reference to a page ([`Child`]) contains the page's checksum, so that an old version of the page at the
//!   right address is detected.

pub mod block;
pub mod damage;
pub mod geometry;
pub mod journal;
pub mod page;
pub(crate) mod recent;
pub mod record;
pub mod settings;
pub mod superblock;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a metadata block, and the granularity of written bits and data checksums.
pub const BLOCK: usize = 4096;
/// [`BLOCK`] as a 64-bit number, for arithmetic on addresses.
pub const BLOCK_BYTES: u64 = BLOCK as u64;
/// Binary logarithm of [`BLOCK`].
pub const BLOCK_SHIFT: u32 = BLOCK.ilog2();
/// First bytes of every metadata block.
pub const MAGIC: [u8; 4] = *b"SHVE";
/// Version of the format that this program writes. Blocks with a newer one are refused.
pub const VERSION: u16 = 1;

/// Kinds of metadata blocks.
pub mod kind {
    /// One of the two superblocks.
    pub const SUPERBLOCK: u16 = 1;
    /// A block of the journal.
    pub const JOURNAL: u16 = 2;
    /// Entries of a volume's map: allocation units and their written bits.
    pub const LEAF: u16 = 3;
    /// References to pages one level below.
    pub const INDEX: u16 = 4;
    /// Volumes: names, sizes, roots of maps.
    pub const TABLE: u16 = 5;
    /// First block of each member of a concatenation but the first.
    pub const LABEL: u16 = 6;
    /// Checksums of data.
    pub const SUMS: u16 = 7;
    /// A copy of the superblock, at an address that the superblock names.
    pub const SUPERBLOCK_COPY: u16 = 8;
    /// A list of units that are certainly free.
    pub const FREE: u16 = 9;
    /// Journal records about entries of maps whose pages are damaged.
    pub const KEPT: u16 = 10;
    /// The superblock of a checkpoint in one of the checkpoint's own pages. No page refers to it; a rescue finds it by
    /// searching the device.
    pub const ROOT: u16 = 11;
}

/// Addresses of the two superblocks.
pub const SUPERBLOCKS: [u64; 2] = [0, BLOCK_BYTES];
/// Address of the journal's first block.
pub const JOURNAL_START: u64 = 2 * BLOCK_BYTES;

/// Smallest allocation unit.
pub const MIN_UNIT_BYTES: u32 = 4 << 10;
/// Largest allocation unit.
pub const MAX_UNIT_BYTES: u32 = 1 << 20;
/// Largest number of allocation units of a pool: 64 TiB of the smallest, 1 PiB of 64 KiB.
pub const MAX_POOL_UNITS: u64 = 1 << 34;
/// Largest number of allocation units of a pool with two copies of its pages: a reference has 32 bits for the unit of
/// the second copy.
pub const MAX_PAIRED_UNITS: u64 = 1 << 32;
/// Largest number of allocation units of a volume.
pub const MAX_VOLUME_UNITS: u64 = 1 << 34;
/// Fewest blocks of a journal.
pub const MIN_JOURNAL_BLOCKS: u32 = 16;
/// Largest number of blocks of a journal (64 MiB): recovery reads the whole ring, and a check holds it in memory.
pub const MAX_JOURNAL_BLOCKS: u32 = 16_384;
/// Largest number of members of a concatenation: equals the largest number of legs of a device.
pub const MAX_MEMBERS: usize = 64;
/// Largest number of volumes and snapshots of a pool: less than the largest number of owners of a unit.
pub const MAX_VOLUMES: u32 = 65_000;
/// Largest number of volumes that the superblock lists individually as possibly having lost data.
pub const MAX_LOST: usize = 256;
/// Number of copies of the superblock.
pub const COPIES: usize = 2;
/// Largest number of bytes of a volume's name.
pub const MAX_NAME: usize = 255;

/// Number of references in an index page.
pub const INDEX_CHILDREN: usize = 256;
/// Largest number of entries of a leaf. Units of 256 KiB and more have fewer, so that a leaf with its bitmaps fits one
/// block.
pub const MAX_LEAF_ENTRIES: usize = 256;
/// Largest number of 64-bit words of written bits in a leaf.
pub const MAX_LEAF_WORDS: usize = 256;
/// Highest level of an index page: leaves are level 0, and 256^4 leaves are more than any volume has.
pub const MAX_LEVEL: u16 = 4;

/// Value of `state`: the pool was closed, so there is nothing to replay.
pub const STATE_CLEAN: u32 = 1;

/// Features of `compat` that this program knows. A program may ignore the others and still write the pool.
pub const KNOWN_COMPAT: u32 = COMPAT_DISCARD;
/// Bit of `compat`: freed space is discarded on the device below, in the background.
pub const COMPAT_DISCARD: u32 = 1;
/// Lowest bit of the field of `compat` that names the opening which keeps both superblocks usable (S3 of
/// [`superblock`]). The bits below it are features.
pub const TWINS_SHIFT: u32 = 16;
/// Features of `ro_compat` that this program knows. A pool with others may be read and not written. None is defined
/// yet.
pub const KNOWN_RO_COMPAT: u32 = 0;
/// Features of `incompat` that this program knows. A pool with others is refused.
pub const KNOWN_INCOMPAT: u32 = INCOMPAT_SUMS
    | INCOMPAT_LOST
    | INCOMPAT_MARKS
    | INCOMPAT_IDENTITIES
    | INCOMPAT_OWNERS
    | INCOMPAT_COPIES
    | INCOMPAT_PAIRS
    | INCOMPAT_KEPT
    | INCOMPAT_OFF_GRID;
/// Bit of `incompat`: data has checksums. A program that does not update them would make good data look damaged.
pub const INCOMPAT_SUMS: u32 = 1;
/// Bit of `incompat`: the superblock lists volumes that may have lost data. A program that does not know the list would
/// erase it before the user has seen it.
pub const INCOMPAT_LOST: u32 = 2;
/// Bit of `incompat`: blocks may be marked as bad. A program that does not know marks would treat these blocks as good
/// after a crash.
pub const INCOMPAT_MARKS: u32 = 4;
/// Bit of `incompat`: volumes have identities and may be interim. A program that does not know these fields would
/// report the table entries as damaged.
pub const INCOMPAT_IDENTITIES: u32 = 8;
/// Bit of `incompat`: each opening for writing has a random number. An opening by a program that does not write one
/// could not be distinguished from the opening before it.
pub const INCOMPAT_OWNERS: u32 = 16;
/// Bit of `incompat`: the superblock has copies. A program that does not know them would store data in their units, and
/// would leave them outdated.
pub const INCOMPAT_COPIES: u32 = 32;
/// Bit of `incompat`: each page of the trees has a second copy. A program that does not know the copies would give
/// their units to volumes.
pub const INCOMPAT_PAIRS: u32 = 64;
/// Bit of `incompat`: the pool keeps records about the contents of damaged pages. A program that does not know them
/// would lose the changes they contain.
pub const INCOMPAT_KEPT: u32 = 128;
/// Bit of `incompat`: copies of the superblock lie at addresses off the grid, which programs that know only
/// [`INCOMPAT_COPIES`] refuse.
pub const INCOMPAT_OFF_GRID: u32 = 256;

/// Value of `sums`: data has no checksums.
pub const SUMS_NONE: u32 = 0;
/// Value of `sums`: each 4 KiB block of data has a CRC32C.
pub const SUMS_CRC32C: u32 = 1;

/// Flag: the volume is a snapshot and cannot be written.
pub const VOLUME_SNAPSHOT: u32 = 1;
/// Flag: writes beyond the end of the volume enlarge it.
pub const VOLUME_GROWS: u32 = 2;
/// Flag: the volume is interim, and is deleted when the pool is next opened for writing; an [`InterimBody`] follows.
pub const VOLUME_INTERIM: u32 = 4;
/// Flag: the volume has an identity; an [`IdentityBody`] follows.
pub const VOLUME_IDENTITY: u32 = 8;
/// Flags that `CREATE` and `COPY` records may have. The other flags are set by records of their own.
pub const MADE_FLAGS: u32 = VOLUME_SNAPSHOT | VOLUME_GROWS;
/// Flags that an entry of the volume table may have.
pub const VOLUME_FLAGS: u32 = MADE_FLAGS | VOLUME_INTERIM | VOLUME_IDENTITY;

/// Purpose in a record: the volume is no longer interim.
pub const INTERIM_NONE: u32 = 0;
/// Purpose: an image is being imported into the volume.
pub const INTERIM_IMPORT: u32 = 1;
/// Purpose: a diff is being imported into the volume.
pub const INTERIM_IMPORT_DIFF: u32 = 2;

/// First part of every metadata block.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Always [`MAGIC`].
    pub magic: [u8; 4],
    /// One of [`kind`].
    pub kind: U16,
    /// Version of the format, [`VERSION`].
    pub version: U16,
    /// CRC32C of the block with this field zero.
    pub checksum: U32,
    /// Level in a tree; level 0 holds the entries, higher levels hold references.
    pub level: U16,
    /// Reserved (F2).
    pub reserved: U16,
    /// Identity of the pool.
    pub pool: [u8; 16],
    /// Generation of the checkpoint that wrote the block; in a journal block the incarnation.
    pub generation: U64,
    /// Address of the block, in bytes from the start of the pool.
    pub address: U64,
    /// Number of the block: position within its level of a tree, sequence number of a journal block, or number of a
    /// member.
    pub index: U64,
    /// Volume that the block was written for; 0 if it belongs to no volume.
    pub owner: U32,
    /// Number of entries in the block; in a journal block the bytes of its records.
    pub count: U32,
}

/// Bytes of a [`Header`].
pub const HEADER: usize = size_of::<Header>();
/// Bytes of a block after its header.
pub const PAYLOAD: usize = BLOCK - HEADER;

/// Superblock, after the header.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SuperblockBody {
    /// Features that a program may ignore.
    pub compat: U32,
    /// Features that a program must know to write the pool.
    pub ro_compat: U32,
    /// Features that a program must know to read the pool.
    pub incompat: U32,
    /// [`STATE_CLEAN`] or 0.
    pub state: U32,
    /// Bytes of an allocation unit.
    pub unit_bytes: U32,
    /// [`SUMS_NONE`] or [`SUMS_CRC32C`].
    pub sums: U32,
    /// Number of allocation units of the pool.
    pub total_units: U64,
    /// Address of the journal.
    pub journal_start: U64,
    /// Number of blocks of the journal.
    pub journal_blocks: U32,
    /// Number that the next volume gets.
    pub next_volume: U32,
    /// Number of times the pool was opened for writing.
    pub incarnation: U64,
    /// Sequence number of the first journal block that the checkpoint does not contain.
    pub replay_seq: U64,
    /// Root of the volume table.
    pub table: Child,
    /// Level of the root page.
    pub table_level: U32,
    /// Number of volumes in the table.
    pub volumes: U32,
    /// Number of members.
    pub members: U32,
    /// When the pool was made, seconds since 1970.
    pub created: U64,
    /// The members, in order.
    pub member: [Member; MAX_MEMBERS],
    /// Root of the tree of data checksums; none for a pool that has no checksums or no data.
    pub sums_root: Child,
    /// Level of the root page.
    pub sums_level: U32,
    /// Low-water mark in free bytes; 0 if `low_water_percent` gives it, or if there is no mark.
    pub low_water: U64,
    /// Low-water mark in percent of the pool. If both fields are 0 there is no mark.
    pub low_water_percent: U32,
    /// Generation of each member's label; 0 for the first member, which has no label, and for labels written when the
    /// pool was made.
    pub labels: [U64; MAX_MEMBERS],
    /// Volumes with numbers below this one may have lost data, in addition to the list. It is 0 if only listed volumes
    /// may have.
    pub lost_below: U32,
    /// Number of entries of `lost`.
    pub lost_count: U32,
    /// Volumes that may have lost data, ascending; unused entries are 0.
    pub lost: [U32; MAX_LOST],
    /// Reserved (F2).
    pub reserved: U32,
    /// Random number of the opening that wrote the superblock; 0 without [`INCOMPAT_OWNERS`].
    pub owner: [u8; 16],
    /// Lowest checkpoint that an up-to-date label can name; 0 if labels name none.
    pub labels_at: U64,
    /// Addresses of the copies of the superblock; 0 without [`INCOMPAT_COPIES`].
    pub copies: [U64; COPIES],
    /// Upper bits of the unit of `table`'s second copy; 0 without [`INCOMPAT_PAIRS`].
    pub table_second: U16,
    /// Upper bits of the unit of `sums_root`'s second copy; 0 without [`INCOMPAT_PAIRS`].
    pub sums_second: U16,
    /// Zero; pads the next field to a multiple of 8.
    pub reserved_end: U32,
    /// The first page of kept records; none without [`INCOMPAT_KEPT`].
    pub kept: Child,
    /// Upper bits of the unit of `kept`'s second copy; 0 without [`INCOMPAT_PAIRS`].
    pub kept_second: U16,
    /// Zero; pads the next field to a multiple of 8.
    pub reserved_kept: U16,
}

/// A member of a concatenation.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Member {
    /// First byte in the pool; a multiple of the allocation unit.
    pub start: U64,
    /// Length in bytes.
    pub len: U64,
}

/// Label of a member other than the first, after the header.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LabelBody {
    /// First byte of the member within the pool.
    pub start: U64,
    /// Bytes of the member when the label was written; the last member may have grown since.
    pub len: U64,
    /// Generation of the last checkpoint that was written while the member was there.
    pub checkpoint: U64,
}

/// Reference to a page; all zero if there is no page.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Child {
    /// Address of the page. With [`INCOMPAT_PAIRS`] its lowest 12 and highest 4 bits are the lower 16 bits of the unit
    /// of the second copy.
    pub address: U64,
    /// Checksum in the page's header.
    pub checksum: U32,
}

/// Page of data checksums, after the header; at most [`MAX_SUMS`] checksums follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SumsHead {
    /// [`SUMS_OPEN`] or 0.
    pub flags: U32,
    /// Head of the list of bad blocks: number of the region's first bad block plus 1, or 0 if there is none. The
    /// checksum slot of each bad block holds the same for the next one.
    pub marked: U32,
}

/// Page of kept records, after the header; the records follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct KeptHead {
    /// Reference to the next page; none in the last one.
    pub next: Child,
    /// Upper bits of the unit of `next`'s second copy; 0 without [`INCOMPAT_PAIRS`].
    pub next_second: U16,
    /// Reserved (F2).
    pub reserved: U16,
}

/// Bytes of records in a page of kept records.
pub const KEPT_PAYLOAD: usize = PAYLOAD - size_of::<KeptHead>();

/// List of free units, after the header; at most [`MAX_FREE_RUNS`] runs follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FreeHead {
    /// Incarnation of the superblock that the list belongs to.
    pub incarnation: U64,
    /// `replay_seq` of the superblock that the list belongs to.
    pub replay_seq: U64,
}

/// A run of consecutive free units.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FreeRun {
    /// First unit of the pool.
    pub first: U64,
    /// Number of units, at least 1.
    pub count: U64,
}

/// Largest number of runs of a list of free units.
pub const MAX_FREE_RUNS: usize = (PAYLOAD - size_of::<FreeHead>()) / size_of::<FreeRun>();

/// Largest number of checksums in a page.
pub const MAX_SUMS: usize = (PAYLOAD - size_of::<SumsHead>()) / 4;
/// Flag: the region was open, so writes to it may have been in flight. After a crash its checksums are computed anew.
pub const SUMS_OPEN: u32 = 1;

/// Journal block, after the header.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct JournalHead {
    /// Sequence number of the first block of this commit.
    pub first: U64,
    /// Number of blocks of this commit.
    pub blocks: U32,
    /// Reserved (F2).
    pub reserved: U32,
}

/// Bytes of records in a journal block.
pub const JOURNAL_PAYLOAD: usize = PAYLOAD - size_of::<JournalHead>();

/// Kinds of records.
pub mod record_kind {
    /// Maps one unit of a volume.
    pub const SET: u8 = 1;
    /// Maps a run of units, all with every block written, or all without space.
    pub const RUN: u8 = 2;
    /// Creates an empty volume.
    pub const CREATE: u8 = 3;
    /// Creates a volume with the map of another one.
    pub const COPY: u8 = 4;
    /// Renames a volume.
    pub const RENAME: u8 = 5;
    /// Changes the size of a volume.
    pub const RESIZE: u8 = 6;
    /// Deletes a volume.
    pub const DELETE: u8 = 7;
    /// Replaces the map of a volume by that of another one.
    pub const ROLLBACK: u8 = 8;
    /// Changes the origin of a volume.
    pub const ORIGIN: u8 = 9;
    /// Opens regions of data that are about to be written to.
    pub const INTENT: u8 = 10;
    /// Changes the size up to which writes may enlarge a volume.
    pub const LIMIT: u8 = 11;
    /// Marks blocks as bad.
    pub const MARK: u8 = 12;
    /// Removes the marks of blocks that have been written since.
    pub const UNMARK: u8 = 13;
    /// Gives a volume its identity.
    pub const IDENTITY: u8 = 14;
    /// Makes a volume interim, or makes an interim volume an ordinary one.
    pub const INTERIM: u8 = 15;
}

/// First part of every record. Records begin at multiples of 8 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RecordHead {
    /// One of [`record_kind`].
    pub kind: u8,
    /// Bytes of the name at the end of the record; 0 for a record without one.
    pub name_len: u8,
    /// Bytes of the record, this head included; a multiple of 8.
    pub len: U16,
    /// The volume that the record is about; 0 if it is about the pool.
    pub volume: U32,
}

/// `SET`, after the head. If there is space, 8 bytes of written bits follow for each 64 blocks of a unit.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SetBody {
    /// Unit of the volume.
    pub unit: U64,
    /// Unit of the pool; 0 if the volume's unit has no space.
    pub phys: U64,
}

/// `RUN`, after the head.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RunBody {
    /// First unit of the volume.
    pub unit: U64,
    /// Number of units.
    pub count: U64,
    /// First unit of the pool. All blocks of the units are written. It is 0 if the run has no space.
    pub phys: U64,
}

/// `CREATE` and `COPY`, after the head; the name follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CreateBody {
    /// Size in bytes; in `COPY` the source's.
    pub size: U64,
    /// Largest size in bytes, for a resize and for growth by writes.
    pub max_size: U64,
    /// Time of creation in seconds since 1970.
    pub created: U64,
    /// Bits of [`MADE_FLAGS`].
    pub flags: U32,
    /// Volume that is copied; 0 for `CREATE`.
    pub source: U32,
}

/// `RESIZE` and `LIMIT`, after the head.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ResizeBody {
    /// New size in bytes; for `LIMIT` the size up to which writes may enlarge the volume.
    pub size: U64,
}

/// `ROLLBACK` and `ORIGIN`, after the head.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SourceBody {
    /// The other volume; in `ORIGIN` 0 removes the origin.
    pub source: U32,
    /// Reserved (F2).
    pub reserved: U32,
}

/// `INTENT`, after the head.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IntentBody {
    /// First region.
    pub first: U64,
    /// Number of regions, at least 1.
    pub count: U64,
}

/// `MARK` and `UNMARK`, after the head.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct MarkBody {
    /// First block of the pool.
    pub first: U64,
    /// Number of blocks, from 1 to [`MAX_MARKS`].
    pub count: U64,
}

/// Largest number of blocks of a `MARK` or `UNMARK`: the number of blocks of the largest unit.
pub const MAX_MARKS: u64 = (MAX_UNIT_BYTES as u64) / BLOCK_BYTES;

/// `IDENTITY`, after the head. In the table it follows the [`VolumeBody`] of a volume that has an identity.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IdentityBody {
    /// Random bits, not all zero. A volume made by an import has the bits of the original.
    pub identity: [u8; 16],
}

/// `INTERIM`, after the head. In the table it stands before the name of an interim volume.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct InterimBody {
    /// [`INTERIM_IMPORT`] or [`INTERIM_IMPORT_DIFF`]; in a record also [`INTERIM_NONE`].
    pub purpose: U32,
    /// Volume that the interim volume is made for; 0 if that does not exist yet.
    pub owner: U32,
}

/// A volume in the table. The bodies that its flags announce follow, then the name, then zeroes up to a multiple of 8.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct VolumeBody {
    /// Number of the volume, never reused.
    pub id: U32,
    /// Bits of [`VOLUME_FLAGS`].
    pub flags: U32,
    /// Size in bytes.
    pub size: U64,
    /// Largest size in bytes, for a resize and for growth by writes.
    pub max_size: U64,
    /// When it was made, seconds since 1970.
    pub created: U64,
    /// Volume or snapshot that this one was copied from, as long as that exists; 0 if none.
    pub origin: U32,
    /// Number of the volume that this one and its relatives descend from. Only relatives share space.
    pub family: U32,
    /// Root page of the map; none for an empty map.
    pub root: Child,
    /// Level of the root page; 0 if there is none.
    pub root_level: u8,
    /// Bytes of the name.
    pub name_len: u8,
    /// Upper bits of the unit of `root`'s second copy; 0 without [`INCOMPAT_PAIRS`].
    pub root_second: U16,
}

/// Returns `len` rounded up to a multiple of 8, so that what follows is aligned.
pub const fn padded(len: usize) -> usize {
    len.next_multiple_of(8)
}

/// Returns the CRC32C of a block, computed with zeroes in place of its header's checksum field.
pub fn checksum(block: &[u8; BLOCK]) -> u32 {
    let at = std::mem::offset_of!(Header, checksum);
    let mut crc = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    crc.update(&block[..at]);
    crc.update(&[0; 4]);
    crc.update(&block[at + 4..]);
    crc.finalize() as u32
}

#[cfg(all(test, not(shuttle)))]
mod tests;
