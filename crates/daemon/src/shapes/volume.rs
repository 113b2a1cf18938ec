//! A volume or snapshot as programs are told of it; the names of the fields are an interface.

use serde::{Deserialize, Serialize};
use sheave_base::units::fmt_bytes;
use sheave_vol::VolumeInfo;

use super::pool::DamageJson;
use crate::place::PoolPlace;

/// A volume or snapshot, for programs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VolumeJson {
    /// Its pool, as named.
    pub pool: String,
    /// Name.
    pub name: String,
    /// Number within the pool.
    pub id: u32,
    /// Cannot be written.
    pub snapshot: bool,
    /// What it was made of.
    pub origin: Option<String>,
    /// Size that users see.
    pub size_bytes: u64,
    /// How large writes may make it; null when they do not.
    pub max_size_bytes: Option<u64>,
    /// Space it has.
    pub allocated_bytes: u64,
    /// Of that, shared with others.
    pub shared_bytes: u64,
    /// Of that, its own: what deleting it gives back.
    pub unique_bytes: u64,
    /// Data written.
    pub written_bytes: u64,
    /// Seconds since 1970.
    pub created: u64,
    /// Random bits that tell it from all others but its copies in other pools, as 32 hexadecimal digits.
    pub identity: Option<String>,
    /// What it is being made for, when it goes again: `import` or `import-diff`. `null` as a rule.
    pub interim: Option<String>,
    /// Pages of its map are damaged: it does not open, and what it takes is not known. `null` as a rule.
    pub damaged: Option<DamageJson>,
}

impl VolumeJson {
    /// From what the pool tells.
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

    /// With the pool as this command was told its name.
    pub fn named(self, place: &PoolPlace) -> Self {
        Self { pool: place.to_string(), ..self }
    }

    /// `volume` or `snapshot`.
    pub fn kind(&self) -> &'static str {
        if self.snapshot { "snapshot" } else { "volume" }
    }

    /// A line.
    pub fn in_short(&self) -> String {
        let origin = self.origin.as_ref().map_or(String::new(), |origin| format!(" of {origin}"));
        format!("{} {}{origin}, {}", self.kind(), self.name, self.size())
    }

    /// Its size, and how far it goes.
    pub fn size(&self) -> String {
        let most = self.max_size_bytes.filter(|_| !self.snapshot);
        let most = most.map_or(String::new(), |most| format!(", grows to {}", fmt_bytes(most)));
        format!("{}{most}", fmt_bytes(self.size_bytes))
    }
}
