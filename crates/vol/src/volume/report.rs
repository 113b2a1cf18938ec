//! Reports on a volume: its extents, and the space that it occupies.
//!
//! Owns the walks. They hold the lock for a part of the map at a time, so they see each unit as it was at some moment
//! of the walk.

use sheave_base::sync::Arc;
use sheave_base::sync::atomic::Ordering;

use crate::engine::inner::PoolInner;
use crate::format::BLOCK_SHIFT;
use crate::info::{Extent, ExtentKind};
use crate::state::State;
use crate::state::extent_map::{Entry, INDEX_SHIFT, id_of};
use crate::state::table::VolumeCore;

/// Number of extents looked up under one hold of the lock.
const AT_ONCE: u64 = 4096;
/// Largest number of extents looked up to locate slow I/Os: some tenths of a second.
const MOST_STEPS: u64 = 4 << 20;
/// Number of slots of a top counted under one hold of the lock.
const SLOTS_AT_ONCE: u64 = 4;

/// Space that a volume takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) units: u64,
    pub(crate) shared: u64,
    pub(crate) written_blocks: u64,
}

/// Returns the extents of a range.
pub(super) fn extents(pool: &PoolInner, core: &Arc<VolumeCore>, pos: u64, len: u64) -> Vec<Extent> {
    // Beyond the end there may be space that writes in flight were given, or that failed writes left. It may lie even
    // beyond the largest size, if that was lowered since.
    let geometry = &pool.map.geometry;
    let slots = pool.lock().table.get(core.id).filter(|_| core.grows).map_or(0, |vol| vol.slots);
    let mapped = slots << (geometry.slot_shift() + geometry.unit_shift);
    let end = pos.saturating_add(len).min(core.reach().max(mapped));
    let mut all: Vec<Extent> = Vec::new();
    walk(pool, core, pos, end, &mut |next| {
        match all.last_mut() {
            Some(last) if continues(last, &next) => last.len += next.len,
            _ => all.push(next),
        }
        true
    });
    all
}

/// Translates device addresses, the first field of each `found`, to positions in the volume, the second field. Examines
/// at most [`MOST_STEPS`] extents, and stores none of them.
pub(super) fn locate(pool: &PoolInner, core: &Arc<VolumeCore>, found: &mut [(u64, Option<u64>)]) {
    let (mut left, mut steps) = (found.len(), 0);
    walk(pool, core, 0, core.size(), &mut |extent| {
        let within = |at: u64| (extent.addr..extent.addr + extent.len).contains(&at);
        let here = found.iter_mut().filter(|(at, place)| place.is_none() && within(*at));
        for (at, place) in here.filter(|_| extent.kind != ExtentKind::Hole) {
            *place = Some(extent.pos + (*at - extent.addr));
            left -= 1;
        }
        steps += 1;
        left > 0 && steps < MOST_STEPS
    });
}

/// Calls `each` with the extents of a range in order, until it returns false.
fn walk(pool: &PoolInner, core: &Arc<VolumeCore>, pos: u64, end: u64, each: &mut dyn FnMut(Extent) -> bool) {
    let mut at = pos;
    while at < end {
        let state = pool.lock();
        for _ in 0..AT_ONCE {
            let next = extent_at(pool, &state, core, at, end);
            at = next.pos + next.len;
            if !each(next) {
                return;
            }
            if at >= end {
                break;
            }
        }
    }
}

fn continues(last: &Extent, next: &Extent) -> bool {
    let follows = last.kind == ExtentKind::Hole || last.addr + last.len == next.addr;
    last.kind == next.kind && last.shared == next.shared && follows
}

