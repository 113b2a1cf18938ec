//! Copies between a request's memory and a buffer: the one place of this crate that follows addresses.
#![allow(unsafe_code)] // A driver gets the memory of an I/O as addresses.

use sheave_blk::bio::Segment;
use sheave_blk::request::{Rq, RqTable};

/// Returns the bytes that a write brings. The token `rq` proves that the driver holds the request.
pub(super) fn gather(rqs: &RqTable<'_>, rq: &Rq) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(rqs.get(rq).bytes as usize);
    for piece in rqs.segments(rq.tag()) {
        // SAFETY: the driver holds the request, so its memory is valid and nobody writes it (I1 of `blk::bio`).
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(pointer(piece), piece.len()) });
    }
    bytes
}

/// Copies `bytes` into a read's memory. The token `rq` proves that the driver holds the request.
pub(super) fn scatter(rqs: &RqTable<'_>, rq: &Rq, bytes: &[u8]) {
    let mut left = bytes;
    for piece in rqs.segments(rq.tag()) {
        let (now, later) = left.split_at(piece.len().min(left.len()));
        // SAFETY: the driver holds the request, so its memory is valid and nobody else uses it (I1 of `blk::bio`).
        unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), pointer(piece).cast_mut(), now.len()) };
        left = later;
    }
}

fn pointer(piece: Segment) -> *const u8 {
    std::ptr::with_exposed_provenance(piece.base())
}
