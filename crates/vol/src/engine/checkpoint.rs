//! Checkpoints: the whole of a pool's metadata, written beside what is there, then made the truth by one superblock.
//!
//! Owns which pages are written and when those that they replace are free. A checkpoint writes the nodes that changed,
//! the levels above them of the volumes that changed, and the pages of the volume table that have these (`table`);
//! everything else stays where it is.
//!
//! - I1: pages of the newest durable checkpoint are not written to; they are free only when a later one is durable.
//! - I2: the superblock is written after a flush of all that it refers to, the data of volumes included.
//! - I3: records of journal blocks before `replay_seq` are in the checkpoint.
//! - I4: a checkpoint that fails midway leaves the pool as it is on the device. Whether its superblock arrived is not
//!   known, so nothing else is written before it is whole: the next commit begins with writing it again, the same
//!   blocks to the same places. What it replaces stays untouched until then.
//! - I5: when it is done, both superblocks say it and are durable, so that either may rot: the second is the next
//!   generation with the same content. Only then is anything acknowledged that the checkpoint alone has, and anything
//!   written to that the one before needs: S3 of [`superblock`](mod@crate::format::superblock).
//! - I6: the label of each further member has the generation of the checkpoint before a superblock says that it must:
//!   a member that was not there then is told by its label.
//!
//! Called by commits, opening, closing, growing.

mod table;

use sheave_base::beside::Activity;
use sheave_base::buf::Buf;
use sheave_base::status::Status;
use sheave_base::sync::MutexGuard;
use sheave_base::sync::atomic::Ordering;

use crate::engine::inner::PoolInner;
use crate::format::block::Block;
use crate::format::page::index::build_around;
use crate::format::page::{PagePlace, PageRef, free, index, leaf};
use crate::format::superblock::{Geometry, Superblock};
use crate::format::{BLOCK, MAX_FREE_RUNS};
use crate::state::State;
use crate::state::extent_map::{Entry, INDEX_SHIFT, Top, id_of};
use crate::state::phase::{Event, Phase};
use crate::state::plan::{Draft, Plan, Reached, Taken};

impl PoolInner {
    /// Writes a checkpoint. Under the leadership of a commit, or when nobody else has the pool.
    pub(crate) fn write_checkpoint<'a>(&'a self, mut state: MutexGuard<'a, State>, clean: bool) -> Result<(), Status> {
        let _running = self.beside.begin(Activity::Checkpoint);
        while state.cut_a_part()? {
            drop(state);
            state = self.lock();
        }
        let State { sums, table, .. } = &mut *state;
        if let Some(regions) = sums {
            regions.age(|| table.everyone(), clean);
        }
        let plan = state.plan(&self.geometry, clean)?;
        drop(state);
        self.carry_out(plan)
    }

    /// Writes a checkpoint that was planned; if that fails it is kept for the next commit (I4). Under the leadership of
    /// a commit.
    pub(crate) fn carry_out(&self, mut plan: Plan) -> Result<(), Status> {
        let _running = self.beside.begin(Activity::Checkpoint);
        let written = self.write_plan(&mut plan);
        let mut state = self.lock();
        if let Err(status) = written {
            state.next.keep(plan);
            return Err(status);
        }
        let taken = state.landed(plan);
        self.committed(&mut state, taken);
        state.set_reserve();
        self.survey_space(&mut state);
        self.wake();
        Ok(())
    }

    /// The checkpoint that was to close the pool could not be written: the pool goes on, and a plan that is left says
    /// so.
    pub(crate) fn close_failed(&self) -> Phase {
        let mut state = self.lock();
        state.phase = state.phase.after(Event::CloseFailed);
        if state.phase == Phase::Open
            && let Some(plan) = state.next.plan_mut()
        {
            plan.sb.clean = false;
        }
        state.phase
    }

    fn write_plan(&self, plan: &mut Plan) -> Result<(), Status> {
        // O1 of `owner`: before the pages, for their places may be in use in the pool of another.
        self.look(Some(plan))?;
        // Labels are durable before a superblock names the checkpoint that they have, by the flush of the pages (I6).
        let labels = plan.labels();
        let mut runs = plan.draft.runs();
        runs.extend(labels.iter().map(|(at, block)| (*at, &block[..])));
        self.io.write_many(&runs)?;
        drop(runs);
        for (at, block) in &plan.free {
            // The checkpoint is whole without the list, which only an opening with a damaged map reads. So nothing
            // fails because the block cannot be written: the host may have no space for it.
            let _ = self.io.write(*at, &block[..]);
        }
        if let Some((at, block)) = &plan.root {
            // Nor does it need the loose root, whose page may be one of those that have no space.
            self.io
                .write(*at, &block[..])
                .or_else(|status| if status == Status::NoSpc { Ok(()) } else { Err(status) })?;
        }
        self.flush()?;
        plan.reached = plan.reached.max(Reached::Superblock);
        let mut block = [0; BLOCK];
        let address = plan.sb.encode(&mut block);
        self.io.write(address, &block)?;
        self.flush()?;
        plan.reached = Reached::Twin;
        self.write_twin(&plan.sb.twin())?;
        self.flush()
    }

    /// Writes the second superblock of a state, and its copies, which one flush makes durable (S4 of `superblock`).
    pub(crate) fn write_twin(&self, twin: &Superblock) -> Result<(), Status> {
        let mut block = [0; BLOCK];
        let address = twin.encode(&mut block);
        let copies = twin.encode_copies();
        let mut all: Vec<(u64, &[u8])> = copies.iter().map(|(at, block)| (*at, &block[..])).collect();
        all.push((address, &block));
        self.io.write_many(&all)
    }
}

