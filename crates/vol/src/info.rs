//! What reports tell of pools and volumes.

use sheave_blk::stats::Faults;

use crate::format::damage::MapDamage;
use crate::format::page::table::Interim;
use crate::format::settings::{Checksum, LowWater};

/// How much space is left, in one word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum SpaceState {
    /// Enough.
    #[default]
    Ok,
    /// Less than the low-water mark.
    Low,
    /// None for data: first writes fail or wait. What frees space still works.
    Full,
}

impl SpaceState {
    /// `ok`, `low` or `full`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            SpaceState::Ok => "ok",
            SpaceState::Low => "low",
            SpaceState::Full => "full",
        }
    }
}

/// What a [`Watch`](crate::Watch) tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpaceNotice {
    /// Number of the change, since the pool was opened.
    pub number: u64,
    /// What the state is now.
    pub state: SpaceState,
    /// Metadata runs short too: soon no volume can be created or copied.
    pub metadata_low: bool,
    /// Bytes that volumes may still take.
    pub free_bytes: u64,
    /// The low-water mark.
    pub low_water_bytes: u64,
}

/// Whether what becomes free is given back to the device in the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DiscardState {
    /// Not: [`Pool::trim`](crate::Pool::trim) does it when asked.
    Off,
    /// It is.
    On,
    /// It is to be, and the device takes nothing back.
    Unsupported,
    /// A discard failed in this way: no more until the pool is opened again.
    Failed(sheave_base::status::Status),
}

impl DiscardState {
    /// A word for it.
    pub fn name(self) -> &'static str {
        match self {
            DiscardState::Off => "off",
            DiscardState::On => "on",
            DiscardState::Unsupported => "unsupported",
            DiscardState::Failed(_) => "failed",
        }
    }
}

/// A pool.
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
    /// Bytes that volumes may still take; the reserve is not among them.
    pub free_bytes: u64,
    /// Bytes freed that come back after the next commit.
    pub pending_bytes: u64,
    /// Free bytes that nobody gets, for a damaged map may have them, until no volume with one is left.
    pub quarantined_bytes: u64,
    /// Bytes kept for metadata.
    pub reserve_bytes: u64,
    /// Free space against the low-water mark.
    pub state: SpaceState,
    /// Metadata runs short: soon no volume can be created or copied.
    pub metadata_low: bool,
    /// The low-water mark as it was set.
    pub low_water: LowWater,
    /// The low-water mark in bytes; 0 without one.
    pub low_water_bytes: u64,
    /// Whether what becomes free goes back to the device.
    pub discard: DiscardState,
    /// Bytes that became free and have not been given back yet.
    pub discard_pending_bytes: u64,
    /// Bytes of the journal.
    pub journal_bytes: u64,
    /// The devices that it is made of, in order.
    pub members: Vec<MemberInfo>,
    /// Volumes and snapshots.
    pub volumes: u32,
    /// Entries of all maps that have space, one for each unit of a volume; leaves that snapshots share count once.
    pub entries: u64,
    /// Memory that the maps take.
    pub memory_bytes: u64,
    /// Superblock generation.
    pub generation: u64,
    /// Whether data has checksums.
    pub checksum: Checksum,
    /// Blocks that did not match their checksum, since it was opened.
    pub checksum_errors: u64,
    /// Blocks that were told bad, and stay so until they are written anew.
    pub bad_blocks: u64,
    /// Blocks of regions that were open at a crash and did not match: they were believed, at the last opening.
    pub rebuilt_checksums: u64,
    /// The last opening had to replay the journal.
    pub recovered: bool,
    /// A flush of the device failed, in this way: reads go on, and nothing else until the pool is opened again.
    pub degraded: Option<sheave_base::status::Status>,
    /// Another opening has the pool, in words: nothing is written any more.
    pub taken_by: Option<String>,
    /// What it lacks because an older program made it: [`Pool::upgrade`](crate::Pool::upgrade) gives it that.
    pub upgrades: Vec<&'static Upgrade>,
    /// Volumes whose maps are damaged, by name: they do not open until `check --repair` has mended them, and can be
    /// deleted. The others work ([`Pool::open`](crate::Pool::open)).
    pub damaged: Vec<(String, MapDamage)>,
    /// What an opening with [`OpenOptions::rescue`](crate::OpenOptions::rescue) passed over, in words.
    pub unsure: Vec<String>,
    /// The last write to space that was never used found that the file system which holds the pool is full: reads,
    /// overwrites, flushes, deletes and closing go on, until there is room again.
    pub host_full: bool,
    /// How often a write was refused since the pool was opened, because the file system that holds the pool is full.
    pub host_refusals: u64,
    /// How often the pool has become full since it was opened.
    pub times_full: u64,
    /// How often metadata has begun to run short since the pool was opened.
    pub times_metadata_low: u64,
    /// Requests that ended with a fault of the device below since that was opened, and the status of one of the newest.
    pub device_faults: Faults,
    /// What a crash left to be written cannot be: the host has no space for it, or a damaged map stands in the way.
    /// Volumes are read-only, and nothing but deletes is taken, until these have removed the cause.
    pub deletes_only: bool,
    /// Copies that there are of each page of metadata: 1 or 2.
    pub metadata_copies: u8,
    /// Blocks of metadata of which one copy was found damaged or unreadable since the pool was opened, and another
    /// good: pages, and copies of the superblock that a scrub could not write anew. Scrubs write such copies anew.
    pub bad_copies: u64,
    /// Names of the volumes that may have lost acknowledged data, because a flush failed while the pool was open
    /// before; until [`Pool::acknowledge_loss`](crate::Pool::acknowledge_loss).
    pub lost: Vec<String>,
}

