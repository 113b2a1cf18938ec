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
mod tests;
