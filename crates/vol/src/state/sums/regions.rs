//! Regions under the pool's lock: which are open, which pages they have, what a checkpoint writes.
//!
//! Owns a region's life:
//!
//! | state | a write may begin | on the device | left by |
//! |---|---|---|---|
//! | closed | no | exact page, or none | `intend`: the intent waits for a commit |
//! | intended | once that is durable | `INTENT` record, or a page with `SUMS_OPEN` | a look that finds it idle |
//! | closing | no; `intend` opens it at once | the same | the first checkpoint after a grace of every volume: closed |
//!
//! - G1: a checkpoint that leaves a region intended has a page of it with `SUMS_OPEN`: its `INTENT` record is gone.
//! - G2: a page without `SUMS_OPEN` is written when no write is under way, and none can begin before a new intent is
//!   durable.
//! - G3: a region that is intended, or whose page a checkpoint is to write, is in `active`; checksums change in no
//!   other. So a checkpoint looks at these, and not at all regions of the pool.

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

/// Most regions that are intended: bounds what recovery reads to a few GiB.
const MAX_INTENDED: usize = 2048;
/// The least bound that may be set: regions that many writes at a time need do not close each other.
const MIN_INTENDED: usize = 64;
/// Regions that are opened together: who writes one after the other waits for a commit now and then only.
const TOGETHER: u64 = 8;
const _: () = assert!(2 * MAX_INTENDED as u64 == Bounds::MOST_OPEN);

#[derive(Debug, Default)]
struct Region {
    page: PageRef,
    /// The page has `SUMS_OPEN`.
    open_page: bool,
    intended: bool,
    /// Which intent that is, of all since the pool was opened.
    intent: u64,
    /// The intent is durable.
    durable: bool,
    /// When all of this has ended no write is under way.
    closing: Option<Arc<Everyone>>,
    /// The next checkpoint writes its page.
    write: bool,
}

/// All regions that have, or had, data.
#[derive(Debug)]
pub(crate) struct Regions {
    pub(crate) sums: Arc<Sums>,
    map: BTreeMap<u64, Region>,
    active: BTreeSet<u64>,
    intended: usize,
    /// When so many are intended, some must close before others are.
    most: usize,
    /// Intents since the pool was opened.
    intents: u64,
    /// Index pages of level 1, by their index; and those above.
    first: BTreeMap<u64, PageRef>,
    pub(crate) upper: Vec<u64>,
    root: (PageRef, u16),
    /// Who opens the pool knows marks, as all programs do that opened it since it was upgraded: so pages and the
    /// journal may have them. Until then they are in memory only.
    knows_marks: bool,
    /// Recovery: regions whose pages were open, or whose records are.
    open_pages: usize,
    /// Recovery: units whose checksums are computed.
    replayed: Replayed,
}

/// Units that a journal speaks of. It may have millions of records, in any order and of few units, so they are sorted
/// now and then, which also finds those that are there twice: memory is at most 24 bytes a unit or record, whichever
/// are fewer, and 512 KiB.
#[derive(Debug, Default)]
struct Replayed {
    units: Vec<u64>,
    /// Units that were there last, by their lowest bits: most of a journal is about few units.
    last: Vec<u64>,
}

impl Replayed {
    /// Units in `last`.
    const LAST: usize = 1 << 16;

