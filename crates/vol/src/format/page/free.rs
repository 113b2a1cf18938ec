//! The list of free units: runs of units that are certainly free in a checkpoint.
//!
//! Owns its encoding and its two pairs of places. One pair is behind the journal, in the last reserved unit. The other
//! is behind the first copy of the superblock, in the same unit. No block refers to the list and a pool opens without
//! it, so it may be missing, damaged, or of another checkpoint. It is used only if its generation, incarnation and
//! journal block equal those of the superblock.
//!
//! - F1: two consecutive lists lie in different places of a pair: writing the newer one leaves the older one intact.
//! - F2: a list is written to both pairs, if the pool has both: damage at the beginning of a disk leaves the other pair
//!   intact.
//!
//! Written by checkpoints. Read by an opening that cannot derive the free units from the maps.

use zerocopy::{FromBytes, IntoBytes};

use crate::format::block::{Block, Head, open, require_zero_tail, seal};
use crate::format::damage::{Damage, require};
use crate::format::superblock::{Geometry, Superblock};
use crate::format::{BLOCK, BLOCK_BYTES, FreeHead, FreeRun, HEADER, JOURNAL_START, MAX_FREE_RUNS, kind};

const START: usize = HEADER + size_of::<FreeHead>();

/// Runs of units: first unit and number of units of each.
pub type Runs = Vec<(u64, u64)>;

/// Returns the pairs of places of the list (F2). The pair behind the journal is missing if the last reserved unit has
/// fewer than two blocks to spare. The pair behind the copy is missing in pools without copies, and in pools whose
/// units have no room behind a copy.
#[must_use]
pub fn places(sb: &Superblock) -> Vec<[u64; 2]> {
    let end = JOURNAL_START + u64::from(sb.journal_blocks) * BLOCK_BYTES;
    let units = sb.geometry().first_unit * u64::from(sb.unit_bytes);
    let behind_journal = (end + 2 * BLOCK_BYTES <= units).then_some(end);
    let has_room = sb.copies[0] != 0 && u64::from(sb.unit_bytes) >= 3 * BLOCK_BYTES;
    let behind_copy = has_room.then_some(sb.copies[0] + BLOCK_BYTES);
    behind_journal.into_iter().chain(behind_copy).map(|at| [at, at + BLOCK_BYTES]).collect()
}

/// Returns the place within a pair for the checkpoint that begins with `generation` (F1).
fn slot(generation: u64) -> usize {
    // Each checkpoint has two generations, one for each superblock.
    (generation >> 1 & 1) as usize
}

/// Encodes the list of `runs` for the checkpoint whose first superblock is `sb`. Returns a block and its address for
/// each pair of places. `runs` ascend; those beyond `MAX_FREE_RUNS` are omitted.
pub fn encode(sb: &Superblock, runs: &[(u64, u64)]) -> Vec<(u64, Box<Block>)> {
    let encode = |places: [u64; 2]| {
        let (address, mut block) = (places[slot(sb.generation)], Box::new([0; BLOCK]));
        encode_at(&mut block, sb, runs, address);
        (address, block)
    };
    places(sb).into_iter().map(encode).collect()
}

fn encode_at(block: &mut Block, sb: &Superblock, runs: &[(u64, u64)], address: u64) {
    let slot = slot(sb.generation);
    let runs = &runs[..runs.len().min(MAX_FREE_RUNS)];
    block.fill(0);
    let head = FreeHead { incarnation: sb.incarnation.into(), replay_seq: sb.replay_seq.into() };
    block[HEADER..START].copy_from_slice(head.as_bytes());
    for (to, &(first, count)) in block[START..].chunks_exact_mut(size_of::<FreeRun>()).zip(runs) {
        to.copy_from_slice(FreeRun { first: first.into(), count: count.into() }.as_bytes());
    }
    let head = Head {
        kind: kind::FREE,
        level: 0,
        pool: sb.pool,
        generation: sb.generation,
        address,
        index: slot as u64,
        owner: 0,
        count: runs.len() as u32,
    };
    seal(block, &head);
}

/// Decodes a list that was read from `address`. Returns an error unless it belongs to the checkpoint of `sb`, which may
/// be the first superblock of that checkpoint or the second, one generation later.
pub fn decode(block: &Block, address: u64, sb: &Superblock) -> Result<Runs, Damage> {
    let (head, _) = open(block, kind::FREE, Some(&sb.pool), address)?;
    let (body, _) = FreeHead::ref_from_prefix(&block[HEADER..]).expect("a block has room for it");
    let is_this = [head.generation, head.generation.wrapping_add(1)].contains(&sb.generation)
        && body.incarnation.get() == sb.incarnation
        && body.replay_seq.get() == sb.replay_seq;
    if !is_this {
        return Err(Damage::Stale { generation: head.generation });
    }
    require(head.level == 0 && head.owner == 0, "level", head.level, "must be 0")?;
    require(head.index == slot(head.generation) as u64, "index", head.index, "is not its place")?;
    let count = head.count as usize;
    require(count <= MAX_FREE_RUNS, "count", head.count, "is more than fit")?;
    require_zero_tail(&block[START..], count * size_of::<FreeRun>())?;
    runs(block, count, &sb.geometry())
}

fn runs(block: &Block, count: usize, geometry: &Geometry) -> Result<Runs, Damage> {
    let mut found = Runs::with_capacity(count);
    let mut end = geometry.first_unit;
    for bytes in block[START..BLOCK].chunks_exact(size_of::<FreeRun>()).take(count) {
        let run = FreeRun::ref_from_bytes(bytes).expect("the slice has the size of a run");
        let (first, units) = (run.first.get(), run.count.get());
        require(first >= end, "first", first, "is not behind the run before it, or reserved")?;
        let fits = units > 0 && first.checked_add(units).is_some_and(|end| end <= geometry.total_units);
        require(fits, "count", units, "is none, or more than the pool has")?;
        end = first + units;
        found.push((first, units));
    }
    Ok(found)
}
