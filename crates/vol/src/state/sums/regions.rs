//! Regions of checksums under the pool's lock: which are open for writes, their pages, and the pages that a checkpoint
//! writes.
//!
//! Owns the states of a region:
//!
//! | state | a write may begin | on the device | left by |
//! |---|---|---|---|
//! | closed | no | exact page, or none | `intend`: the intent waits for a commit |
//! | intended | once the intent is durable | `INTENT` record, or page with `SUMS_OPEN` | a `visit` that finds it idle |
//! | closing | no; `open` reopens it at once | the same | the first checkpoint after a grace of every volume: closed |
//!
//! - G1: a checkpoint that leaves a region intended writes its page with `SUMS_OPEN`, because the checkpoint discards
//!   the `INTENT` record.
//! - G2: a page without `SUMS_OPEN` is written only when no write to the region is in flight, and none can begin before
//!   another intent is durable.
//! - G3: `active` has every region that is intended or whose page is due. Checksums of other regions do not change, so
//!   a checkpoint scans `active` and not all regions of the pool.

use std::collections::{BTreeMap, BTreeSet};

use sheave_base::status::Status;
use sheave_base::sync::Arc;

use super::Sums;
use crate::format::journal::Bounds;
use crate::format::page::index::{build_upper, upper_pages};
use crate::format::page::{PagePlace, PageRef, Spot, index, sums};
use crate::format::superblock::Geometry;
use crate::format::{BLOCK, INDEX_CHILDREN, MAX_SUMS};
use crate::state::everyone::Everyone;

/// Largest number of intended regions. Bounds the data that recovery after a crash reads to a few GiB.
const MAX_INTENDED: usize = 2048;
/// Lower limit of `Regions::bound`: with fewer, regions of concurrent writes would force each other closed.
const MIN_INTENDED: usize = 64;
/// Number of regions opened by one intent, so that a sequential writer waits for a commit only now and then.
const TOGETHER: u64 = 8;
const _: () = assert!(2 * MAX_INTENDED as u64 == Bounds::MOST_OPEN);

#[derive(Debug, Default)]
struct Region {
    page: PageRef,
    /// True if the page has `SUMS_OPEN`.
    open_page: bool,
    intended: bool,
    /// Number of the intent, counted since the pool was opened.
    intent: u64,
    durable: bool,
    /// I/O that was in flight when the region began to close. No write is left once it has ended.
    closing: Option<Arc<Everyone>>,
    /// True if the next checkpoint writes the page.
    write: bool,
}

/// All regions that have, or had, data.
#[derive(Debug)]
pub(crate) struct Regions {
    pub(crate) sums: Arc<Sums>,
    map: BTreeMap<u64, Region>,
    active: BTreeSet<u64>,
    intended: usize,
    /// Largest number of intended regions; beyond it, regions must close before others are intended.
    most: usize,
    intents: u64,
    /// Index pages of level 1 by their index. `upper` has the addresses of those above.
    first: BTreeMap<u64, PageRef>,
    pub(crate) upper: Vec<u64>,
    root: (PageRef, u16),
    /// True if every program that can open the pool supports marks, so that pages and the journal may have them. Before
    /// the upgrade, marks are in memory only.
    knows_marks: bool,
    /// Recovery: number of regions that are open by their page or by an `INTENT` record.
    open_pages: usize,
    /// Recovery: units whose checksums must be computed.
    replayed: Replayed,
}

/// Set of the units named by a journal. There may be millions of records, unordered and about few units, so the vector
/// is sorted and deduplicated whenever it is full. Memory: at most 24 bytes per unit or record, whichever are fewer,
/// and 512 KiB.
#[derive(Debug, Default)]
struct Replayed {
    units: Vec<u64>,
    /// The last unit that was pushed for each value of the lowest bits: filters out most repetitions.
    last: Vec<u64>,
}

impl Replayed {
    const LAST: usize = 1 << 16;

    fn push(&mut self, unit: u64) {
        if self.last.is_empty() {
            // `u64::MAX` is no unit.
            self.last = vec![u64::MAX; Self::LAST];
        }
        if std::mem::replace(&mut self.last[unit as usize % Self::LAST], unit) == unit {
            return;
        }
        if self.units.len() == self.units.capacity() {
            self.sort();
            self.units.reserve_exact(self.units.len().max(64));
        }
        self.units.push(unit);
    }

