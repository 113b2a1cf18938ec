//! What a pool was found to hold.

use std::collections::BTreeMap;

use crate::disk::SECTOR;
use crate::sparse::Sparse;
use crate::tag::{Seen, Value};

/// A volume as it was found.
#[derive(Clone, Debug)]
pub struct ObservedVolume {
    /// Size in bytes.
    pub size: u64,
    /// What writes may make of it.
    pub max: Option<u64>,
    /// Cannot be written.
    pub snapshot: bool,
    /// By sector; what is not there is zero.
    pub sectors: Sparse<Seen>,
}

impl ObservedVolume {
    /// What was found in a sector.
    #[must_use]
    pub fn at(&self, sector: u64) -> Seen {
        self.sectors.get(sector).copied().unwrap_or(Seen::Zero)
    }

    /// The value that was found in a sector, if it has that many and the value belongs there.
    pub(super) fn value_at(&self, sector: u64) -> Option<Value> {
        (sector < self.size / SECTOR as u64).then(|| self.at(sector).value_at(sector))?
    }
}

/// All volumes of a pool as they were found, by name.
pub type Observed = BTreeMap<String, ObservedVolume>;
