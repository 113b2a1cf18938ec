//! Checkpoints: the whole metadata of a pool, written to free pages and then made valid by a superblock.
//!
//! Owns the choice of pages to write, and the moment at which replaced pages become free. A checkpoint writes the nodes
//! that changed, the levels above them in the volumes that changed, and the pages of the volume table that name these
//! volumes (`table`); all other pages stay where they are.
//!
//! - I1: pages of the newest durable checkpoint are not overwritten. They become free only when a later one is durable.
//! - I2: the superblock is written after a flush of all that it refers to, the data of volumes included.
//! - I3: the checkpoint contains the records of all journal blocks before `replay_seq`.
//! - I4: a checkpoint that fails midway leaves the durable state of the pool as it was. Its superblock may or may not
//!   be on the device, so nothing else is written before the checkpoint is complete: the next commit begins by writing
//!   the same blocks to the same places again. The pages that it replaces stay untouched until then.
//! - I5: a checkpoint ends when both superblocks name it and are durable, so that either of them may rot. The second
//!   one is the next generation with the same content. Only then are changes acknowledged that only this checkpoint
//!   contains, and only then are pages overwritten that the previous checkpoint needs (S3 of
//!   [`superblock`](mod@crate::format::superblock)).
//! - I6: the label of each further member gets a generation before a superblock names that generation. So a member that
//!   was absent during a checkpoint is recognised by its older label.
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
use crate::state::recent::Recent;

impl PoolInner {
    /// Writes a checkpoint. `clean` is true if it marks the pool as closed. Called by the leader of a commit, or while
    /// nobody else uses the pool.
    pub(crate) fn write_checkpoint<'a>(&'a self, mut state: MutexGuard<'a, State>, clean: bool) -> Result<(), Status> {
        let _running = self.beside.begin(Activity::Checkpoint);
        while state.cut_a_part()? {
            // Releases the lock after each part, so that I/O waits for one part at most.
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

    /// Writes a planned checkpoint. If that fails, the plan is kept for the next commit (I4). Called by the leader of a
    /// commit.
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

    /// Called when the checkpoint that was to close the pool failed. The pool remains in use, open or degraded. If the
    /// plan is kept, clears its flag that the pool is closed. Returns the phase.
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
        // O1 of `owner`. This check comes before the pages are written: if another opening has taken the pool, it may
        // use the places of these pages.
        self.look(Some(plan))?;
        // Labels are written with the pages: the flush of the pages makes them durable before a superblock names their
        // generation (I6).
        let labels = plan.labels();
        let mut runs = plan.draft.runs();
        runs.extend(labels.iter().map(|(at, block)| (*at, &block[..])));
        self.io.write_many(&runs)?;
        drop(runs);
        for (at, block) in &plan.free {
            // An error is ignored, for example a host without space for the block: the checkpoint is complete without
            // the list, which only an opening with a damaged map reads.
            let _ = self.io.write(*at, &block[..]);
        }
        if let Some((at, block)) = &plan.root {
            // The checkpoint is complete without the loose root too, and the host may lack space for its page.
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

    /// Writes the second superblock of a state, and its copies. The flush of the caller makes them durable (S4 of
    /// `superblock`). If the state is that of a close, the copies are durable already before (S5 there).
    pub(crate) fn write_twin(&self, twin: &Superblock) -> Result<(), Status> {
        let mut block = [0; BLOCK];
        let address = twin.encode(&mut block);
        let copies = twin.encode_copies();
        let mut all: Vec<(u64, &[u8])> = copies.iter().map(|(at, block)| (*at, &block[..])).collect();
        if twin.clean && !all.is_empty() {
            self.io.write_many(&all)?;
            self.flush()?;
            all.clear();
        }
        all.push((address, &block));
        self.io.write_many(&all)
    }
}

impl State {
    /// Called when a checkpoint is durable: makes it the current one, and frees the pages that it replaces. Returns the
    /// changes that it contains.
    pub(crate) fn landed(&mut self, plan: Plan) -> Taken {
        self.tree.pages.put(&plan.replaced, &mut self.tree.units);
        plan.replaced.iter().chain(&plan.sb.copies).for_each(|at| _ = self.bad_copies.remove(at));
        // The size or a setting may have changed while the plan was written: keep the newer value for the next
        // checkpoint.
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
        // An acknowledged loss is forgotten only by a durable checkpoint without the list.
        self.risk.acknowledged &= !self.sb.lost.is_empty();
        if plan.sb.clean {
            self.phase = self.phase.after(Event::CloseDone);
            self.recent.take().iter().for_each(Recent::end);
        }
        plan.taken
    }

    /// Serialises everything that changed.
    pub(crate) fn plan(&mut self, geometry: &Geometry, clean: bool) -> Result<Plan, Status> {
        let wanted = self.pages_due();
        #[cfg(any(debug_assertions, test))]
        self.tree.count_pages(wanted);
        let memory = Buf::zeroed(wanted as usize * BLOCK, BLOCK).map_err(|_| Status::NoMem)?;
        let addresses = self.tree.pages.take(wanted, &mut self.tree.units).ok_or(Status::NoSpc)?;
        let seconds = self.tree.pages.seconds_of(&addresses);
        let mut draft = Draft::new(addresses, seconds, u64::from(geometry.unit_bytes), memory);
        // Nothing after this line may fail: the changes that `take` removes from the state would be in no commit.
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
        self.recent.iter_mut().for_each(|recent| recent.mark(sb.generation, sb.replay_seq));
        let root = self.draft_root(&sb);
        // After all steps that take or give back pages, so that no unit in the list of free units belongs to this
        // checkpoint.
        let free = free::encode(&sb, &self.tree.units.longest_free(MAX_FREE_RUNS));
        Ok(Plan { draft, sb, free, root, reached: Reached::Pages, replaced: self.tree.pages.take_given_up(), taken })
    }

    /// Places the loose root of a checkpoint in a free page that no reference names: one of the two that checkpoints
    /// would take last. Consecutive checkpoints alternate between the two, so the previous root is usually still
    /// readable until this checkpoint is valid. Returns `None` if no page of a metadata unit is free.
    fn draft_root(&self, sb: &Superblock) -> Option<(u64, Box<Block>)> {
        let last: Vec<u64> = self.tree.pages.last_free().take(2).collect();
        // A checkpoint takes two generations, the second for the twin: bit 1 alternates from one checkpoint to the
        // next.
        let at = *last.get((sb.generation >> 1 & 1) as usize).or(last.first())?;
        let mut block = Box::new([0; BLOCK]);
        sb.encode_root(&mut block, at);
        Some((at, block))
    }

    /// Unmaps part of the units beyond the new end of a volume that shrank. If a page or record contained such a unit,
    /// its data would reappear when the volume grows again. Returns false when no such unit is left.
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

/// Returns the page of the index node at `slot`: its present one if the node is clean, else a new one, with new pages
/// of its dirty leaves.
fn draft_index(
    tree: &mut crate::state::extent_map::tree::Tree,
    geometry: &Geometry,
    place: &PagePlace,
    top: &Top,
    slot: u64,
    draft: &mut Draft,
) -> PageRef {
    // Relaxed, here and below: under the lock under which all stores are made.
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

/// Drafts the page of a leaf. Returns `PageRef::NONE` if no block of it is written.
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
            // A unit without a written block is stored as a hole, which reads the same.
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
