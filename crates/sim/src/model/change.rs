//! Calls that change volumes as a whole.

use std::fmt;

use super::cell::{Cell, Entry};
use super::{Model, Volume};
use crate::disk::SECTOR;

/// Such a call. New volumes say which number they get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A new volume, all zero.
    Create {
        /// Name.
        name: String,
        /// Number in the model.
        id: u32,
        /// Bytes.
        size: u64,
        /// Writes make it larger, up to this.
        max: Option<u64>,
    },
    /// A snapshot, or a clone, of a volume or snapshot.
    Copy {
        /// Of which.
        source: String,
        /// Name.
        name: String,
        /// Number in the model.
        id: u32,
        /// Whether it is a snapshot.
        snapshot: bool,
    },
    /// A volume becomes what a snapshot is.
    Rollback {
        /// The volume.
        name: String,
        /// The snapshot.
        snapshot: String,
    },
    /// Another name.
    Rename {
        /// The old one.
        name: String,
        /// The new one.
        new: String,
    },
    /// Another size.
    Resize {
        /// Which.
        name: String,
        /// Bytes.
        size: u64,
    },
    /// Another largest size.
    Limit {
        /// Which.
        name: String,
        /// Bytes.
        max: u64,
    },
    /// No longer there.
    Delete {
        /// Which.
        name: String,
    },
}

impl Change {
    /// Makes the change; the call began at `since`.
    pub(super) fn make(&self, model: &mut Model, since: u64) {
        match self {
            Change::Create { name, id, size, max } => {
                model.volumes.insert(name.clone(), Volume::new(*id, *size, *max));
            }
            Change::Copy { source, name, id, snapshot } => {
                let Some(source) = model.volumes.get(source) else { return };
                let cells = frozen(source, since);
                let growth = source.growth.frozen(model.reached);
                let copy = Volume { id: *id, snapshot: *snapshot, cells, growth, ..source.clone() };
                model.volumes.insert(name.clone(), copy);
            }
            Change::Rollback { name, snapshot } => {
                let Some(source) = model.volumes.get(snapshot) else { return };
                let (cells, size, max) = (frozen(source, since), source.size, source.max);
                if let Some(volume) = model.volumes.get_mut(name) {
                    (volume.cells, volume.max) = (cells, max);
                    volume.settle_size(size);
                }
            }
            Change::Rename { name, new } => {
                if let Some(volume) = model.volumes.remove(name) {
                    model.volumes.insert(new.clone(), volume);
                }
            }
            Change::Resize { name, size } => {
                if let Some(volume) = model.volumes.get_mut(name) {
                    volume.settle_size(*size); // R6
                }
            }
            Change::Limit { name, max } => {
                if let Some(volume) = model.volumes.get_mut(name) {
                    volume.max = Some(*max);
                    volume.cells.resize((max / SECTOR as u64) as usize, Cell::zero());
                }
            }
            Change::Delete { name } => {
                model.volumes.remove(name);
            }
        }
    }
}

impl Change {
    /// What a call that was interrupted may have done without being done.
    pub(super) fn spoil(&self, model: &mut Model) {
        let now = model.now;
        if let Change::Resize { name, size } = self
            && let Some(volume) = model.volumes.get_mut(name)
        {
            let first = (*size / SECTOR as u64) as usize;
            volume.cells.iter_mut().skip(first).for_each(|cell| cell.issue(Entry::issued(0, now + 1)));
        }
    }
}

fn frozen(source: &Volume, since: u64) -> Vec<Cell> {
    source.cells.iter().map(|cell| cell.frozen(since)).collect()
}

impl fmt::Display for Change {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Create { name, id, size, max } => {
                write!(out, "create '{name}' (volume {id}), {size} bytes")?;
                max.map_or(Ok(()), |max| write!(out, ", growing to {max}"))
            }
            Change::Limit { name, max } => write!(out, "let '{name}' grow to {max} bytes"),
            Change::Copy { source, name, id, snapshot: true } => {
                write!(out, "snapshot '{source}' as '{name}' (volume {id})")
            }
            Change::Copy { source, name, id, .. } => write!(out, "clone '{source}' as '{name}' (volume {id})"),
            Change::Rollback { name, snapshot } => write!(out, "roll '{name}' back to '{snapshot}'"),
            Change::Rename { name, new } => write!(out, "rename '{name}' to '{new}'"),
            Change::Resize { name, size } => write!(out, "resize '{name}' to {size} bytes"),
            Change::Delete { name } => write!(out, "delete '{name}'"),
        }
    }
}