pub(super) fn extent_at(pool: &PoolInner, state: &State, core: &VolumeCore, pos: u64, end: u64) -> Extent {
    let geometry = &pool.map.geometry;
    let spot = pool.map.find(&core.top, pos >> geometry.unit_shift);
    let offset = pos & (geometry.unit_bytes() - 1);
    let most = (geometry.unit_bytes() - offset).min(end - pos);
    if !spot.entry.is_alloc() {
        let leaf_bytes = geometry.unit_bytes() << geometry.leaf_shift;
        let rest = if spot.leaf == 0 { leaf_bytes - (pos & (leaf_bytes - 1)) } else { most };
        return Extent { pos, len: rest.min(end - pos), kind: ExtentKind::Hole, addr: 0, shared: false };
    }
    let first = (offset >> BLOCK_SHIFT) as u32;
    let blocks = ((offset + most - 1) >> BLOCK_SHIFT) as u32 + 1 - first;
    let (written, run) = pool.map.written_run(spot.leaf, spot.slot, first, blocks);
    let len = ((u64::from(first + run) << BLOCK_SHIFT) - offset).min(most);
    let kind = if written { ExtentKind::Data } else { ExtentKind::Unwritten };
    let addr = (spot.entry.phys() << geometry.unit_shift) + offset;
    let shared = is_shared(state, core, pos >> geometry.unit_shift, spot.entry);
    Extent { pos, len, kind, addr, shared }
}

/// Returns true if another volume shares the unit: the unit or a node on the path to it has several owners.
fn is_shared(state: &State, core: &VolumeCore, unit: u64, entry: Entry) -> bool {
    let tree = &state.tree;
    let geometry = &tree.map.geometry;
    if tree.units.owners(entry.phys()) > 1 {
        return true;
    }
    let (slot, child) = (unit >> geometry.slot_shift(), (unit >> geometry.leaf_shift) & ((1 << INDEX_SHIFT) - 1));
    // Relaxed, both: under the lock.
    let index = core.top.word(slot as u32).map_or(0, |word| id_of(word.load(Ordering::Relaxed)));
    if index != 0 && tree.index.is_shared(index) {
        return true;
    }
    let leaf = tree.map.index.word(index, child as usize).map_or(0, |word| id_of(word.load(Ordering::Relaxed)));
    leaf != 0 && tree.leaves.is_shared(leaf)
}

/// Counts the space of a volume by a walk over its leaves, some at a time. Leaves that are shared as a whole are not
/// read.
pub(crate) fn usage(pool: &PoolInner, core: &Arc<VolumeCore>) -> Usage {
    let mut usage = Usage::default();
    let mut slot = 0;
    loop {
        let state = pool.lock();
        let Some(vol) = state.table.get(core.id).filter(|vol| slot < vol.slots) else { return usage };
        let stop = (slot + SLOTS_AT_ONCE).min(vol.slots);
        (slot..stop).for_each(|slot| add_slot(&mut usage, &state, core, slot as u32));
        slot = stop;
    }
}

fn add_slot(usage: &mut Usage, state: &State, core: &VolumeCore, slot: u32) {
    let tree = &state.tree;
    // Relaxed, all: under the lock.
    let index = core.top.word(slot).map_or(0, |word| id_of(word.load(Ordering::Relaxed)));
    if index == 0 {
        return;
    }
    let whole = tree.index.is_shared(index);
    for word in tree.map.index.node(index).unwrap_or_default() {
        let leaf = id_of(word.load(Ordering::Relaxed));
        if leaf == 0 {
            continue;
        }
        let node = tree.leaves.node(leaf);
        usage.units += u64::from(node.used);
        usage.written_blocks += u64::from(node.written);
        if whole || tree.leaves.is_shared(leaf) {
            usage.shared += u64::from(node.used);
            continue;
        }
        let entries = tree.map.leaves.node(leaf).unwrap_or_default();
        let entries = entries.iter().map(|word| Entry(word.load(Ordering::Relaxed)));
        // A unit whose entry lacks the mark has one owner.
        let marked = entries.filter(|entry| entry.is_shared());
        usage.shared += marked.filter(|entry| tree.units.owners(entry.phys()) > 1).count() as u64;
    }
}
