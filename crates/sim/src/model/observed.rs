//! What a pool was found to hold.

use std::collections::BTreeMap;

use crate::tag::Seen;

/// A volume as it was found.
#[derive(Clone, Debug)]
pub struct ObservedVolume {
    /// Size in bytes.
    pub size: u64,
    /// What writes may make of it.
    pub max: Option<u64>,
    /// Cannot be written.
    pub snapshot: bool,
    /// By sector.
    pub sectors: Vec<Seen>,
}

/// All volumes of a pool as they were found, by name.
pub type Observed = BTreeMap<String, ObservedVolume>;
