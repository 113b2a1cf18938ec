//! Copies between a driver's own bytes and the memory of a request that the adapter holds.
//!
//! Owns the bounds: a range that is not completely within the request is refused. Called by `request` alone, which has
//! checked the direction of the request and the children that use its memory.
#![allow(unsafe_code)] // The memory of a request is known by its address.

use std::ops::Range;

use sheave_blk::bio::{BVec, Segment};

/// Returns the pieces of a range of the memory `segments`; `None` if the range is not completely inside.
pub(super) fn pieces(segments: impl Iterator<Item = Segment>, range: Range<usize>) -> Option<Vec<Segment>> {
    let mut pieces = Vec::new();
    walk(segments, range, |piece| pieces.push(piece)).then_some(pieces)
}

/// Calls `tell` with address and length of each piece of a range; returns false if the range is not completely inside.
pub(super) fn each_piece(
    segments: impl Iterator<Item = Segment>,
    range: Range<usize>,
    mut tell: impl FnMut(usize, usize),
) -> bool {
    walk(segments, range, |piece| tell(piece.base(), piece.len()))
}

fn walk(segments: impl Iterator<Item = Segment>, range: Range<usize>, mut tell: impl FnMut(Segment)) -> bool {
    let Some(mut left) = range.end.checked_sub(range.start) else { return false };
    let mut skip = range.start;
    for mut segment in segments {
        skip -= segment.take_front(skip).len();
        let piece = segment.take_front(left);
        if !piece.is_empty() {
            left -= piece.len();
            tell(piece);
        }
    }
    left == 0 && skip == 0
}

/// Copies the memory of the pieces to `to`, which has their total length.
///
/// # Safety
/// The pieces are memory of a request that has not ended, and no device writes to them meanwhile.
pub(super) unsafe fn copy_out(pieces: &[Segment], mut to: &mut [u8]) {
    for piece in pieces {
        let Some((here, rest)) = to.split_at_mut_checked(piece.len()) else { return };
        let from = std::ptr::with_exposed_provenance::<u8>(piece.base());
        // SAFETY: promised by the caller; `here` is as long, and exclusively borrowed.
        unsafe { std::ptr::copy_nonoverlapping(from, here.as_mut_ptr(), here.len()) };
        to = rest;
    }
}

/// Copies `from` to the memory of the pieces, which have its total length.
///
/// # Safety
/// The pieces are memory of a read that has not ended, and no device uses them meanwhile.
pub(super) unsafe fn copy_in(pieces: &[Segment], mut from: &[u8]) {
    for piece in pieces {
        let Some((here, rest)) = from.split_at_checked(piece.len()) else { return };
        let to = std::ptr::with_exposed_provenance_mut::<u8>(piece.base());
        // SAFETY: promised by the caller; `here` is as long, and a shared slice is no memory of a read.
        unsafe { std::ptr::copy_nonoverlapping(here.as_ptr(), to, here.len()) };
        from = rest;
    }
}

/// Returns the memory of a request as vectors, for a child that does a part of the request.
///
/// # Safety
/// The pieces are memory of a request that does not end before the child, in the child's direction.
pub(super) unsafe fn lend(pieces: &[Segment]) -> Vec<BVec> {
    // SAFETY: promised by the caller.
    pieces.iter().map(|piece| unsafe { BVec::new(piece.base(), piece.len()) }).collect()
}
