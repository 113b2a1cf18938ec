//! Reports about pools and volumes.

use sheave_blk::stats::Faults;

use crate::format::damage::MapDamage;
use crate::format::page::table::Interim;
use crate::format::settings::{Checksum, LowWater};

/// State of a pool's space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum SpaceState {
    /// Enough space.
    #[default]
    Ok,
    /// Less space than the low-water mark.
    Low,
    /// No space for data: first writes fail or wait. Operations that free space still work.
    Full,
}

impl SpaceState {
    /// Returns `ok`, `low` or `full`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            SpaceState::Ok => "ok",
            SpaceState::Low => "low",
            SpaceState::Full => "full",
        }
    }
}

/// Notice that a [`Watch`](crate::Watch) returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpaceNotice {
    /// Number of the change, since the pool was opened.
    pub number: u64,
    /// State after the change.
    pub state: SpaceState,
    /// True if metadata space runs short too: soon no volume can be created or copied.
    pub metadata_low: bool,
    /// Bytes that volumes may still take.
    pub free_bytes: u64,
    /// The low-water mark.
    pub low_water_bytes: u64,
}

/// State of the background discard, which returns the space of freed units to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DiscardState {
    /// Turned off: only [`Pool::trim`](crate::Pool::trim) discards.
    Off,
    /// Turned on.
    On,
    /// Turned on, but the device takes no discards.
    Unsupported,
    /// A discard failed with this status. No more are sent until the pool is opened again.
    Failed(sheave_base::status::Status),
}

impl DiscardState {
    /// Returns a word for reports.
    pub fn name(self) -> &'static str {
        match self {
            DiscardState::Off => "off",
            DiscardState::On => "on",
            DiscardState::Unsupported => "unsupported",
            DiscardState::Failed(_) => "failed",
        }
    }
}

/// State of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolInfo {
    /// Identity, as 32 hexadecimal digits.
    pub uuid: String,
    /// Bytes of the device that the pool uses.
    pub size_bytes: u64,
    /// Allocation unit in bytes.
    pub unit_bytes: u64,
    /// Bytes of volumes' data.
    pub data_bytes: u64,
    /// Bytes of metadata: superblocks, journal, pages.
    pub metadata_bytes: u64,
    /// Bytes that volumes may still take, without the reserve.
    pub free_bytes: u64,
    /// Bytes that were freed and become available after the next commit.
    pub pending_bytes: u64,
    /// Free bytes that are withheld, because a damaged map may refer to them, until no volume with such a map is left.
    pub quarantined_bytes: u64,
    /// Bytes kept for metadata.
    pub reserve_bytes: u64,
    /// State of the free space, compared with the low-water mark.
    pub state: SpaceState,
    /// True if metadata space runs short: soon no volume can be created or copied.
    pub metadata_low: bool,
    /// The low-water mark as it was set.
    pub low_water: LowWater,
    /// The low-water mark in bytes; 0 without one.
    pub low_water_bytes: u64,
    /// State of the background discard.
    pub discard: DiscardState,
    /// Bytes that became free and have not been discarded yet.
    pub discard_pending_bytes: u64,
    /// Bytes of the journal.
    pub journal_bytes: u64,
    /// Devices that the pool is made of, in order.
    pub members: Vec<MemberInfo>,
    /// Number of volumes and snapshots.
    pub volumes: u32,
    /// Number of entries of all maps that have space, one for each unit of a volume. Leaves that snapshots share count
    /// once.
    pub entries: u64,
    /// Memory that the maps take.
    pub memory_bytes: u64,
    /// Superblock generation.
    pub generation: u64,
    /// Checksums of data.
    pub checksum: Checksum,
    /// Blocks that did not match their checksum since the pool was opened.
    pub checksum_errors: u64,
    /// Number of blocks that were reported bad and have not been rewritten since.
    pub bad_blocks: u64,
    /// Number of blocks of regions open at a crash whose data did not match the checksums at the last opening. Their
    /// data was accepted as it was.
    pub rebuilt_checksums: u64,
    /// True if the last opening had to replay the journal.
    pub recovered: bool,
    /// Status of a failed flush of the device. Only reads continue until the pool is opened again.
    pub degraded: Option<sheave_base::status::Status>,
    /// Description of another opening that has the pool. Nothing is written here any more.
    pub taken_by: Option<String>,
    /// Features that the pool lacks because an older program made it; [`Pool::upgrade`](crate::Pool::upgrade) adds
    /// them.
    pub upgrades: Vec<&'static Upgrade>,
    /// Volumes with damaged maps, by name. They do not open until `check --repair` has repaired them, but can be
    /// deleted. All other volumes work ([`Pool::open`](crate::Pool::open)).
    pub damaged: Vec<(String, MapDamage)>,
    /// Descriptions of what an opening with [`OpenOptions::rescue`](crate::OpenOptions::rescue) passed over.
    pub unsure: Vec<String>,
    /// Reason why acknowledged writes may be lost with the process although they reached the storage; `None` if they
    /// survive it ([`OpenOptions::runtime_dir`](crate::OpenOptions::runtime_dir)).
    pub no_recent: Option<String>,
    /// True if the last write to space that was never used found that the file system which holds the pool is full.
    /// While it is true, only reads, overwrites, flushes, deletes and closing continue.
    pub host_full: bool,
    /// Number of writes refused since the pool was opened because the file system that holds the pool is full.
    pub host_refusals: u64,
    /// Number of times that the pool became full since it was opened.
    pub times_full: u64,
    /// Number of times that metadata began to run short since the pool was opened.
    pub times_metadata_low: u64,
    /// Number of requests that ended with a fault of the device below since it was opened, and the status of a recent
    /// one.
    pub device_faults: Faults,
    /// True if changes that a crash left unwritten cannot be written: the host has no space, or a damaged map stands in
    /// the way. Volumes are read-only, and only deletes are accepted, until these have removed the cause.
    pub deletes_only: bool,
    /// Number of copies of each page of metadata: 1 or 2.
    pub metadata_copies: u8,
    /// Number of metadata blocks of which one copy was found damaged or unreadable since the pool was opened, and
    /// another copy good. These are pages, and copies of the superblock that a scrub could not rewrite. Scrubs rewrite
    /// such copies.
    pub bad_copies: u64,
    /// Names of the volumes that may have lost acknowledged data, because a flush failed in an earlier opening.
    /// [`Pool::acknowledge_loss`](crate::Pool::acknowledge_loss) clears them.
    pub lost: Vec<String>,
}

