//! NBD metadata contexts of a volume: allocation, sharing, and changes since a snapshot.
//!
//! Answers come from the pool's maps, which are in memory, except for changes since a snapshot: blocks that a copy
//! moved are read and compared, so those answers are [computed on another thread](reads). The snapshot of a comparison
//! is not kept open. It can be deleted at any time; later queries then get an error. Numbers of snapshots are never
//! reused, so another snapshot of the same name is not mistaken for it.

use sheave_nbd::catalog::MAX_LISTED;
use sheave_nbd::reply::MAX_EXTENTS;
use sheave_nbd::wire::state;
use sheave_serve::{BASE_ALLOCATION, BASE_ALLOCATION_NUMBER, NoStatus, Question};
use sheave_vol::{Differences, Extent, ExtentKind, PoolError, Volume};

/// Maximum number of units that one query examines; takes some milliseconds.
const UNITS_AT_ONCE: u64 = 1 << 16;
/// Units examined before the extents are counted again; bounds the memory of an answer.
const UNITS_PER_STEP: u64 = 1 << 9;
/// Maximum number of batches that a comparison examines in one query. A batch is 4096 units, or 1 MiB read from either
/// side. If nothing is read, this takes about as long as [`UNITS_AT_ONCE`].
const BATCHES_AT_ONCE: u32 = 8;

/// Allocation and sharing of a range, with the numbers that QEMU uses for backing chains.
const ALLOCATION_DEPTH: &str = "qemu:allocation-depth";
const DEPTH_NUMBER: u64 = 1;
const DEPTH_NONE: u32 = 0;
const DEPTH_OWN: u32 = 1;
const DEPTH_SHARED: u32 = 2;

/// Changes since the snapshot whose name follows, in the form of QEMU's dirty bitmaps.
const SINCE: &str = "qemu:dirty-bitmap:since-";
/// Added to the number of the snapshot, which has 32 bits, this gives the number of the context.
const SINCE_NUMBER: u64 = 1 << 32;
const CLEAN: u32 = 0;
const DIRTY: u32 = 1;

/// Lists the contexts of a volume. Of those since snapshots, only snapshots of its family that are older than it are
/// listed.
pub fn tell(volume: &Volume, each: &mut dyn FnMut(&str)) {
    each(BASE_ALLOCATION);
    each(ALLOCATION_DEPTH);
    volume.bases(MAX_LISTED).iter().for_each(|name| each(&format!("{SINCE}{name}")));
}

/// Returns the number of a context. Any snapshot of the pool is accepted, listed or not.
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

/// Returns true for metadata contexts for which the status of a range has to be read from the disk.
pub fn reads(context: u64) -> bool {
    context >= SINCE_NUMBER
}

/// Returns the status of a range.
pub fn answer(volume: &Volume, unit_bytes: u64, question: &Question) -> Result<Vec<sheave_nbd::Extent>, NoStatus> {
    match question.context {
        BASE_ALLOCATION_NUMBER => {
            let mut found = allocated(volume, unit_bytes, question, allocation);
            if found.is_empty() {
                // The volume was shrunk. To report data, which the client then reads, is always correct.
                add(&mut found, question.len, 0);
            }
            Ok(found)
        }
        DEPTH_NUMBER => Ok(allocated(volume, unit_bytes, question, depth)),
        // The low 32 bits are the snapshot's number.
        since => changed(volume, since as u32, question),
    }
}

/// Appends a range, merging it with the last one if the status is equal.
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

/// Returns the allocation status of a range.
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
            // The volume was shrunk, and the range is partly beyond its end.
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
mod tests {
    use std::sync::Arc;

    use sheave::{Buf, Ring, op, open_device};
    use sheave_vol::{CreateOptions, OpenOptions, Pool};

    use super::*;

    const UNIT: u64 = 4096;

    /// Returns the length that one answer covers, in a range that has changed completely and is contiguous.
    fn covered(volume: &Volume, context: u64, among: u32) -> u64 {
        let question = Question { context, pos: 0, len: 300 << 20, among };
        let told = answer(volume, UNIT, &question).expect("an answer");
        assert_eq!(told.len(), 1, "{told:?}");
        told[0].len
    }

    #[test]
    fn an_answer_looks_at_a_part_and_several_contexts_share_it() {
        let device = open_device("ram:size=512M").expect("a device");
        Pool::create(&device, &CreateOptions::default().unit_bytes(UNIT)).expect("made");
        let pool = Pool::open(&device, &OpenOptions::default()).expect("opened");
        let volume = pool.create_volume("v", 300 << 20).expect("made");
        pool.snapshot("v", "s").expect("frozen");
        let mut ring = Ring::builder().entries(8).build().expect("a ring");
        let fd = ring.attach_file(Arc::new(volume.clone())).expect("attached");
        for at in 0..300u64 {
            let data = Buf::zeroed(1 << 20, 4096).expect("memory");
            ring.push(op::write(fd, data).offset(at << 20)).expect("pushed");
            ring.submit_and_wait(1).expect("submitted");
            ring.completions().for_each(|done| assert_eq!(done.result().expect("written"), 1 << 20));
        }
        let since = number(&volume, b"qemu:dirty-bitmap:since-s").expect("it is there");
        for among in [1, 2, 32] {
            let units = UNITS_AT_ONCE / u64::from(among);
            assert_eq!(covered(&volume, BASE_ALLOCATION_NUMBER, among), units * UNIT, "{among}");
            let batches = (BATCHES_AT_ONCE / among).max(1);
            assert_eq!(covered(&volume, since, among), (u64::from(batches) << 12) * UNIT, "{among}");
        }
    }
}
