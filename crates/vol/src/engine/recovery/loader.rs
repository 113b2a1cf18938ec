//! Loading the newest checkpoint: the volume table, then all maps level by level, each level in one sweep of the
//! device.
//!
//! Owns the walk. Pages that several volumes have (index pages of level 1 and leaves) are read once and become one
//! node.

use std::collections::HashMap;

use sheave_base::sync::atomic::Ordering;

use crate::device::block_io::BlockIo;
use crate::device::reader::{Want, read_pages};
use crate::error::PoolError;
use crate::format::damage::Damage;
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

fn damaged(what: String, at: u64) -> impl FnOnce(Damage) -> PoolError {
    move |damage| PoolError::Damaged { what, at, why: damage.to_string() }
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
    let leaves = load_index(io, state, &geometry, slots)?;
    load_leaves(io, state, &geometry, leaves)
}

fn load_table(io: &dyn BlockIo, state: &mut State, geometry: &Geometry) -> Result<Vec<VolumeEntry>, PoolError> {
    let mut level = state.sb.table_level;
    let root = Page { page: state.sb.table, level, number: 0, target: 0 };
    let mut pages = if root.page.is_none() { Vec::new() } else { vec![root] };
    while level > 0 {
        pages = step_down(io, state, geometry, pages, &mut |state, page| {
            state.table.pages.push(page.page.address);
        })?;
        level -= 1;
    }
    let mut parts: Vec<(u64, Vec<VolumeEntry>)> = Vec::new();
    read_pages(io, pages, &mut |page, block| {
        claim(state, page.page)?;
        state.table.pages.push(page.page.address);
        let mut entries = Vec::new();
        table::decode(block, geometry, &page.expect(state), &mut entries)
            .map_err(damaged("a page of the volume table".into(), page.page.address))?;
        parts.push((page.number, entries));
        Ok(())
    })?;
    parts.sort_unstable_by_key(|part| part.0);
    Ok(parts.into_iter().flat_map(|part| part.1).collect())
}

/// The pages below index pages of one level; `seen` hears of each of the latter.
fn step_down(
    io: &dyn BlockIo,
    state: &mut State,
    geometry: &Geometry,
    pages: Vec<Page>,
    seen: &mut dyn FnMut(&mut State, &Page),
) -> Result<Vec<Page>, PoolError> {
    let mut below = Vec::new();
    read_pages(io, pages, &mut |page, block| {
        claim(state, page.page)?;
        let mut children = [PageRef::NONE; INDEX_CHILDREN];
        index::decode(block, geometry, &page.expect(state), page.level, &mut children)
            .map_err(damaged(format!("an index page of level {}", page.level), page.page.address))?;
        seen(state, page);
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
        pages.extend(step_down(io, state, geometry, now, &mut |state, page| {
            if let Some(vol) = state.table.get_mut(page.target) {
                vol.upper.push(page.page.address);
            }
        })?);
    }
    Ok(slots)
}

/// Makes the index nodes; the leaf pages below them, each once, with the words that refer to them.
fn load_index(
    io: &dyn BlockIo,
    state: &mut State,
    geometry: &Geometry,
    slots: Vec<Page>,
) -> Result<Vec<Page>, PoolError> {
    let mut nodes: HashMap<PageRef, (u32, u64)> = HashMap::new();
    let mut pages = Vec::new();
    let mut tops: Vec<(u32, u64, u32)> = Vec::new();
    for slot in slots {
        let node = match nodes.get(&slot.page) {
            Some(&(node, number)) if number == slot.number => {
                state.tree.index.get(node);
                node
            }
            Some(_) => return Err(twice(slot.page.address)),
            None => {
                let map = state.tree.map.clone();
                let node = state.tree.new_index(&map).map_err(no_memory)?;
                nodes.insert(slot.page, (node, slot.number));
                pages.push(Page { target: node, ..slot });
                node
            }
        };
        tops.push((slot.target, slot.number, node));
    }
    for (volume, number, node) in tops {
        let tag = if state.tree.index.is_shared(node) { TAG } else { 0 };
        let Some(vol) = state.table.get_mut(volume) else { continue };
        vol.slots = vol.slots.max(number + 1);
        let made = u32::try_from(number).is_ok_and(|at| vol.core.top.make(at));
        if !made {
            return Err(no_memory(()));
        }
        vol.core.top.set_word(number as u32, u64::from(node) | tag);
    }
    let mut below = Vec::new();
    read_pages(io, pages, &mut |page, block| {
        claim(state, page.page)?;
        let mut children = [PageRef::NONE; INDEX_CHILDREN];
        let count = index::decode(block, geometry, &page.expect(state), 1, &mut children)
            .map_err(damaged("an index page".into(), page.page.address))?;
        state.tree.index.written(page.target, page.page);
        state.tree.index.add_used(page.target, count as u32);
        let first = page.number << INDEX_SHIFT;
        let wanted = (first..).zip(children).filter(|(_, child)| !child.is_none());
        below.extend(wanted.map(|(number, child)| Page { page: child, level: 0, number, target: page.target }));
        Ok(())
    })?;
    Ok(below)
}

fn load_leaves(io: &dyn BlockIo, state: &mut State, geometry: &Geometry, leaves: Vec<Page>) -> Result<(), PoolError> {
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
    for link in links {
        let tag = if state.tree.leaves.is_shared(link.node) { TAG } else { 0 };
        if let Some(word) = map.index.word(link.parent, link.word) {
            word.store(u64::from(link.node) | tag, Ordering::Relaxed); // Relaxed: nobody else is here yet.
        }
    }
    let mut entries = [0; MAX_LEAF_ENTRIES];
    let mut written = [0; MAX_LEAF_WORDS];
    read_pages(io, pages, &mut |page, block| {
        claim(state, page.page)?;
        let count = leaf::decode(block, geometry, &page.expect(state), &mut entries, &mut written)
            .map_err(damaged("a leaf page".into(), page.page.address))?;
        state.tree.fill_leaf(page.target, &entries, &written, geometry.entry_words);
        state.tree.leaves.add_used(page.target, count as u32);
        state.tree.leaves.written(page.target, page.page);
        Ok(())
    })
}

fn no_memory<E>(_: E) -> PoolError {
    PoolError::Io {
        what: "making room for the maps of the pool".into(),
        status: sheave_base::status::Status::NoMem,
        fix: "Give the program more memory: about 160 MiB for each TiB that is mapped in units of 64 KiB".into(),
    }
}
