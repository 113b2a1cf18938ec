//! The on-disk format: every offset, size, magic number and limit of a pool.
//!
//! Owns the structures as they lie on the device (little-endian, no padding, no alignment) and the numbers that bound
//! them. Does not own what they mean together: [`superblock`], [`record`],
//! [`journal`] and [`page`] encode and decode them, and nothing else looks at bytes.
//! `docs/on-disk-format.md` has the same tables with the reason for each field; a test compares the two.
//!
//! Invariants:
//! - F1: each metadata block is 4 KiB at a multiple of 4 KiB and begins with a [`Header`], whose CRC32C covers the
//!   block. Place and algorithm of that checksum never change, whatever the version: it is verified before anything is
//!   believed.
//! - F2: what is reserved is zero when written and refused when it is not zero.
//! - F3: a reference to a page ([`Child`]) holds the page's checksum, so that an old page at the right place is
//!   noticed.

pub mod block;
pub mod damage;
pub mod geometry;
pub mod journal;
pub mod page;
pub mod record;
pub mod settings;
pub mod superblock;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a metadata block, and the grain of written bits and data checksums.
pub const BLOCK: usize = 4096;
/// [`BLOCK`] as a 64-bit number, for arithmetic on addresses.
pub const BLOCK_BYTES: u64 = BLOCK as u64;
/// [`BLOCK`] as a power of two.
pub const BLOCK_SHIFT: u32 = BLOCK.ilog2();
/// Begins every metadata block.
pub const MAGIC: [u8; 4] = *b"SHVE";
/// Version of the format that is written. A newer one is refused.
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
    /// First block of each further member of a concatenation.
    pub const LABEL: u16 = 6;
    /// Checksums of data.
    pub const SUMS: u16 = 7;
    /// A copy of the superblock, at a place that the superblock names.
    pub const SUPERBLOCK_COPY: u16 = 8;
    /// Units that are free for certain.
    pub const FREE: u16 = 9;
    /// Records about what lies behind damaged pages.
    pub const KEPT: u16 = 10;
    /// The superblock of a checkpoint, in a page among its others, to which nothing refers.
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
/// Most allocation units of a pool: 64 TiB of the smallest, 1 PiB of 64 KiB.
pub const MAX_POOL_UNITS: u64 = 1 << 34;
/// Most allocation units of a pool with two copies of its pages: references have 32 bits for the unit of the second.
pub const MAX_PAIRED_UNITS: u64 = 1 << 32;
/// Most allocation units of a volume.
pub const MAX_VOLUME_UNITS: u64 = 1 << 34;
/// Fewest blocks of a journal.
pub const MIN_JOURNAL_BLOCKS: u32 = 16;
/// Most blocks of a journal (64 MiB): recovery reads them all into memory.
pub const MAX_JOURNAL_BLOCKS: u32 = 16_384;
/// Most members of a concatenation: as many as a device has legs.
pub const MAX_MEMBERS: usize = 64;
/// Most volumes and snapshots of a pool: fewer than a unit may have owners.
pub const MAX_VOLUMES: u32 = 65_000;
/// Most volumes that the superblock lists one by one as those that may have lost data.
pub const MAX_LOST: usize = 256;
/// Copies of the superblock.
pub const COPIES: usize = 2;
/// Most bytes of a name.
pub const MAX_NAME: usize = 255;

/// Children of an index page.
pub const INDEX_CHILDREN: usize = 256;
/// Most entries of a leaf. Units of 256 KiB and more have fewer, so that a leaf with its bitmaps fits one block.
pub const MAX_LEAF_ENTRIES: usize = 256;
/// Most words of written bits of a leaf.
pub const MAX_LEAF_WORDS: usize = 256;
/// Highest level of an index page: leaves are level 0, and 256^4 leaves are more than any volume has.
pub const MAX_LEVEL: u16 = 4;

/// The pool was closed: nothing is to be replayed.
pub const STATE_CLEAN: u32 = 1;

