//! Cutting bios to a queue's limits.
//!
//! Owns the arithmetic on vectors. The front is cut off into a child. The rest stays in the bio, which ends after all
//! its children.
//!
//! Invariants:
//! - I1: every piece is a multiple of the logical block, so that no cut splits a block.
//! - I2: pieces are cut in ascending order and cover the bio exactly.

use sheave_base::status::Status;

use crate::bio::{
    BIO_CACHEABLE, BIO_CHILD, BIO_FUA, BIO_INLINE_VECS, BIO_NOMERGE, BIO_PLAIN, BIO_SLOW, BIO_STACKED, BIO_WAITED,
    BVec, Bio, BioId, NO_FIXED_BUF,
};
use crate::bio_set::BioSet;
use crate::limits::Limits;

/// Returns the length of the front that must be cut off to fit in one request; `None` if the whole bio fits. Returns
/// `Status::Invalid` if the pieces of memory are so small that not even one block fits.
pub(crate) fn front(bio: &Bio, limits: &Limits) -> Result<Option<u32>, Status> {
    let max_bytes = limits.max_bytes_at(bio.op, bio.sector);
    if !bio.op.has_data() {
        return Ok((bio.bytes > max_bytes).then_some(max_bytes));
    }
    let max_segs = usize::from(limits.max_segments);
    let vecs = bio.vecs();
    if bio.bytes <= max_bytes && vecs.len() <= max_segs {
        return Ok(None);
    }
    let in_segs: usize = vecs.iter().take(max_segs).map(|vec| vec.len).sum();
    let bytes = (max_bytes as usize).min(in_segs) as u32;
    let bytes = bytes - bytes % limits.logical_block;
    if bytes == 0 { Err(Status::Invalid) } else { Ok(Some(bytes)) }
}

/// Takes a bio for a piece of `parent`, unless `parent` already has the largest number of children that it can count.
/// Leaves `leave` bios in the reserve.
pub(crate) fn take_child(bios: &mut BioSet, parent: BioId, leave: u32) -> Option<BioId> {
    if bios[parent].remaining == u16::MAX {
        return None;
    }
    // The reserve serves only a bio that has no child in flight. The child then comes back and the next cut goes on.
    match bios.take() {
        // I/O of stacked devices has bios of its own for each level, which wait only for lower levels.
        None if bios[parent].flags & BIO_STACKED != 0 => match bios[parent].remaining {
            0 => bios.take_stacked((bios[parent].owner >> 16) as u8, true),
            _ => None,
        },
        None if bios[parent].remaining == 0 && bios.reserved() > leave => bios.take_reserve(),
        child => child,
    }
}

/// Cuts `bytes` off the front of the bio into a child. Returns `None` if there is no bio for it.
pub(crate) fn cut(bios: &mut BioSet, id: BioId, bytes: u32, leave: u32) -> Option<BioId> {
    let child = take_child(bios, id, leave)?;
    let mut inline = [BVec::default(); BIO_INLINE_VECS];
    let mut table = (bios[id].vecs().len() > BIO_INLINE_VECS).then(|| bios.take_table());
    let count = copy_front(bios[id].vecs(), bytes, &mut inline, table.as_deref_mut());
    if count <= BIO_INLINE_VECS
        && let Some(unused) = table.take()
    {
        bios.put_table(unused);
    }
    let parent = &mut bios[id];
    let (owner, sector, op, flags) = (parent.owner, parent.sector, parent.op, parent.flags);
    let (bdev, part, fixed_buf, waited_from) = (parent.bdev, parent.part, parent.fixed_buf, parent.waited_from);
    let step = parent.step;
    debug_assert!(flags & BIO_PLAIN == 0, "a plain record fits the limits as it is, and its end reports its bytes");
    parent.remaining += 1;
    parent.flags |= BIO_SLOW;
    parent.sector += u64::from(bytes >> crate::bio::SECTOR_SHIFT);
    parent.bytes -= bytes;
    if op.has_data() {
        advance(parent, bytes);
    }
    let front = &mut bios[child];
    front.owner = owner;
    front.sector = sector;
    front.bytes = bytes;
    front.op = op;
    front.flags |= BIO_CHILD | (flags & (BIO_FUA | BIO_NOMERGE | BIO_STACKED | BIO_WAITED));
    front.waited_from = waited_from;
    front.step = step;
    front.bdev = bdev;
    front.part = part;
    front.fixed_buf = fixed_buf;
    front.parent = id;
    if op.has_data() {
        front.nr_vecs = count as u16;
        front.inline = inline;
        if table.is_some() {
            front.flags &= !BIO_CACHEABLE;
        }
        front.table = table;
    }
    Some(child)
}