/// A feature that a pool of an older program lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Upgrade {
    /// Name for scripts.
    pub name: &'static str,
    /// Description of what the pool does not guarantee without the feature.
    pub lacks: &'static str,
    /// Description of what is different with the feature.
    pub gives: &'static str,
}

/// A device that a pool is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberInfo {
    /// First byte in the pool.
    pub start_bytes: u64,
    /// Number of bytes of the device that the pool uses.
    pub size_bytes: u64,
}

/// State of a volume or snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VolumeInfo {
    /// Number within the pool; never used again.
    pub id: u32,
    /// Name.
    pub name: String,
    /// Size that users see.
    pub size_bytes: u64,
    /// Largest size that writes beyond the end may give it; `None` if such writes fail.
    pub max_size_bytes: Option<u64>,
    /// True for a snapshot, which cannot be written.
    pub snapshot: bool,
    /// Name of the volume or snapshot that this one was copied from, as long as it exists.
    pub origin: Option<String>,
    /// Bytes of space that the volume has.
    pub allocated_bytes: u64,
    /// Bytes of that space that others share.
    pub shared_bytes: u64,
    /// Bytes of that space that the volume does not share: deleting it frees them.
    pub unique_bytes: u64,
    /// Bytes of data written, in blocks of 4 KiB.
    pub written_bytes: u64,
    /// Time of creation, in seconds since 1970.
    pub created: u64,
    /// Random bits that no other volume has, except its copies in other pools. `None` if an older program made it, or
    /// the pool [lacks identities](PoolInfo::upgrades). Renaming and rolling back do not change them.
    pub identity: Option<[u8; 16]>,
    /// Set for a temporary volume. It is deleted when its purpose has ended, or when the pool is next opened for
    /// writing.
    pub interim: Option<Interim>,
    /// Damage of the volume's map. The volume does not open, and its space is not known.
    pub damage: Option<MapDamage>,
}

/// State of a range of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExtentKind {
    /// Written data.
    Data,
    /// Space without data; reads as zeroes.
    Unwritten,
    /// No space; reads as zeroes.
    Hole,
}

/// A range of a volume with one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Extent {
    /// First byte.
    pub pos: u64,
    /// Length in bytes.
    pub len: u64,
    /// State of all bytes of the range.
    pub kind: ExtentKind,
    /// First byte on the pool's device; 0 for a hole.
    pub addr: u64,
    /// True if others share the space.
    pub shared: bool,
}

impl Extent {
    /// Creates an extent whose space has no address yet, and no other owner.
    pub fn new(pos: u64, len: u64, kind: ExtentKind) -> Extent {
        Extent { pos, len, kind, addr: 0, shared: false }
    }
}

sheave_base::setters!(Extent { addr: u64, shared: bool });

/// Differences of two volumes; see [`Volume::differences_since`](crate::Volume::differences_since).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Differences {
    /// The extents that differ, in order.
    pub extents: Vec<Extent>,
    /// Position at which the comparison ended: at or beyond the end of the range, or where `go_on` ended it.
    pub upto: u64,
    /// Bytes that were read to compare them, of both volumes together.
    pub read_bytes: u64,
}
