//! Accounting of metadata pages: the pages that the next checkpoint needs, and the rule for operations that add to
//! them.
//!
//! A checkpoint writes its pages while the old pages are still in use, so it needs as many free pages as it writes. The
//! pages that it replaces become free only afterwards. A pool without enough free pages for its next checkpoint could
//! no longer flush, delete or close. So every change first reserves the pages that it will make dirty.
//!
//! Owns the numbers and the rule. Does not own the pages ([`alloc::pages`](crate::state::alloc::pages)), nor what a
//! checkpoint writes ([`checkpoint`](crate::engine::checkpoint)).
//!
//! - M1: the free pages suffice for the next checkpoint, and for the bare volume table of the checkpoint after it: with
//!   the latter a delete is always possible, however few pages the next checkpoint leaves.
//! - M2: [`State::pages_due`] is never less than the number of pages that a checkpoint writes. Each change of the
//!   volume table, of a map and of checksum regions updates its terms, so a query costs a few additions. The volume
//!   table counts in full, whatever has changed: a checkpoint may have to repack it.
//! - M3: operations that free space may use pages that are closed to operations which take space ([`Spender`]). So a
//!   pool that is full for writes still takes discards, and one that is full for discards still flushes, deletes and
//!   closes.
//! - M4: on a device that allocates space when it is written, M1 holds for the free pages that certainly have space
//!   there, without the others ([`stock`](crate::engine::stock)).
//!
//! Called under the pool's lock by volumes and by changes of the table, before they change anything. A caller that
//! drops the lock between the check and the change must check again, as others may have used the pages meanwhile.

use crate::format::journal::Bounds;
use crate::format::superblock::Geometry;
use crate::state::sums::marks::Mismatch;

use crate::format::page::index::upper_pages;
use crate::format::settings::Checksum;
use crate::state::State;
use crate::state::sums::regions::Regions;

/// Number of pages to reserve for a change that may add an entry to the volume table. They cover the next checkpoint
/// and the one after it.
pub(crate) const ENTRY_COST: u64 = 6;
/// Number of map nodes that a change makes dirty if it concerns one unit, or a range within one slot: an index node,
/// and the leaves of both ends.
const NODES_COST: u64 = 3;
/// Number of checksum pages to reserve for a unit that is copied, or that is reused and loses the marks of its former
/// use: the page of its region, and the index page above.
const COPY_COST: u64 = 2;

/// Kind of an operation that needs pages. Each kind leaves a share of the spare pages to the kinds listed after it
/// (M3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spender {
    /// New volumes, copies, renames: leave half of the spare pages.
    Table,
    /// Writes that take space: leave a quarter.
    Write,
    /// Discards, overwrites in pools with checksums, shrinking and rollback: leave an eighth.
    Discard,
    /// Completion of a write whose data is on the device: leaves only what flushes and deletes need.
    EndOfWrite,
}

/// Largest number of pages with space that writes leave for discards, flushes and deletes.
const MOST_EXTRA: u64 = 256;

/// Largest number of dirty nodes: half as many as a journal may change.
const MOST_DIRTY: u64 = Bounds::MOST_NODES / 2;

/// Returns the number of free units that only metadata may take, for a pool of this size.
pub(crate) fn reserve_units(geometry: &Geometry) -> u64 {
    geometry.reserve_units()
}

impl State {
    /// Returns an upper bound of the pages that the next checkpoint writes (M2).
    pub(crate) fn pages_due(&self) -> u64 {
        let sums = self.sums.as_ref().map_or(0, Regions::pages_due);
        let kept = self.kept.rewrite.unwrap_or(0) + self.kept.upper_due;
        self.tree.dirty_nodes() + self.table.upper_due() + self.table.bare_pages() + sums + kept
    }

