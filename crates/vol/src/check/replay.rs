//! Replays the journal into the model.
//!
//! Owns the findings about the journal. A torn end is not a finding: it is the normal result of a crash, and nothing in
//! it was acknowledged. If a journal has lost acknowledged records, everything intact in it is applied, as in a repair.

use super::model::Model;
use crate::device::block_io::BlockIo;
use crate::error::PoolError;
use crate::finding::{Finding, FindingKind, Place};
use crate::format::damage::Damage;
use crate::format::journal::{JournalBlock, Lost, scan};
use crate::format::settings::Checksum;
use crate::format::superblock::Superblock;
use crate::format::{BLOCK, BLOCK_BYTES, JOURNAL_START};

/// Number of bytes read at once.
const CHUNK: usize = 1 << 20;
/// Fills a block that cannot be read. No journal block begins with this byte, so the block does not count as one.
const UNREADABLE: u8 = 0xFF;

/// Text added to a finding's `repair` when records are missing in a pool with checksums.
const ALL_OPEN: &str = ". Checksums are computed anew from the data, as it is, for they may be older; what was told \
                        bad stays bad";

/// Result of a replay.
pub(super) struct Replayed {
    pub findings: Vec<Finding>,
    pub notes: Vec<String>,
    /// First sequence number that no block of the pool has.
    pub next_seq: u64,
    /// True if there was a newer superblock. Nothing that the present one reaches can be trusted then.
    pub superblock_lost: bool,
}

/// Reads the journal. A block that cannot be read is filled with [`UNREADABLE`].
fn read(io: &dyn BlockIo, sb: &Superblock, notes: &mut Vec<String>) -> Vec<u8> {
    let mut bytes = vec![0; sb.journal_blocks as usize * BLOCK];
    if io.read(JOURNAL_START, &mut bytes).is_ok() {
        return bytes;
    }
    for (chunk, at) in bytes.chunks_mut(CHUNK).zip((JOURNAL_START..).step_by(CHUNK)) {
        if io.read(at, chunk).is_ok() {
            continue;
        }
        for (block, at) in chunk.chunks_mut(BLOCK).zip((at..).step_by(BLOCK)) {
            if let Err(status) = io.read(at, block) {
                block.fill(UNREADABLE);
                notes.push(format!("journal block at byte {at} cannot be read: {status}"));
            }
        }
    }
    bytes
}

/// Replays the journal into the model.
pub(super) fn replay(io: &dyn BlockIo, sb: &Superblock, model: &mut Model) -> Result<Replayed, PoolError> {
    let mut notes = Vec::new();
    let bytes = read(io, sb, &mut notes);
    let unread = !notes.is_empty();
    let mut out = Replayed { findings: Vec::new(), notes, next_seq: 0, superblock_lost: false };
    // The first scan verifies and the second applies, so that a bad journal does not change the model.
    match scan(&bytes, sb, &mut |_| ()) {
        Ok(found) => {
            // New blocks must be numbered above every intact block, also above those behind the end.
            out.next_seq = found.next_seq.max(found.highest_seq.saturating_add(1));
            let (mut refused, mut dropped) = (None, 0u64);
            let again = scan(&bytes, sb, &mut |record| match refused {
                None => refused = model.replay(record.clone()).err(),
                Some(_) => dropped += 1,
            });
            debug_assert_eq!(again.as_ref(), Ok(&found));
            out.findings.extend(refused.map(|damage| made_up(&damage, dropped)));
            if let Some(damage) = found.torn {
                out.notes.push(format!(
                    "the journal ends with a torn commit at block {} ({damage}): a crash leaves that, and none of it \
                     was acknowledged",
                    found.next_seq
                ));
            }
            if model.records > 0 {
                out.notes.push(format!("the journal holds {} records; opening the pool replays them", model.records));
            }
        }
        Err(lost) => {
            out.superblock_lost = !matches!(lost, Lost::Block { .. } | Lost::Record { .. });
            let (next_seq, skipped) = salvage(&bytes, sb, model, out.superblock_lost);
            out.next_seq = next_seq;
            out.findings.push(finding(&lost, skipped));
        }
    }
    // A block that cannot be read may look like the end of the journal, and may have had records that opened regions.
    if !out.findings.is_empty() || unread && !sb.clean {
        model.sums.open_all();
    }
    let repairs = out.findings.iter_mut().filter_map(|finding| finding.repair.as_mut());
    repairs.filter(|_| sb.checksum != Checksum::None).for_each(|repair| *repair += ALL_OPEN);
    Ok(out)
}

