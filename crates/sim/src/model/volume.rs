//! One volume of the model: its size, and what may be in each of its sectors.

use super::cell::{Cell, ZERO};
use super::size::Growth;
use crate::disk::SECTOR;
use crate::sparse::Sparse;
use crate::tag::Value;

/// A volume or snapshot, as the model has it.
#[derive(Clone, Debug)]
pub struct Volume {
    /// Number in the model; never used again.
    pub id: u32,
    /// Cannot be written.
    pub snapshot: bool,
    /// Number of the volume that it is a copy of; 0: of none.
    pub origin: u32,
    /// Number of the volume that it comes from, over however many copies.
    pub family: u32,
    /// Size in bytes, as readers see it.
    pub size: u64,
    /// What writes may make of it.
    pub max: Option<u64>,
    pub(super) growth: Growth,
    /// Sectors of the largest size that it had, or may have: writes under way may end beyond a size that was cut.
    pub(super) sectors: u64,
    /// What is not there is zero, and nothing but writes of zeroes is on its way to it.
    pub(super) cells: Sparse<Cell>,
}

impl Volume {
    /// A new one, all zero.
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

    /// This size for sure. What was cut off by it has been made zero.
    pub(super) fn settle_size(&mut self, size: u64) {
        (self.size, self.growth) = (size, Growth::settled(size));
        self.make_room(self.max.unwrap_or(size).max(size) / SECTOR as u64);
    }

    /// A call that began at `since` has given it this size; writes that were under way may have made it larger since,
    /// if it grows.
    pub(super) fn cut(&mut self, size: u64, since: u64) {
        if self.max.is_none() {
            return self.settle_size(size);
        }
        self.growth.cut(size, since);
        self.size = size;
        self.make_room(self.max.unwrap_or(size).max(size) / SECTOR as u64);
    }

    /// Whether it may be larger than the model says: somebody is to look when nothing is under way.
    #[must_use]
    pub fn is_in_doubt(&self) -> bool {
        self.growth.is_in_doubt()
    }

    /// It may have so many sectors; new ones are zero.
    pub(super) fn make_room(&mut self, sectors: u64) {
        self.sectors = self.sectors.max(sectors);
    }

    /// A sector, if it may have that.
    pub(super) fn cell(&self, sector: u64) -> Option<&Cell> {
        (sector < self.sectors).then(|| self.cells.get(sector).unwrap_or(&ZERO))
    }

    /// Changes all cells that are there.
    pub(super) fn each_cell(&mut self, change: impl FnMut(u64, &mut Cell)) {
        self.cells.change(0..u64::MAX, |_| true, change);
    }

    /// The end of the writes to it, those under way included.
    #[must_use]
    pub fn reach(&self) -> u64 {
        self.growth.reach().max(self.size)
    }

    /// What a reader may see in a sector, who began to read at `since`.
    pub fn readable(&self, sector: u64, since: u64) -> impl Iterator<Item = Value> + '_ {
        self.cell(sector).into_iter().flat_map(move |cell| cell.readable(since))
    }

    /// What a crash may leave in a sector.
    pub fn survivors(&self, sector: u64) -> impl Iterator<Item = Value> + '_ {
        self.cell(sector).into_iter().flat_map(Cell::survivors)
    }

    /// Whether all of it is zero for sure.
    #[must_use]
    pub fn is_untouched(&self) -> bool {
        self.cells.iter().all(|(_, cell)| cell.survivors().all(|value| value == 0))
    }
}
