//! Loads the newest checkpoint: the volume table, then all maps level by level, each level in one sweep of the device.
//!
//! Owns the order of the [`walk`], and the nodes. Pages that several volumes share (index pages of level 1 and leaves)
//! are read once and become one node.
//!
//! - L1: a page of a map that is damaged or cannot be read still counts as in use, and its node is empty. Each volume
//!   that needs it has [`Vol::damage`] from here on. The replay of the journal decides the consequence, because it may
//!   delete the volume.
//! - L3: a page whose first copy is bad is taken from the second, if that is good; `State::bad_copies` has its address.
//! - L2: a page of the volume table that is damaged or cannot be read refuses the pool, because the maps that the page
//!   names are unknown. A rescue continues with the volumes that the other pages name ([`LostVolumes`]).

use std::collections::HashMap;

use sheave_base::sync::Arc;
use sheave_base::sync::atomic::Ordering;

use super::lost::LostVolumes;
use crate::device::block_io::BlockIo;
use crate::device::reader::{failed, read_each};
use crate::device::walk::{self, Bad, Checkpoint, decode, step_down};
use crate::error::PoolError;
use crate::format::damage::MapDamage;
use crate::format::page::table::VolumeEntry;
use crate::format::page::{PageRef, leaf, table};
use crate::format::superblock::Geometry;
use crate::format::{INDEX_CHILDREN, MAX_LEAF_ENTRIES, MAX_LEAF_WORDS, MAX_VOLUMES};
use crate::state::State;
use crate::state::extent_map::TAG;
use crate::state::table::{LostMap, LostPage, TablePage, TablePages, Vol};

/// A page of a tree. For upper pages the number is the number of the page's volume, for others the number of its node.
type Page = walk::Page<u32>;

/// A word of an index node, and the leaf that it refers to.
struct Link {
    parent: u32,
    word: usize,
    node: u32,
}

/// A page of a map that is damaged or cannot be read.
#[derive(Clone, Copy)]
struct Lost {
    page: LostPage,
    bad: Bad,
}

impl Lost {
    fn of(page: &Page, bad: Bad) -> Lost {
        Lost { page: LostPage { page: page.page, level: page.level, number: page.index }, bad }
    }

    fn told(&self, vol: &Vol, geometry: &Geometry) -> MapDamage {
        let LostPage { page, level, number } = self.page;
        let below = geometry.units_below(level).saturating_mul(u64::from(geometry.unit_bytes));
        let pos = number.saturating_mul(below);
        let range = (pos, below.min(vol.core.size().saturating_sub(pos)));
        MapDamage { at: page.address, why: self.bad.words(), range, pages: 0 }
    }
}

/// Records in `vol` that it needs the lost `pages`; `first` is one of them (L1).
fn blame(vol: &mut Vol, geometry: &Geometry, first: &Lost, pages: Arc<[LostPage]>) {
    let told = first.told(vol, geometry);
    let lost = vol.damage.get_or_insert_with(|| Box::new(LostMap::new(told)));
    lost.told.pages += pages.len() as u64;
    lost.pages.push(pages);
}

/// Lost pages at or below an index node, by the number of the node.
type LostNodes = HashMap<u32, Vec<Lost>>;

fn miss(lost: &mut LostNodes, node: u32, pages: &[Lost]) {
    lost.entry(node).or_default().extend(pages);
}

/// Returns the error for a page without which the pool is not opened. A page that cannot be read now may be readable
/// later.
fn refuse(what: &str, page: PageRef, bad: Bad) -> PoolError {
    match bad {
        Bad::Unreadable(status) => failed(status),
        Bad::Damaged(damage) => PoolError::Damaged { what: what.into(), at: page.address, why: damage.to_string() },
    }
}

fn twice(at: u64) -> PoolError {
    PoolError::Damaged { what: "a metadata page".into(), at, why: "two places refer to it".into() }
}