/// Features a program need not know to write the pool, and that this one knows.
pub const KNOWN_COMPAT: u32 = COMPAT_DISCARD;
/// Bit of `compat`: what becomes free is given back to the device below in the background.
pub const COMPAT_DISCARD: u32 = 1;
/// Bit of `compat` at which the number begins that says which opening kept the rule of both superblocks (S3 of
/// [`superblock`]). The bits below are features.
pub const TWINS_SHIFT: u32 = 16;
/// Features a program must know to write the pool, not to read it. None yet.
pub const KNOWN_RO_COMPAT: u32 = 0;
/// Features a program must know to read the pool, and that this one knows.
pub const KNOWN_INCOMPAT: u32 = INCOMPAT_SUMS
    | INCOMPAT_LOST
    | INCOMPAT_MARKS
    | INCOMPAT_IDENTITIES
    | INCOMPAT_OWNERS
    | INCOMPAT_COPIES
    | INCOMPAT_PAIRS
    | INCOMPAT_KEPT
    | INCOMPAT_OFF_GRID;
/// Data has checksums: who does not keep them would make good data look rotten.
pub const INCOMPAT_SUMS: u32 = 1;
/// Volumes are listed that may have lost data: who does not know of the list would drop it unread.
pub const INCOMPAT_LOST: u32 = 2;
/// Blocks may be marked as bad: who does not know marks would take these blocks for good after a crash.
pub const INCOMPAT_MARKS: u32 = 4;
/// Volumes have identities, and may be interim: who does not know that would take their entries for damaged.
pub const INCOMPAT_IDENTITIES: u32 = 8;
/// Each opening for writing has a number of its own: who writes none would pass for the opening before.
pub const INCOMPAT_OWNERS: u32 = 16;
/// The superblock has copies: who does not know of them would write data to their places, and leave them old.
pub const INCOMPAT_COPIES: u32 = 32;
/// Each page of the trees has a second copy: who does not know of it would give its unit to volumes.
pub const INCOMPAT_PAIRS: u32 = 64;
/// Records are kept of what lies behind damaged pages: who does not know of them would lose what they say.
pub const INCOMPAT_KEPT: u32 = 128;
/// Copies of the superblock lie where programs refuse them that know [`INCOMPAT_COPIES`] alone.
pub const INCOMPAT_OFF_GRID: u32 = 256;

/// Data has no checksums.
pub const SUMS_NONE: u32 = 0;
/// CRC32C of each 4 KiB of data.
pub const SUMS_CRC32C: u32 = 1;

/// A volume that cannot be written.
pub const VOLUME_SNAPSHOT: u32 = 1;
/// A volume that writes beyond its end make larger.
pub const VOLUME_GROWS: u32 = 2;
/// A volume that goes again: an [`InterimBody`] follows.
pub const VOLUME_INTERIM: u32 = 4;
/// A volume with an identity: an [`IdentityBody`] follows.
pub const VOLUME_IDENTITY: u32 = 8;
/// All flags of volumes that are made, in `CREATE` and `COPY`; what the others stand for are records of their own.
pub const MADE_FLAGS: u32 = VOLUME_SNAPSHOT | VOLUME_GROWS;
/// All flags of volumes.
pub const VOLUME_FLAGS: u32 = MADE_FLAGS | VOLUME_INTERIM | VOLUME_IDENTITY;

/// An interim volume is none any more.
pub const INTERIM_NONE: u32 = 0;
/// An image is being imported into it.
pub const INTERIM_IMPORT: u32 = 1;
/// A diff is being imported into it.
pub const INTERIM_IMPORT_DIFF: u32 = 2;

