//! Effects of a call that changes volumes as a whole: at its beginning, and at its end, if it succeeds and if it fails.

use super::cell::{Entry, ZERO};
use super::change::Change;
use super::{Model, Volume, Zeroing};
use crate::disk::SECTOR;

impl Model {
    /// Begins a call. Its writes are under way from now on, so readers may see them.
    pub(super) fn begin(&mut self, change: &Change) {
        let since = self.now;
        match change {
            Change::Copy { .. } | Change::Together { .. } => {
                let size = |source: &str| self.volumes.get(source).map_or(0, |volume| volume.size);
                self.reached = change.copies().into_iter().map(|(source, ..)| size(source)).collect();
            }
            Change::Rollback { name, snapshot } => {
                let Some(source) = self.volumes.get(snapshot) else { return };
                let (cells, sectors) = (source.cells.clone(), source.sectors);
                let Some(fresh) = self.volumes.get(name).map(|volume| self.fresh_cells(volume.id)) else { return };
                let Some(volume) = self.volumes.get_mut(name) else { return };
                volume.make_room(sectors);
                cells.iter().for_each(|(at, _)| volume.cells.touch(at..at + 1, &fresh));
                volume.each_cell(|at, cell| {
                    let source = cells.get(at).unwrap_or(&ZERO);
                    source.survivors().for_each(|value| cell.issue(Entry::issued(value, since)));
                });
                self.zeroing = Some(Zeroing { volume: volume.id, sectors: 0..u64::MAX, since });
            }
            Change::Resize { name, size } => {
                let Some(volume) = self.volumes.get_mut(name) else { return };
                volume.make_room(*size / SECTOR as u64);
                // Beyond the end of a volume that grows there are only writes under way and zeroes.
                let first = if volume.max.is_some() { *size } else { volume.size.min(*size) };
                let sectors = first / SECTOR as u64..u64::MAX;
                volume.cells.change(sectors.clone(), |_| true, |_, cell| cell.issue(Entry::issued(0, since)));
                self.zeroing = Some(Zeroing { volume: volume.id, sectors, since });
            }
            _ => {}
        }
    }

    /// Makes a change durable; the call began at `since`.
    pub(super) fn make(&mut self, change: &Change, since: u64) {
        let (now, horizon) = (self.now, self.horizon());
        match change {
            Change::Create { name, id, size, max } => {
                self.volumes.insert(name.clone(), Volume::new(*id, *size, *max));
            }
            Change::Copy { .. } | Change::Together { .. } => {
                let snapshot = !matches!(change, Change::Copy { snapshot: false, .. });
                for ((source, name, id), reached) in change.copies().into_iter().zip(self.reached.clone()) {
                    let Some(source) = self.volumes.get(source) else { return };
                    let cells = source.cells.map(|_, cell| cell.frozen(since));
                    let growth = source.growth.frozen(reached);
                    let copy = Volume { id, snapshot, origin: source.id, cells, growth, ..source.clone() };
                    self.volumes.insert(name.to_owned(), copy);
                }
            }
            Change::Rollback { name, snapshot } => {
                let Some(source) = self.volumes.get(snapshot) else { return };
                let (size, max) = (source.size, source.max);
                if let Some(volume) = self.volumes.get_mut(name) {
                    volume.each_cell(|_, cell| cell.end_change(since, now, horizon));
                    volume.max = max;
                    volume.cut(size, since);
                }
            }
            Change::Rename { name, new } => {
                for (before, after) in self.renamed(name, new) {
                    if let Some(volume) = self.volumes.remove(&before) {
                        self.volumes.insert(after, volume);
                    }
                }
            }
            Change::Resize { name, size } => {
                if let Some(volume) = self.volumes.get_mut(name) {
                    volume.each_cell(|_, cell| cell.end_change(since, now, horizon));
                    volume.cut(*size, since); // R6
                }
            }
            Change::Limit { name, max } => {
                if let Some(volume) = self.volumes.get_mut(name) {
                    volume.max = Some(*max);
                    volume.make_room(max / SECTOR as u64);
                }
            }
            Change::Delete { name } => {
                self.volumes.remove(name);
            }
        }
    }

    /// Returns the old and new name of everything that a rename changes: the volume, and the snapshots whose names
    /// begin with its name (A3).
    fn renamed(&self, name: &str, new: &str) -> Vec<(String, String)> {
        let Some(volume) = self.volumes.get(name) else { return Vec::new() };
        let of_it = |one: &Volume| one.snapshot && one.origin == volume.id && !volume.snapshot;
        let own = |other: &str| Some(format!("{new}@{}", other.strip_prefix(name)?.strip_prefix('@')?));
        let others = self.volumes.iter().filter(|(_, one)| of_it(one));
        let others = others.filter_map(|(other, _)| Some((other.clone(), own(other)?)));
        std::iter::once((name.to_owned(), new.to_owned())).chain(others).collect()
    }

    /// Undoes a change that was not made. The contents after a failed resize stay undecided if the volume does not
    /// grow: the call may have zeroed the range that it was to cut off, and the last block has bytes on both sides of
    /// the new end.
    pub(super) fn unmake(&mut self, change: &Change, since: u64) {
        let undone = match change {
            Change::Rollback { name, .. } => self.volumes.get_mut(name),
            Change::Resize { name, .. } => self.volumes.get_mut(name).filter(|volume| volume.max.is_some()),
            _ => None,
        };
        undone.into_iter().for_each(|volume| volume.each_cell(|_, cell| cell.withdraw_change(since)));
    }
}
