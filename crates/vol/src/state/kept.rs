//! Records of the journal about places of maps whose pages are damaged, kept until the pages can be read.
//!
//! A crash leaves records in the journal. Some may be about a place of a map whose page gives nothing. A checkpoint has
//! the reference to that page in its place, and nothing else; so these records are not applied, but kept: the
//! checkpoint has them in [pages of their own](crate::format::page::kept), and each opening applies them again, before
//! its journal, or keeps them on. So a pool with a damaged map takes everything but changes of that map, whatever its
//! journal has.
//!
//! Owns which records are kept ([`LostMap::kept`]), and the pages that have them.
//!
//! - K1: nothing of a map is changed in the place of a damaged page: records about it are kept, those about a range are
//!   cut into parts. So what is in memory there is empty, and drafts of checkpoints have the page itself.
//! - K2: records are kept by volume, and a copy gets those of what it is a copy of. So they need no order but their
//!   own, and no record of another kind. A deleted volume has none; one that was rolled back has those of its source.
//! - K3: the first checkpoint of an opening writes all of them. Later ones write nothing, unless a volume was rolled
//!   back: records of deleted volumes mean nothing, as in the journal.
//! - K4: units that kept records name are in quarantine: they are in no list of free units of the checkpoint that
//!   recovery has read, or are taken out of it ([`State::without_kept`]).
//!
//! Called by [`apply`](super::apply), recovery and checkpoints.

use std::ops::Range;

use sheave_base::status::Status;
use sheave_base::sync::Arc;

use super::State;
use super::plan::Draft;
use super::table::{Kept, LostMap, VolumeCore};
use crate::format::BLOCK_SHIFT;
use crate::format::page::{PagePlace, PageRef, kept};
use crate::format::record::Record;
use crate::format::superblock::Geometry;
use crate::format::{KEPT_PAYLOAD, MAX_LEVEL, MAX_VOLUME_UNITS};

/// Records that are kept at most, those counted again that a copy of a volume takes along: as many as the largest
/// journal has of the smallest.
const MOST_RECORDS: u64 = 1 << 21;

impl LostMap {
    /// Units in the places of damaged pages, as ranges that ascend.
    fn ranges(&self, geometry: &Geometry) -> &[(u64, u64)] {
        self.ranges.get_or_init(|| {
            let range = |level: u16, number: u64| {
                let below = geometry.units_below(level);
                let first = number.saturating_mul(below);
                (first.min(MAX_VOLUME_UNITS), first.saturating_add(below).min(MAX_VOLUME_UNITS))
            };
            let pages = self.pages.iter().flat_map(|pages| pages.iter());
            let mut all: Vec<(u64, u64)> = pages.map(|page| range(page.level, page.number)).collect();
            all.sort_unstable();
            let mut merged: Vec<(u64, u64)> = Vec::new();
            for (first, end) in all {
                match merged.last_mut() {
                    Some(last) if last.1 >= first => last.1 = last.1.max(end),
                    _ => merged.push((first, end)),
                }
            }
            merged.into()
        })
    }

    /// Whether the unit lies in the place of a damaged page.
    fn has(&self, geometry: &Geometry, unit: u64) -> bool {
        let ranges = self.ranges(geometry);
        let next = ranges.partition_point(|range| range.1 <= unit);
        ranges.get(next).is_some_and(|range| range.0 <= unit)
    }

    /// The parts of a range of units, in order; true: the part lies in the places of damaged pages.
    fn parts(&self, geometry: &Geometry, units: Range<u64>) -> Vec<(Range<u64>, bool)> {
        let (mut parts, mut at) = (Vec::new(), units.start);
        for &(first, end) in self.ranges(geometry).iter().filter(|range| range.1 > units.start) {
            if first >= units.end {
                break;
            }
            if first > at {
                parts.push((at..first, false));
            }
            let (from, to) = (first.max(at), end.min(units.end));
            parts.push((from..to, true));
            at = to;
        }
        if at < units.end {
            parts.push((at..units.end, false));
        }
        parts
    }
}