/// First part of every metadata block.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: [u8; 4],
    /// One of [`kind`].
    pub kind: U16,
    /// [`VERSION`].
    pub version: U16,
    /// CRC32C of the block with this field zero.
    pub checksum: U32,
    /// Level in a tree: 0 is what the tree is for.
    pub level: U16,
    /// Zero.
    pub reserved: U16,
    /// Identity of the pool.
    pub pool: [u8; 16],
    /// Of the checkpoint that wrote the block; the incarnation in a journal block.
    pub generation: U64,
    /// Where the block is, in bytes from the start of the pool.
    pub address: U64,
    /// Which one it is: number among those of its level; sequence number of a journal block; number of a member.
    pub index: U64,
    /// Volume it was written for; 0 for what belongs to none.
    pub owner: U32,
    /// What is in it: entries, or bytes of records.
    pub count: U32,
}

/// Bytes of a [`Header`].
pub const HEADER: usize = size_of::<Header>();
/// Bytes after it.
pub const PAYLOAD: usize = BLOCK - HEADER;

/// Superblock, after the header.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SuperblockBody {
    /// Features that may be ignored.
    pub compat: U32,
    /// Features that must be known to write.
    pub ro_compat: U32,
    /// Features that must be known to read.
    pub incompat: U32,
    /// [`STATE_CLEAN`] or 0.
    pub state: U32,
    /// Bytes of an allocation unit.
    pub unit_bytes: U32,
    /// [`SUMS_NONE`] or [`SUMS_CRC32C`].
    pub sums: U32,
    /// Allocation units of the pool.
    pub total_units: U64,
    /// Address of the journal.
    pub journal_start: U64,
    /// Blocks of the journal.
    pub journal_blocks: U32,
    /// Number that the next volume gets.
    pub next_volume: U32,
    /// How often the pool was opened for writing.
    pub incarnation: U64,
    /// First journal block that the checkpoint does not contain.
    pub replay_seq: U64,
    /// Root of the volume table.
    pub table: Child,
    /// Level of that page.
    pub table_level: U32,
    /// Volumes in the table.
    pub volumes: U32,
    /// Members in use.
    pub members: U32,
    /// When the pool was made, seconds since 1970.
    pub created: U64,
    /// The members, in order.
    pub member: [Member; MAX_MEMBERS],
    /// Root of the checksums of data; none for a pool without them, or without data.
    pub sums_root: Child,
    /// Level of that page.
    pub sums_level: U32,
    /// Free bytes below which the pool is low; 0: the next field says it.
    pub low_water: U64,
    /// The low-water mark in percent of the pool; 0 in both fields: there is no mark.
    pub low_water_percent: U32,
    /// Generations of the members' labels; 0 for the first, which has none, and for those of the formatting.
    pub labels: [U64; MAX_MEMBERS],
    /// All volumes with smaller numbers may have lost data; 0: none but those that follow.
    pub lost_below: U32,
    /// Entries of the list that follows.
    pub lost_count: U32,
    /// Volumes that may have lost data, ascending; the rest is 0.
    pub lost: [U32; MAX_LOST],
    /// Zero.
    pub reserved: U32,
    /// Random number of the opening that wrote it; 0 without [`INCOMPAT_OWNERS`].
    pub owner: [u8; 16],
    /// Checkpoint that the labels have at least; 0: labels say nothing of checkpoints.
    pub labels_at: U64,
    /// Where the copies of the superblock lie; 0 without [`INCOMPAT_COPIES`].
    pub copies: [U64; COPIES],
    /// Upper bits of the unit that has the second copy of `table`; 0 without [`INCOMPAT_PAIRS`].
    pub table_second: U16,
    /// Upper bits of the unit that has the second copy of `sums_root`; 0 without [`INCOMPAT_PAIRS`].
    pub sums_second: U16,
    /// Zero, so that the fields below are at multiples of 8.
    pub reserved_end: U32,
    /// The first page of kept records; none without [`INCOMPAT_KEPT`].
    pub kept: Child,
    /// Upper bits of the unit that has the second copy of that page; 0 without [`INCOMPAT_PAIRS`].
    pub kept_second: U16,
    /// Zero, so that the fields below are at multiples of 8.
    pub reserved_kept: U16,
}

