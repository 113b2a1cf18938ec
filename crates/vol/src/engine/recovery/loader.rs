//! Loading the newest checkpoint: the volume table, then all maps level by level, each level in one sweep of the
//! device.
//!
//! Owns the walk. Pages that several volumes have (index pages of level 1 and leaves) are read once and become one
//! node.
//!
//! - L1: a page of a map that is damaged or cannot be read is claimed as a whole one is, and its node is empty. Each
//!   volume that needs it has [`Vol::damage`] from here on; what that means is decided when the journal is replayed,
//!   which may delete the volume. A damaged page of the volume table refuses the pool: whose maps there are is unknown.

use std::collections::HashMap;

use sheave_base::status::Status;
use sheave_base::sync::atomic::Ordering;

use crate::device::block_io::BlockIo;
use crate::device::reader::{Want, read_each, read_pages};
use crate::error::PoolError;
use crate::format::block::Block;
use crate::format::damage::{Damage, MapDamage};
use crate::format::page::table::VolumeEntry;
use crate::format::page::{Expect, PageRef, index, leaf, table};
use crate::format::superblock::Geometry;
use crate::format::{INDEX_CHILDREN, MAX_LEAF_ENTRIES, MAX_LEAF_WORDS};
use crate::state::State;
use crate::state::extent_map::{INDEX_SHIFT, TAG};
use crate::state::table::Vol;

/// A page to read: where it is in its tree, and what becomes of it.
struct Page {
    page: PageRef,
    level: u16,
    /// Which of its level.
    number: u64,
    /// Volume for upper pages, node for the others.
    target: u32,
}

impl Want for Page {
    fn address(&self) -> u64 {
        self.page.address
    }
}

/// A parent's word that refers to a node.
struct Link {
    parent: u32,
    word: usize,
    node: u32,
}

/// Why a page gives nothing.
#[derive(Clone, Copy)]
enum Bad {
    Damaged(Damage),
    Unreadable(Status),
}

impl Bad {
    fn words(self) -> String {
        match self {
            Bad::Damaged(damage) => damage.to_string(),
            Bad::Unreadable(status) => format!("it cannot be read: {status}"),
        }
    }
}

/// Pages of maps that give nothing, at or below an index node: the first of them, and how many there are.
#[derive(Clone, Copy)]
struct Lost {
    page: PageRef,
    level: u16,
    number: u64,
    bad: Bad,
    pages: u64,
}

impl Lost {
    fn of(page: &Page, bad: Bad) -> Lost {
        Lost { page: page.page, level: page.level, number: page.number, bad, pages: 1 }
    }

    /// The volume needs these pages (L1).
    fn blame(self, vol: &mut Vol, geometry: &Geometry) {
        let pages = vol.damage.as_ref().map_or(0, |damage| damage.pages) + self.pages;
        let below = geometry.units_below(self.level).saturating_mul(u64::from(geometry.unit_bytes));
        let pos = self.number.saturating_mul(below);
        let range = (pos, below.min(vol.core.size().saturating_sub(pos)));
        let damage = vol
            .damage
            .get_or_insert_with(|| Box::new(MapDamage { at: self.page.address, why: self.bad.words(), range, pages }));
        damage.pages = pages;
    }
}

/// The index nodes that miss something.
type LostNodes = HashMap<u32, Lost>;

fn miss(lost: &mut LostNodes, node: u32, page: Lost) {
    lost.entry(node).and_modify(|lost| lost.pages += page.pages).or_insert(page);
}

/// What decoding a page gives, when the device gave the page.
fn decode<T>(block: Result<&Block, Status>, how: impl FnOnce(&Block) -> Result<T, Damage>) -> Result<T, Bad> {
    how(block.map_err(Bad::Unreadable)?).map_err(Bad::Damaged)
}

/// The error of a page without which the pool does not open.
fn refuse(what: &str, page: PageRef, bad: Bad) -> PoolError {
    PoolError::Damaged { what: what.into(), at: page.address, why: bad.words() }
}

fn twice(at: u64) -> PoolError {
    PoolError::Damaged { what: "a metadata page".into(), at, why: "two places refer to it".into() }
}

impl Page {
    fn expect(&self, state: &State) -> Expect {
        Expect { pool: state.sb.pool, generation: state.sb.generation, page: self.page, index: self.number }
    }
}