/// Applies every intact block in order. If `look_only` is true it applies none, because these blocks belong to another
/// superblock. Returns the first number above all blocks, and the number of blocks missing before the last one.
fn salvage(bytes: &[u8], sb: &Superblock, model: &mut Model, look_only: bool) -> (u64, u64) {
    let geometry = sb.geometry();
    let (blocks, _) = bytes.as_chunks::<BLOCK>();
    let mut intact: Vec<(JournalBlock, &[u8; BLOCK])> = (JOURNAL_START..)
        .step_by(BLOCK_BYTES as usize)
        .zip(blocks)
        .filter_map(|(at, block)| Some((JournalBlock::decode(block, &sb.pool, at, sb.journal_blocks).ok()?, block)))
        .collect();
    let next_seq = intact.iter().map(|(block, _)| block.seq.saturating_add(1)).max().unwrap_or(0);
    if look_only {
        return (next_seq, 0);
    }
    intact.retain(|(block, _)| block.incarnation == sb.incarnation && block.seq >= sb.replay_seq);
    intact.sort_by_key(|(block, _)| block.seq);
    let last = intact.last().map_or(sb.replay_seq, |(block, _)| block.seq + 1);
    let (mut whole, mut records) = (0, Vec::new());
    for (block, bytes) in intact {
        let read = block.records(bytes, &geometry, &mut records);
        if records.drain(..).try_for_each(|record| model.replay(record)).is_err() {
            break;
        }
        whole += u64::from(read.is_ok());
    }
    (next_seq, (last - sb.replay_seq).saturating_sub(whole))
}

/// Returns the finding about an intact journal with a record that exceeds the bounds of an opening. A pool uses at most
/// half of these bounds, so no pool should have written the record. If one did, the owner must know that a repair drops
/// records that may have been flushed.
fn made_up(damage: &Damage, dropped: u64) -> Finding {
    Finding {
        kind: FindingKind::Journal,
        place: Place { what: "journal".into(), address: Some(JOURNAL_START), ..Place::default() },
        means: format!("the journal is intact, and a record in it goes beyond what a pool writes: {damage}"),
        repair: Some(format!(
            "Apply the records up to it, and none of the {dropped} behind it: what these say is lost, flushed or not. \
             Copy the device before, and compare with a backup"
        )),
    }
}

fn finding(lost: &Lost, skipped: u64) -> Finding {
    match lost {
        Lost::Block { at, .. } | Lost::Record { at, .. } => Finding {
            kind: FindingKind::Journal,
            place: Place { what: "journal".into(), address: Some(*at), ..Place::default() },
            means: format!(
                "{lost}. What its records said is lost: data that was flushed may be missing, or older data may show"
            ),
            repair: Some(format!("Apply all other blocks and go on without {skipped} of them. Compare with a backup")),
        },
        Lost::Superblock { .. } | Lost::Overwritten { .. } | Lost::Clean { .. } => Finding {
            kind: FindingKind::SuperblockLost,
            place: Place { what: "journal".into(), address: Some(JOURNAL_START), ..Place::default() },
            means: format!(
                "{lost}. The older one describes an earlier state, whose space has been used for other data since. \
                 Restore the pool from a backup, or the device's first 8 KiB from a copy"
            ),
            repair: None,
        },
    }
}