    /// Sorts and deduplicates. The front is still sorted from the last call, and the stable sort merges sorted runs
    /// cheaply.
    fn sort(&mut self) {
        self.units.sort();
        self.units.dedup();
    }

    /// Returns true if the set has the unit. [`Replayed::sort`] must have been called before.
    fn contains(&self, unit: u64) -> bool {
        self.units.binary_search(&unit).is_ok()
    }
}

impl Regions {
    pub(crate) fn new(sums: Arc<Sums>, knows_marks: bool) -> Regions {
        Regions {
            sums,
            map: BTreeMap::new(),
            active: BTreeSet::new(),
            intended: 0,
            most: MAX_INTENDED,
            intents: 0,
            first: BTreeMap::new(),
            upper: Vec::new(),
            root: (PageRef::NONE, 0),
            knows_marks,
            open_pages: 0,
            replayed: Replayed::default(),
        }
    }

    /// Recovery: allocates the checksums of a region whose page need not change. Unlike `Regions::make` this adds
    /// nothing to the next checkpoint.
    pub(crate) fn make_loaded(&mut self, region: u64) -> Result<(), Status> {
        if self.sums.arena.make(region) { Ok(()) } else { Err(Status::NoMem) }
    }

    /// Allocates the checksums of a region that will change, and adds it to `active` (G3).
    pub(crate) fn make(&mut self, region: u64) -> Result<(), Status> {
        if !self.sums.arena.make(region) {
            return Err(Status::NoMem);
        }
        self.map.entry(region).or_default();
        self.active.insert(region);
        Ok(())
    }

    /// Returns true if recovery after a crash would read the data of the unit.
    pub(crate) fn is_intended(&self, unit: u64) -> bool {
        self.map.get(&self.sums.region(unit)).is_some_and(|region| region.intended)
    }

    /// Called when marks of a region have changed: its page is due.
    pub(crate) fn mark_changed(&mut self, region: u64) {
        self.map.entry(region).or_default().write = true;
        self.active.insert(region);
    }

    /// Called by an upgrade: pages may have marks from now on, and those of `marked` regions are due.
    pub(crate) fn learn_marks(&mut self, marked: &[u64]) {
        self.knows_marks = true;
        marked.iter().for_each(|region| self.mark_changed(*region));
    }

    pub(crate) fn knows_marks(&self) -> bool {
        self.knows_marks
    }

    /// Recovery: sets the page of a region.
    pub(crate) fn loaded(&mut self, region: u64, page: PageRef, open: bool) {
        let entry = self.map.entry(region).or_default();
        (entry.page, entry.open_page) = (page, open);
        self.open_pages += usize::from(open);
    }

    /// Recovery: adds an index page.
    pub(crate) fn loaded_index(&mut self, level: u16, index: u64, page: PageRef) {
        if level == 1 {
            self.first.insert(index, page);
        } else {
            self.upper.push(page.address);
        }
    }

    pub(crate) fn loaded_root(&mut self, page: PageRef, level: u16) {
        self.root = (page, level);
    }

    pub(crate) fn replay_intent(&mut self, regions: std::ops::Range<u64>) -> Result<(), Status> {
        for region in regions {
            let entry = self.map.entry(region).or_default();
            self.open_pages += usize::from(!entry.open_page);
            entry.open_page = true;
            Bounds::check_open(self.open_pages as u64).map_err(|_| Status::Invalid)?;
        }
        Ok(())
    }

    /// Recovery: notes a unit of a `SET` or `RUN` record, in a pool without marks: the programs that do not support
    /// marks copied units to regions that were not open.
    pub(crate) fn replay_unit(&mut self, unit: u64) {
        if !self.knows_marks {
            self.replayed.push(unit);
        }
    }

    /// Recovery: applies a `MARK` or `UNMARK` record for a range of pool blocks.
    pub(crate) fn replay_marks(&mut self, blocks: std::ops::Range<u64>, bad: bool) -> Result<(), Status> {
        let mut at = blocks.start;
        while at < blocks.end {
            let (region, count) = self.sums.run_in_unit(at, blocks.end - at);
            // Skips `make` for most records: nearly all are about regions that are due already.
            if !self.map.get(&region).is_some_and(|region| region.write) {
                self.make(region)?;
                self.mark_changed(region);
            }
            self.sums.replay_marks(at, count, bad);
            at += count;
        }
        Ok(())
    }