/// Fills the state from the checkpoint that its superblock names.
pub(super) fn load(io: &dyn BlockIo, state: &mut State) -> Result<(), PoolError> {
    let geometry = state.sb.geometry();
    for entry in load_table(io, state, &geometry)? {
        let vol = Vol::from_entry(&entry);
        if !state.table.insert(vol) {
            return Err(PoolError::Damaged {
                what: format!("volume '{}'", entry.name),
                at: state.sb.table.address,
                why: "there are two of its name".into(),
            });
        }
    }
    if state.table.len() != state.sb.volumes as usize {
        return Err(PoolError::Damaged {
            what: "the volume table".into(),
            at: state.sb.table.address,
            why: format!("it has {} volumes and should have {}", state.table.len(), state.sb.volumes),
        });
    }
    let slots = load_upper(io, state, &geometry)?;
    let tops = make_index(state, &slots)?;
    let mut lost = LostNodes::new();
    let leaves = load_index(io, state, &geometry, tops.pages, &mut lost)?;
    load_leaves(io, state, &geometry, leaves, &mut lost)?;
    for (volume, _, node) in tops.words {
        if let Some((lost, vol)) = lost.get(&node).zip(state.table.get_mut(volume)) {
            lost.blame(vol, &geometry);
        }
    }
    Ok(())
}

fn load_table(io: &dyn BlockIo, state: &mut State, geometry: &Geometry) -> Result<Vec<VolumeEntry>, PoolError> {
    let mut level = state.sb.table_level;
    let root = Page { page: state.sb.table, level, number: 0, target: 0 };
    let mut pages = if root.page.is_none() { Vec::new() } else { vec![root] };
    while level > 0 {
        pages = step_down(io, state, geometry, pages, &mut |state, page, bad| {
            state.table.pages.push(page.page.address);
            bad.map_or(Ok(()), |bad| Err(refuse("an index page of the volume table", page.page, bad)))
        })?;
        level -= 1;
    }
    let mut parts: Vec<(u64, Vec<VolumeEntry>)> = Vec::new();
    read_pages(io, pages, &mut |page, block| {
        claim(state, page.page)?;
        state.table.pages.push(page.page.address);
        let mut entries = Vec::new();
        table::decode(block, geometry, &page.expect(state), &mut entries)
            .map_err(|damage| refuse("a page of the volume table", page.page, Bad::Damaged(damage)))?;
        parts.push((page.number, entries));
        Ok(())
    })?;
    parts.sort_unstable_by_key(|part| part.0);
    Ok(parts.into_iter().flat_map(|part| part.1).collect())
}

/// Hears of a page that was read, and why it is damaged if it is.
type Seen<'a> = dyn FnMut(&mut State, &Page, Option<Bad>) -> Result<(), PoolError> + 'a;

/// The pages below index pages of one level; `seen` hears of each of the latter, and why it has none below if it is
/// damaged.
fn step_down(
    io: &dyn BlockIo,
    state: &mut State,
    geometry: &Geometry,
    pages: Vec<Page>,
    seen: &mut Seen<'_>,
) -> Result<Vec<Page>, PoolError> {
    let mut below = Vec::new();
    read_each(io, pages, &mut |page, block| {
        claim(state, page.page)?;
        let mut children = [PageRef::NONE; INDEX_CHILDREN];
        let expect = page.expect(state);
        let found = decode(block, |block| index::decode(block, geometry, &expect, page.level, &mut children));
        seen(state, page, found.err())?;
        if found.is_err() {
            return Ok(());
        }
        let (level, first) = (page.level - 1, page.number * INDEX_CHILDREN as u64);
        let wanted = (first..).zip(children).filter(|(_, child)| !child.is_none());
        below.extend(wanted.map(|(number, child)| Page { page: child, level, number, target: page.target }));
        Ok(())
    })?;
    Ok(below)
}

fn claim(state: &mut State, page: PageRef) -> Result<(), PoolError> {
    let tree = &mut state.tree;
    if tree.pages.claim(page.address, &mut tree.units) { Ok(()) } else { Err(twice(page.address)) }
}

/// The index pages of level 1 of all volumes.
fn load_upper(io: &dyn BlockIo, state: &mut State, geometry: &Geometry) -> Result<Vec<Page>, PoolError> {
    let roots = state.table.iter().filter(|vol| !vol.root.is_none());
    let mut pages: Vec<Page> =
        roots.map(|vol| Page { page: vol.root, level: vol.root_level, number: 0, target: vol.id }).collect();
    let mut slots = Vec::new();
    while !pages.is_empty() {
        let high = pages.iter().map(|page| page.level).max().unwrap_or(0);
        let (done, rest): (Vec<Page>, Vec<Page>) = pages.into_iter().partition(|page| page.level <= 1);
        slots.extend(done);
        let (now, later): (Vec<Page>, Vec<Page>) = rest.into_iter().partition(|page| page.level == high);
        pages = later;
        pages.extend(step_down(io, state, geometry, now, &mut |state, page, bad| {
            if let Some(vol) = state.table.get_mut(page.target) {
                vol.upper.push(page.page.address);
                bad.into_iter().for_each(|bad| Lost::of(page, bad).blame(vol, geometry));
            }
            Ok(())
        })?);
    }
    Ok(slots)
}