impl State {
    /// A checkpoint is durable: it is what counts, and the pages that it replaces are free. What it took.
    pub(crate) fn landed(&mut self, plan: Plan) -> Taken {
        self.tree.pages.put(&plan.replaced, &mut self.tree.units);
        plan.replaced.iter().chain(&plan.sb.copies).for_each(|at| _ = self.bad_copies.remove(at));
        // The pool may have grown meanwhile, or been set otherwise: the next checkpoint says it.
        let discards = self.sb.discards();
        self.sb = Superblock {
            total_units: self.sb.total_units,
            members: std::mem::take(&mut self.sb.members),
            labels: self.sb.labels,
            low_water: self.sb.low_water,
            marks: self.sb.marks,
            labels_at: self.sb.labels_at.max(plan.sb.labels_at),
            identities: self.sb.identities,
            copies: self.sb.copies,
            ..plan.sb.twin()
        };
        self.sb.set_discards(discards);
        self.durable_seq = self.durable_seq.max(self.sb.replay_seq);
        self.risk.acknowledged &= !self.sb.lost.is_empty();
        if plan.sb.clean {
            self.phase = self.phase.after(Event::CloseDone);
        }
        plan.taken
    }

    /// Serialises everything that changed. Everything that can fail comes first.
    pub(crate) fn plan(&mut self, geometry: &Geometry, clean: bool) -> Result<Plan, Status> {
        let wanted = self.pages_due();
        #[cfg(any(debug_assertions, test))]
        self.tree.count_pages(wanted);
        let memory = Buf::zeroed(wanted as usize * BLOCK, BLOCK).map_err(|_| Status::NoMem)?;
        let addresses = self.tree.pages.take(wanted, &mut self.tree.units).ok_or(Status::NoSpc)?;
        let seconds = self.tree.pages.seconds_of(&addresses);
        let mut draft = Draft::new(addresses, seconds, u64::from(geometry.unit_bytes), memory);
        let taken = self.take();
        self.next.planned();
        let place = PagePlace {
            pool: self.sb.pool,
            generation: self.sb.generation + 1,
            address: 0,
            second: 0,
            index: 0,
            owner: 0,
        };
        self.draft_maps(geometry, &place, &mut draft);
        self.tree.begin_epoch();
        let State { tree, sums, table, .. } = self;
        let give_up = &mut |page| tree.pages.give_up(page);
        let (root, level) = table::draft(table, &place, &mut draft, give_up);
        let (sums, sums_level) =
            sums.as_mut().map_or((PageRef::NONE, 0), |regions| regions.draft(geometry, &place, &mut draft, give_up));
        let kept = self.draft_kept(&place, &mut draft);
        let unused = draft.split_unused();
        let State { tree, .. } = self;
        tree.pages.put(&unused, &mut tree.units);
        let mut sb = Superblock {
            generation: place.generation,
            incarnation: self.incarnation,
            clean,
            total_units: geometry.total_units.max(self.sb.total_units),
            next_volume: self.table.next_id,
            replay_seq: self.next_seq,
            table: root,
            table_level: level,
            sums,
            sums_level,
            kept,
            volumes: self.table.iter().filter(|vol| !vol.unborn).count() as u32,
            lost: self.lost_to_write(),
            owner: self.owner_to_write(),
            labels_at: if self.sb.labels_at == 0 { 0 } else { place.generation },
            ..self.sb.clone()
        };
        sb.keep_twins();
        let root = self.draft_root(&sb);
        // Behind everything that takes or gives back pages: no unit of the list is in this checkpoint.
        let free = free::encode(&sb, &self.tree.units.longest_free(MAX_FREE_RUNS));
        Ok(Plan { draft, sb, free, root, reached: Reached::Pages, replaced: self.tree.pages.take_given_up(), taken })
    }

    /// The loose root of a checkpoint, in a page that stays free: one of the last two, in turn, so that the one before
    /// is there until this one counts, if the same pages are free. None if no page of a unit of metadata is.
    fn draft_root(&self, sb: &Superblock) -> Option<(u64, Box<Block>)> {
        let last: Vec<u64> = self.tree.pages.last_free().take(2).collect();
        let at = *last.get((sb.generation >> 1 & 1) as usize).or(last.first())?;
        let mut block = Box::new([0; BLOCK]);
        sb.encode_root(&mut block, at);
        Some((at, block))
    }