/// Fills the state from the checkpoint that its superblock names. A `rescue` passes over lost pages of the volume
/// table. Returns the volumes that were in those pages.
pub(super) fn load(io: &dyn BlockIo, state: &mut State, rescue: bool) -> Result<LostVolumes, PoolError> {
    let geometry = state.sb.geometry();
    let mut lost_volumes = LostVolumes::default();
    for entry in load_table(io, state, rescue.then_some(&mut lost_volumes))? {
        let vol = Vol::of_checkpoint(&entry);
        if !state.table.insert(vol) {
            return Err(PoolError::Damaged {
                what: format!("volume '{}'", entry.name),
                at: state.sb.table.address,
                why: "there are two of its name".into(),
            });
        }
    }
    if lost_volumes.is_empty() && state.table.len() != state.sb.volumes as usize {
        return Err(PoolError::Damaged {
            what: "the volume table".into(),
            at: state.sb.table.address,
            why: format!("it has {} volumes and should have {}", state.table.len(), state.sb.volumes),
        });
    }
    let slots = load_upper(io, state, &geometry)?;
    let tops = make_index(state, &slots)?;
    let mut lost = LostNodes::new();
    let leaves = load_index(io, state, tops.pages, &mut lost)?;
    load_leaves(io, state, leaves, &mut lost)?;
    let pages = |lost: &Vec<Lost>| lost.iter().map(|lost| lost.page).collect::<Arc<[LostPage]>>();
    let lists: HashMap<u32, Arc<[LostPage]>> = lost.iter().map(|(node, lost)| (*node, pages(lost))).collect();
    for (volume, _, node) in tops.words {
        let first = lost.get(&node).and_then(|lost| lost.first());
        if let Some(((first, pages), vol)) = first.zip(lists.get(&node)).zip(state.table.get_mut(volume)) {
            blame(vol, &geometry, first, Arc::clone(pages));
        }
    }
    Ok(lost_volumes)
}

/// Passes over a lost page of the volume table. In a rescue it records the page in `lost`; otherwise it returns the
/// error.
fn pass(lost: &mut Option<&mut LostVolumes>, what: &str, page: &Page, bad: Bad) -> Result<(), PoolError> {
    let Some(lost) = lost else { return Err(refuse(what, page.page, bad)) };
    lost.add(page.page, leaves_of(page.level, page.index), bad.words());
    Ok(())
}

/// Returns the range of leaf pages below the page at `level` and `index`.
pub(super) fn leaves_of(level: u16, index: u64) -> (u64, u64) {
    let leaves = (0..level).fold(1, |leaves: u64, _| leaves.saturating_mul(INDEX_CHILDREN as u64));
    let first = index.saturating_mul(leaves);
    (first, first.saturating_add(leaves))
}

fn load_table(
    io: &dyn BlockIo,
    state: &mut State,
    mut lost: Option<&mut LostVolumes>,
) -> Result<Vec<VolumeEntry>, PoolError> {
    let checkpoint = Checkpoint::of(&state.sb);
    let mut bad = Vec::new();
    let mut pages: Vec<Page> = Page::root(state.sb.table, state.sb.table_level, 0).into_iter().collect();
    while pages.first().is_some_and(|page| page.level > 0) {
        pages = step_down(io, &checkpoint, pages, &mut bad, &mut |page, found| {
            claim(state, page.page)?;
            state.table.pages.upper.push(page.page.address);
            found.map(drop).or_else(|bad| pass(&mut lost, "an index page of the volume table", page, bad))
        })?;
    }
    let mut parts: Vec<(u64, PageRef, Vec<VolumeEntry>)> = Vec::new();
    read_each(io, checkpoint.unit_bytes(), pages, &mut bad, &mut |page, block| {
        claim(state, page.page)?;
        let mut entries = Vec::new();
        let expect = page.expect(&checkpoint);
        match decode(block, |block| table::decode(block, &checkpoint.geometry, &expect, &mut entries)) {
            Ok(_) => parts.push((page.index, page.page, entries)),
            Err(bad) => pass(&mut lost, "a page of the volume table", page, bad)?,
        }
        Ok(())
    })?;
    state.bad_copies.extend(bad);
    parts.sort_unstable_by_key(|part| part.0);
    if let Some(lost) = lost {
        let ends = |part: &(u64, PageRef, Vec<VolumeEntry>)| Some((part.0, part.2.first()?.id, part.2.last()?.id));
        let found = parts.iter().map(|part| part.2.len() as u64).sum();
        lost.settle(&state.sb, found, &parts.iter().filter_map(ends).collect::<Vec<_>>());
    }
    note_pages(&mut state.table.pages, &parts);
    state.table.pages.root = (state.sb.table, state.sb.table_level);
    Ok(parts.into_iter().flat_map(|part| part.2).collect())
}