/// A member of a concatenation.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Member {
    /// First byte in the pool; a multiple of the allocation unit.
    pub start: U64,
    /// Bytes.
    pub len: U64,
}

/// Label of a further member, after the header.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LabelBody {
    /// Where the member begins in the pool.
    pub start: U64,
    /// Its bytes when the label was written; the last member may have grown since.
    pub len: U64,
    /// Generation of the last checkpoint that was written while the member was there.
    pub checkpoint: U64,
}

/// Reference to a page; all zero: none.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Child {
    /// Where the page is; with [`INCOMPAT_PAIRS`], in its lowest 12 and highest 4 bits, the lower 16 bits of the unit
    /// that has its second copy.
    pub address: U64,
    /// The checksum in its header.
    pub checksum: U32,
}

/// Page of data checksums, after the header; then [`MAX_SUMS`] checksums at most.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SumsHead {
    /// [`SUMS_OPEN`] or 0.
    pub flags: U32,
    /// 1 more than the number of the first block of the region that was told bad; 0: there is none. What stands in the
    /// place of such a block's checksum says the same of the next.
    pub marked: U32,
}

/// Page of kept records, after the header; then the records.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct KeptHead {
    /// The next page; none in the last.
    pub next: Child,
    /// Upper bits of the unit that has the second copy of that page; 0 without [`INCOMPAT_PAIRS`].
    pub next_second: U16,
    /// Zero.
    pub reserved: U16,
}

/// Bytes of records in a page of kept records.
pub const KEPT_PAYLOAD: usize = PAYLOAD - size_of::<KeptHead>();

/// List of free units, after the header; then [`MAX_FREE_RUNS`] runs at most.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FreeHead {
    /// Of the superblock that it belongs to.
    pub incarnation: U64,
    /// Of the superblock that it belongs to.
    pub replay_seq: U64,
}

/// Units that follow each other, all free.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FreeRun {
    /// First unit of the pool.
    pub first: U64,
    /// Units; at least 1.
    pub count: U64,
}

/// Most runs of a list of free units.
pub const MAX_FREE_RUNS: usize = (PAYLOAD - size_of::<FreeHead>()) / size_of::<FreeRun>();

/// Most checksums of a page.
pub const MAX_SUMS: usize = (PAYLOAD - size_of::<SumsHead>()) / 4;
/// Writes to the region may have been under way: its checksums are computed anew when the pool was not closed.
pub const SUMS_OPEN: u32 = 1;

/// Journal block, after the header.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct JournalHead {
    /// Sequence number of the first block of this commit.
    pub first: U64,
    /// Blocks of this commit.
    pub blocks: U32,
    /// Zero.
    pub reserved: U32,
}

/// Bytes of records in a journal block.
pub const JOURNAL_PAYLOAD: usize = PAYLOAD - size_of::<JournalHead>();

/// Kinds of records.
pub mod record_kind {
    /// One unit of a volume.
    pub const SET: u8 = 1;
    /// A run of units, all written or all without space.
    pub const RUN: u8 = 2;
    /// A new volume.
    pub const CREATE: u8 = 3;
    /// A new volume with the map of another.
    pub const COPY: u8 = 4;
    /// Another name.
    pub const RENAME: u8 = 5;
    /// Another size.
    pub const RESIZE: u8 = 6;
    /// Gone.
    pub const DELETE: u8 = 7;
    /// The map of another.
    pub const ROLLBACK: u8 = 8;
    /// Another origin.
    pub const ORIGIN: u8 = 9;
    /// Regions that will be written to.
    pub const INTENT: u8 = 10;
    /// Another largest size.
    pub const LIMIT: u8 = 11;
    /// Blocks that were told bad.
    pub const MARK: u8 = 12;
    /// Such blocks that have been written since.
    pub const UNMARK: u8 = 13;
    /// The identity of a volume.
    pub const IDENTITY: u8 = 14;
    /// It goes again, or does not any more.
    pub const INTERIM: u8 = 15;
}