    /// No page and no record may have what lies beyond the end of its volume: it would come back when the volume grows.
    /// Cuts a part off; false when nothing is left there.
    pub(crate) fn cut_a_part(&mut self) -> Result<bool, Status> {
        let cut: Vec<_> = self.table.cutting().map(|vol| vol.core.clone()).collect();
        for core in cut {
            if self.cut_some(&core, core.size())? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn draft_maps(&mut self, geometry: &Geometry, place: &PagePlace, draft: &mut Draft) {
        let State { tree, table, .. } = self;
        let dirty: Vec<u32> = table.iter().filter(|vol| vol.dirty && !vol.unborn).map(|vol| vol.id).collect();
        for id in dirty {
            let Some(vol) = table.get(id) else { continue };
            let place = PagePlace { owner: id, ..*place };
            let pages: Vec<PageRef> =
                (0..vol.slots).map(|slot| draft_index(tree, geometry, &place, &vol.core.top, slot, draft)).collect();
            let used = pages.iter().rposition(|page| !page.is_none()).map_or(0, |last| last + 1);
            let before = draft.used();
            let stay = vol.damage.as_ref().map_or_else(Vec::new, |lost| lost.upper());
            let root = build_around(draft, &place, (1, 1), &pages[..used], &stay);
            let stay: Vec<u64> = stay.into_iter().map(|(.., page)| page.address).collect();
            let upper = draft.since(before).iter().chain(&stay).copied().collect();
            let replaced = table.written(id, root.unwrap_or((PageRef::NONE, 0)), upper);
            replaced.into_iter().filter(|page| !stay.contains(page)).for_each(|page| tree.pages.give_up(page));
        }
    }
}

/// The page of an index node: the one it has, or a new one with new pages of its leaves.
fn draft_index(
    tree: &mut crate::state::extent_map::tree::Tree,
    geometry: &Geometry,
    place: &PagePlace,
    top: &Top,
    slot: u64,
    draft: &mut Draft,
) -> PageRef {
    // Relaxed, here and below: under the lock that all stores are made under.
    let id = id_of(top.word(slot as u32).map_or(0, |word| word.load(Ordering::Relaxed)));
    if id == 0 {
        return PageRef::NONE;
    }
    if !tree.index.is_dirty(id) {
        return tree.index.node(id).page;
    }
    let mut children = [PageRef::NONE; 1 << INDEX_SHIFT];
    let map = tree.map.clone();
    for (at, (child, word)) in children.iter_mut().zip(map.index.node(id).unwrap_or_default()).enumerate() {
        let leaf = id_of(word.load(Ordering::Relaxed));
        if leaf == 0 {
            continue;
        }
        if tree.leaves.is_dirty(leaf) {
            let number = (slot << INDEX_SHIFT) + at as u64;
            let page = draft_leaf(tree, geometry, &PagePlace { index: number, ..*place }, leaf, draft);
            let old = tree.leaves.written(leaf, page);
            give_up(tree, old);
        }
        *child = tree.leaves.node(leaf).page;
    }
    let page = if children.iter().all(PageRef::is_none) {
        PageRef::NONE
    } else {
        let (spot, block) = draft.next();
        index::encode(block, &place.at(spot, slot), 1, &children)
    };
    let old = tree.index.written(id, page);
    give_up(tree, old);
    page
}

fn give_up(tree: &mut crate::state::extent_map::tree::Tree, page: PageRef) {
    if !page.is_none() {
        tree.pages.give_up(page.address);
    }
}

/// The page of a leaf; none if nothing in it is written.
fn draft_leaf(
    tree: &crate::state::extent_map::tree::Tree,
    geometry: &Geometry,
    place: &PagePlace,
    id: u32,
    draft: &mut Draft,
) -> PageRef {
    let words = geometry.entry_words;
    let mut entries = [0; crate::format::MAX_LEAF_ENTRIES];
    let mut written = [0; crate::format::MAX_LEAF_WORDS];
    let mut any = false;
    for slot in 0..geometry.leaf_entries {
        let at = crate::state::extent_map::tree::EntryPlace { leaf: id, slot };
        let entry = tree.entry(at);
        if entry.is_alloc() {
            let bits = tree.bits(at);
            written[slot * words..(slot + 1) * words].copy_from_slice(&bits[..words]);
            entries[slot] = if bits == [0; 4] { 0 } else { entry.phys() };
            any |= entries[slot] != 0;
        }
        debug_assert!(entry.is_alloc() || entry == Entry::NONE, "a hole has no flags");
    }
    if !any {
        return PageRef::NONE;
    }
    let (spot, block) = draft.next();
    leaf::encode(block, geometry, &place.at(spot, place.index), &entries, &written)
}

#[cfg(all(test, not(shuttle)))]
mod tests;
