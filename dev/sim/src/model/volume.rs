//! One volume of the model: its size, and the values that each of its sectors may hold.

use super::cell::{Cell, ZERO};
use super::size::Growth;
use crate::disk::SECTOR;
use crate::sparse::Sparse;
use crate::tag::Value;

#[derive(Clone, Debug)]
pub struct Volume {
    /// Number of the volume in the model; never used again.
    pub id: u32,
    pub snapshot: bool,
    /// Number of the volume from which this one was copied; 0 if it is no copy.
    pub origin: u32,
    /// Number of the first volume of its line of copies.
    pub family: u32,
    /// Size in bytes, as readers see it.
    pub size: u64,
    /// The maximum size in bytes, if writes make the volume grow.
    pub max: Option<u64>,
    pub(super) growth: Growth,
    /// Number of sectors of the largest size that the volume had or may have, because writes under way may end beyond
    /// the size that a resize left.
    pub(super) sectors: u64,
    /// The cells of sectors. A sector without a cell is zero, and no writes but those of zeroes are under way to it.
    pub(super) cells: Sparse<Cell>,
}

impl Volume {
    pub(super) fn new(id: u32, size: u64, max: Option<u64>) -> Volume {
        let mut volume = Volume {
            id,
            snapshot: false,
            origin: 0,
            family: id,
            size,
            max,
            growth: Growth::default(),
            sectors: 0,
            cells: Sparse::default(),
        };
        volume.settle_size(size);
        volume
    }

    /// Sets a size that is certain. The caller has zeroed the sectors beyond it.
    pub(super) fn settle_size(&mut self, size: u64) {
        (self.size, self.growth) = (size, Growth::settled(size));
        self.make_room(self.max.unwrap_or(size).max(size) / SECTOR as u64);
    }

    /// Sets the size that a call that began at `since` has left. A volume that grows may be larger, because of writes
    /// that were under way.
    pub(super) fn cut(&mut self, size: u64, since: u64) {
        if self.max.is_none() {
            return self.settle_size(size);
        }
        self.growth.cut(size, since);
        self.size = size;
        self.make_room(self.max.unwrap_or(size).max(size) / SECTOR as u64);
    }

    /// Returns true if the volume may be larger than the model says; it must be measured when nothing is under way.
    #[must_use]
    pub fn is_in_doubt(&self) -> bool {
        self.growth.is_in_doubt()
    }

    /// Extends the volume to at least `sectors` sectors. New ones are zero.
    pub(super) fn make_room(&mut self, sectors: u64) {
        self.sectors = self.sectors.max(sectors);
    }

    /// Returns the cell of a sector, unless it lies beyond the largest size.
    pub(super) fn cell(&self, sector: u64) -> Option<&Cell> {
        (sector < self.sectors).then(|| self.cells.get(sector).unwrap_or(&ZERO))
    }

    pub(super) fn each_cell(&mut self, change: impl FnMut(u64, &mut Cell)) {
        self.cells.change(0..u64::MAX, |_| true, change);
    }

    /// Returns the largest end of the writes to the volume, including those under way, or its size if that is larger.
    #[must_use]
    pub fn reach(&self) -> u64 {
        self.growth.reach().max(self.size)
    }

    /// Returns the values that a reader who began at `since` may see in a sector.
    pub fn readable(&self, sector: u64, since: u64) -> impl Iterator<Item = Value> + '_ {
        self.cell(sector).into_iter().flat_map(move |cell| cell.readable(since))
    }

    /// Returns the values that a crash may leave in a sector.
    pub fn survivors(&self, sector: u64) -> impl Iterator<Item = Value> + '_ {
        self.cell(sector).into_iter().flat_map(Cell::survivors)
    }

    /// Returns true if a crash leaves zeroes everywhere for sure.
    #[must_use]
    pub fn is_untouched(&self) -> bool {
        self.cells.iter().all(|(_, cell)| cell.survivors().all(|value| value == 0))
    }
}