    /// Returns true if an operation of kind `who` may add `more` pages to the next checkpoint (M1, M3).
    pub(crate) fn can_pay(&self, more: u64, who: Spender) -> bool {
        let due = self.pages_due() + more;
        self.has_room(due, who) && self.tree.pages.stock() >= self.stock_wanted(due, who)
    }

    /// Returns true if enough pages are free. Pages for which the host may lack space count too.
    pub(crate) fn has_room(&self, due: u64, who: Spender) -> bool {
        self.tree.pages.available(&self.tree.units) >= self.wanted(due, who)
    }

    /// Returns the number of free pages required when the next checkpoint needs `due`.
    fn wanted(&self, due: u64, who: Spender) -> u64 {
        let left = match who {
            Spender::Table => self.spare_pages / 2,
            Spender::Write => self.spare_pages / 4,
            Spender::Discard => self.spare_pages / 8,
            Spender::EndOfWrite => 0,
        };
        due + self.table.bare_pages() + left
    }

    /// Returns the number of free pages with space required when the next checkpoint needs `due` (M4).
    pub(crate) fn stock_wanted(&self, due: u64, who: Spender) -> u64 {
        let extra = (self.spare_pages / 4).min(MOST_EXTRA);
        let left = match who {
            Spender::Table | Spender::Write => extra,
            Spender::Discard => extra / 2,
            Spender::EndOfWrite => 0,
        };
        due + self.table.bare_pages() + left
    }

    /// Returns true if `who` could add `more` pages after a checkpoint, which would clean all nodes and free the pages
    /// given up.
    pub(crate) fn can_pay_after_checkpoint(&self, more: u64, who: Spender) -> bool {
        let free = self.tree.pages.available(&self.tree.units) + self.tree.pages.given_up();
        let (due, stock) = (self.table.bare_pages() + more, self.tree.pages.stock());
        let stock = stock.saturating_add(self.tree.pages.given_up());
        free >= self.wanted(due, who) && stock >= self.stock_wanted(due, who)
    }

    /// Returns an upper bound of the pages that a change of units `first..=last` of a volume adds to the next
    /// checkpoint.
    pub(crate) fn cost_of_units(&self, volume: u32, first: u64, last: u64) -> u64 {
        let geometry = &self.tree.map.geometry;
        let nodes = |shift: u32| (last >> shift) - (first >> shift);
        let nodes = NODES_COST + nodes(geometry.leaf_shift) + nodes(geometry.slot_shift());
        let slots = (last >> geometry.slot_shift()) + 1;
        // A write to a volume that is being copied may change the unfinished copy too. That adds no pages here: the
        // copy was charged for when it was begun, and no checkpoint contains it yet.
        let copy = if self.sums.is_some() { COPY_COST } else { 0 };
        nodes + self.table.upper_more(volume, slots) + copy
    }

    /// Returns an upper bound of the pages that a new volume with the map of `volume` adds to the next checkpoint.
    pub(crate) fn cost_of_map(&self, volume: u32) -> u64 {
        self.table.get(volume).map_or(0, |vol| upper_pages(vol.slots, vol.core.top.used()))
    }

    /// Returns an upper bound of the pages that marks for these blocks, all of one region, add to the next checkpoint.
    pub(crate) fn cost_of_marks(&self, bad: &[Mismatch]) -> u64 {
        let (Some(regions), Some(found)) = (&self.sums, bad.first()) else { return 0 };
        let region = regions.sums.region_of(found.block);
        regions.cost_of(region..region + 1)
    }

    /// Returns an upper bound of the pages that opening these regions adds to the next checkpoint.
    pub(crate) fn cost_of_intent(&self, regions: std::ops::Range<u64>) -> u64 {
        self.sums.as_ref().map_or(0, |sums| sums.cost_of(regions))
    }

