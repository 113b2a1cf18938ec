//! Merging: a bio that is adjacent to a gathered request rides along in it.
//!
//! Owns the rule and the linking. As in the kernel's plug, only the last gathered request is looked at: sequential
//! I/O hits it, random I/O pays two comparisons.
//!
//! Invariants:
//! - I1: a merged request stays within the limits and never crosses a boundary or a partition.
//! - I2: only plain reads and plain writes merge; what carries FUA, a flush or a sequence does not.

use crate::bio::{BIO_FUA, BIO_NOMERGE, BIO_PREFLUSH, BioId, SECTOR_SHIFT};
use crate::bio_set::BioSet;
use crate::limits::Limits;
use crate::request::{RQ_FLUSH_SEQ, RQ_FUA, RQ_NOMERGE, Request};

/// Whether an I/O touches the request at its back or front.
#[inline(always)]
pub(crate) fn is_adjacent(rq: &Request, sector: u64, bytes: u32) -> bool {
    rq.end_sector() == sector || sector + u64::from(bytes >> SECTOR_SHIFT) == rq.sector
}

/// Puts an adjacent bio into the request when the rules allow; says whether it did.
#[cold]
pub(crate) fn merge(rq: &mut Request, bios: &mut BioSet, id: BioId, limits: &Limits) -> bool {
    let bio = &bios[id];
    let back = rq.end_sector() == bio.sector;
    let mergeable = bio.op == rq.op
        && bio.op.has_data()
        && bio.part == rq.part
        && bio.bytes != 0
        && bio.flags & (BIO_FUA | BIO_PREFLUSH | BIO_NOMERGE) == 0
        && rq.flags & (RQ_FUA | RQ_FLUSH_SEQ | RQ_NOMERGE) == 0
        && rq.merged < u16::MAX;
    if !mergeable {
        return false;
    }
    let Some(bytes) = rq.bytes.checked_add(bio.bytes) else {
        return false;
    };
    let Some(segs) = rq.nr_segs.checked_add(bio.nr_vecs) else {
        return false;
    };
    let start = if back { rq.sector } else { bio.sector };
    if bytes >> SECTOR_SHIFT > limits.max_sectors
        || bytes > limits.max_bytes_at(rq.op, start)
        || segs > limits.max_segments
    {
        return false;
    }
    rq.bytes = bytes;
    rq.nr_segs = segs;
    rq.merged += 1;
    rq.sector = start;
    if back {
        bios[rq.bio_tail].next = id;
        rq.bio_tail = id;
    } else {
        bios[id].next = rq.bio_head;
        rq.bio_head = id;
    }
    true
}

#[cfg(test)]
mod tests;