impl State {
    /// Whether a unit of a volume lies in the place of a damaged page.
    pub(crate) fn is_lost(&self, volume: u32, unit: u64) -> bool {
        let lost = self.table.get(volume).and_then(|vol| vol.damage.as_ref());
        lost.is_some_and(|lost| lost.has(&self.sb.geometry(), unit))
    }

    /// Keeps a record about places of damaged pages (K1).
    pub(crate) fn keep(&mut self, record: Record) {
        let vol = self.table.get_mut(record.volume());
        let Some(lost) = vol.and_then(|vol| vol.damage.as_mut()) else { return };
        let copied = if Arc::get_mut(&mut lost.kept).is_none() { lost.kept.len() as u64 } else { 0 };
        self.kept.records += copied + 1;
        if self.kept.records > MOST_RECORDS {
            self.kept.is_too_much = true;
            return;
        }
        Arc::make_mut(&mut lost.kept).push(record);
        self.kept.rewrite.get_or_insert(0);
    }

    /// Makes holes of units of a volume with a damaged map, and keeps what is about damaged pages.
    pub(crate) fn unmap_or_keep(&mut self, core: &Arc<VolumeCore>, units: Range<u64>) -> Result<(), Status> {
        let geometry = self.sb.geometry();
        let lost = self.table.get(core.id).and_then(|vol| vol.damage.as_ref());
        let parts = lost.map_or_else(|| vec![(units.clone(), false)], |lost| lost.parts(&geometry, units.clone()));
        for (part, is_lost) in parts {
            let count = part.end - part.start;
            match is_lost {
                true => self.keep(Record::Run { volume: core.id, unit: part.start, count, phys: 0 }),
                false => self.unmap_units(core, part.start, count)?,
            }
        }
        Ok(())
    }

    /// Takes out what lies beyond `size` of a volume with a damaged map, and keeps what is about damaged pages.
    pub(crate) fn cut_or_keep(&mut self, core: &Arc<VolumeCore>, size: u64) -> Result<(), Status> {
        self.unmap_or_keep(core, self.tree.map.geometry.units_of(size)..MAX_VOLUME_UNITS)?;
        self.clear_or_keep(core, size)
    }

    /// What lies behind `size` in its unit is not written.
    fn clear_or_keep(&mut self, core: &Arc<VolumeCore>, size: u64) -> Result<(), Status> {
        let geometry = self.tree.map.geometry;
        let (unit, inside) = (size >> geometry.unit_shift, size & (geometry.unit_bytes() - 1));
        if inside == 0 {
            return Ok(());
        }
        if self.is_lost(core.id, unit) {
            self.keep(Record::Resize { volume: core.id, size });
            return Ok(());
        }
        let blocks = inside.div_ceil(1 << BLOCK_SHIFT) as u32;
        self.clear_blocks(core, unit, blocks, geometry.blocks() - blocks).map(drop)
    }

    /// Recovery: does what a record says that was kept, or keeps it on.
    pub(crate) fn apply_kept(&mut self, record: &Record) -> Result<(), Status> {
        let Record::Resize { volume, size } = record else { return self.apply(record) };
        let Some(vol) = self.table.get(*volume) else { return Ok(()) };
        let core = Arc::clone(&vol.core);
        self.clear_or_keep(&core, *size)
    }

    /// Who gets the map of `from` gets its damage, and a copy of what is kept. A damaged page above those that volumes
    /// share cannot be in two maps.
    pub(crate) fn note_copied(&mut self, from: u32) {
        let lost = self.table.get(from).and_then(|vol| vol.damage.as_ref());
        let mut pages = lost.iter().flat_map(|lost| &lost.pages).flat_map(|pages| pages.iter());
        self.kept.is_too_much |= pages.any(|page| page.level > 1);
    }

    /// The volume is about to get another map: what was kept of its own is not to be applied any more (K3).
    pub(crate) fn drop_kept(&mut self, volume: u32) {
        let Some(vol) = self.table.get_mut(volume) else { return };
        if vol.damage.take().is_some_and(|lost| !lost.kept.is_empty()) {
            self.kept.rewrite = Some(self.kept_pages());
        }
    }

