//! JSON of a volume or snapshot. The field names are an interface.

use serde::{Deserialize, Serialize};
use sheave_base::units::fmt_bytes;
use sheave_vol::VolumeInfo;

use super::pool::DamageJson;
use crate::place::PoolPlace;

/// A volume or snapshot as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VolumeJson {
    /// Name of the pool that was given on the command line.
    pub pool: String,
    pub name: String,
    /// Number within the pool.
    pub id: u32,
    /// True for a snapshot, which is read-only.
    pub snapshot: bool,
    /// Volume or snapshot that it was made from.
    pub origin: Option<String>,
    /// Size as its users see it.
    pub size_bytes: u64,
    /// Size up to which writes extend it; null if they do not.
    pub max_size_bytes: Option<u64>,
    /// Bytes that are allocated.
    pub allocated_bytes: u64,
    /// Allocated bytes that are shared with others.
    pub shared_bytes: u64,
    /// Allocated bytes of its own, which deleting it frees.
    pub unique_bytes: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Time of creation, in seconds since 1970.
    pub created: u64,
    /// Random bits, as 32 hexadecimal digits, that only its copies in other pools share.
    pub identity: Option<String>,
    /// Purpose of an interim volume, which is deleted later: `import` or `import-diff`. Usually `null`.
    pub interim: Option<String>,
    /// Damage of its map, with which it cannot be opened and its allocation is unknown. Usually `null`.
    pub damaged: Option<DamageJson>,
}

impl VolumeJson {
    /// Converts a report of the pool.
    pub fn new(place: &PoolPlace, info: &VolumeInfo) -> Self {
        Self {
            pool: place.to_string(),
            name: info.name.clone(),
            id: info.id,
            snapshot: info.snapshot,
            origin: info.origin.clone(),
            size_bytes: info.size_bytes,
            max_size_bytes: info.max_size_bytes,
            allocated_bytes: info.allocated_bytes,
            shared_bytes: info.shared_bytes,
            unique_bytes: info.unique_bytes,
            written_bytes: info.written_bytes,
            created: info.created,
            identity: info.identity.map(|identity| format!("{:032x}", u128::from_be_bytes(identity))),
            interim: info.interim.map(|interim| interim.purpose.name().to_owned()),
            damaged: info.damage.as_ref().map(|damage| DamageJson::new(&info.name, damage)),
        }
    }

    /// Replaces the name of the pool by the one given to this command.
    pub fn named(self, place: &PoolPlace) -> Self {
        Self { pool: place.to_string(), ..self }
    }

    /// Returns `volume` or `snapshot`.
    pub fn kind(&self) -> &'static str {
        if self.snapshot { "snapshot" } else { "volume" }
    }

    /// Describes the volume in a line.
    pub fn in_short(&self) -> String {
        let origin = self.origin.as_ref().map_or(String::new(), |origin| format!(" of {origin}"));
        format!("{} {}{origin}, {}", self.kind(), self.name, self.size())
    }

    /// Describes its size and the limit up to which it grows.
    pub fn size(&self) -> String {
        let most = self.max_size_bytes.filter(|_| !self.snapshot);
        let most = most.map_or(String::new(), |most| format!(", grows to {}", fmt_bytes(most)));
        format!("{}{most}", fmt_bytes(self.size_bytes))
    }
}
