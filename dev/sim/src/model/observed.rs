//! The contents that a pool was found to have.

use std::collections::BTreeMap;

use crate::disk::SECTOR;
use crate::sparse::Sparse;
use crate::tag::{Seen, Value};

#[derive(Clone, Debug)]
pub struct ObservedVolume {
    pub size: u64,
    /// The maximum size, if writes make the volume grow.
    pub max: Option<u64>,
    pub snapshot: bool,
    /// Contents by sector; a missing sector is zero.
    pub sectors: Sparse<Seen>,
}

impl ObservedVolume {
    #[must_use]
    pub fn at(&self, sector: u64) -> Seen {
        self.sectors.get(sector).copied().unwrap_or(Seen::Zero)
    }

    /// Returns the value found in a sector. Returns `None` beyond the end, or if the data belongs to another sector or
    /// to no write.
    pub(super) fn value_at(&self, sector: u64) -> Option<Value> {
        (sector < self.size / SECTOR as u64).then(|| self.at(sector).value_at(sector))?
    }
}

/// All volumes of a pool as they were found, by name.
pub type Observed = BTreeMap<String, ObservedVolume>;