    /// No volume with a damaged map is left: nothing is kept.
    pub(crate) fn end_kept(&mut self) {
        let rewrite = (!self.kept.pages.is_empty()).then_some(0);
        self.kept = Kept { pages: std::mem::take(&mut self.kept.pages), rewrite, ..Kept::default() };
    }

    /// Pages that what is kept takes.
    pub(crate) fn kept_pages(&self) -> u64 {
        self.kept_chunks().len() as u64
    }

    /// Recovery: everything has been replayed. The next checkpoint writes what is kept, or that there is nothing.
    pub(crate) fn settle_kept(&mut self) {
        if self.kept.rewrite.is_some() || !self.sb.kept.is_none() {
            self.kept.rewrite = Some(self.kept_pages());
        }
        self.kept.is_too_much |= self.kept.rewrite > Some(2 * u64::from(self.sb.journal_blocks));
        let lost = self.table.iter().filter_map(|vol| vol.damage.as_ref());
        self.kept.upper_due = lost.map(|lost| lost.upper().len() as u64 * u64::from(MAX_LEVEL)).sum();
    }

    /// Runs of units without those that kept records name (K4).
    pub(crate) fn without_kept(&self, runs: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let lost = self.table.iter().filter_map(|vol| vol.damage.as_ref());
        let named = lost.flat_map(|lost| lost.kept.iter()).filter_map(|record| match record {
            Record::Set { phys, .. } => Some(*phys),
            _ => None,
        });
        let mut named: Vec<u64> = named.collect();
        named.sort_unstable();
        named.dedup();
        let (mut left, mut next) = (Vec::with_capacity(runs.len()), 0);
        for &(first, count) in runs {
            let mut from = first;
            next += named[next..].partition_point(|unit| *unit < first);
            while let Some(&unit) = named.get(next).filter(|unit| **unit < first + count) {
                left.push((from, unit - from));
                from = unit + 1;
                next += 1;
            }
            left.push((from, first + count - from));
        }
        left.retain(|run| run.1 > 0);
        left
    }

    /// The records of all volumes, as pages have them.
    fn kept_chunks(&self) -> Vec<Vec<u8>> {
        let geometry = self.sb.geometry();
        let mut chunks: Vec<Vec<u8>> = Vec::new();
        for vol in self.table.iter().filter(|vol| !vol.unborn) {
            let Some(lost) = &vol.damage else { continue };
            for record in lost.kept.iter().map(|record| of_volume(record, vol.id)) {
                let len = record.bytes(&geometry);
                if chunks.last().is_none_or(|chunk| chunk.len() + len > KEPT_PAYLOAD) {
                    chunks.push(Vec::new());
                }
                if let Some(chunk) = chunks.last_mut() {
                    let from = chunk.len();
                    chunk.resize(from + len, 0);
                    record.encode(&geometry, &mut chunk[from..]);
                }
            }
        }
        chunks
    }

    /// Puts the pages of what is kept into a checkpoint, if it is to be written; the first one (K3).
    pub(crate) fn draft_kept(&mut self, place: &PagePlace, draft: &mut Draft) -> PageRef {
        self.kept.upper_due = 0;
        if self.kept.rewrite.take().is_none() {
            return self.sb.kept;
        }
        std::mem::take(&mut self.kept.pages).into_iter().for_each(|page| self.tree.pages.give_up(page));
        let mut next = PageRef::NONE;
        // The last one first, for each has the checksum of the next.
        for (index, records) in self.kept_chunks().iter().enumerate().rev() {
            let (spot, block) = draft.next();
            next = kept::encode(block, &place.at(spot, index as u64), next, records);
            self.kept.pages.push(spot.address);
        }
        next
    }
}

/// The same record for another volume.
fn of_volume(record: &Record, volume: u32) -> Record {
    match *record {
        Record::Set { unit, phys, written, .. } => Record::Set { volume, unit, phys, written },
        Record::Run { unit, count, phys, .. } => Record::Run { volume, unit, count, phys },
        Record::Resize { size, .. } => Record::Resize { volume, size },
        ref other => other.clone(),
    }
}
