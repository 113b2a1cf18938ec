//! What a volume has: extents, and the space it takes.
//!
//! Owns the walks. They take the lock for a part of the map at a time, so they see each unit as it was at some moment of
//! the walk.

use sheave_base::sync::Arc;

use crate::extent_map::tree::Place;
use crate::extent_map::{BLOCK_SHIFT, Entry, INDEX_SHIFT, id_of};
use crate::pool::state::{PoolInner, State};
use crate::pool::table::VolumeCore;
use crate::{Extent, ExtentKind};

/// Units looked at under one lock.
const AT_ONCE: u64 = 4096;

/// Blocks and units of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) units: u64,
    pub(crate) shared: u64,
    pub(crate) written_blocks: u64,
    /// Runs with one state, holes not counted.
    pub(crate) extents: u64,
}

/// The extents of a range.
pub(super) fn extents(pool: &PoolInner, core: &Arc<VolumeCore>, pos: u64, len: u64) -> Vec<Extent> {
    let end = pos.saturating_add(len).min(core.size());
    let mut all: Vec<Extent> = Vec::new();
    let mut at = pos;
    while at < end {
        let state = pool.lock();
        let stop = at.saturating_add(AT_ONCE << pool.map.geometry.unit_shift).min(end);
        while at < stop {
            let next = extent_at(pool, &state, core, at, stop);
            at = next.pos + next.len;
            match all.last_mut() {
                Some(last) if continues(last, &next) => last.len += next.len,
                _ => all.push(next),
            }
        }
    }
    all
}

fn continues(last: &Extent, next: &Extent) -> bool {
    let follows = last.kind == ExtentKind::Hole || last.addr + last.len == next.addr;
    last.kind == next.kind && last.shared == next.shared && follows
}

fn extent_at(pool: &PoolInner, state: &State, core: &VolumeCore, pos: u64, end: u64) -> Extent {
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

/// Whether others have the unit too: it has several owners, or a node on the way has.
fn is_shared(state: &State, core: &VolumeCore, unit: u64, entry: Entry) -> bool {
    use sheave_base::sync::atomic::Ordering;
    let tree = &state.tree;
    let geometry = &tree.map.geometry;
    if tree.units.owners(entry.phys()) > 1 {
        return true;
    }
    let (slot, child) = (unit >> geometry.slot_shift(), (unit >> geometry.leaf_shift) & ((1 << INDEX_SHIFT) - 1));
    // Relaxed, both: under the lock.
    let index = core.top.word(slot as u32, 0).map_or(0, |word| id_of(word.load(Ordering::Relaxed)));
    if index != 0 && tree.index.is_shared(index) {
        return true;
    }
    let leaf = tree.map.index.word(index, child as usize).map_or(0, |word| id_of(word.load(Ordering::Relaxed)));
    leaf != 0 && tree.leaves.is_shared(leaf)
}

/// Space of a volume, by a walk over its leaves, some at a time.
pub(crate) fn usage(pool: &PoolInner, core: &Arc<VolumeCore>) -> Usage {
    let geometry = &pool.map.geometry;
    let mut usage = Usage::default();
    let mut after: Option<(Entry, u32)> = None;
    let (mut leaf, mut slots) = (0, u64::MAX);
    while leaf >> INDEX_SHIFT < slots {
        let state = pool.lock();
        let Some(vol) = state.table.get(core.id) else { break };
        slots = vol.slots;
        let stop = (leaf + (AT_ONCE >> geometry.leaf_shift).max(1)).min(slots << INDEX_SHIFT);
        while leaf < stop {
            let unit = leaf << geometry.leaf_shift;
            let spot = pool.map.find(&core.top, unit);
            if spot.leaf == 0 {
                after = None;
                let index = core.top.word((leaf >> INDEX_SHIFT) as u32, 0);
                let empty = index.is_none_or(|word| word.load(sheave_base::sync::atomic::Ordering::Relaxed) == 0); // Relaxed: under the lock.
                leaf = if empty { ((leaf | ((1 << INDEX_SHIFT) - 1)) + 1).min(stop) } else { leaf + 1 };
                continue;
            }
            for slot in 0..geometry.leaf_entries() {
                let place = Place { leaf: spot.leaf, slot };
                let entry = state.tree.entry(place);
                after = add_entry(&mut usage, &state, core, unit + slot as u64, place, entry, after);
            }
            leaf += 1;
        }
    }
    usage
}

/// Counts one entry; what the next one continues.
fn add_entry(
    usage: &mut Usage,
    state: &State,
    core: &VolumeCore,
    unit: u64,
    place: Place,
    entry: Entry,
    after: Option<(Entry, u32)>,
) -> Option<(Entry, u32)> {
    if !entry.is_alloc() {
        return None;
    }
    let written: u32 = state.tree.bits(place).iter().map(|word| word.count_ones()).sum();
    usage.units += 1;
    usage.written_blocks += u64::from(written);
    usage.shared += u64::from(is_shared(state, core, unit, entry));
    let continues = after.is_some_and(|(last, blocks)| last.phys() + 1 == entry.phys() && blocks == written);
    usage.extents += u64::from(!continues);
    Some((entry, written))
}
