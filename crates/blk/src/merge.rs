//! Merging: a bio that is adjacent to a gathered request joins it.
//!
//! Owns the rule and the linking. As in the kernel's plug, only the last gathered request is checked: sequential I/O
//! matches it, and random I/O pays two comparisons.
//!
//! Invariants:
//! - I1: a merged request stays within the limits and never crosses a boundary or a partition.
//! - I2: only plain reads and plain writes merge; FUA, flushes and steps of a sequence do not.

use crate::bio::{BIO_FUA, BIO_NOMERGE, BIO_PREFLUSH, BioAttrs, BioId, SECTOR_SHIFT};
use crate::bio_set::BioSet;
use crate::limits::Limits;
use crate::request::{RQ_FLUSH_SEQ, RQ_FUA, RQ_NOMERGE, Request};

/// Returns true if an I/O is directly behind or before the request.
#[inline(always)]
pub(crate) fn is_adjacent(rq: &Request, sector: u64, bytes: u32) -> bool {
    rq.end_sector() == sector || sector + u64::from(bytes >> SECTOR_SHIFT) == rq.sector
}

/// Returns true if an adjacent I/O with these attributes, sector and length may join the request.
#[inline]
pub(crate) fn fits(rq: &Request, bio: &BioAttrs, sector: u64, bytes: u32, limits: &Limits) -> bool {
    let Some(all) = rq.bytes.checked_add(bytes) else { return false };
    let Some(segs) = rq.nr_segs.checked_add(bio.nr_vecs) else { return false };
    bytes != 0
        && may_merge(rq, bio)
        && all <= max_bytes(rq, rq.sector.min(sector), limits)
        && segs <= limits.max_segments
}

/// Returns the number of consecutive I/Os of `bytes` each that may join the request at its end.
#[inline]
pub(crate) fn room_behind(rq: &Request, bio: &BioAttrs, bytes: u32, limits: &Limits) -> u32 {
    if bytes == 0 || bio.nr_vecs == 0 || !may_merge(rq, bio) {
        return 0;
    }
    let by_bytes = max_bytes(rq, rq.sector, limits).saturating_sub(rq.bytes) / bytes;
    let by_segs = limits.max_segments.saturating_sub(rq.nr_segs) / bio.nr_vecs;
    by_bytes.min(by_segs.into()).min((u16::MAX - rq.merged()).into())
}

/// Returns true if a request and a bio of these kinds may merge, regardless of place and length (I2).
#[inline]
fn may_merge(rq: &Request, bio: &BioAttrs) -> bool {
    bio.op == rq.op
        && bio.op.has_data()
        && bio.part == rq.part
        && bio.flags & (BIO_FUA | BIO_PREFLUSH | BIO_NOMERGE) == 0
        && rq.flags & (RQ_FUA | RQ_FLUSH_SEQ | RQ_NOMERGE) == 0
        && rq.merged() < u16::MAX
}

/// Returns the largest length in bytes that the request may have if it begins at `start`.
#[inline]
fn max_bytes(rq: &Request, start: u64, limits: &Limits) -> u32 {
    let by_sectors = u64::from(limits.max_sectors) << SECTOR_SHIFT;
    limits.max_bytes_at(rq.op, start).min(u32::try_from(by_sectors).unwrap_or(u32::MAX))
}

/// Adds an adjacent bio that [`fits`] to a request that has bios.
#[inline]
pub(crate) fn link(rq: &mut Request, bios: &mut BioSet, id: BioId) {
    let bio = &bios[id];
    let back = rq.end_sector() == bio.sector;
    rq.bytes += bio.bytes;
    rq.nr_segs += bio.nr_vecs;
    rq.merged_or_buf += 1;
    if back {
        bios[rq.bio_tail()].next = id;
        rq.tail_or_owner = id.0;
    } else {
        rq.sector = bio.sector;
        bios[id].next = rq.bio_head;
        rq.bio_head = id;
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
