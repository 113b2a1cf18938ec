//! The label in the first block of each further member of a concatenation.
//!
//! Owns its encoding. The label tells a member given in the wrong place, or one of another pool, before anything is
//! read from it. The superblock has the same list; the first member has no label, it has the superblocks.
//!
//! A label also tells a member that is an older copy of itself: each checkpoint writes its generation to all labels
//! before its superblock names it. So a label may have a later one, from a checkpoint that was cut off, and never an
//! earlier one; and none that is later than the checkpoint that follows.

use zerocopy::{FromBytes, IntoBytes};

use crate::format::block::{Block, Head, open, require_zero_tail, seal};
use crate::format::damage::{Damage, require};
use crate::format::superblock::Superblock;
use crate::format::{HEADER, LabelBody, kind};

/// Encodes the label of member `number` (1 or more); its address.
pub fn encode(block: &mut Block, sb: &Superblock, number: usize) -> u64 {
    let (start, len) = sb.members[number];
    block.fill(0);
    let body = LabelBody { start: start.into(), len: len.into(), checkpoint: sb.labels_at.into() };
    block[HEADER..HEADER + size_of::<LabelBody>()].copy_from_slice(body.as_bytes());
    let head = Head {
        kind: kind::LABEL,
        level: 0,
        pool: sb.pool,
        generation: sb.labels[number],
        address: start,
        index: number as u64,
        owner: 0,
        count: 0,
    };
    seal(block, &head);
    start
}

/// Accepts the label of member `number`, or says what lies there. A member that is in the wrong place has
/// [`Damage::Misplaced`].
pub fn verify(block: &Block, sb: &Superblock, number: usize) -> Result<(), Damage> {
    let (start, len) = sb.members[number];
    let (head, _) = open(block, kind::LABEL, Some(&sb.pool), start)?;
    let (body, _) = LabelBody::ref_from_prefix(&block[HEADER..]).expect("a block has room for it");
    require_zero_tail(&block[HEADER..], size_of::<LabelBody>())?;
    require(head.index == number as u64, "index", head.index, "is not the number of this member")?;
    // One of an addition that was cut off has another: what is on it is not what the pool wrote there since.
    require(head.generation == sb.labels[number], "generation", head.generation, "is not that of this member's label")?;
    require(head.level == 0 && head.owner == 0 && head.count == 0, "level", head.level, "must be 0")?;
    require(body.start.get() == start, "start", body.start.get(), "is not where the member begins")?;
    // The last member may have grown; the label is not written again.
    require(body.len.get() <= len && body.len.get() > 0, "len", body.len.get(), "is not a size that the member had")?;
    let found = body.checkpoint.get();
    if found < sb.labels_at {
        return Err(Damage::OldMember { found, wanted: sb.labels_at });
    }
    // One checkpoint may have been cut off behind this superblock, or behind its twin, which may be lost.
    let known = sb.generation.saturating_add(2);
    if found > known {
        return Err(Damage::OldSuperblock { found, known });
    }
    Ok(())
}
