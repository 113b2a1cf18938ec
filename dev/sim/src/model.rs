//! The model: the values that each sector of each volume may hold, now and after a crash.
//!
//! Owns [`Model`]. Only [`Event`]s change it. It returns the values that a reader may see and those that a crash may
//! leave. It has no pools, units or journals; it states the durability contract:
//!
//! - R1: a write (or discard, which writes zeroes) that is under way may or may not be there, sector by sector.
//! - R2: readers see a write that has ended, until a later write replaces it. Of two writes that overlap in time,
//!   either may be the last.
//! - R3: a flush that has ended covers the writes that had ended when it was issued, in all volumes of the pool: a
//!   crash leaves the data of those writes, or something later. A DSYNC write covers itself.
//! - R4: creating, deleting, renaming, resizing, snapshots, clones and rollbacks are durable when the call has
//!   returned; a crash within the call leaves the state before it or the state after it. (The range that a resize was
//!   to cut off may be zero already.) A rollback, and the zeroes of a resize, are writes as long as the call: other
//!   writes under way come before or after them, sector by sector.
//! - R5: a snapshot holds, durably, the writes that had ended before the call. It may hold any part of the writes that
//!   were under way.
//! - R6: sectors that were never written, or were cut off and grown again, are zero.
//! - R7: the contents found after a crash stay.
//! - R8: the size of a volume that grows comes from its writes; `size` has the sizes that a crash may leave.

mod cell;
mod change;
mod changing;
mod compare;
mod event;
mod observed;
mod size;
mod standing;
mod volume;
mod write;

use std::collections::BTreeMap;
use std::ops::Range;

pub use change::Change;
pub use event::Event;
pub use observed::{Observed, ObservedVolume};
pub use standing::{Past, Served, Standing};
pub use volume::Volume;

use crate::disk::SECTOR;
use cell::{Cell, Entry, ZERO};
use write::OpenWrite;

/// The values that each sector may hold.
#[derive(Clone, Debug, Default)]
pub struct Model {
    now: u64,
    volumes: BTreeMap<String, Volume>,
    writes: BTreeMap<u64, OpenWrite>,
    /// Flushes under way, by operation, with the time of issue.
    syncs: BTreeMap<u64, u64>,
    /// The call that is under way, with the time at which it began.
    changing: Option<(Change, u64)>,
    /// Sizes that the sources had when the copy under way began.
    reached: Vec<u64>,
    /// Times at which the reads under way began.
    readers: Vec<u64>,
    /// The range that the call under way zeroes.
    zeroing: Option<Zeroing>,
}

/// The range that a call under way zeroes, for the sectors that have no cell of their own.
#[derive(Clone, Debug)]
struct Zeroing {
    volume: u32,
    sectors: Range<u64>,
    since: u64,
}

impl Model {
    #[must_use]
    pub fn new() -> Model {
        Model::default()
    }

    /// Returns the model's time, which each event advances by one.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Records that a read begins. Returns the time, which [`Model::end_read`] takes.
    pub fn begin_read(&mut self) -> u64 {
        self.readers.push(self.now);
        self.now
    }

    /// Records that the read that began at `since` has been checked.
    pub fn end_read(&mut self, since: u64) {
        if let Some(at) = self.readers.iter().position(|&one| one == since) {
            self.readers.swap_remove(at);
        }
    }

    /// Returns the time at which the earliest of the reads and the call under way began. Values that any of them may
    /// still see must be kept.
    fn horizon(&self) -> u64 {
        let changing = self.changing.as_ref().map(|(_, since)| *since);
        self.readers.iter().copied().chain(changing).min().unwrap_or(u64::MAX)
    }

    #[must_use]
    pub fn volumes(&self) -> &BTreeMap<String, Volume> {
        &self.volumes
    }

    /// Returns the sizes that a volume without I/O under way may have: the one that readers saw, or one that a failed
    /// DSYNC write may have given it.
    #[must_use]
    pub fn sizes_of(&self, id: u32) -> Vec<u64> {
        self.volume(id).map_or(Vec::new(), |volume| volume.growth.sizes_from(volume.size))
    }

    #[must_use]
    pub fn volume(&self, id: u32) -> Option<&Volume> {
        self.volumes.values().find(|volume| volume.id == id)
    }

    fn volume_mut(&mut self, id: u32) -> Option<&mut Volume> {
        self.volumes.values_mut().find(|volume| volume.id == id)
    }

    /// Returns true if a call that changes a volume as a whole is under way.
    #[must_use]
    pub fn is_changing(&self) -> bool {
        self.changing.is_some()
    }