    /// Recovery: called after replay; sorts the noted units for `Regions::is_replayed`.
    pub(crate) fn units_replayed(&mut self) {
        self.replayed.sort();
    }

    /// Recovery: returns true if the checkpoint has the checksums of a region, except those of
    /// [replayed](Self::is_replayed) units.
    pub(crate) fn is_exact(&self, region: u64) -> bool {
        self.map.get(&region).is_some_and(|region| !region.page.is_none() && !region.open_page)
    }

    /// Recovery: units below `total` in regions to which writes may have been in flight at the crash.
    pub(crate) fn open_units(&self, total: u64) -> Vec<u64> {
        let per_region = self.sums.region_units;
        let open = self.map.iter().filter(|(_, region)| region.open_page).map(|(id, _)| *id);
        open.flat_map(|id| id * per_region..((id + 1) * per_region).min(total)).collect()
    }

    /// Recovery: returns true if the journal names the unit. Always false in pools with marks.
    pub(crate) fn is_replayed(&self, unit: u64) -> bool {
        self.replayed.contains(unit)
    }

    /// Recovery: called when all checksums have been computed; marks the pages of open regions as due.
    pub(crate) fn settle(&mut self) {
        let opened: Vec<u64> = self.map.iter().filter(|(_, region)| region.open_page).map(|(id, _)| *id).collect();
        for region in opened {
            if self.sums.arena.make(region) {
                self.active.insert(region);
                self.sums.mark_dirty(region);
            }
        }
        self.replayed = Replayed::default();
    }

    /// Recovery: keeps a region open because some of its blocks could not be read (N1 of `unknown`).
    pub(crate) fn hold_open(&mut self, region: u64) {
        let Some(region) = self.map.get_mut(&region) else { return };
        self.intended += usize::from(!region.intended);
        // `open_page` may come from an `INTENT` record, which the first checkpoint discards. False makes that
        // checkpoint write the page with `SUMS_OPEN` (G1).
        (region.intended, region.durable, region.open_page) = (true, true, false);
    }

    /// Returns the number of pages to reserve for the checkpoint of a pool with this many regions.
    pub(crate) fn reserve_pages(regions: u64) -> u64 {
        regions.min(20_000) * 9 / 8 + 8
    }

    /// Returns the aligned group of regions that one intent opens.
    pub(crate) fn together(region: u64, end: u64) -> std::ops::Range<u64> {
        let first = region & !(TOGETHER - 1);
        first..(first + TOGETHER).min(end)
    }

    /// Opens `wanted`, and the other regions of `all` whose intent is durable. Returns false if the intent of `wanted`
    /// is not.
    pub(crate) fn open(&mut self, wanted: u64, all: std::ops::Range<u64>) -> bool {
        if !self.map.get(&wanted).is_some_and(|region| region.durable) {
            return false;
        }
        for id in all {
            if let Some(region) = self.map.get_mut(&id).filter(|region| region.durable) {
                region.closing = None;
                self.sums.set_open(id, true);
            }
        }
        true
    }

    /// Limits the data in intended regions to `bytes`, within the bounds of the format and of concurrent writes.
    pub(crate) fn bound(&mut self, bytes: u64, region_bytes: u64) {
        let regions = usize::try_from(bytes / region_bytes.max(1)).unwrap_or(usize::MAX);
        self.most = regions.clamp(MIN_INTENDED, MAX_INTENDED);
    }

    /// Returns true if regions must close before another group is intended. Regions held open by unreadable blocks do
    /// not count, as far as `MAX_INTENDED` allows.
    pub(crate) fn is_crowded(&self) -> bool {
        let then = self.intended + TOGETHER as usize;
        then > self.most && then > MAX_INTENDED.min(self.most + self.sums.unknown_regions().len())
    }

    /// Marks the regions as intended; the caller records the intent. Returns the number of the intent.
    pub(crate) fn intend(&mut self, all: std::ops::Range<u64>) -> Result<u64, Status> {
        self.intents += 1;
        for id in all {
            self.make(id)?;
            let Some(region) = self.map.get_mut(&id) else { continue };
            if !region.intended {
                (region.intended, region.intent) = (true, self.intents);
                self.intended += 1;
            }
        }
        Ok(self.intents)
    }

