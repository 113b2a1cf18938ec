//! What calls that change volumes as a whole do to the model: while they are under way, made, and not made.

use super::cell::Entry;
use super::change::Change;
use super::{Model, Volume};
use crate::disk::SECTOR;

impl Model {
    /// A call begins: from now on readers may see what it does.
    pub(super) fn begin(&mut self, change: &Change) {
        let since = self.now;
        match change {
            Change::Copy { source, .. } => self.reached = self.volumes.get(source).map_or(0, |volume| volume.size),
            Change::Rollback { name, snapshot } => {
                let Some(cells) = self.volumes.get(snapshot).map(|source| source.cells.clone()) else { return };
                let Some(volume) = self.volumes.get_mut(name) else { return };
                volume.make_cells(cells.len());
                for (at, cell) in volume.cells.iter_mut().enumerate() {
                    match cells.get(at) {
                        Some(source) => source.survivors().for_each(|value| cell.issue(Entry::issued(value, since))),
                        None => cell.issue(Entry::issued(0, since)),
                    }
                }
            }
            Change::Resize { name, size } => {
                let Some(volume) = self.volumes.get_mut(name) else { return };
                volume.make_cells((*size / SECTOR as u64) as usize);
                let first = ((*size).min(volume.size) / SECTOR as u64) as usize;
                volume.cells.iter_mut().skip(first).for_each(|cell| cell.issue(Entry::issued(0, since)));
            }
            _ => {}
        }
    }

    /// Makes a change, durably; the call began at `since`.
    pub(super) fn make(&mut self, change: &Change, since: u64) {
        let (now, horizon) = (self.now, self.horizon());
        match change {
            Change::Create { name, id, size, max } => {
                self.volumes.insert(name.clone(), Volume::new(*id, *size, *max));
            }
            Change::Copy { source, name, id, snapshot } => {
                let Some(source) = self.volumes.get(source) else { return };
                let cells = source.cells.iter().map(|cell| cell.frozen(since)).collect();
                let growth = source.growth.frozen(self.reached);
                let copy = Volume { id: *id, snapshot: *snapshot, cells, growth, ..source.clone() };
                self.volumes.insert(name.clone(), copy);
            }
            Change::Rollback { name, snapshot } => {
                let Some(source) = self.volumes.get(snapshot) else { return };
                let (size, max) = (source.size, source.max);
                if let Some(volume) = self.volumes.get_mut(name) {
                    volume.cells.iter_mut().for_each(|cell| cell.end_change(since, now, horizon));
                    volume.max = max;
                    volume.settle_size(size);
                }
            }
            Change::Rename { name, new } => {
                if let Some(volume) = self.volumes.remove(name) {
                    self.volumes.insert(new.clone(), volume);
                }
            }
            Change::Resize { name, size } => {
                if let Some(volume) = self.volumes.get_mut(name) {
                    volume.cells.iter_mut().for_each(|cell| cell.end_change(since, now, horizon));
                    volume.settle_size(*size); // R6
                }
            }
            Change::Limit { name, max } => {
                if let Some(volume) = self.volumes.get_mut(name) {
                    volume.max = Some(*max);
                    volume.make_cells((max / SECTOR as u64) as usize);
                }
            }
            Change::Delete { name } => {
                self.volumes.remove(name);
            }
        }
    }

    /// A change was not made, or not as a whole: a resize may have zeroed what it was to cut off.
    pub(super) fn unmake(&mut self, change: &Change, since: u64) {
        if let Change::Rollback { name, .. } = change
            && let Some(volume) = self.volumes.get_mut(name)
        {
            volume.cells.iter_mut().for_each(|cell| cell.withdraw_change(since));
        }
    }
}
