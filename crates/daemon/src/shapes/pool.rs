//! JSON of a pool. The field names are an interface.

use serde::{Deserialize, Serialize};
use sheave_base::units::fmt_bytes;
use sheave_vol::{DiscardState, MapDamage, MemberInfo, PoolInfo};

use crate::place::PoolPlace;

/// A pool as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PoolJson {
    /// Name that was given on the command line.
    pub pool: String,
    pub uuid: String,
    /// Bytes of the device that the pool uses.
    pub size_bytes: u64,
    /// Allocation unit.
    pub block_bytes: u64,
    /// Bytes of data of volumes; shared data counts once.
    pub data_bytes: u64,
    /// Bytes of superblocks, journal and pages.
    pub metadata_bytes: u64,
    /// Bytes that volumes may still allocate.
    pub free_bytes: u64,
    /// Bytes that were freed, and become available after the next commit.
    pub pending_bytes: u64,
    /// Free bytes that are not used, because a damaged map may refer to them.
    pub quarantined_bytes: u64,
    /// Bytes reserved for metadata.
    pub reserve_bytes: u64,
    /// `ok`, `low` or `full`: free space compared with the low-water mark.
    pub state: String,
    /// Space for metadata runs short: soon no volume can be created or copied.
    pub metadata_low: bool,
    /// The low-water mark as it was set: `10%`, a number of bytes, or `off`.
    pub low_water: String,
    /// The low-water mark in bytes; 0 if there is none.
    pub low_water_bytes: u64,
    /// State of discarding freed space on the file system or device below: `on`, `off`, `failed`, or `unsupported` (on,
    /// but the device does not support it).
    pub discard: String,
    /// Size of the journal.
    pub journal_bytes: u64,
    /// Devices that the pool consists of, in order.
    pub members: Vec<MemberJson>,
    /// `none` or `crc32c`.
    pub checksum: String,
    /// Number of volumes and snapshots.
    pub volumes: u32,
    /// Number of allocated units of volumes; map leaves that snapshots share count once.
    pub entries: u64,
    /// Memory for the maps while the pool is open.
    pub memory_bytes: u64,
    /// Number of the latest checkpoint.
    pub generation: u64,
    /// The journal was replayed when the pool was opened this time.
    pub recovered: bool,
    /// Free space of the file system with the pool's files: if it is less than `free_bytes`, writes fail before the
    /// pool is full. `null` for devices.
    pub host_free_bytes: Option<u64>,
    /// Volumes that may have lost acknowledged data because a flush failed, until that is acknowledged.
    pub lost: Vec<String>,
    /// Features that a pool of an older program lacks; `sheave pool upgrade` adds them.
    pub upgrades: Vec<String>,
    /// Volumes with damaged maps, which can be deleted but not opened. The others remain usable.
    pub damaged: Vec<DamageJson>,
    /// Volumes are read-only and only deletes are accepted, because the first checkpoint after opening cannot be
    /// written, for lack of space or because of a damaged map.
    pub deletes_only: bool,
    /// Number of copies of each metadata page.
    pub metadata_copies: u8,
    /// Metadata pages with one copy that was found damaged or unreadable and was not rewritten since.
    pub bad_copies: u64,
}

/// A volume with a damaged map, as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DamageJson {
    pub volume: String,
    /// Position of the first damaged page in the pool.
    pub address: u64,
    /// First byte of the range of the volume that this page maps.
    pub offset: u64,
    /// Length of that range.
    pub length: u64,
    /// Number of damaged pages.
    pub pages: u64,
    /// Damage of the first page.
    pub why: String,
}

impl DamageJson {
    /// Converts a report of the pool.
    pub fn new(volume: &str, damage: &MapDamage) -> Self {
        let MapDamage { at, why, range: (offset, length), pages, .. } = damage.clone();
        Self { volume: volume.to_owned(), address: at, offset, length, pages, why }
    }
}

/// A member as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MemberJson {
    /// Position in the pool at which the member begins.
    pub start_bytes: u64,
    /// Bytes of the member that the pool uses.
    pub size_bytes: u64,
}

impl MemberJson {
    /// Converts a report of the pool.
    pub fn new(member: &MemberInfo) -> Self {
        Self { start_bytes: member.start_bytes, size_bytes: member.size_bytes }
    }
}

/// Corrects the state of a pool that was opened read-only, which has not tried whether discard works.
fn discard(place: &PoolPlace, told: DiscardState) -> DiscardState {
    match told {
        DiscardState::On if place.takes_nothing_back() => DiscardState::Unsupported,
        told => told,
    }
}

impl PoolJson {
    /// Converts a report of the pool.
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

    /// Describes the pool in a line.
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