    /// Called when the records of all intents of these regions up to number `intent` are durable. A region may have
    /// closed since, and may have a later intent, which is not durable yet.
    pub(crate) fn intent_is_durable(&mut self, all: std::ops::Range<u64>, intent: u64) {
        for (_, region) in self.map.range_mut(all) {
            region.durable |= region.intended && region.intent <= intent;
        }
    }

    /// Called when a checkpoint begins: closes regions and chooses the pages that it writes (G1, G2). If `all` is true,
    /// no write can be in flight, so every region without unreadable blocks closes.
    pub(crate) fn age(&mut self, everyone: impl FnMut() -> Everyone, all: bool) {
        let crowded = self.intended > self.most / 2;
        let over = self.visit(everyone, crowded, all);
        for id in over {
            self.sums.set_open(id, false);
            let Some(region) = self.map.get_mut(&id) else { continue };
            // The page without `SUMS_OPEN` closes the region on the device (G2).
            *region = Region { page: region.page, open_page: region.open_page, write: true, ..Region::default() };
            self.intended -= 1;
        }
        let map = &self.map;
        self.active.retain(|id| map.get(id).is_some_and(|region| region.intended || region.write));
    }

    /// Called between checkpoints: begins to close regions without writes since the last call. Returns true if a
    /// checkpoint would close any region now.
    pub(crate) fn look(&mut self, everyone: impl FnMut() -> Everyone) -> bool {
        !self.visit(everyone, false, false).is_empty()
    }

    /// Returns true if any region is intended.
    pub(crate) fn any_is_open(&self) -> bool {
        self.intended > 0
    }

    /// Scans `active` and begins to close idle regions, or all regions if `crowded`. Returns the regions that may
    /// become closed: those that were closing and have no write in flight, or every region if `all`. Regions with
    /// unreadable blocks stay open.
    fn visit(&mut self, mut everyone: impl FnMut() -> Everyone, crowded: bool, all: bool) -> Vec<u64> {
        // Regions that began to close together share one `Everyone`, which is queried once per scan.
        let mut looked: Vec<(Arc<Everyone>, bool)> = Vec::new();
        let mut is_over = |closing: &Arc<Everyone>| {
            if let Some((_, over)) = looked.iter().find(|(seen, _)| Arc::ptr_eq(seen, closing)) {
                return *over;
            }
            let over = closing.is_over();
            looked.push((Arc::clone(closing), over));
            over
        };
        let (mut idle, mut may_close) = (Vec::new(), Vec::new());
        for &id in &self.active {
            let Some(region) = self.map.get_mut(&id) else { continue };
            let active = self.sums.take_dirty(id);
            region.write |= active && !region.intended;
            if !region.intended {
                continue;
            }
            // `is_over` before `has_unknown`: the last writes to the region may leave unreadable blocks, so they must
            // have ended.
            let over = all || region.closing.as_ref().is_some_and(&mut is_over);
            let held = self.sums.has_unknown(id);
            if !held && over {
                may_close.push(id);
                continue;
            }
            if !held && region.closing.is_none() && region.durable && (!active || crowded) {
                self.sums.set_open(id, false);
                idle.push(id);
            }
            // The checksums in an open page have no effect, because recovery computes them anew. But `SUMS_OPEN` must
            // be on the device.
            region.write |= !region.open_page;
        }
        if !idle.is_empty() {
            // The graces start after all idle regions were closed, so every later writer finds them closed.
            let now = Arc::new(everyone());
            for id in idle {
                self.map.entry(id).and_modify(|region| region.closing = Some(Arc::clone(&now)));
            }
        }
        may_close
    }

