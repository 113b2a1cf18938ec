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
mod tests {
    use super::*;
    use crate::bio::{BVec, Bio, Op};
    use crate::request::RqHead;

    const BLOCK: u32 = 4096;

    /// Gives a special property to a request, or to the bio behind it.
    type Change = fn(&mut Request, &mut Bio);

    fn bio(bios: &mut BioSet, sector: u64, blocks: u32, vecs: u16) -> BioId {
        let id = bios.take().unwrap();
        let len = (blocks * BLOCK) as usize / usize::from(vecs.max(1));
        bios.set_vecs(id, &vec![BVec { base: 4096, len }; usize::from(vecs)]);
        let bio = &mut bios[id];
        (bio.op, bio.sector, bio.bytes) = (Op::Write, sector, blocks * BLOCK);
        id
    }

    fn request(bios: &mut BioSet, sector: u64, blocks: u32, vecs: u16) -> Request {
        let id = bio(bios, sector, blocks, vecs);
        let bytes = blocks * BLOCK;
        let mut rq = Request::unused();
        let head = RqHead { op: Op::Write, nr_segs: vecs, bytes, ..RqHead::default() };
        rq.fill(id, sector, &head);
        rq
    }

    /// Merges as `Hctx::try_merge` does.
    fn try_merge(rq: &mut Request, bios: &mut BioSet, id: BioId, limits: &Limits) -> bool {
        let bio = &bios[id];
        let may = is_adjacent(rq, bio.sector, bio.bytes) && fits(rq, &bio.attrs, bio.sector, bio.bytes, limits);
        if may {
            link(rq, bios, id);
        }
        may
    }

    fn roomy() -> Limits {
        Limits { max_sectors: u32::MAX, max_segments: u16::MAX, ..Limits::default() }.normalized()
    }

    #[test]
    fn chains_in_the_order_of_the_device() {
        let mut bios = BioSet::new(8, 8);
        let mut rq = request(&mut bios, 80, 1, 1);
        let middle = rq.bio_head;
        let back = bio(&mut bios, 88, 2, 3);
        let front = bio(&mut bios, 72, 1, 2);
        assert!(try_merge(&mut rq, &mut bios, back, &roomy()));
        assert!(try_merge(&mut rq, &mut bios, front, &roomy()));
        assert_eq!((rq.sector, rq.bytes, rq.nr_segs, rq.merged()), (72, 4 * BLOCK, 6, 2));
        assert_eq!((rq.bio_head, rq.bio_tail()), (front, back));
        assert_eq!([bios[front].next, bios[middle].next, bios[back].next], [middle, back, BioId::NONE]);
    }

    #[test]
    fn numbers_do_not_wrap() {
        // The bio is directly behind each request. The request's number of bios, of segments or of bytes is at its
        // limit, in this order; in the last case none is.
        let most = u32::MAX - 511;
        let at = 1 + u64::from(most >> SECTOR_SHIFT);
        for (merged, nr_segs, bytes) in [(u16::MAX, 1, BLOCK), (0, u16::MAX, BLOCK), (0, 1, most), (0, 1, BLOCK)] {
            let mut bios = BioSet::new(8, 8);
            let next = bio(&mut bios, at, 1, 1);
            let mut rq = request(&mut bios, at - u64::from(bytes >> SECTOR_SHIFT), 1, 1);
            (rq.merged_or_buf, rq.nr_segs, rq.bytes) = (merged, nr_segs, bytes);
            let room = merged == 0 && nr_segs == 1 && bytes == BLOCK;
            assert_eq!(try_merge(&mut rq, &mut bios, next, &roomy()), room);
        }
    }

    #[test]
    fn nothing_merges_with_what_has_no_length() {
        let mut bios = BioSet::new(8, 8);
        let mut rq = request(&mut bios, 80, 1, 1);
        let empty = bio(&mut bios, 88, 0, 1);
        assert!(!try_merge(&mut rq, &mut bios, empty, &roomy()));
        bios[empty].sector = 80;
        assert!(!try_merge(&mut rq, &mut bios, empty, &roomy()));
    }

    #[test]
    fn flags_partitions_and_operations_decide() {
        let cases: [(Change, bool); 8] = [
            (|_, _| {}, true),
            (|_, bio| bio.flags |= BIO_FUA, false),
            (|_, bio| bio.flags |= BIO_PREFLUSH, false),
            (|_, bio| bio.flags |= BIO_NOMERGE, false),
            (|rq, _| rq.flags |= RQ_FUA, false),
            (|rq, _| rq.flags |= RQ_FLUSH_SEQ, false),
            (|_, bio| bio.part = 1, false),
            (|rq, bio| (rq.op, bio.op) = (Op::Discard, Op::Discard), false),
        ];
        for (at, (change, expect)) in cases.into_iter().enumerate() {
            let mut bios = BioSet::new(8, 8);
            let mut rq = request(&mut bios, 80, 1, 1);
            let next = bio(&mut bios, 88, 1, 1);
            change(&mut rq, &mut bios[next]);
            assert_eq!(try_merge(&mut rq, &mut bios, next, &roomy()), expect, "case {at}");
            assert_eq!(rq.merged(), u16::from(expect));
        }
    }

    proptest::proptest! {
        /// `room_behind` returns the number of bios that merge one after the other.
        #[test]
        fn room_behind_is_what_merges_one_by_one(
            max_sectors in 8u32..400,
            max_segments in 1u16..20,
            chunk in 0u32..40,
            (sector, blocks, vecs) in (0u64..1000, 1u32..9, 1u16..4),
            (next, next_vecs) in (1u32..4, 1u16..3),
            special in 0usize..4,
        ) {
            let chunk_sectors = if chunk < 20 { 0 } else { chunk * 8 };
            let limits = Limits { max_sectors, max_segments, chunk_sectors, ..Limits::default() }.normalized();
            let mut bios = BioSet::new(128, 128);
            let mut rq = request(&mut bios, sector * 8, blocks, vecs);
            match special {
                0 => rq.merged_or_buf = u16::MAX - 3,
                1 => rq.flags |= RQ_NOMERGE,
                _ => {}
            }
            let behind = |bios: &mut BioSet, rq: &Request| bio(bios, rq.end_sector(), next, next_vecs);
            let first = behind(&mut bios, &rq);
            let room = room_behind(&rq, &bios[first].attrs, next * BLOCK, &limits);
            bios.put(first);
            let mut merged = 0;
            while merged < 100 {
                let id = behind(&mut bios, &rq);
                if !try_merge(&mut rq, &mut bios, id, &limits) {
                    break;
                }
                merged += 1;
            }
            proptest::prop_assert_eq!(room.min(100), merged);
        }
    }
}
