//! A pool as programs are told of it; the names of the fields are an interface.

use serde::{Deserialize, Serialize};
use sheave_base::units::fmt_bytes;
use sheave_vol::{DiscardState, MapDamage, MemberInfo, PoolInfo};

use crate::place::PoolPlace;

/// A pool, for programs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PoolJson {
    /// As it was named.
    pub pool: String,
    /// Identity.
    pub uuid: String,
    /// Bytes of the device that the pool uses.
    pub size_bytes: u64,
    /// Allocation unit.
    pub block_bytes: u64,
    /// Bytes of volumes' data; what several share counts once.
    pub data_bytes: u64,
    /// Superblocks, journal, pages.
    pub metadata_bytes: u64,
    /// What volumes may still take.
    pub free_bytes: u64,
    /// Freed, and back after the next commit.
    pub pending_bytes: u64,
    /// Free, and kept from use since a damaged map may have it.
    pub quarantined_bytes: u64,
    /// Kept for metadata.
    pub reserve_bytes: u64,
    /// `ok`, `low` or `full`: free space against the low-water mark.
    pub state: String,
    /// Metadata runs short: soon no volume can be created or copied.
    pub metadata_low: bool,
    /// The low-water mark as it was set: `10%`, a number of bytes, or `off`.
    pub low_water: String,
    /// The low-water mark in bytes; 0 without one.
    pub low_water_bytes: u64,
    /// Whether what becomes free goes back to the file system or device below: `on`, `off`, `failed`, or `unsupported`
    /// (on, and the device takes nothing back).
    pub discard: String,
    /// The journal.
    pub journal_bytes: u64,
    /// The devices that it is made of, in order.
    pub members: Vec<MemberJson>,
    /// `none` or `crc32c`.
    pub checksum: String,
    /// Volumes and snapshots.
    pub volumes: u32,
    /// Units of volumes that have space; leaves of maps that snapshots share count once.
    pub entries: u64,
    /// Memory that its maps take while it is open.
    pub memory_bytes: u64,
    /// Number of the newest checkpoint.
    pub generation: u64,
    /// This opening replayed the journal.
    pub recovered: bool,
    /// What the file system that holds the pool's files has free: if it is less than `free_bytes`, writes fail before
    /// the pool is full. `null` for devices.
    pub host_free_bytes: Option<u64>,
    /// Volumes that may have lost acknowledged data, because a flush failed; until that is acknowledged.
    pub lost: Vec<String>,
    /// What a pool of an older program lacks, by name: `sheave pool upgrade` gives it that.
    pub upgrades: Vec<String>,
    /// Volumes whose maps are damaged: they do not open, and can be deleted. The others go on.
    pub damaged: Vec<DamageJson>,
    /// Volumes are read-only and nothing but deletes is taken: the first checkpoint of this opening cannot be written,
    /// for want of space or for a damaged map.
    pub deletes_only: bool,
    /// Copies of each page of metadata.
    pub metadata_copies: u8,
    /// Pages of metadata of which one copy was found damaged or unreadable, and not written anew since.
    pub bad_copies: u64,
}

/// A volume with a damaged map, for programs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DamageJson {
    /// Its name.
    pub volume: String,
    /// First byte of the first damaged page in the pool.
    pub address: u64,
    /// First byte of the volume whose place that page had.
    pub offset: u64,
    /// How many.
    pub length: u64,
    /// How many pages are damaged.
    pub pages: u64,
    /// What is wrong with the first.
    pub why: String,
}

impl DamageJson {
    /// From what the pool tells.
    pub fn new(volume: &str, damage: &MapDamage) -> Self {
        let MapDamage { at, why, range: (offset, length), pages, .. } = damage.clone();
        Self { volume: volume.to_owned(), address: at, offset, length, pages, why }
    }
}

/// A member, for programs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MemberJson {
    /// Where it begins in the pool.
    pub start_bytes: u64,
    /// What the pool has of it.
    pub size_bytes: u64,
}

impl MemberJson {
    /// From what the pool tells.
    pub fn new(member: &MemberInfo) -> Self {
        Self { start_bytes: member.start_bytes, size_bytes: member.size_bytes }
    }
}

/// A pool that was opened to be looked at has not tried whether anything takes space back.
fn discard(place: &PoolPlace, told: DiscardState) -> DiscardState {
    match told {
        DiscardState::On if place.takes_nothing_back() => DiscardState::Unsupported,
        told => told,
    }
}

impl PoolJson {
    /// From what the pool tells.
    pub fn new(place: &PoolPlace, info: &PoolInfo) -> Self {
        Self {
            pool: place.to_string(),
            uuid: info.uuid.clone(),
            size_bytes: info.size_bytes,
            block_bytes: info.unit_bytes,
            data_bytes: info.data_bytes,
            metadata_bytes: info.metadata_bytes,
            free_bytes: info.free_bytes,
            pending_bytes: info.pending_bytes,
            quarantined_bytes: info.quarantined_bytes,
            reserve_bytes: info.reserve_bytes,
            state: info.state.name().into(),
            metadata_low: info.metadata_low,
            low_water: info.low_water.to_string(),
            low_water_bytes: info.low_water_bytes,
            discard: discard(place, info.discard).name().into(),
            journal_bytes: info.journal_bytes,
            members: info.members.iter().map(MemberJson::new).collect(),
            checksum: info.checksum.name().into(),
            volumes: info.volumes,
            entries: info.entries,
            memory_bytes: info.memory_bytes,
            generation: info.generation,
            recovered: info.recovered,
            host_free_bytes: place.host_free_bytes(),
            lost: info.lost.clone(),
            upgrades: info.upgrades.iter().map(|upgrade| upgrade.name.to_owned()).collect(),
            deletes_only: info.deletes_only,
            metadata_copies: info.metadata_copies,
            bad_copies: info.bad_copies,
            damaged: info.damaged.iter().map(|(name, damage)| DamageJson::new(name, damage)).collect(),
        }
    }

    /// A line.
    pub fn in_short(&self) -> String {
        format!(
            "{} in units of {}, {} free, checksums {}",
            fmt_bytes(self.size_bytes),
            fmt_bytes(self.block_bytes),
            fmt_bytes(self.free_bytes),
            self.checksum
        )
    }
}