    fn to_write(&self) -> impl Iterator<Item = u64> + '_ {
        self.active.iter().copied().filter(|id| self.map.get(id).is_some_and(|region| region.write))
    }

    /// Returns an upper bound of the pages that [`Regions::draft`] writes, whatever happens to the active regions until
    /// then.
    pub(crate) fn pages_due(&self) -> u64 {
        Self::pages_of(self.active.len() as u64, self.first_pages())
    }

    /// Returns the growth of [`Regions::pages_due`] when `regions` become active.
    pub(crate) fn cost_of(&self, regions: std::ops::Range<u64>) -> u64 {
        let first = self.first_pages().max(regions.end.div_ceil(INDEX_CHILDREN as u64));
        let more = regions.filter(|region| !self.active.contains(region)).count() as u64;
        if more == 0 {
            return 0;
        }
        Self::pages_of(self.active.len() as u64 + more, first) - self.pages_due()
    }

    /// Returns an upper bound of the index pages of level 1. A crafted pool may have index pages without regions.
    fn first_pages(&self) -> u64 {
        let regions = self.map.keys().next_back().map(|last| last / INDEX_CHILDREN as u64);
        regions.max(self.first.keys().next_back().copied()).map_or(0, |last| last + 1)
    }

    fn pages_of(pages: u64, first: u64) -> u64 {
        if pages == 0 { 0 } else { pages + first.min(pages) + upper_pages(first, first) + 1 }
    }

    /// Writes the due pages, with their index pages, to `sink`. Calls `give_up` for each page that these replace.
    /// Returns the root and its level.
    pub(crate) fn draft(
        &mut self,
        geometry: &Geometry,
        place: &PagePlace,
        sink: &mut dyn index::Sink,
        give_up: &mut dyn FnMut(u64),
    ) -> (PageRef, u16) {
        let mut block = [0; BLOCK];
        let mut touched = BTreeSet::new();
        let wanted: Vec<u64> = self.to_write().collect();
        for id in wanted {
            let Some(region) = self.map.get_mut(&id) else { continue };
            let Some(spot) = sink.allocate() else { break };
            let mut numbers = [0; MAX_SUMS];
            for (to, from) in numbers.iter_mut().zip(self.sums.arena.node(id).unwrap_or_default().iter().skip(1)) {
                *to = from.load(sheave_base::sync::atomic::Ordering::Acquire); // Acquire: S2
            }
            let place = PagePlace { owner: 0, ..place.at(spot, id) };
            let marks = if self.knows_marks { self.sums.marks(id) } else { sums::Marked::default() };
            let page = sums::encode(&mut block, geometry, &place, region.intended, &numbers, &marks);
            sink.page(spot.address, &block);
            let old = std::mem::replace(&mut region.page, page);
            if !old.is_none() {
                give_up(old.address);
            }
            (region.write, region.open_page) = (false, region.intended);
            touched.insert(id / INDEX_CHILDREN as u64);
        }
        for &at in &touched {
            let first = at * INDEX_CHILDREN as u64;
            let mut children = [PageRef::NONE; INDEX_CHILDREN];
            for (id, region) in self.map.range(first..first + INDEX_CHILDREN as u64) {
                children[(id - first) as usize] = region.page;
            }
            let Some(spot) = sink.allocate() else { break };
            let page = index::encode(&mut block, &PagePlace { owner: 0, ..place.at(spot, at) }, 1, &children);
            sink.page(spot.address, &block);
            if let Some(old) = self.first.insert(at, page) {
                give_up(old.address);
            }
        }
        if !touched.is_empty() {
            self.draft_upper(place, sink, give_up);
        }
        self.root
    }

    fn draft_upper(&mut self, place: &PagePlace, sink: &mut dyn index::Sink, give_up: &mut dyn FnMut(u64)) {
        let count = self.first.keys().next_back().map_or(0, |last| last + 1);
        let pages: Vec<PageRef> = (0..count).map(|at| self.first.get(&at).copied().unwrap_or_default()).collect();
        std::mem::take(&mut self.upper).into_iter().for_each(&mut *give_up);
        let mut noting = Noting { sink, written: Vec::new() };
        self.root = build_upper(&mut noting, place, 1, 1, &pages).unwrap_or(self.root);
        self.upper = noting.written;
    }

    /// Returns the estimated memory of the regions: 4096 bytes of checksums and 80 of bookkeeping each, and the set of
    /// replayed units.
    pub(crate) fn memory_bytes(&self) -> u64 {
        (self.map.len() * (4096 + 80)) as u64 + (1 << 19)
    }
}

/// A sink that records the addresses of its pages.
struct Noting<'a> {
    sink: &'a mut dyn index::Sink,
    written: Vec<u64>,
}

impl index::Sink for Noting<'_> {
    fn allocate(&mut self) -> Option<Spot> {
        self.sink.allocate()
    }

    fn page(&mut self, address: u64, block: &crate::format::block::Block) {
        self.written.push(address);
        self.sink.page(address, block);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
