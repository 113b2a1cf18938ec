//! Compares two volumes of a pool by their maps alone.
//!
//! Owns the comparison, and the [`Identity`] of a snapshot. Reads no data. Two blocks are the same if they lie in the
//! same place of the pool: a unit with several owners is never written in place (V3 of [`volume`](super)). So a block
//! that was rewritten with the same bytes counts as changed. So does a block that the first write after a snapshot
//! copied; [`compare`](super::compare) recognises such blocks as equal. Any two volumes can be compared, whatever
//! happened between them: rollbacks, clones, resizes.
//!
//! - C1: every block that reads differently is reported. Blocks that neither volume has are not reported, and neither
//!   are unwritten blocks beyond the end of the base.
//! - C2: parts of maps that both share are skipped as a whole, so the work grows with the differences only.
//! - C3: the lock is released after [`AT_ONCE`] steps.

use sheave_base::sync::Arc;
use sheave_base::sync::atomic::Ordering;

use super::report::extent_at;
use crate::engine::inner::PoolInner;
use crate::error::PoolError;
use crate::info::{Extent, ExtentKind};
use crate::rbd_diff::Identity;
use crate::state::State;
use crate::state::extent_map::id_of;
use crate::state::table::{Vol, VolumeCore};

/// Number of steps under one hold of the lock. A step is an extent within a unit, or a shared part of a map.
const AT_ONCE: u32 = 4096;

/// Returns the extents of `core` in a range that differ from those of `base`.
pub(super) fn changes(
    pool: &PoolInner,
    core: &Arc<VolumeCore>,
    base: &Arc<VolumeCore>,
    pos: u64,
    len: u64,
) -> Vec<Extent> {
    let end = pos.saturating_add(len).min(core.size());
    let mut all: Vec<Extent> = Vec::new();
    let mut at = pos;
    while at < end {
        let state = pool.lock();
        at = some_changes(pool, &state, (core, base), (at, end), &mut all);
    }
    all
}

/// Returns the number of a snapshot, with which [`compare`](super::compare) finds it again. Returns an error for other
/// volumes, and for damaged maps.
pub(super) fn snapshot_number(pool: &PoolInner, name: &str) -> Result<u32, PoolError> {
    let state = pool.lock();
    let vol = state.table.named(name)?;
    if !vol.core.snapshot {
        return Err(PoolError::Invalid {
            what: format!("'{name}' is no snapshot: what it holds changes while it is compared"),
            fix: "Name a snapshot".into(),
        });
    }
    check_whole(vol)?;
    Ok(vol.id)
}

/// Returns the names of at most `most` snapshots of the same family, the newest first. If the volume is itself a
/// snapshot, only older ones are returned.
pub(super) fn bases(pool: &PoolInner, core: &VolumeCore, most: usize) -> Vec<String> {
    let state = pool.lock();
    let family = state.table.get(core.id).map(|vol| vol.family);
    let before = if core.snapshot { core.id } else { u32::MAX };
    let kin = |vol: &&Vol| Some(vol.family) == family && vol.core.snapshot && vol.id < before;
    let whole = state.table.iter().rev().filter(kin).filter(|vol| vol.is_shown() && vol.damage.is_none());
    whole.take(most).map(|vol| vol.name.clone()).collect()
}

/// Returns the snapshot of this number. It cannot be deleted before the lock is released.
pub(super) fn snapshot_of(state: &State, number: u32) -> Result<&Arc<VolumeCore>, PoolError> {
    let vol = state.table.get(number).filter(|vol| vol.is_shown());
    let Some(vol) = vol else { return Err(PoolError::NoVolume { name: format!("number {number}") }) };
    check_whole(vol)?;
    Ok(&vol.core)
}

fn check_whole(vol: &Vol) -> Result<(), PoolError> {
    let Some(damage) = vol.damage().cloned() else { return Ok(()) };
    let what = "comparing with a snapshot".into();
    Err(PoolError::DamagedMap { what, volume: vol.name.clone(), damage })
}

/// Appends the changes of a range to `all`, in at most [`AT_ONCE`] steps. Returns the position that it reached.
fn some_changes(
    pool: &PoolInner,
    state: &State,
    (core, base): (&VolumeCore, &VolumeCore),
    (pos, end): (u64, u64),
    all: &mut Vec<Extent>,
) -> u64 {
    let mut at = pos;
    for _ in 0..AT_ONCE {
        if at >= end {
            break;
        }
        if let Some(shared) = shared_end(pool, core, base, at) {
            at = shared.min(end);
            continue;
        }
        let next = changed_at(pool, state, core, base, at, end);
        at = next.end;
        next.extent.into_iter().for_each(|extent| add(all, extent));
    }
    at
}