/// Records which volumes are in which page.
fn note_pages(pages: &mut TablePages, parts: &[(u64, PageRef, Vec<VolumeEntry>)]) {
    let ascend = parts
        .is_sorted_by(|(_, _, a), (_, _, b)| a.last().zip(b.first()).is_some_and(|(last, first)| last.id < first.id));
    let most = u64::from(MAX_VOLUMES);
    if !ascend || parts.last().is_some_and(|last| last.0 >= most) {
        // The pages are out of order, which no program writes: the next checkpoint rewrites all of them.
        pages.upper.extend(parts.iter().map(|part| part.1.address));
        return;
    }
    for (index, page, entries) in parts {
        let (first, count) = (entries.first().map_or(0, |entry| entry.id), entries.len() as u32);
        // A hole has no volumes: it gets the first number of the page behind it.
        let hole = TablePage { first, page: PageRef::NONE, count: 0 };
        pages.leaves.resize(*index as usize, hole);
        pages.leaves.push(TablePage { first, page: *page, count });
    }
}

pub(super) fn claim(state: &mut State, page: PageRef) -> Result<(), PoolError> {
    let tree = &mut state.tree;
    if tree.pages.claim(page, &mut tree.units) { Ok(()) } else { Err(twice(page.address)) }
}

/// Returns the index pages of level 1 of all volumes.
fn load_upper(io: &dyn BlockIo, state: &mut State, geometry: &Geometry) -> Result<Vec<Page>, PoolError> {
    let roots = state.table.iter();
    let mut pages: Vec<Page> = roots.filter_map(|vol| Page::root(vol.root, vol.root_level, vol.id)).collect();
    let checkpoint = Checkpoint::of(&state.sb);
    let (mut slots, mut bad) = (Vec::new(), Vec::new());
    while !pages.is_empty() {
        let high = pages.iter().map(|page| page.level).max().unwrap_or(0);
        let (done, rest): (Vec<Page>, Vec<Page>) = pages.into_iter().partition(|page| page.level <= 1);
        slots.extend(done);
        let (now, later): (Vec<Page>, Vec<Page>) = rest.into_iter().partition(|page| page.level == high);
        pages = later;
        pages.extend(step_down(io, &checkpoint, now, &mut bad, &mut |page, found| {
            claim(state, page.page)?;
            if let Some(vol) = state.table.get_mut(page.of) {
                vol.upper.push(page.page.address);
                if let Err(bad) = found {
                    let lost = Lost::of(page, bad);
                    blame(vol, geometry, &lost, [lost.page].into());
                }
            }
            Ok(())
        })?);
    }
    state.bad_copies.extend(bad);
    Ok(slots)
}

/// The index nodes of all volumes.
struct Tops {
    /// One page per node.
    pages: Vec<Page>,
    /// Volume, slot in its top, node.
    words: Vec<(u32, u64, u32)>,
}

/// Makes the index nodes, still empty, and the tops that refer to them.
fn make_index(state: &mut State, slots: &[Page]) -> Result<Tops, PoolError> {
    let mut nodes: HashMap<PageRef, (u32, u64)> = HashMap::new();
    let mut tops = Tops { pages: Vec::new(), words: Vec::new() };
    let map = state.tree.map.clone();
    for &Page { page, level, index: number, of: target } in slots {
        let node = match nodes.get(&page) {
            Some(&(node, first)) if first == number => {
                state.tree.index.get(node);
                node
            }
            Some(_) => return Err(twice(page.address)),
            None => {
                let node = state.tree.new_index(&map).map_err(no_memory)?;
                nodes.insert(page, (node, number));
                tops.pages.push(Page { page, level, index: number, of: node });
                node
            }
        };
        tops.words.push((target, number, node));
    }
    for &(volume, number, node) in &tops.words {
        let tag = if state.tree.index.is_shared(node) { TAG } else { 0 };
        let Some(vol) = state.table.get_mut(volume) else { continue };
        vol.slots = vol.slots.max(number + 1);
        let made = u32::try_from(number).is_ok_and(|at| vol.core.top.make(at));
        if !made {
            return Err(no_memory(()));
        }
        vol.core.top.set_word(number as u32, u64::from(node) | tag);
    }
    Ok(tops)
}

