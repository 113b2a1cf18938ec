//! The label: the first block of each member of a concatenation but the first.
//!
//! Owns its encoding. The label identifies a member that is given in the wrong place or belongs to another pool, before
//! anything else is read from it. The superblock has the list of members too. The first member has no label, because it
//! has the superblocks.
//!
//! A label also identifies a member that is an older copy of itself: each checkpoint writes its generation to all
//! labels before its superblock names it. So an up-to-date label is never older than the superblock. It may be newer by
//! one checkpoint, if that was cut off before its superblock was written.

use zerocopy::{FromBytes, IntoBytes};

use crate::format::block::{Block, Head, open, require_zero_tail, seal};
use crate::format::damage::{Damage, require};
use crate::format::superblock::Superblock;
use crate::format::{HEADER, LabelBody, kind};

/// Encodes the label of member `number` (1 or more). Returns its address.
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

/// Verifies the label of member `number`. Returns [`Damage::Misplaced`] for a member in the wrong place.
pub fn verify(block: &Block, sb: &Superblock, number: usize) -> Result<(), Damage> {
    let (start, len) = sb.members[number];
    let (head, _) = open(block, kind::LABEL, Some(&sb.pool), start)?;
    let (body, _) = LabelBody::ref_from_prefix(&block[HEADER..]).expect("a block has room for it");
    require_zero_tail(&block[HEADER..], size_of::<LabelBody>())?;
    require(head.index == number as u64, "index", head.index, "is not the number of this member")?;
    // A label with another generation was left by an addition of this device that was cut off. The pool has not written
    // to the device since.
    require(head.generation == sb.labels[number], "generation", head.generation, "is not that of this member's label")?;
    require(head.level == 0 && head.owner == 0 && head.count == 0, "level", head.level, "must be 0")?;
    require(body.start.get() == start, "start", body.start.get(), "is not where the member begins")?;
    // Growing the last member does not rewrite its label, so the label may have a smaller size.
    require(body.len.get() <= len && body.len.get() > 0, "len", body.len.get(), "is not a size that the member had")?;
    let found = body.checkpoint.get();
    if found < sb.labels_at {
        return Err(Damage::OldMember { found, wanted: sb.labels_at });
    }
    // A label is at most two generations newer: its checkpoint may have been cut off, and the twin of this superblock
    // may have been written and lost.
    let known = sb.generation.saturating_add(2);
    if found > known {
        return Err(Damage::OldSuperblock { found, known });
    }
    Ok(())
}
