//! Calls that change volumes as a whole.

use std::fmt;

use super::cell::Entry;
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
    /// The call begins: from now on readers may see what it does.
    pub(super) fn begin(&self, model: &mut Model) {
        let since = model.now;
        match self {
            Change::Copy { source, .. } => model.reached = model.volumes.get(source).map_or(0, |volume| volume.size),
            Change::Rollback { name, snapshot } => {
                let Some(cells) = model.volumes.get(snapshot).map(|source| source.cells.clone()) else { return };
                let Some(volume) = model.volumes.get_mut(name) else { return };
                volume.make_cells(cells.len());
                for (at, cell) in volume.cells.iter_mut().enumerate() {
                    match cells.get(at) {
                        Some(source) => source.survivors().for_each(|value| cell.issue(Entry::issued(value, since))),
                        None => cell.issue(Entry::issued(0, since)),
                    }
                }
            }
            Change::Resize { name, size } => {
                let Some(volume) = model.volumes.get_mut(name) else { return };
                volume.make_cells((*size / SECTOR as u64) as usize);
                let first = ((*size).min(volume.size) / SECTOR as u64) as usize;
                volume.cells.iter_mut().skip(first).for_each(|cell| cell.issue(Entry::issued(0, since)));
            }
            _ => {}
        }
    }

    /// Makes the change, durably; the call began at `since`.
    pub(super) fn make(&self, model: &mut Model, since: u64) {
        let (now, horizon) = (model.now, model.horizon());
        match self {
            Change::Create { name, id, size, max } => {
                model.volumes.insert(name.clone(), Volume::new(*id, *size, *max));
            }
            Change::Copy { source, name, id, snapshot } => {
                let Some(source) = model.volumes.get(source) else { return };
                let cells = source.cells.iter().map(|cell| cell.frozen(since)).collect();
                let growth = source.growth.frozen(model.reached);
                let copy = Volume { id: *id, snapshot: *snapshot, cells, growth, ..source.clone() };
                model.volumes.insert(name.clone(), copy);
            }
            Change::Rollback { name, snapshot } => {
                let Some(source) = model.volumes.get(snapshot) else { return };
                let (size, max) = (source.size, source.max);
                if let Some(volume) = model.volumes.get_mut(name) {
                    volume.cells.iter_mut().for_each(|cell| cell.end_change(since, now, horizon));
                    volume.max = max;
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
                    volume.cells.iter_mut().for_each(|cell| cell.end_change(since, now, horizon));
                    volume.settle_size(*size); // R6
                }
            }
            Change::Limit { name, max } => {
                if let Some(volume) = model.volumes.get_mut(name) {
                    volume.max = Some(*max);
                    volume.make_cells((max / SECTOR as u64) as usize);
                }
            }
            Change::Delete { name } => {
                model.volumes.remove(name);
            }
        }
    }

    /// It was not made, or not as a whole: a resize may have zeroed what it was to cut off.
    pub(super) fn unmake(&self, model: &mut Model, since: u64) {
        if let Change::Rollback { name, .. } = self
            && let Some(volume) = model.volumes.get_mut(name)
        {
            volume.cells.iter_mut().for_each(|cell| cell.withdraw_change(since));
        }
    }
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