/// The index nodes of all volumes.
struct Tops {
    /// The page of each, once.
    pages: Vec<Page>,
    /// Volume, slot of its top, node.
    words: Vec<(u32, u64, u32)>,
}

/// Makes the index nodes, still empty, and the tops that refer to them.
fn make_index(state: &mut State, slots: &[Page]) -> Result<Tops, PoolError> {
    let mut nodes: HashMap<PageRef, (u32, u64)> = HashMap::new();
    let mut tops = Tops { pages: Vec::new(), words: Vec::new() };
    let map = state.tree.map.clone();
    for &Page { page, level, number, target } in slots {
        let node = match nodes.get(&page) {
            Some(&(node, first)) if first == number => {
                state.tree.index.get(node);
                node
            }
            Some(_) => return Err(twice(page.address)),
            None => {
                let node = state.tree.new_index(&map).map_err(no_memory)?;
                nodes.insert(page, (node, number));
                tops.pages.push(Page { page, level, number, target: node });
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

/// Reads the pages of the index nodes; the leaf pages below them.
fn load_index(
    io: &dyn BlockIo,
    state: &mut State,
    geometry: &Geometry,
    pages: Vec<Page>,
    lost: &mut LostNodes,
) -> Result<Vec<Page>, PoolError> {
    let mut below = Vec::new();
    read_each(io, pages, &mut |page, block| {
        claim(state, page.page)?;
        state.tree.index.written(page.target, page.page);
        let mut children = [PageRef::NONE; INDEX_CHILDREN];
        let expect = page.expect(state);
        match decode(block, |block| index::decode(block, geometry, &expect, 1, &mut children)) {
            Ok(count) => state.tree.index.add_used(page.target, count as u32),
            Err(bad) => {
                miss(lost, page.target, Lost::of(page, bad));
                return Ok(());
            }
        }
        let first = page.number << INDEX_SHIFT;
        let wanted = (first..).zip(children).filter(|(_, child)| !child.is_none());
        below.extend(wanted.map(|(number, child)| Page { page: child, level: 0, number, target: page.target }));
        Ok(())
    })?;
    Ok(below)
}

/// Makes the leaves, each once, with the words that refer to them, and reads their pages.
fn load_leaves(
    io: &dyn BlockIo,
    state: &mut State,
    geometry: &Geometry,
    leaves: Vec<Page>,
    lost: &mut LostNodes,
) -> Result<(), PoolError> {
    let map = state.tree.map.clone();
    let mut nodes: HashMap<PageRef, (u32, u64)> = HashMap::with_capacity(leaves.len());
    let mut pages = Vec::with_capacity(leaves.len());
    let mut links = Vec::with_capacity(leaves.len());
    for page in leaves {
        let (parent, word) = (page.target, page.number as usize & (INDEX_CHILDREN - 1));
        let node = match nodes.get(&page.page) {
            Some(&(node, number)) if number == page.number => {
                state.tree.leaves.get(node);
                node
            }
            Some(_) => return Err(twice(page.page.address)),
            None => {
                let node = state.tree.new_leaf(&map).map_err(no_memory)?;
                nodes.insert(page.page, (node, page.number));
                pages.push(Page { target: node, ..page });
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
    let bad = fill_leaves(io, state, geometry, pages)?;
    for link in links.iter().filter(|_| !bad.is_empty()) {
        if let Some(leaf) = bad.get(&link.node) {
            miss(lost, link.parent, *leaf);
        }
    }
    Ok(())
}

/// Reads the pages of leaves; those that give nothing, by their nodes.
fn fill_leaves(
    io: &dyn BlockIo,
    state: &mut State,
    geometry: &Geometry,
    pages: Vec<Page>,
) -> Result<LostNodes, PoolError> {
    let mut lost = LostNodes::new();
    let mut entries = [0; MAX_LEAF_ENTRIES];
    let mut written = [0; MAX_LEAF_WORDS];
    read_each(io, pages, &mut |page, block| {
        claim(state, page.page)?;
        state.tree.leaves.written(page.target, page.page);
        let expect = page.expect(state);
        match decode(block, |block| leaf::decode(block, geometry, &expect, &mut entries, &mut written)) {
            Ok(count) => {
                state.tree.fill_leaf(page.target, &entries, &written, geometry.entry_words);
                state.tree.leaves.add_used(page.target, count as u32);
            }
            Err(bad) => miss(&mut lost, page.target, Lost::of(page, bad)),
        }
        Ok(())
    })?;
    Ok(lost)
}

fn no_memory<E>(_: E) -> PoolError {
    PoolError::Io {
        what: "making room for the maps of the pool".into(),
        status: sheave_base::status::Status::NoMem,
        fix: "Give the program more memory: about 160 MiB for each TiB that is mapped in units of 64 KiB".into(),
    }
}