/// Reads the pages of the index nodes. Returns the leaf pages below them.
fn load_index(
    io: &dyn BlockIo,
    state: &mut State,
    pages: Vec<Page>,
    lost: &mut LostNodes,
) -> Result<Vec<Page>, PoolError> {
    let checkpoint = Checkpoint::of(&state.sb);
    let mut bad = Vec::new();
    let below = step_down(io, &checkpoint, pages, &mut bad, &mut |page, found| {
        claim(state, page.page)?;
        state.tree.index.written(page.of, page.page);
        match found {
            Ok(count) => state.tree.index.add_used(page.of, count as u32),
            Err(bad) => miss(lost, page.of, &[Lost::of(page, bad)]),
        }
        Ok(())
    })?;
    state.bad_copies.extend(bad);
    Ok(below)
}

/// Makes one node per leaf page, with the words that refer to it, and reads the pages.
fn load_leaves(io: &dyn BlockIo, state: &mut State, leaves: Vec<Page>, lost: &mut LostNodes) -> Result<(), PoolError> {
    let map = state.tree.map.clone();
    let mut nodes: HashMap<PageRef, (u32, u64)> = HashMap::with_capacity(leaves.len());
    let mut pages = Vec::with_capacity(leaves.len());
    let mut links = Vec::with_capacity(leaves.len());
    for page in leaves {
        let (parent, word) = (page.of, page.index as usize & (INDEX_CHILDREN - 1));
        let node = match nodes.get(&page.page) {
            Some(&(node, number)) if number == page.index => {
                state.tree.leaves.get(node);
                node
            }
            Some(_) => return Err(twice(page.page.address)),
            None => {
                let node = state.tree.new_leaf(&map).map_err(no_memory)?;
                nodes.insert(page.page, (node, page.index));
                pages.push(Page { of: node, ..page });
                node
            }
        };
        links.push(Link { parent, word, node });
    }
    for link in &links {
        let tag = if state.tree.leaves.is_shared(link.node) { TAG } else { 0 };
        if let Some(word) = map.index.word(link.parent, link.word) {
            word.store(u64::from(link.node) | tag, Ordering::Relaxed); // Relaxed: nobody else is here yet.
        }
    }
    let bad = fill_leaves(io, state, pages)?;
    // The filter skips all links in the usual case that no leaf is lost.
    for link in links.iter().filter(|_| !bad.is_empty()) {
        if let Some(leaf) = bad.get(&link.node) {
            miss(lost, link.parent, leaf);
        }
    }
    Ok(())
}

/// Reads the pages of leaves. Returns the lost pages, by node.
fn fill_leaves(io: &dyn BlockIo, state: &mut State, pages: Vec<Page>) -> Result<LostNodes, PoolError> {
    let checkpoint = Checkpoint::of(&state.sb);
    let geometry = &checkpoint.geometry;
    let mut lost = LostNodes::new();
    let mut entries = [0; MAX_LEAF_ENTRIES];
    let mut written = [0; MAX_LEAF_WORDS];
    let mut bad = Vec::new();
    read_each(io, checkpoint.unit_bytes(), pages, &mut bad, &mut |page, block| {
        claim(state, page.page)?;
        state.tree.leaves.written(page.of, page.page);
        let expect = page.expect(&checkpoint);
        match decode(block, |block| leaf::decode(block, geometry, &expect, &mut entries, &mut written)) {
            Ok(count) => {
                state.tree.fill_leaf(page.of, &entries, &written, geometry.entry_words);
                state.tree.leaves.add_used(page.of, count as u32);
            }
            Err(bad) => miss(&mut lost, page.of, &[Lost::of(page, bad)]),
        }
        Ok(())
    })?;
    state.bad_copies.extend(bad);
    Ok(lost)
}

fn no_memory<E>(_: E) -> PoolError {
    PoolError::Io {
        what: "making room for the maps of the pool".into(),
        status: sheave_base::status::Status::NoMem,
        fix: "Give the program more memory: about 160 MiB for each TiB that is mapped in units of 64 KiB".into(),
    }
}