/// First part of every record. Records begin at multiples of 8 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RecordHead {
    /// One of [`record_kind`].
    pub kind: u8,
    /// Bytes of the name at its end; 0 for a record without one.
    pub name_len: u8,
    /// Bytes of the record, this head included; a multiple of 8.
    pub len: U16,
    /// The volume.
    pub volume: U32,
}

/// `SET`, after the head; then 8 bytes of written bits for each 64 blocks of a unit, if there is space.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SetBody {
    /// Unit of the volume.
    pub unit: U64,
    /// Unit of the pool; 0: none.
    pub phys: U64,
}

/// `RUN`, after the head.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RunBody {
    /// First unit of the volume.
    pub unit: U64,
    /// Units.
    pub count: U64,
    /// First unit of the pool, all blocks written; 0: no space.
    pub phys: U64,
}

/// `CREATE` and `COPY`, after the head; then the name.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CreateBody {
    /// Bytes; of a copy: those of the source.
    pub size: U64,
    /// Most bytes it may be resized to, or that writes may make it.
    pub max_size: U64,
    /// When, seconds since 1970.
    pub created: U64,
    /// [`MADE_FLAGS`].
    pub flags: U32,
    /// What it is a copy of; 0 for `CREATE`.
    pub source: U32,
}

/// `RESIZE` and `LIMIT`, after the head.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ResizeBody {
    /// Bytes; for `LIMIT` the most that writes may make it.
    pub size: U64,
}

/// `ROLLBACK` and `ORIGIN`, after the head.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SourceBody {
    /// The other volume; for `ORIGIN` 0 means none.
    pub source: U32,
    /// Zero.
    pub reserved: U32,
}

/// `INTENT`, after the head.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IntentBody {
    /// First region.
    pub first: U64,
    /// Regions; at least 1.
    pub count: U64,
}

/// `MARK` and `UNMARK`, after the head.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct MarkBody {
    /// First block of the pool.
    pub first: U64,
    /// Blocks; from 1 to [`MAX_MARKS`].
    pub count: U64,
}

/// Most blocks of a `MARK` or `UNMARK`: those of the largest unit.
pub const MAX_MARKS: u64 = (MAX_UNIT_BYTES as u64) / BLOCK_BYTES;

/// `IDENTITY`, after the head; and in the table after the [`VolumeBody`] of a volume that has one.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IdentityBody {
    /// Random bits, not all zero; of a copy that an import made those of the original.
    pub identity: [u8; 16],
}

/// `INTERIM`, after the head; and in the table of an interim volume, before its name.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct InterimBody {
    /// [`INTERIM_IMPORT`] or [`INTERIM_IMPORT_DIFF`]; in a record also [`INTERIM_NONE`].
    pub purpose: U32,
    /// The volume that it is made for; 0: one that is to be.
    pub owner: U32,
}

/// A volume in the table; then what its flags say; then the name, then zeroes up to a multiple of 8.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct VolumeBody {
    /// Number; never used again.
    pub id: U32,
    /// [`VOLUME_FLAGS`].
    pub flags: U32,
    /// Bytes.
    pub size: U64,
    /// Most bytes it may be resized to, or that writes may make it.
    pub max_size: U64,
    /// When it was made, seconds since 1970.
    pub created: U64,
    /// What it was made of, while that exists; 0: nothing.
    pub origin: U32,
    /// Number of the volume that all its relatives descend from. Only relatives share space.
    pub family: U32,
    /// Root of its map; none for an empty map.
    pub root: Child,
    /// Level of that page; 0 without one.
    pub root_level: u8,
    /// Bytes of the name.
    pub name_len: u8,
    /// Upper bits of the unit that has the second copy of `root`; 0 without [`INCOMPAT_PAIRS`].
    pub root_second: U16,
}

/// Bytes that `len` bytes take with what follows aligned to 8.
pub const fn padded(len: usize) -> usize {
    len.next_multiple_of(8)
}

/// CRC32C of a block with the checksum field of its header taken as zero.
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