    fn push(&mut self, unit: u64) {
        if self.last.is_empty() {
            // No unit has this number.
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

    /// The first of them are sorted already: the stable sort takes them as they are.
    fn sort(&mut self) {
        self.units.sort();
        self.units.dedup();
    }

    /// After [`Replayed::sort`].
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

    /// Recovery: makes room for the checksums of a region whose page is as it is to be. Nothing of it is to be written,
    /// so no checkpoint needs room for it.
    pub(crate) fn make_loaded(&mut self, region: u64) -> Result<(), Status> {
        if self.sums.arena.make(region) { Ok(()) } else { Err(Status::NoMem) }
    }

    /// Makes room for a region that is to be written.
    pub(crate) fn make(&mut self, region: u64) -> Result<(), Status> {
        if !self.sums.arena.make(region) {
            return Err(Status::NoMem);
        }
        self.map.entry(region).or_default();
        self.active.insert(region);
        Ok(())
    }

    /// Whether opening the pool after a crash reads the unit.
    pub(crate) fn is_intended(&self, unit: u64) -> bool {
        self.map.get(&self.sums.region(unit)).is_some_and(|region| region.intended)
    }

    /// The marks of a region have changed: its page is to have them.
    pub(crate) fn mark_changed(&mut self, region: u64) {
        self.map.entry(region).or_default().write = true;
        self.active.insert(region);
    }

    /// The pool has been upgraded: the next checkpoint has the marks of these regions.
    pub(crate) fn learn_marks(&mut self, marked: &[u64]) {
        self.knows_marks = true;
        marked.iter().for_each(|region| self.mark_changed(*region));
    }

    pub(crate) fn knows_marks(&self) -> bool {
        self.knows_marks
    }

    /// Recovery: the page of a region.
    pub(crate) fn loaded(&mut self, region: u64, page: PageRef, open: bool) {
        let entry = self.map.entry(region).or_default();
        (entry.page, entry.open_page) = (page, open);
        self.open_pages += usize::from(open);
    }

    /// Recovery: an index page.
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

    /// Recovery: an `INTENT` record.
    pub(crate) fn replay_intent(&mut self, regions: std::ops::Range<u64>) -> Result<(), Status> {
        for region in regions {
            let entry = self.map.entry(region).or_default();
            self.open_pages += usize::from(!entry.open_page);
            entry.open_page = true;
            Bounds::check_open(self.open_pages as u64).map_err(|_| Status::Invalid)?;
        }
        Ok(())
    }

    /// Recovery: a `SET` or `RUN` record. Programs that did not know marks copied units to regions that were not open.
    pub(crate) fn replay_unit(&mut self, unit: u64) {
        if !self.knows_marks {
            self.replayed.push(unit);
        }
    }

    /// Recovery: a `MARK` or `UNMARK` record, about blocks of the pool.
    pub(crate) fn replay_marks(&mut self, blocks: std::ops::Range<u64>, bad: bool) -> Result<(), Status> {
        let mut at = blocks.start;
        while at < blocks.end {
            let (region, count) = self.sums.run_in_unit(at, blocks.end - at);
            // A journal may have many: nearly all are about regions that others were about.
            if !self.map.get(&region).is_some_and(|region| region.write) {
                self.make(region)?;
                self.mark_changed(region);
            }
            self.sums.replay_marks(at, count, bad);
            at += count;
        }
        Ok(())
    }

    /// Recovery: the journal has been replayed, and speaks of no more units.
    pub(crate) fn units_replayed(&mut self) {
        self.replayed.sort();
    }

    /// Recovery: whether the checkpoint has all checksums of a region, but for those of [replayed](Self::is_replayed)
    /// units.
    pub(crate) fn is_exact(&self, region: u64) -> bool {
        self.map.get(&region).is_some_and(|region| !region.page.is_none() && !region.open_page)
    }

    /// Recovery: the units, of a pool of `total`, of regions to which writes may have been under way.
    pub(crate) fn open_units(&self, total: u64) -> Vec<u64> {
        let per_region = self.sums.region_units;
        let open = self.map.iter().filter(|(_, region)| region.open_page).map(|(id, _)| *id);
        open.flat_map(|id| id * per_region..((id + 1) * per_region).min(total)).collect()
    }

    /// Recovery: whether the journal speaks of a unit, in a pool of a program that did not know marks.
    pub(crate) fn is_replayed(&self, unit: u64) -> bool {
        self.replayed.contains(unit)
    }

    /// Recovery: everything has been computed; what changed is to be written.
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

    /// Recovery: a region stays open, as the device has it, for some of its blocks could not be read.
    pub(crate) fn hold_open(&mut self, region: u64) {
        let Some(region) = self.map.get_mut(&region) else { return };
        self.intended += usize::from(!region.intended);
        // The page may not say so: an `INTENT` record that is gone with the first checkpoint may (G1).
        (region.intended, region.durable, region.open_page) = (true, true, false);
    }

    /// Pages to keep free for a checkpoint, for a pool of so many regions.
    pub(crate) fn reserve_pages(regions: u64) -> u64 {
        regions.min(20_000) * 9 / 8 + 8
    }

    /// The regions that are opened together with this one.
    pub(crate) fn together(region: u64, end: u64) -> std::ops::Range<u64> {
        let first = region & !(TOGETHER - 1);
        first..(first + TOGETHER).min(end)
    }

    /// Opens a region whose intent is durable, and those of `all` that are as far; false when it is not.
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

    /// From now on regions of at most so many bytes are intended, a region having `region_bytes`: as far as the format
    /// allows, and not fewer than writes need.
    pub(crate) fn bound(&mut self, bytes: u64, region_bytes: u64) {
        let regions = usize::try_from(bytes / region_bytes.max(1)).unwrap_or(usize::MAX);
        self.most = regions.clamp(MIN_INTENDED, MAX_INTENDED);
    }

    /// Whether some must close before others are intended. As many as are opened together are intended at once, and
    /// those do not count that cannot close, for some of their blocks cannot be read.
    pub(crate) fn is_crowded(&self) -> bool {
        let then = self.intended + TOGETHER as usize;
        then > self.most && then > MAX_INTENDED.min(self.most + self.sums.unknown_regions().len())
    }

    /// These are intended; their record goes into the next commit. The number of the intent.
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

    /// The records of all intents of these are durable up to this one. A region may have closed since, and another
    /// intent of it may wait for its commit: that one is not durable.
    pub(crate) fn intent_is_durable(&mut self, all: std::ops::Range<u64>, intent: u64) {
        for (_, region) in self.map.range_mut(all) {
            region.durable |= region.intended && region.intent <= intent;
        }
    }

    /// Decides what the checkpoint that begins does with each region (G1, G2). `all`: nobody can be writing.
    pub(crate) fn age(&mut self, everyone: impl FnMut() -> Everyone, all: bool) {
        let crowded = self.intended > self.most / 2;
        let over = self.visit(everyone, crowded, all);
        for id in over {
            self.sums.set_open(id, false);
            let Some(region) = self.map.get_mut(&id) else { continue };
            *region = Region { page: region.page, open_page: region.open_page, write: true, ..Region::default() };
            self.intended -= 1;
        }
        let map = &self.map;
        self.active.retain(|id| map.get(id).is_some_and(|region| region.intended || region.write));
    }

    /// A look without a checkpoint: regions to which nobody has written since the last begin to close. Whether a
    /// checkpoint would close any now.
    pub(crate) fn look(&mut self, everyone: impl FnMut() -> Everyone) -> bool {
        !self.visit(everyone, false, false).is_empty()
    }

    /// Whether any region is open.
    pub(crate) fn any_is_open(&self) -> bool {
        self.intended > 0
    }

    /// Looks at every region in use. Those that are idle, or all if there are too many, begin to close; the result is
    /// those that have begun before and to which no write is under way, or all if nobody can be writing.
    fn visit(&mut self, mut everyone: impl FnMut() -> Everyone, crowded: bool, all: bool) -> Vec<u64> {
        // Those that were closed together look at the same graces, once.
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
            // In this order: the last writes to the region may leave blocks that nobody knows.
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
            // What it is now does not matter: recovery computes it. That it is open must be there.
            region.write |= !region.open_page;
        }
        if !idle.is_empty() {
            // After all of them are shut: who begins later finds them so.
            let now = Arc::new(everyone());
            for id in idle {
                self.map.entry(id).and_modify(|region| region.closing = Some(Arc::clone(&now)));
            }
        }
        may_close
    }

    /// The regions whose pages are to be written.
    fn to_write(&self) -> impl Iterator<Item = u64> + '_ {
        self.active.iter().copied().filter(|id| self.map.get(id).is_some_and(|region| region.write))
    }