/// Copies the vectors that cover the first `bytes`; all of them to `table` if they do not fit inline. Returns their
/// number.
fn copy_front(
    vecs: &[BVec],
    bytes: u32,
    inline: &mut [BVec; BIO_INLINE_VECS],
    mut table: Option<&mut Vec<BVec>>,
) -> usize {
    let mut left = bytes as usize;
    let mut count = 0;
    for vec in vecs {
        if left == 0 {
            break;
        }
        let piece = BVec { base: vec.base, len: vec.len.min(left) };
        left -= piece.len;
        if count < BIO_INLINE_VECS {
            inline[count] = piece;
        }
        if let Some(table) = &mut table {
            table.push(piece);
        }
        count += 1;
    }
    count
}

/// Removes the first `bytes` of the bio's memory.
fn advance(bio: &mut Bio, bytes: u32) {
    let mut left = bytes as usize;
    let skip_in = |vecs: &mut [BVec]| {
        let mut first = 0;
        for vec in vecs.iter_mut() {
            if left < vec.len {
                vec.base += left;
                vec.len -= left;
                break;
            }
            left -= vec.len;
            first += 1;
        }
        first
    };
    match &mut bio.table {
        Some(table) => {
            let mut skip = skip_in;
            let first = skip(table);
            table.drain(..first);
            bio.nr_vecs = table.len() as u16;
        }
        None => {
            let mut skip = skip_in;
            let count = usize::from(bio.nr_vecs);
            let first = skip(&mut bio.inline[..count]);
            bio.inline.copy_within(first..count, 0);
            bio.nr_vecs = (count - first) as u16;
        }
    }
    if bio.nr_vecs != 1 {
        bio.fixed_buf = NO_FIXED_BUF;
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use proptest::prelude::*;

    use sheave_base::rng::Rng;

    use super::*;
    use crate::bio::{BIO_RESERVE, Op};
    use crate::limits::MAX_DEPTH;
    use crate::support::{BLOCK, Puppet, Rig, address};

    /// Returns the memory of a list of vectors as maximal runs of bytes.
    fn memory(vecs: &[BVec]) -> Vec<BVec> {
        let mut runs: Vec<BVec> = Vec::new();
        for vec in vecs.iter().filter(|vec| vec.len > 0) {
            match runs.last_mut() {
                Some(last) if last.base + last.len == vec.base => last.len += vec.len,
                _ => runs.push(*vec),
            }
        }
        runs
    }

    fn new_bio(bios: &mut BioSet, op: Op, sector: u64, vecs: &[BVec], bytes: u32) -> BioId {
        let id = bios.take().unwrap();
        bios[id].op = op;
        bios[id].sector = sector;
        bios[id].bytes = bytes;
        if op.has_data() {
            bios.set_vecs(id, vecs);
        }
        id
    }

    /// Cuts until the rest fits. Returns all pieces as (sector, bytes, vectors) with the rest last, or the error.
    fn cut_all(bios: &mut BioSet, id: BioId, limits: &Limits) -> Result<Vec<(u64, u32, Vec<BVec>)>, Status> {
        let mut pieces = Vec::new();
        while let Some(bytes) = front(&bios[id], limits)? {
            let piece = cut(bios, id, bytes, 0).expect("enough bios");
            let bio = &bios[piece];
            assert_eq!(bio.nr_vecs as usize, bio.vecs().len());
            pieces.push((bio.sector, bio.bytes, bio.vecs().to_vec()));
        }
        let rest = &bios[id];
        pieces.push((rest.sector, rest.bytes, rest.vecs().to_vec()));
        Ok(pieces)
    }

    /// Returns the largest number of vectors that the memory of one block touches.
    fn most_pieces_of_a_block(vecs: &[BVec], block: usize) -> usize {
        let mut touched = std::collections::BTreeMap::<usize, usize>::new();
        let mut at = 0;
        for vec in vecs {
            for index in at / block..(at + vec.len).div_ceil(block) {
                *touched.entry(index).or_default() += 1;
            }
            at += vec.len;
        }
        touched.into_values().max().unwrap_or(0)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

        #[test]
        fn pieces_cover_exactly_and_in_order(
            lens in prop::collection::vec(1..20_usize, 1..14),
            gaps in prop::collection::vec(0..2_usize, 14),
            unit_shift in 7..10_u32,
            block_shift in 9..13_u32,
            start in 0..100_u64,
            max_blocks in 1..9_u32,
            max_segments in 1..6_u16,
            chunk_blocks in 0..5_u32,
        ) {
            let (unit, block) = (1_usize << unit_shift, 1_u32 << block_shift);
            let mut base = 1 << 30;
            let mut vecs: Vec<BVec> = lens.iter().zip(&gaps).map(|(len, gap)| {
                let vec = BVec { base, len: len * unit };
                base += vec.len + gap * 4096;
                vec
            }).collect();
            // The last vector is extended to a whole block.
            let total: usize = vecs.iter().map(|vec| vec.len).sum();
            vecs.last_mut().unwrap().len += total.next_multiple_of(block as usize) - total;
            let bytes: u32 = vecs.iter().map(|vec| vec.len as u32).sum();
            let per_block = block >> 9;
            let limits = Limits {
                logical_block: block,
                max_sectors: max_blocks * per_block,
                max_segments,
                chunk_sectors: chunk_blocks * per_block,
                ..Limits::default()
            }.normalized();
            let mut bios = BioSet::new(2000, 64);
            let sector = start * u64::from(per_block);
            let id = new_bio(&mut bios, Op::Write, sector, &vecs, bytes);
            let in_crumbs = most_pieces_of_a_block(&vecs, block as usize) > usize::from(max_segments);
            let pieces = cut_all(&mut bios, id, &limits);
            prop_assert_eq!(pieces.is_err(), in_crumbs);
            let Ok(pieces) = pieces else { return Ok(()) };
            let mut at = sector;
            for (sector, bytes, vecs) in &pieces {
                prop_assert_eq!(*sector, at);
                at += u64::from(*bytes >> 9);
                prop_assert!(*bytes > 0 && bytes % block == 0 && *bytes <= limits.max_sectors << 9);
                prop_assert!(vecs.len() <= usize::from(max_segments) && vecs.iter().all(|vec| vec.len > 0));
                prop_assert_eq!(vecs.iter().map(|vec| vec.len).sum::<usize>(), *bytes as usize);
                if let Some(chunk) = std::num::NonZero::new(u64::from(limits.chunk_sectors)) {
                    prop_assert_eq!(*sector / chunk, (at - 1) / chunk, "crosses a boundary");
                }
            }
            prop_assert_eq!(at, sector + u64::from(bytes >> 9));
            let all: Vec<BVec> = pieces.iter().flat_map(|piece| piece.2.clone()).collect();
            prop_assert_eq!(memory(&all), memory(&vecs));
            prop_assert_eq!(bios[id].remaining as usize, pieces.len() - 1);
        }
    }

    #[test]
    fn what_fits_is_not_cut() {
        let limits = Limits { max_sectors: 16, max_segments: 2, chunk_sectors: 32, ..Limits::default() }.normalized();
        let mut bios = BioSet::new(8, 8);
        let vecs = [BVec { base: 4096, len: 4096 }, BVec { base: 0, len: 4096 }];
        for sector in [0, 16, 32] {
            let id = new_bio(&mut bios, Op::Read, sector, &vecs, 8192);
            assert_eq!(front(&bios[id], &limits), Ok(None));
        }
        let id = new_bio(&mut bios, Op::Read, 24, &vecs, 8192);
        assert_eq!(front(&bios[id], &limits), Ok(Some(4096)), "up to the boundary");
    }

    #[test]
    fn a_piece_with_a_table_of_vectors_is_not_cached() {
        let mut bios = BioSet::new(8, 8);
        let vecs: Vec<BVec> = (0..12).map(|n| BVec { base: n << 20, len: 4096 }).collect();
        let id = new_bio(&mut bios, Op::Write, 0, &vecs, 12 * 4096);
        for (blocks, has_table) in [(BIO_INLINE_VECS as u32, false), (BIO_INLINE_VECS as u32 + 1, true)] {
            let piece = cut(&mut bios, id, blocks * 4096, 0).expect("enough bios");
            assert_eq!(bios[piece].table.is_some(), has_table);
            // The cache does not reset bios: a table would stay with a bio that needs none.
            assert_eq!(bios[piece].flags & BIO_CACHEABLE == 0, has_table);
        }
    }

    #[test]
    fn vectors_too_small_for_a_block_fail() {
        let limits = Limits { max_segments: 3, ..Limits::default() }.normalized();
        let mut bios = BioSet::new(8, 8);
        let crumbs: Vec<BVec> = (0..8).map(|n| BVec { base: n * 4096, len: 128 }).collect();
        let id = new_bio(&mut bios, Op::Write, 0, &crumbs, 1024);
        assert_eq!(front(&bios[id], &limits), Err(Status::Invalid), "not one block in three pieces of 128 bytes");
        let mut rig = Rig::new(&[&Puppet::new().limits(|limits| limits.max_segments = 3).device()]);
        rig.vecs(Op::Write, 0, &crumbs, 0);
        // Two whole blocks stand before the crumbs: they are written, and the bio ends once, with the error.
        let mut mixed = vec![BVec { base: 1 << 20, len: 1024 }];
        mixed.extend(&crumbs);
        rig.vecs(Op::Write, 8, &mixed, 1);
        rig.drain();
        assert_eq!(rig.take_ended(), [(0, Status::Invalid), (1, Status::Invalid)]);
        assert_eq!(rig.ctx.bios().live(), 0);
    }

    #[test]
    fn a_registered_buffer_stays_one_while_there_is_one_vector() {
        let mut bios = BioSet::new(8, 8);
        let id = new_bio(&mut bios, Op::Read, 0, &[BVec { base: 4096, len: 8192 }], 8192);
        bios[id].fixed_buf = 5;
        let piece = cut(&mut bios, id, 4096, 0).unwrap();
        assert_eq!((bios[piece].fixed_buf, bios[id].fixed_buf), (5, 5));
        assert_eq!(bios[id].vecs(), [BVec { base: 8192, len: 4096 }]);
    }

    #[test]
    fn the_reserve_serves_one_piece_at_a_time() {
        let mut bios = BioSet::new(1, 1);
        let id = new_bio(&mut bios, Op::Read, 0, &[BVec { base: 4096, len: 8192 }], 8192);
        let piece = cut(&mut bios, id, 512, 0).unwrap();
        assert!(bios[piece].flags & BIO_RESERVE != 0);
        assert!(cut(&mut bios, id, 512, 0).is_none(), "the first piece must come back first");
        assert_eq!(bios[id].bytes, 8192 - 512, "nothing happened");
    }

    #[test]
    fn a_gigabyte_of_discard_with_eight_bios_and_two_tags() {
        for (op, max) in [(Op::Discard, 128), (Op::WriteZeroes, 2048)] {
            let puppet = Puppet::new().depth(2).limits(|limits| {
                limits.max_discard_sectors = max;
                limits.max_write_zeroes_sectors = max;
            });
            let mut rig = Rig::with(8, true, &[&puppet.device()]);
            assert!(rig.io(op, 0, 1 << 30, 7));
            rig.drain();
            assert_eq!(rig.take_ok(), [7]);
            let expect: Vec<u64> = (0..(1 << 21) / u64::from(max)).map(|n| n * u64::from(max)).collect();
            assert_eq!(puppet.sectors_seen(), expect);
            assert_eq!((rig.ctx.bios().live(), rig.ctx.bios().reserved()), (0, 4));
            assert_eq!(rig.device().stats().op(op).sectors, 1 << 21);
        }
    }

    #[test]
    fn a_discard_is_cut_at_boundaries_too() {
        let puppet = Puppet::new().limits(|limits| limits.chunk_sectors = 256);
        let mut rig = Rig::new(&[&puppet.device()]);
        rig.io(Op::Discard, 200, 512 * 400, 0);
        rig.drain();
        let seen: Vec<_> = puppet.script().seen.iter().map(|seen| (seen.sector, seen.bytes / 512)).collect();
        assert_eq!(seen, [(200, 56), (256, 256), (512, 88)]);
    }

    #[test]
    fn the_first_error_wins_and_the_bio_ends_after_its_last_piece() {
        let puppet = Puppet::new().limits(|limits| limits.max_sectors = 8).holding();
        let mut rig = Rig::new(&[&puppet.device()]);
        rig.io(Op::Write, 0, 4 * BLOCK, 0);
        for (status, order) in [(Status::Ok, false), (Status::Medium, true), (Status::Transport, false)] {
            puppet.script().fail = vec![(Op::Write, status)];
            puppet.script().lifo = order;
            puppet.script().finish = 1;
            rig.poll();
            assert!(rig.ended.is_empty(), "pieces are in flight");
        }
        puppet.script().fail.clear();
        puppet.script().finish = 1;
        rig.poll();
        assert_eq!(rig.take_ended(), [(0, Status::Medium)]);
    }

    #[test]
    fn waiting_bios_keep_their_order_whatever_they_need() {
        for seed in 0..40 {
            let mut rng = Rng::new(seed);
            let puppet = Puppet::new().depth(1 + (seed % 4) as u16).limits(|limits| limits.max_sectors = 16);
            let mut rig = Rig::with(12, true, &[&puppet.device()]);
            let mut sectors = Vec::new();
            let mut owner = 0;
            while owner < 60 {
                let blocks = 1 + rng.below(6) as u32;
                if rig.io(Op::Write, u64::from(owner) * 1000, blocks * BLOCK, owner) {
                    sectors.push(u64::from(owner) * 1000);
                    owner += 1;
                }
                if rng.percent(30) {
                    rig.poll();
                }
            }
            rig.drain();
            // First pieces come in the order of submission, and each bio's pieces in ascending order.
            let seen = puppet.sectors_seen();
            assert!(seen.is_sorted(), "seed {seed}: {seen:?}");
            assert!(sectors.iter().all(|sector| seen.contains(sector)));
            assert_eq!(rig.take_ok(), (0..60).collect::<Vec<u32>>(), "one device, in order: they end in order");
        }
    }

    #[test]
    fn depth_is_never_exceeded() {
        for depth in [1, 3, 64, 65, 200, MAX_DEPTH] {
            let puppet = Puppet::new().depth(depth).limits(|limits| limits.max_sectors = 8).holding();
            let mut rig = Rig::with(20_000, true, &[&puppet.device()]);
            assert!(rig.io(Op::Write, 0, 10_000 * BLOCK, 0));
            assert_eq!(rig.in_flight(), u32::from(depth));
            assert_eq!(puppet.script().seen[0].vecs, [BVec { base: address(0), len: BLOCK as usize }]);
            puppet.script().finish = u32::MAX;
            rig.drain();
            assert_eq!(rig.take_ok(), [0]);
            assert_eq!(puppet.script().seen.len(), 10_000);
        }
    }
}
