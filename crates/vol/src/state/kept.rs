//! Journal records about damaged map pages, kept until the pages can be read.
//!
//! After a crash the journal may have records about a part of a map whose page cannot be read. A checkpoint can only
//! carry the reference to that page, so such records are kept instead of applied: the checkpoint stores them in
//! [pages](crate::format::page::kept) of their own, and each later opening applies them before its journal, or keeps
//! them again. So a pool with a damaged map allows everything except changes of that map, whatever its journal has.
//!
//! Owns the list of kept records ([`LostMap::kept`]) and the pages that store them.
//!
//! - K1: the part of a map below a damaged page is never changed: records about that part are kept, and records about a
//!   range are split. So that part is empty in memory, and checkpoints refer to the damaged page itself.
//! - K2: records are kept by volume, and a copy of a volume gets a copy of its records. So the order of records matters
//!   only within a volume. A deleted volume has no kept records. A volume that was rolled back has the kept records of
//!   its source.
//! - K3: the first checkpoint of an opening writes all kept records. Later checkpoints write them again only after a
//!   rollback. Records of deleted volumes may remain, because they have no effect.
//! - K4: units that kept records name are in quarantine: they are absent from the free list of the checkpoint that
//!   recovery has read, or are removed from that list ([`State::without_kept`]).
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

/// Largest number of kept records. The records that a copy of a volume takes with it count again. The limit is the
/// number of the smallest records that fit the largest journal.
const MOST_RECORDS: u64 = 1 << 21;

impl LostMap {
    /// Unit ranges below damaged pages, ascending and disjoint.
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

    /// Returns true if the unit lies below a damaged page.
    fn has(&self, geometry: &Geometry, unit: u64) -> bool {
        let ranges = self.ranges(geometry);
        let next = ranges.partition_point(|range| range.1 <= unit);
        ranges.get(next).is_some_and(|range| range.0 <= unit)
    }

    /// Splits a range of units into parts, in order; true marks the parts below damaged pages.
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
    /// Returns true if a unit of a volume lies below a damaged page.
    pub(crate) fn is_lost(&self, volume: u32, unit: u64) -> bool {
        let lost = self.table.get(volume).and_then(|vol| vol.damage.as_ref());
        lost.is_some_and(|lost| lost.has(&self.sb.geometry(), unit))
    }

    /// Adds a record about units below damaged pages to the kept records (K1).
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

    /// Unmaps units of a volume with a damaged map, and keeps records for the parts below damaged pages.
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

    /// Unmaps everything beyond `size` of a volume with a damaged map, and keeps records for the parts below damaged
    /// pages.
    pub(crate) fn cut_or_keep(&mut self, core: &Arc<VolumeCore>, size: u64) -> Result<(), Status> {
        self.unmap_or_keep(core, self.tree.map.geometry.units_of(size)..MAX_VOLUME_UNITS)?;
        self.clear_or_keep(core, size)
    }

    /// Clears the written bits of the blocks behind `size` in the unit that contains `size`, or keeps a record for
    /// that.
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

    /// Recovery: applies a kept record, or keeps it again.
    pub(crate) fn apply_kept(&mut self, record: &Record) -> Result<(), Status> {
        let Record::Resize { volume, size } = record else { return self.apply(record) };
        let Some(vol) = self.table.get(*volume) else { return Ok(()) };
        let core = Arc::clone(&vol.core);
        self.clear_or_keep(&core, *size)
    }

    /// Called before the map of `from` is copied to another volume, which then has the same damage and kept records.
    /// Sets `is_too_much` if a page above the levels that maps share is damaged: such a page cannot belong to two maps,
    /// so no checkpoint could contain both.
    pub(crate) fn note_copied(&mut self, from: u32) {
        let lost = self.table.get(from).and_then(|vol| vol.damage.as_ref());
        let mut pages = lost.iter().flat_map(|lost| &lost.pages).flat_map(|pages| pages.iter());
        self.kept.is_too_much |= pages.any(|page| page.level > 1);
    }

    /// Drops the damage and the kept records of a volume that is about to get another map (K3).
    pub(crate) fn drop_kept(&mut self, volume: u32) {
        let Some(vol) = self.table.get_mut(volume) else { return };
        if vol.damage.take().is_some_and(|lost| !lost.kept.is_empty()) {
            self.kept.rewrite = Some(self.kept_pages());
        }
    }

    /// Called when no volume has a damaged map any more: drops all kept records.
    pub(crate) fn end_kept(&mut self) {
        let rewrite = (!self.kept.pages.is_empty()).then_some(0);
        self.kept = Kept { pages: std::mem::take(&mut self.kept.pages), rewrite, ..Kept::default() };
    }

    /// Returns the number of pages that the kept records take.
    pub(crate) fn kept_pages(&self) -> u64 {
        self.kept_chunks().len() as u64
    }

    /// Recovery: called after replay. Makes the next checkpoint write the kept records, or remove those on the device.
    pub(crate) fn settle_kept(&mut self) {
        if self.kept.rewrite.is_some() || !self.sb.kept.is_none() {
            self.kept.rewrite = Some(self.kept_pages());
        }
        self.kept.is_too_much |= self.kept.rewrite > Some(2 * u64::from(self.sb.journal_blocks));
        let lost = self.table.iter().filter_map(|vol| vol.damage.as_ref());
        self.kept.upper_due = lost.map(|lost| lost.upper().len() as u64 * u64::from(MAX_LEVEL)).sum();
    }

    /// Returns `runs` without the units that kept records name (K4).
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

    /// Encodes the kept records of all volumes, split into page payloads.
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

    /// Writes the pages of kept records into a checkpoint, if they are due. Returns the reference to the first page
    /// (K3).
    pub(crate) fn draft_kept(&mut self, place: &PagePlace, draft: &mut Draft) -> PageRef {
        self.kept.upper_due = 0;
        if self.kept.rewrite.take().is_none() {
            return self.sb.kept;
        }
        std::mem::take(&mut self.kept.pages).into_iter().for_each(|page| self.tree.pages.give_up(page));
        let mut next = PageRef::NONE;
        // From the last page to the first, because each page has the checksum of the next.
        for (index, records) in self.kept_chunks().iter().enumerate().rev() {
            let (spot, block) = draft.next();
            next = kept::encode(block, &place.at(spot, index as u64), next, records);
            self.kept.pages.push(spot.address);
        }
        next
    }
}

/// Returns the record with its volume replaced.
fn of_volume(record: &Record, volume: u32) -> Record {
    match *record {
        Record::Set { unit, phys, written, .. } => Record::Set { volume, unit, phys, written },
        Record::Run { unit, count, phys, .. } => Record::Run { volume, unit, count, phys },
        Record::Resize { size, .. } => Record::Resize { volume, size },
        ref other => other.clone(),
    }
}