/// Something that a pool of an older program lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Upgrade {
    /// Its name, for scripts.
    pub name: &'static str,
    /// What the pool does not do without it.
    pub lacks: &'static str,
    /// What is different with it.
    pub gives: &'static str,
}

/// A device that a pool is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberInfo {
    /// Where it begins in the pool.
    pub start_bytes: u64,
    /// What the pool has of it.
    pub size_bytes: u64,
}

/// A volume or snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VolumeInfo {
    /// Number within the pool; never used again.
    pub id: u32,
    /// Name.
    pub name: String,
    /// Size that users see.
    pub size_bytes: u64,
    /// How large writes beyond its end may make it; `None` when they fail.
    pub max_size_bytes: Option<u64>,
    /// Cannot be written.
    pub snapshot: bool,
    /// Name of the volume or snapshot that this was made of, while it exists.
    pub origin: Option<String>,
    /// Space it has.
    pub allocated_bytes: u64,
    /// Of that, shared with others.
    pub shared_bytes: u64,
    /// Of that, its own: what deleting it gives back.
    pub unique_bytes: u64,
    /// Data written, at 4 KiB.
    pub written_bytes: u64,
    /// Made at, seconds since 1970.
    pub created: u64,
    /// Random bits that tell it from all others, its copies in other pools excepted; none if an older program made it,
    /// or the pool [lacks identities](PoolInfo::upgrades). Another name or a rollback changes nothing of it.
    pub identity: Option<[u8; 16]>,
    /// It goes again when what it is made for has ended, or when the pool is opened for writing the next time.
    pub interim: Option<Interim>,
    /// Pages of its map are damaged: it does not open, and what it takes is not known.
    pub damage: Option<MapDamage>,
}

/// State of a range of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExtentKind {
    /// Written.
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
    /// Bytes.
    pub len: u64,
    /// State.
    pub kind: ExtentKind,
    /// First byte on the pool's device; 0 for a hole.
    pub addr: u64,
    /// Others have the same space.
    pub shared: bool,
}

impl Extent {
    /// A range whose space has no address yet, and no other owner.
    pub fn new(pos: u64, len: u64, kind: ExtentKind) -> Extent {
        Extent { pos, len, kind, addr: 0, shared: false }
    }
}

sheave_base::setters!(Extent { addr: u64, shared: bool });

/// Where two volumes differ; [`Volume::differences_since`](crate::Volume::differences_since).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Differences {
    /// The extents that differ, in order.
    pub extents: Vec<Extent>,
    /// Where the comparison ended: at or beyond the end of the range, or where it was told to end.
    pub upto: u64,
    /// Bytes that were read to compare them, of both volumes together.
    pub read_bytes: u64,
}