/// Appends `extent` to `all`, or lengthens the last extent if `extent` continues it.
pub(super) fn add(all: &mut Vec<Extent>, extent: Extent) {
    match all.last_mut() {
        Some(last) if continues(last, &extent) => last.len += extent.len,
        _ => all.push(extent),
    }
}

fn continues(last: &Extent, next: &Extent) -> bool {
    let in_place = last.kind == ExtentKind::Hole || last.addr + last.len == next.addr;
    last.pos + last.len == next.pos && last.kind == next.kind && last.shared == next.shared && in_place
}

/// Returns the end of the part of the map that both volumes share, if `pos` lies in such a part (C2). Returns `None` if
/// that part reaches beyond the end of the base: it is compared step by step.
pub(super) fn shared_end(pool: &PoolInner, core: &VolumeCore, base: &VolumeCore, pos: u64) -> Option<u64> {
    let geometry = &pool.map.geometry;
    let unit = pos >> geometry.unit_shift;
    let end_of = |shift: u32| ((unit >> shift) + 1) << (shift + geometry.unit_shift);
    let slot = u32::try_from(unit >> geometry.slot_shift()).ok()?;
    // Relaxed: under the lock.
    let index = |core: &VolumeCore| core.top.word(slot).map_or(0, |word| id_of(word.load(Ordering::Relaxed)));
    let (end, same) = match (index(core), index(base)) {
        (one, other) if one == other => (end_of(geometry.slot_shift()), true),
        _ => {
            let leaf = |core: &VolumeCore| pool.map.find(&core.top, unit).leaf;
            (end_of(geometry.leaf_shift), leaf(core) == leaf(base))
        }
    };
    (same && end <= base.size()).then_some(end)
}

pub(super) struct Step {
    /// The extent, if it differs.
    pub(super) extent: Option<Extent>,
    /// Address of the base's data for this extent, if both have data.
    pub(super) before: Option<u64>,
    /// Position at which the next step begins.
    pub(super) end: u64,
}

/// Compares the extents at `pos` in both maps. Returns one step of the comparison.
pub(super) fn changed_at(
    pool: &PoolInner,
    state: &State,
    core: &VolumeCore,
    base: &VolumeCore,
    pos: u64,
    end: u64,
) -> Step {
    let now = extent_at(pool, state, core, pos, end);
    if pos >= base.size() {
        let end = pos + now.len;
        return Step { extent: (now.kind == ExtentKind::Data).then_some(now), before: None, end };
    }
    let before = extent_at(pool, state, base, pos, end.min(base.size()));
    let len = now.len.min(before.len);
    let have_data = (now.kind == ExtentKind::Data, before.kind == ExtentKind::Data);
    let differs = match have_data {
        (true, true) => now.addr != before.addr,
        (one, other) => one != other,
    };
    Step {
        extent: differs.then_some(Extent { len, ..now }),
        before: (have_data == (true, true)).then_some(before.addr),
        end: pos + len,
    }
}

/// Computes the identity of a volume as it is now.
pub(super) fn identity(pool: &PoolInner, core: &Arc<VolumeCore>) -> Identity {
    /// Bytes of a volume whose extents are listed at once; bounds the memory for them.
    const WINDOW: u64 = 16 << 30;
    let size = core.size();
    let (mut written, mut layout) = (0, LAYOUT_SEED);
    let mut run = (0, 0);
    let mut at = 0;
    while at < size {
        let len = WINDOW.min(size - at);
        for extent in super::report::extents(pool, core, at, len) {
            if extent.kind != ExtentKind::Data || extent.pos >= size {
                continue;
            }
            let end = (extent.pos + extent.len).min(size);
            written += end - extent.pos;
            if run.1 == extent.pos {
                run.1 = end;
                continue;
            }
            layout = mix(layout, run);
            run = (extent.pos, end);
        }
        at += len;
    }
    let state = pool.lock();
    let vol = state.table.get(core.id);
    let created = vol.map_or(0, |vol| vol.created);
    // Snapshots only: a volume that is written holds other data later, under the same identity.
    let unique = vol.and_then(Vol::identity).filter(|_| core.snapshot);
    Identity { pool: state.sb.pool, volume: core.id, created, size, written, layout: mix(layout, run), unique }
}

const LAYOUT_SEED: u64 = 0xcbf2_9ce4_8422_2325;

/// Hashes one more written range with FNV-1a over its 16 bytes. The hash is stored in files, so it must not depend on a
/// library.
fn mix(hash: u64, (start, end): (u64, u64)) -> u64 {
    let bytes = start.to_le_bytes().into_iter().chain(end.to_le_bytes());
    bytes.fold(hash, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
