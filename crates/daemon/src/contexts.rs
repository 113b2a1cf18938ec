//! The metadata contexts of a served volume: what is allocated, what is shared, what has changed since a snapshot.
//!
//! Answers come from the pool's maps, which are in memory, but for what has changed since a snapshot: blocks that a
//! copy moved are read and compared, so those answers are [given on another thread](reads). A snapshot that is compared
//! with is not kept open: it can be deleted at any time, and who asks afterwards gets an error. Its number is never
//! used again, so another snapshot of that name is not taken for it.

use sheave_nbd::catalog::MAX_LISTED;
use sheave_nbd::reply::MAX_EXTENTS;
use sheave_nbd::wire::state;
use sheave_serve::{BASE_ALLOCATION, BASE_ALLOCATION_NUMBER, NoStatus, Question};
use sheave_vol::{Differences, Extent, ExtentKind, PoolError, Volume};

/// Units of a pool that one request for extents looks at: some milliseconds.
const UNITS_AT_ONCE: u64 = 1 << 16;
/// Units that are looked at before the extents that were found are counted: what bounds the memory of an answer.
const UNITS_PER_STEP: u64 = 1 << 9;
/// Batches of a comparison in one request, each of 4096 units, or of 1 MiB that is read of either side: as long as
/// [`UNITS_AT_ONCE`] where nothing is read.
const BATCHES_AT_ONCE: u32 = 8;

/// Whether a range has space, and whose, in QEMU's numbers for chains of images.
const ALLOCATION_DEPTH: &str = "qemu:allocation-depth";
const DEPTH_NUMBER: u64 = 1;
const DEPTH_NONE: u32 = 0;
const DEPTH_OWN: u32 = 1;
const DEPTH_SHARED: u32 = 2;

/// What has changed since a snapshot, in the form of QEMU's bitmaps. The snapshot's name follows.
const SINCE: &str = "qemu:dirty-bitmap:since-";
/// The number of such a context is this and the snapshot's, which has 32 bits.
const SINCE_NUMBER: u64 = 1 << 32;
const CLEAN: u32 = 0;
const DIRTY: u32 = 1;

/// Tells the contexts of a volume: of those since snapshots the ones of its family that are older than it.
pub fn tell(volume: &Volume, each: &mut dyn FnMut(&str)) {
    each(BASE_ALLOCATION);
    each(ALLOCATION_DEPTH);
    volume.bases(MAX_LISTED).iter().for_each(|name| each(&format!("{SINCE}{name}")));
}

/// The number of a context: since any snapshot of the pool, told or not.
pub fn number(volume: &Volume, name: &[u8]) -> Option<u64> {
    let name = str::from_utf8(name).ok()?;
    match name {
        BASE_ALLOCATION => Some(BASE_ALLOCATION_NUMBER),
        ALLOCATION_DEPTH => Some(DEPTH_NUMBER),
        _ => {
            let snapshot = volume.snapshot_number(name.strip_prefix(SINCE)?).ok()?;
            Some(SINCE_NUMBER | u64::from(snapshot))
        }
    }
}

/// Returns true for contexts whose answers read the disk.
pub fn reads(context: u64) -> bool {
    context >= SINCE_NUMBER
}

/// The status of a range.
pub fn answer(volume: &Volume, unit_bytes: u64, question: &Question) -> Result<Vec<sheave_nbd::Extent>, NoStatus> {
    match question.context {
        BASE_ALLOCATION_NUMBER => {
            let mut found = allocated(volume, unit_bytes, question, allocation);
            if found.is_empty() {
                // Beyond the end of the volume, which has become smaller: to read it is never wrong.
                add(&mut found, question.len, 0);
            }
            Ok(found)
        }
        DEPTH_NUMBER => Ok(allocated(volume, unit_bytes, question, depth)),
        // The low 32 bits are the snapshot's number.
        since => changed(volume, since as u32, question),
    }
}

/// Adds a range to those that were found before it.
fn add(extents: &mut Vec<sheave_nbd::Extent>, len: u64, status: u32) {
    match extents.last_mut() {
        _ if len == 0 => {}
        Some(last) if last.status == status => last.len += len,
        _ => extents.push(sheave_nbd::Extent { len, status }),
    }
}

fn allocation(extent: &Extent) -> u32 {
    match extent.kind {
        ExtentKind::Unwritten => state::ZERO,
        ExtentKind::Hole => state::HOLE | state::ZERO,
        _ => 0, // data, which a client reads
    }
}

fn depth(extent: &Extent) -> u32 {
    match extent.kind {
        ExtentKind::Hole => DEPTH_NONE,
        _ if extent.shared => DEPTH_SHARED,
        _ => DEPTH_OWN,
    }
}

/// What the volume has in a range.
fn allocated(
    volume: &Volume,
    unit_bytes: u64,
    question: &Question,
    status: fn(&Extent) -> u32,
) -> Vec<sheave_nbd::Extent> {
    let units = (UNITS_AT_ONCE / u64::from(question.among.max(1))).max(UNITS_PER_STEP);
    let end = question.pos + question.len.min(unit_bytes.saturating_mul(units));
    let mut extents: Vec<sheave_nbd::Extent> = Vec::new();
    let mut at = question.pos;
    while at < end && extents.len() <= MAX_EXTENTS {
        let step = (end - at).min(unit_bytes.saturating_mul(UNITS_PER_STEP));
        let found = volume.extents(at, step).unwrap_or_default();
        let covered: u64 = found.iter().map(|extent| extent.len).sum();
        found.iter().for_each(|extent| add(&mut extents, extent.len, status(extent)));
        if covered < step {
            // Beyond the end of the volume, which has become smaller.
            break;
        }
        at += step;
    }
    extents
}

/// Returns which parts of a range have changed since a snapshot.
fn changed(volume: &Volume, snapshot: u32, question: &Question) -> Result<Vec<sheave_nbd::Extent>, NoStatus> {
    let mut batches = (BATCHES_AT_ONCE / question.among.max(1)).max(1);
    let mut go_on = |told: &Differences| {
        let goes_on = batches > 0 && told.extents.len() <= MAX_EXTENTS;
        batches = batches.saturating_sub(1);
        goes_on
    };
    let (pos, len) = (question.pos, question.len);
    let told = volume.differences_since_number(snapshot, pos, len, &mut go_on).map_err(|error| match error {
        PoolError::Io { .. } => NoStatus("the server has no memory to compare with the snapshot"),
        _ => NoStatus("the snapshot is gone, or its map is damaged"),
    })?;
    let mut extents = Vec::new();
    let mut at = pos;
    for extent in &told.extents {
        add(&mut extents, extent.pos - at, CLEAN);
        add(&mut extents, extent.len, DIRTY);
        at = extent.pos + extent.len;
    }
    add(&mut extents, told.upto.min(pos + len).saturating_sub(at), CLEAN);
    Ok(extents)
}

#[cfg(test)]
mod tests;
