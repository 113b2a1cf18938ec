//! The model: what may be in each sector of each volume, now and after a crash.
//!
//! Owns [`Model`], which changes by [`Event`]s alone, and the two questions that it answers: what may a reader see, and
//! what may a crash leave. It knows nothing of pools, units or journals; it is the durability contract:
//!
//! - R1: a write (or discard, which writes zeroes) that is on its way may or may not be there, sector by sector.
//! - R2: one that has ended is what readers see, until a later one; of two at the same time either may be last.
//! - R3: a flush that has ended covers what had ended when it was asked for, in all volumes of the pool: a crash leaves
//!   that, or something later. A DSYNC write covers itself.
//! - R4: creating, deleting, renaming, resizing, snapshots, clones and rollbacks are durable when the call has
//!   returned; a crash within the call leaves the state before it or the state after it. (What a resize was to cut off
//!   may be zero already.) A rollback, and the zeroes of a resize, are writes as long as the call: others that are
//!   under way come before or after them, sector by sector.
//! - R5: a snapshot holds what had ended before the call, durable; of what was under way, anything.
//! - R6: what was never written, or was cut off and grown again, is zero.
//! - R7: what was found after a crash stays.
//! - R8: a volume that grows has the size that its writes gave it; what a crash leaves of that is in `size`.

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

/// What may be where.
#[derive(Clone, Debug, Default)]
pub struct Model {
    now: u64,
    volumes: BTreeMap<String, Volume>,
    writes: BTreeMap<u64, OpenWrite>,
    /// Flushes under way, and when they began.
    syncs: BTreeMap<u64, u64>,
    /// A call that is under way, and when it began.
    changing: Option<(Change, u64)>,
    /// The sizes of what is being copied, when that began.
    reached: Vec<u64>,
    /// When the reads that are under way began.
    readers: Vec<u64>,
    /// What the call makes zero.
    zeroing: Option<Zeroing>,
}

/// What a call that is under way makes zero, as far as nothing else is said of a sector.
#[derive(Clone, Debug)]
struct Zeroing {
    volume: u32,
    sectors: Range<u64>,
    since: u64,
}

impl Model {
    /// A pool without volumes.
    #[must_use]
    pub fn new() -> Model {
        Model::default()
    }

    /// The model's time.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.now
    }

    /// A read begins; it says when at its end.
    pub fn begin_read(&mut self) -> u64 {
        self.readers.push(self.now);
        self.now
    }

    /// A read that began at `since` has been checked.
    pub fn end_read(&mut self, since: u64) {
        if let Some(at) = self.readers.iter().position(|&one| one == since) {
            self.readers.swap_remove(at);
        }
    }

    /// When the first of the reads and copies under way began.
    fn horizon(&self) -> u64 {
        let changing = self.changing.as_ref().map(|(_, since)| *since);
        self.readers.iter().copied().chain(changing).min().unwrap_or(u64::MAX)
    }

    /// All volumes by name.
    #[must_use]
    pub fn volumes(&self) -> &BTreeMap<String, Volume> {
        &self.volumes
    }

    /// The sizes that a volume may have, nothing being under way: that which readers saw, or one that durable writes
    /// gave it which failed afterwards.
    #[must_use]
    pub fn sizes_of(&self, id: u32) -> Vec<u64> {
        self.volume(id).map_or(Vec::new(), |volume| volume.growth.sizes_from(volume.size))
    }

    /// A volume by its number.
    #[must_use]
    pub fn volume(&self, id: u32) -> Option<&Volume> {
        self.volumes.values().find(|volume| volume.id == id)
    }

    fn volume_mut(&mut self, id: u32) -> Option<&mut Volume> {
        self.volumes.values_mut().find(|volume| volume.id == id)
    }

    /// Whether a call is under way that changes a volume as a whole.
    #[must_use]
    pub fn is_changing(&self) -> bool {
        self.changing.is_some()
    }

    /// Whether a write or a flush is under way.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        !self.writes.is_empty() || !self.syncs.is_empty()
    }

    /// Whether a write is on its way to the range.
    #[must_use]
    pub fn is_being_written(&self, volume: u32, sectors: Range<u64>) -> bool {
        let overlaps =
            |w: &OpenWrite| w.volume == volume && w.sector < sectors.end && sectors.start < w.sector + w.sectors;
        self.writes.values().any(overlaps)
    }

    /// Something happens.
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
                        // Nobody sees what it did beyond the end.
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

    /// A write begins.
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

    /// The sizes that each copy may have whose making ends now.
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

    /// What a sector of a volume is of which nothing was said: zero, and zeroes may be on their way to it.
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

    /// The states that a crash may leave: one, or two within a call that changes volumes as a whole (R4).
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