    /// Updates the limits that depend on the size of the pool and the number of its volumes.
    pub(crate) fn set_reserve(&mut self) {
        let tree = &mut self.tree;
        let geometry = self.sb.geometry();
        let per_unit = tree.pages.per_unit();
        let spare = reserve_units(&geometry) * per_unit;
        self.spare_pages = spare;
        (self.dirty_soft, self.dirty_hard) = ((spare / 4).min(8192), (spare / 2).min(MOST_DIRTY));
        let table = (2 * self.table.bare_pages()).saturating_sub(spare / 4);
        let sums = match self.sb.checksum {
            Checksum::None => 0,
            _ => Regions::reserve_pages(geometry.regions(self.sb.total_units)),
        };
        tree.pages.keep = if tree.pages.sparse { spare / 2 + 2 * self.table.bare_pages() + sums } else { 0 };
        // Units in the stock are metadata already. Data cannot take them, so the reserve need not contain them.
        let pages = (spare + table + sums).div_ceil(per_unit).saturating_sub(tree.pages.stocked_units());
        tree.units.reserve = tree.pages.copies() * pages;
    }

    /// Returns true if free metadata space is low. `is_low` is the previous result, needed for the hysteresis. New
    /// volumes are still accepted for a while after that.
    pub(crate) fn is_metadata_low(&self, is_low: bool) -> bool {
        let left = if is_low { self.spare_pages * 7 / 8 } else { self.spare_pages * 3 / 4 };
        let sums = self.sums.as_ref().map_or(0, Regions::pages_due);
        self.tree.pages.available(&self.tree.units) < 2 * self.table.bare_pages() + sums + left
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    use sheave_base::rng::Rng;
    use sheave_base::sync::Arc;

    use crate::format::block::samples;
    use crate::format::page::Spot;
    use crate::format::page::index::{Sink, build_upper};
    use crate::format::page::{PagePlace, PageRef};
    use crate::format::record::Record;
    use crate::format::superblock::Superblock;
    use crate::state::extent_map::Entry;
    use crate::state::sums::Sums;
    use crate::state::table::TablePages;

    /// A sink that counts pages.
    struct Counting(u64);

    impl Sink for Counting {
        fn allocate(&mut self) -> Option<Spot> {
            self.0 += 1;
            Some(Spot { address: self.0 << 12, second: 0 })
        }

        fn page(&mut self, _: u64, _: &crate::format::block::Block) {}
    }

    /// Builds the index above `slots` pages, of which only `used` are not empty. Returns the number of index pages
    /// made.
    fn made(slots: u64, used: &[u64]) -> u64 {
        let mut pages = vec![PageRef::NONE; slots as usize];
        used.iter().for_each(|at| pages[*at as usize] = PageRef { address: 1 << 30, checksum: 1, second: 0 });
        let mut sink = Counting(0);
        let place = PagePlace { pool: [0; 16], generation: 1, address: 0, second: 0, index: 0, owner: 1 };
        build_upper(&mut sink, &place, 1, 1, &pages).expect("there is room");
        sink.0
    }

    #[test]
    fn index_page_bound_is_tight() {
        for slots in [0, 1, 2, 255, 256, 257, 65_536, 65_537, 300_000] {
            for step in [1, 7, 256, 300, 65_536, 1 << 30] {
                let used: Vec<u64> = (0..slots).step_by(step).collect();
                let (made, counted) = (made(slots, &used), upper_pages(slots, used.len() as u64));
                assert!(
                    made <= counted && counted <= made + made / 4 + 3,
                    "{slots} by {step}: {made}, counted {counted}"
                );
            }
            if slots > 0 {
                assert!(made(slots, &[slots - 1]) == upper_pages(slots, 1), "one far out of {slots}");
            }
        }
    }

    /// A pool in memory only, and random operations that reserve pages as the real ones do.
    struct Work {
        state: State,
        rng: Rng,
        volumes: Vec<u32>,
        made: u32,
        /// Number of pages, without table pages, that checkpoints wrote. `counted` is the number that was counted for
        /// them.
        written: u64,
        counted: u64,
        /// Number of table pages that checkpoints wrote.
        table: u64,
        refused: u64,
    }

    /// Returns the addresses of the table's pages in the last checkpoint.
    fn table_pages(state: &State) -> BTreeSet<u64> {
        let TablePages { leaves, upper, .. } = &state.table.pages;
        let pages = leaves.iter().map(|leaf| leaf.page).filter(|page| !page.is_none());
        pages.map(|page| page.address).chain(upper.iter().copied()).collect()
    }

    /// Operations leave free pages for the volume table of the checkpoint after the next one: a delete, which reserves
    /// no pages, must always be possible (M1).
    #[test]
    fn last_reservation_leaves_room_for_the_next_table() {
        let mut work = Work::new(1, 65_536, 2_000, false);
        (0..400).for_each(|_| work.create());
        let state = &mut work.state;
        let (due, bare) = (state.pages_due(), state.table.bare_pages());
        assert!(bare > 10, "{bare} pages of the table");
        let State { tree, .. } = &mut *state;
        let more = tree.pages.available(&tree.units) - due - bare;
        tree.pages.take(more, &mut tree.units).expect("as many are free");
        assert!(state.can_pay(0, Spender::EndOfWrite), "just enough");
        assert!(!state.can_pay(1, Spender::EndOfWrite), "one less would lack for the table");
    }

    /// Half of the steps use a unit below this number. The others use any unit of a volume.
    const NEAR: u64 = 70_000;

    impl Work {
        fn new(seed: u64, unit_bytes: u32, total_units: u64, summed: bool) -> Work {
            let mut sb = Superblock {
                total_units,
                members: vec![(0, total_units * u64::from(unit_bytes))],
                next_volume: 1,
                table: PageRef::NONE,
                volumes: 0,
                checksum: if summed { Checksum::Crc32c } else { Checksum::None },
                ..samples::superblock(unit_bytes)
            };
            sb.labels[1] = 0;
            let mut state = State::new(sb);
            state.sums = summed.then(|| Regions::new(Arc::new(Sums::new(&state.sb.geometry())), true));
            state.set_reserve();
            Work {
                state,
                rng: Rng::new(seed),
                volumes: Vec::new(),
                made: 0,
                written: 0,
                counted: 0,
                table: 0,
                refused: 0,
            }
        }

        /// Runs `job` if its `cost` can be reserved. Checks that it adds no more to the next checkpoint than that.
        fn pay(&mut self, who: Spender, cost: impl Fn(&State) -> u64, job: impl FnOnce(&mut State)) -> bool {
            if !self.state.can_pay(cost(&self.state), who) {
                if !self.state.can_pay_after_checkpoint(cost(&self.state), who) {
                    self.refused += 1;
                    return false;
                }
                self.checkpoint();
                if !self.state.can_pay(cost(&self.state), who) {
                    self.refused += 1;
                    return false;
                }
            }
            // M1 covers the next checkpoint and the table of the one after it.
            let both = |state: &State| state.pages_due() + state.table.bare_pages();
            let paid = both(&self.state) + cost(&self.state);
            job(&mut self.state);
            let now = both(&self.state);
            assert!(now <= paid, "{now} pages are due, and {paid} are paid for");
            true
        }

        /// Applies the effects of a checkpoint on the state. It never lacks pages (M1) and writes no more than was
        /// counted (M2).
        fn checkpoint(&mut self) {
            let state = &mut self.state;
            let State { sums, table, .. } = &mut *state;
            if let Some(regions) = sums {
                regions.age(|| table.everyone(), false);
            }
            let (counted, table_counted) = (state.pages_due(), state.table.bare_pages());
            let before = table_pages(state);
            let plan = state.plan(&state.sb.geometry(), false).expect("a checkpoint can always pay (M1)");
            let written = plan.draft.used() as u64;
            assert!(written <= counted, "{written} pages written, and {counted} were counted");
            let table = table_pages(state).difference(&before).count() as u64;
            assert!(table <= table_counted, "{table} pages of the table, and {table_counted} were counted");
            // The table counts in full, because a checkpoint may repack it. So it is left out of the comparison.
            self.counted += counted - table_counted;
            (self.written, self.table) = (self.written + written - table, self.table + table);
            let taken = state.landed(plan);
            state.limbo.committed(taken.freed);
            while state.limbo.advance(&mut state.tree, 1 << 20) {}
            state.set_reserve();
        }

        fn some(&mut self) -> Option<u32> {
            let at = self.rng.below(self.volumes.len().max(1) as u64) as usize;
            self.volumes.get(at).copied()
        }

        fn name(&mut self) -> String {
            self.made += 1;
            format!("{}{}", "n".repeat(self.rng.below(250) as usize + 1), self.made)
        }

        fn create(&mut self) {
            let (volume, name) = (self.state.table.next_id, self.name());
            let (size, max_size) = (NEAR << 24, NEAR << 24);
            let record = Record::Create { volume, grows: false, size, max_size, created: 1, name };
            if self.pay(Spender::Table, |_| ENTRY_COST, |state| state.apply(&record).expect("is new")) {
                self.volumes.push(volume);
            }
        }

        fn copy(&mut self, source: u32) {
            let (volume, name, size) = (self.state.table.next_id, self.name(), NEAR << 24);
            let record =
                Record::Copy { volume, source, snapshot: true, grows: false, size, max_size: size, created: 1, name };
            let cost = |state: &State| ENTRY_COST + state.cost_of_map(source);
            if self.pay(Spender::Table, cost, |state| state.apply(&record).expect("is new")) {
                self.volumes.push(volume);
            }
        }

        /// Makes a copy while writes to its source end and a checkpoint may come. Until its point in time is fixed,
        /// writes go to both.
        fn copy_under_writes(&mut self, source: u32, unit: u64) {
            (0..3).for_each(|at| self.write(source, unit + at));
            let before = self.volumes.len();
            self.copy(source);
            let Some(copy) = self.volumes.get(before).copied() else { return };
            let core = Arc::clone(&self.state.table.get(source).expect("is there").core);
            let state = &mut self.state;
            state.table.get_mut(copy).expect("was made").unborn = true;
            state.table.get_mut(source).expect("is there").settling = Some(copy);
            for at in 0..3 {
                if self.rng.below(3) == 0 {
                    self.checkpoint();
                }
                let cost = |state: &State| state.cost_of_units(source, unit + at, unit + at);
                self.pay(Spender::EndOfWrite, cost, |state| {
                    if let Some((_, entry)) = state.find(source, unit + at)
                        && entry.is_alloc()
                    {
                        [source, copy].iter().for_each(|id| state.table.charge(*id));
                        let place = state.tree.touch(&core.top, unit + at).expect("is there");
                        state.tree.set_bits(place, 1, 1, true);
                    }
                });
            }
            self.state.table.get_mut(copy).expect("was made").unborn = false;
            self.state.table.get_mut(source).expect("is there").settling = None;
        }

        /// Marks a block as bad, or rewrites a marked one.
        fn mark(&mut self) {
            let end = self.state.sb.geometry().regions(self.state.sb.total_units);
            let region = self.rng.below(end);
            let cost = |state: &State| state.cost_of_intent(region..region + 1);
            if self.state.sums.is_some() {
                self.pay(Spender::EndOfWrite, cost, |state| {
                    let regions = state.sums.as_mut().expect("has them");
                    regions.make(region).expect("there is memory");
                    regions.mark_changed(region);
                });
            }
        }

        /// Writes beyond the end of a volume and raises its largest size: its table entry changes.
        fn grow(&mut self, volume: u32) {
            let core = Arc::clone(&self.state.table.get(volume).expect("is there").core);
            let unit = self.rng.below(1 << 34);
            self.write(volume, unit);
            let size = (unit + 1) << self.state.tree.map.geometry.unit_shift;
            core.set_max_size(core.max_size().max(size));
            core.set_size(core.size().max(size));
        }

        fn rename(&mut self, volume: u32) {
            let name = self.name();
            self.pay(Spender::Table, |_| ENTRY_COST, |state| assert!(state.table.rename(volume, &name)));
        }

        /// Writes a unit: for the first time, in place, or with a copy of a shared unit.
        fn write(&mut self, volume: u32, unit: u64) {
            let core = Arc::clone(&self.state.table.get(volume).expect("is there").core);
            if self.state.tree.units.available() == 0 || !self.intend() {
                return;
            }
            let cost = |state: &State| state.cost_of_units(volume, unit, unit);
            self.pay(Spender::Write, cost, |state| {
                let place = state.own(&core, unit).expect("there is memory");
                let entry = state.tree.entry(place);
                if entry.is_alloc() && !entry.is_shared() {
                    return;
                }
                let Some(phys) = state.tree.units.alloc() else { return };
                match entry.is_alloc() {
                    true => state.tree.replace(&core.top, place, Entry::at(phys)),
                    false => state.tree.install(place, Entry::at(phys)),
                }
                state.tree.set_bits(place, 0, 1, true);
            });
        }

        /// Opens a few regions for writes, if the pool has checksums. Returns false if they cannot be opened now.
        fn intend(&mut self) -> bool {
            let Some(regions) = &self.state.sums else { return true };
            let end = self.state.sb.geometry().regions(self.state.sb.total_units);
            let all = Regions::together(self.rng.below(end), end);
            if regions.is_crowded() {
                return false;
            }
            self.pay(
                Spender::Discard,
                |state| state.cost_of_intent(all.clone()),
                |state| {
                    let regions = state.sums.as_mut().expect("has them");
                    let intent = regions.intend(all.clone()).expect("there is memory");
                    regions.intent_is_durable(all.clone(), intent);
                    regions.open(all.start, all.clone());
                },
            )
        }

        fn punch(&mut self, volume: u32, first: u64, count: u64) {
            let core = Arc::clone(&self.state.table.get(volume).expect("is there").core);
            let slot = 1 << self.state.tree.map.geometry.slot_shift();
            let count = count.min(slot - first % slot);
            let cost = |state: &State| state.cost_of_units(volume, first + count - 1, first + count - 1);
            self.pay(Spender::Discard, cost, |state| state.unmap_units(&core, first, count).expect("there is memory"));
        }

        fn rollback(&mut self, volume: u32, source: u32) {
            let cost = |state: &State| state.cost_of_map(source);
            self.pay(Spender::Discard, cost, |state| {
                state.apply(&Record::Rollback { volume, source }).expect("there is memory");
            });
        }

        fn shrink(&mut self, volume: u32, units: u64) {
            let (last, size) = (units - 1, units << self.state.tree.map.geometry.unit_shift);
            let cost = |state: &State| state.cost_of_units(volume, last, last + 1);
            self.pay(Spender::Discard, cost, |state| {
                state.apply(&Record::Resize { volume, size }).expect("there is memory");
            });
        }

        /// Deletes a volume without reserving pages.
        fn delete(&mut self, volume: u32) {
            self.volumes.retain(|other| *other != volume);
            let due = self.state.pages_due();
            self.state.apply(&Record::Delete { volume }).expect("it is never refused");
            assert!(self.state.pages_due() <= due, "a delete makes the next checkpoint dearer");
            self.checkpoint();
        }

        /// Writes until no unit is left for data, and creates volumes until one is refused.
        fn fill(&mut self) {
            self.create();
            let first = self.volumes[0];
            (0..self.state.sb.total_units).for_each(|unit| self.write(first, unit));
            let before = self.refused;
            while self.refused == before {
                self.create();
            }
            assert!(self.volumes.len() > 100, "{} volumes and the pool is full", self.volumes.len());
        }

        fn step(&mut self) {
            let near = self.rng.below(2) == 0;
            let unit = if near { self.rng.below(NEAR) } else { self.rng.below(1 << 34) };
            match (self.rng.below(100), self.some()) {
                (0..=7, _) | (_, None) => self.create(),
                (8..=12, Some(id)) => self.copy(id),
                (13..=14, Some(id)) => self.rename(id),
                (15..=70, Some(id)) => {
                    // Several units per slot, so that index nodes have several leaves, and leaves several entries.
                    let step = 1 << self.rng.below(10);
                    let count = 1 + self.rng.below(12);
                    (0..count).for_each(|at| self.write(id, unit + at * step));
                    if self.rng.below(4) == 0 && count > 2 {
                        // Discards from after the first unit to before the last one, so that both ends lie in leaves
                        // that remain. The checkpoint before makes all nodes clean, so that each dirty one counts.
                        self.checkpoint();
                        self.punch(id, unit + 1, (count - 1) * step - 1);
                    }
                }
                (71..=80, Some(id)) => {
                    let count = 1 << self.rng.below(17);
                    self.punch(id, unit, count);
                }
                (81..=83, Some(id)) => {
                    let source = self.some().unwrap_or(id);
                    if source != id {
                        self.rollback(id, source);
                    }
                }
                (84..=86, Some(id)) => self.shrink(id, unit + 1),
                (87..=88, Some(id)) => self.delete(id),
                (89..=90, Some(id)) => self.copy_under_writes(id, unit),
                (91..=93, _) => self.mark(),
                (94..=95, Some(id)) => self.grow(id),
                _ => self.checkpoint(),
            }
        }
    }

    /// Every operation reserves the pages that it adds to the next checkpoint, and a checkpoint with reserved pages
    /// never fails, however full the pool is. Checked against real checkpoints.
    #[test]
    fn every_operation_pays_for_what_checkpoints_write() {
        let mut refused = 0;
        for seed in sheave_testkit::seeds(9) {
            // The last size has room for everything; the other pools fill up in between.
            let (unit_bytes, units) = [(4096, 400), (16_384, 300), (65_536, 20_000)][seed as usize % 3];
            let mut work = Work::new(seed, unit_bytes, units, seed % 2 == 0);
            (0..200).for_each(|_| work.step());
            if units < 1000 {
                work.fill();
            }
            (0..200).for_each(|_| work.step());
            refused += work.refused;
            let (written, counted) = (work.written, work.counted);
            assert!(work.made > 20 && written > 100, "seed {seed} has done little");
            assert!(counted <= written * 2, "seed {seed}: {counted} pages were counted, and {written} written");
            // Deletes everything: the pool must be as empty as at the start.
            work.checkpoint();
            work.volumes.clone().into_iter().for_each(|volume| work.delete(volume));
            work.checkpoint();
            assert_eq!(work.state.tree.units.counts().data, 0, "seed {seed}: all data is free again");
            if work.state.sums.is_none() {
                let table = table_pages(&work.state).len() as u64;
                assert_eq!(work.state.tree.pages.used(), table, "seed {seed}: no page of a map is left");
            }
        }
        assert!(refused > 20, "the account has refused {refused}: it was hardly put to the test");
    }

    #[test]
    fn a_discard_that_ends_in_two_leaves_pays_for_both() {
        let mut work = Work::new(1, 65_536, 2_000, false);
        work.create();
        let (volume, leaf) = (work.volumes[0], work.state.tree.map.geometry.leaf_entries() as u64);
        [0, 1, 2 * leaf, 2 * leaf + 1].into_iter().for_each(|unit| work.write(volume, unit));
        work.checkpoint();
        let before = work.written;
        work.punch(volume, 1, 2 * leaf);
        work.checkpoint();
        assert_eq!(work.written - before, 3, "both leaves, and the index page above them");
    }
}