    /// Returns true if a write or a flush is under way.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        !self.writes.is_empty() || !self.syncs.is_empty()
    }

    /// Returns true if a write to the range is under way.
    #[must_use]
    pub fn is_being_written(&self, volume: u32, sectors: Range<u64>) -> bool {
        let overlaps =
            |w: &OpenWrite| w.volume == volume && w.sector < sectors.end && sectors.start < w.sector + w.sectors;
        self.writes.values().any(overlaps)
    }

    /// Advances the time by one and applies `event`.
    pub fn apply(&mut self, event: &Event) {
        self.now += 1;
        match event {
            Event::Write { op, volume, sector, sectors, value, dsync } => {
                let (volume, sector, sectors, value) = (*volume, *sector, *sectors, *value);
                let (issued, dsync) = (self.now, *dsync);
                self.issue(*op, OpenWrite { volume, sector, sectors, value, issued, dsync });
            }
            Event::Wrote { op, ok } => {
                let Some(write) = self.writes.remove(op) else { return };
                let (now, horizon) = (self.now, self.horizon());
                self.each_cell(&write, |cell| cell.end(&write, now, *ok, horizon));
                if let Some(volume) = self.volume_mut(write.volume).filter(|volume| volume.max.is_some()) {
                    let end = volume.size.max(volume.growth.ended_reach()) / SECTOR as u64;
                    if !*ok && !write.dsync {
                        // Beyond the end readers see nothing, and growth leaves zeroes there (R6).
                        volume.cells.change(end..u64::MAX, |_| true, |_, cell| cell.withdraw(&write));
                    }
                    volume.size = volume.growth.end(&write, now, *ok, volume.size, horizon);
                }
            }
            Event::Sized { volume, size } => {
                let now = self.now;
                if let Some(volume) = self.volume_mut(*volume) {
                    volume.size = *size;
                    if volume.growth.is_in_doubt() {
                        volume.growth.found(*size, now);
                        volume.cells.cut(*size / SECTOR as u64, &ZERO);
                    }
                }
            }
            Event::Sync { op } => {
                self.syncs.insert(*op, self.now);
            }
            Event::Synced { op, ok } => {
                let Some(since) = self.syncs.remove(op) else { return };
                if *ok {
                    let horizon = self.horizon();
                    for volume in self.volumes.values_mut() {
                        volume.growth.sync(since, horizon);
                        volume.cells.change(0..u64::MAX, Cell::is_loose, |_, cell| cell.sync(since, horizon));
                    }
                }
            }
            Event::Change(change) => {
                self.begin(change);
                self.changing = Some((change.clone(), self.now));
            }
            Event::Changed { ok, sizes } => {
                if let Some((change, since)) = self.changing.take() {
                    self.zeroing = None;
                    if *ok {
                        self.make(&change, since)
                    } else {
                        self.unmake(&change, since)
                    }
                    for ((_, name, _), size) in change.copies().into_iter().zip(sizes) {
                        if let Some(copy) = self.volumes.get_mut(name) {
                            copy.settle_size(*size);
                            copy.cells.cut(size / SECTOR as u64, &ZERO);
                        }
                    }
                }
            }
        }
    }

    fn issue(&mut self, op: u64, write: OpenWrite) {
        if let Some(volume) = self.volume_mut(write.volume).filter(|volume| volume.max.is_some()) {
            volume.growth.issue(&write, volume.size);
        }
        if write.value != 0 {
            let fresh = self.fresh_cells(write.volume);
            let range = write.sector..write.sector + write.sectors;
            self.volume_mut(write.volume).into_iter().for_each(|volume| volume.cells.touch(range.clone(), &fresh));
        }
        let issued = write.issued;
        self.each_cell(&write, |cell| cell.issue(Entry::issued(write.value, issued)));
        self.writes.insert(op, write);
    }

    /// Returns, for each copy of the call under way, the sizes that it may have if the call ends now.
    #[must_use]
    pub fn sizes_of_copies(&self) -> Vec<Vec<u64>> {
        let Some((change, _)) = &self.changing else { return Vec::new() };
        let sizes = |(source, reached): (&str, &u64)| {
            self.volumes.get(source).map_or(Vec::new(), |source| source.growth.sizes_from(*reached))
        };
        change.copies().into_iter().map(|(source, ..)| source).zip(&self.reached).map(sizes).collect()
    }

    fn each_cell(&mut self, write: &OpenWrite, mut change: impl FnMut(&mut Cell)) {
        if let Some(volume) = self.volume_mut(write.volume) {
            let range = write.sector..(write.sector + write.sectors).min(volume.sectors);
            volume.cells.change(range, |_| true, |_, cell| change(cell));
        }
    }

    /// Returns a constructor for the cell of a sector that has none: zero, and the zeroes that are under way to it.
    fn fresh_cells(&self, volume: u32) -> impl Fn(u64) -> Cell + use<> {
        let writes = self.writes.values().filter(|write| write.volume == volume && write.value == 0);
        let writes = writes.map(|write| (write.sector..write.sector + write.sectors, write.issued));
        let zeroing = self.zeroing.iter().filter(|one| one.volume == volume);
        let zeroing = zeroing.map(|one| (one.sectors.clone(), one.since));
        let all: Vec<(Range<u64>, u64)> = writes.chain(zeroing).collect();
        move |sector| {
            let mut cell = ZERO.clone();
            let theirs = all.iter().filter(|(range, _)| range.contains(&sector));
            theirs.for_each(|(_, issued)| cell.issue(Entry::issued(0, *issued)));
            cell
        }
    }

    /// Returns the states that a crash may leave: one, or two within a call that changes volumes as a whole (R4).
    #[must_use]
    pub fn after_crash(&self) -> Vec<Model> {
        let mut before = self.clone();
        let Some((change, since)) = before.changing.take() else { return vec![before] };
        before.zeroing = None;
        let mut after = before.clone();
        after.make(&change, since);
        before.unmake(&change, since);
        vec![after, before]
    }
}

#[cfg(test)]
mod tests;