    /// Pages that [`Regions::draft`] writes at most, whatever becomes of the regions that are in use.
    pub(crate) fn pages_due(&self) -> u64 {
        Self::pages_of(self.active.len() as u64, self.first_pages())
    }

    /// What regions that become active add to [`Regions::pages_due`].
    pub(crate) fn cost_of(&self, regions: std::ops::Range<u64>) -> u64 {
        let first = self.first_pages().max(regions.end.div_ceil(INDEX_CHILDREN as u64));
        let more = regions.filter(|region| !self.active.contains(region)).count() as u64;
        if more == 0 {
            return 0;
        }
        Self::pages_of(self.active.len() as u64 + more, first) - self.pages_due()
    }

    /// Index pages of level 1, at most. A pool that somebody made up may have some without regions.
    fn first_pages(&self) -> u64 {
        let regions = self.map.keys().next_back().map(|last| last / INDEX_CHILDREN as u64);
        regions.max(self.first.keys().next_back().copied()).map_or(0, |last| last + 1)
    }

    fn pages_of(pages: u64, first: u64) -> u64 {
        if pages == 0 { 0 } else { pages + first.min(pages) + upper_pages(first, first) + 1 }
    }

    /// Puts the pages into the sink; the root and its level. `give_up` hears of the pages that they replace.
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

    /// Memory that they take.
    pub(crate) fn memory_bytes(&self) -> u64 {
        (self.map.len() * (4096 + 80)) as u64 + (1 << 19)
    }
}

/// A sink that notes the addresses.
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
