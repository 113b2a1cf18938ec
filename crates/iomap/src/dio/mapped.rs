//! Files with mappings: the loop from a range to bios.
//!
//! Owns the two passes of an I/O that is not [plain](super::run). The first looks up all mappings, so that the plan and
//! FUA are decided before the first bio (I1 of the plan). The second sends one bio for each run of mappings that have
//! data and are adjacent on the device. Nothing is allocated once the [`Scratch`] has grown.
//!
//! Invariants:
//! - I1: the mappings of a file are checked. The I/O fails with `-EIO` if one is at another position than requested, is
//!   empty, has no space for a writer, or lies outside of the device or its blocks.
//! - I2: [`Scratch::pieces`] returns the mappings of what was sent: cut at the end of the I/O, and fewer if bios ran
//!   out.

use sheave_base::status::Status;
use sheave_blk::bio::{BVec, NO_FIXED_BUF};
use sheave_blk::ctx::IoCtx;

use super::open_file::OpenFile;
use super::run::Places;
use super::{Issued, bio_spec, error};
use crate::completion_plan::CompletionPlan;
use crate::decision::decide;
use crate::kiocb::{IOCB_COMPLETION_WORK, IOCB_DSYNC, IOCB_NEED_SYNC, IOCB_NOWAIT, IOCB_SUMMED, IOCB_SYNC, Kiocb};
use crate::mapping::{Intent, MapFlags, Mapping, MappingKind, Pieces};

/// Buffers used while an I/O is issued. A ring has one and keeps their capacity.
#[derive(Debug, Default)]
pub struct Scratch {
    pieces: Pieces,
    /// Vectors cut at the end of the file.
    pub(super) cut: Vec<BVec>,
    /// The vectors of one bio.
    front: Vec<BVec>,
    /// Device positions of the I/Os of a run. Kept here, so that the array is not initialised for every run.
    pub places: Places,
}

impl Scratch {
    /// Returns the mappings that the last I/O used, if it was sent to a file with mappings.
    pub fn pieces(&self) -> &[Mapping] {
        self.pieces.as_slice()
    }
}

/// Maps the I/O, then sends its bios. The I/O ends when the bios end.
pub(super) fn issue_mapped(
    io: &mut IoCtx,
    file: &OpenFile,
    kiocb: &mut Kiocb,
    owner: u32,
    vecs: (&[BVec], u16),
    scratch: &mut Scratch,
) -> Issued {
    let fua = match map_all(file, kiocb, &mut scratch.pieces) {
        Ok(fua) => fua,
        Err(issued) => return issued,
    };
    match scratch.pieces.as_slice() {
        // The common case: one bio with the vectors as they are.
        [mapping] if kiocb.is_write() || mapping.kind == MappingKind::Mapped => {
            let spec = bio_spec(file.bdev, kiocb.flags, owner, mapping.addr, kiocb.len, fua);
            begin(file, kiocb, mapping);
            if !io.submit(&spec, vecs.0, vecs.1) {
                abort(file, kiocb, mapping);
                return Issued::Again;
            }
            kiocb.flags |= file.count_flags();
            file.count(1);
            Issued::Queued
        }
        _ => submit_several(io, file, kiocb, owner, vecs.0, fua, scratch),
    }
}

/// First pass: looks up all mappings and decides the plan. Returns true if the data is sent with FUA.
fn map_all(file: &OpenFile, kiocb: &mut Kiocb, pieces: &mut Pieces) -> Result<bool, Issued> {
    let intent = if kiocb.is_write() { Intent::Write } else { Intent::Read };
    let end = kiocb.pos + u64::from(kiocb.len);
    let wants_sync = kiocb.is_write() && kiocb.flags & (IOCB_DSYNC | IOCB_SYNC) != 0;
    let (size, device_bytes) = (file.size_bytes(), file.device_bytes());
    kiocb.flags &= !(IOCB_COMPLETION_WORK | IOCB_NEED_SYNC | IOCB_SUMMED);
    let mut at = kiocb.pos;
    let mut fua = wants_sync;
    pieces.clear();
    while at < end {
        let mut mapping = match file.file.map(at, end - at, intent) {
            Ok(mapping) => mapping,
            Err(Status::Again) if kiocb.flags & IOCB_NOWAIT == 0 => return Err(Issued::Blocks),
            Err(status) => return Err(error(status)),
        };
        mapping.len = mapping.len.min(end - at);
        if !is_sound(&mapping, at, intent, device_bytes, file.block_mask) {
            return Err(error(Status::IoErr));
        }
        let decision = decide(&mapping, end, size, kiocb.flags, file.writes_through);
        fua &= decision.fua;
        kiocb.plan = kiocb.plan.demote(decision.plan);
        if mapping.flags.any(MapFlags::SUMMED) {
            kiocb.flags |= IOCB_SUMMED;
            kiocb.plan = kiocb.plan.demote(CompletionPlan::Task);
        }
        at += mapping.len;
        pieces.push(mapping);
    }
    if kiocb.plan == CompletionPlan::Worker {
        // Also for a file that required a worker with `MapFlags::WORKER`: its work is done in `end_write`.
        kiocb.flags |= IOCB_COMPLETION_WORK;
    }
    if wants_sync && !fua {
        kiocb.flags |= IOCB_NEED_SYNC;
        kiocb.plan = CompletionPlan::Worker;
    }
    Ok(fua)
}

/// Announces a write to a summed mapping to the file, before its bio is sent.
#[inline(always)]
fn begin(file: &OpenFile, kiocb: &Kiocb, mapping: &Mapping) {
    if kiocb.flags & IOCB_SUMMED != 0 && kiocb.is_write() {
        file.file.begin_write(mapping);
    }
}

/// Undoes [`begin`] for a mapping whose bio could not be sent.
#[cold]
fn abort(file: &OpenFile, kiocb: &Kiocb, mapping: &Mapping) {
    if kiocb.flags & IOCB_SUMMED != 0 && kiocb.is_write() {
        file.file.abort_write(mapping);
    }
}

/// Checks a mapping (I1).
fn is_sound(mapping: &Mapping, at: u64, intent: Intent, device_bytes: u64, block_mask: u32) -> bool {
    let has_room = mapping.kind != MappingKind::Hole || intent == Intent::Read;
    let has_data = mapping.kind == MappingKind::Mapped || intent == Intent::Write;
    let on_device = mapping.addr.checked_add(mapping.len).is_some_and(|end| end <= device_bytes);
    let in_blocks = (mapping.len as u32 | if has_data { mapping.addr as u32 } else { 0 }) & block_mask == 0;
    mapping.offset == at && mapping.len != 0 && has_room && in_blocks && (on_device || !has_data)
}

/// Second pass over several mappings, or over holes. Mappings that are adjacent on the device share a bio, so an I/O
/// over very many of them does not run out of bios and end short.
fn submit_several(
    io: &mut IoCtx,
    file: &OpenFile,
    kiocb: &mut Kiocb,
    owner: u32,
    vecs: &[BVec],
    fua: bool,
    scratch: &mut Scratch,
) -> Issued {
    let Scratch { pieces, front, .. } = scratch;
    let mut memory = Memory { head: None, rest: vecs };
    let (mut done, mut used) = (0, 0);
    let has_bio = |kiocb: &Kiocb, mapping: &Mapping| kiocb.is_write() || mapping.kind == MappingKind::Mapped;
    while let [first, rest @ ..] = &pieces.as_slice()[used..] {
        let mut count = 1;
        let mut bytes = first.len as u32;
        if !has_bio(kiocb, first) {
            memory.take_front(bytes as usize, front);
            zero(front);
        } else {
            for next in rest {
                if next.addr != first.addr + u64::from(bytes) || !has_bio(kiocb, next) {
                    break;
                }
                bytes += next.len as u32;
                count += 1;
            }
            memory.take_front(bytes as usize, front);
            let joined = &pieces.as_slice()[used..used + count];
            let spec = bio_spec(file.bdev, kiocb.flags, owner, first.addr, bytes, fua);
            joined.iter().for_each(|mapping| begin(file, kiocb, mapping));
            if kiocb.refs == u16::MAX || !io.submit(&spec, front, NO_FIXED_BUF) {
                joined.iter().for_each(|mapping| abort(file, kiocb, mapping));
                if kiocb.refs == 1 {
                    return Issued::Again;
                }
                // Bios ran out after some were sent: a short read or write.
                kiocb.len = done;
                break;
            }
            kiocb.refs += 1;
        }
        done += bytes;
        used += count;
    }
    pieces.truncate(used);
    if kiocb.refs > 1 {
        kiocb.flags |= file.count_flags();
        file.count(1);
    }
    kiocb.refs -= 1;
    if kiocb.refs == 0 { Issued::Done(kiocb.result()) } else { Issued::Queued }
}

/// Vectors that are consumed from the front.
struct Memory<'a> {
    /// The rest of a vector that was cut.
    head: Option<BVec>,
    rest: &'a [BVec],
}

impl Memory<'_> {
    /// Moves the next `bytes` bytes to `front`.
    fn take_front(&mut self, mut bytes: usize, front: &mut Vec<BVec>) {
        front.clear();
        while bytes > 0 {
            let mut vec = match (self.head.take(), self.rest) {
                (Some(head), _) => head,
                (None, [first, rest @ ..]) => {
                    self.rest = rest;
                    *first
                }
                (None, []) => return,
            };
            let piece = vec.take_front(bytes);
            bytes -= piece.len();
            if !piece.is_empty() {
                front.push(piece);
            }
            self.head = Some(vec).filter(|vec| !vec.is_empty());
        }
    }
}

/// Fills the memory of a read with zeroes.
#[allow(unsafe_code)] // A hole has no bio whose driver would write the memory.
fn zero(vecs: &[BVec]) {
    for vec in vecs {
        // SAFETY: I1 of `sheave_blk::bio`: the submitter keeps the memory valid and unaliased until the I/O ends.
        unsafe { std::ptr::write_bytes(vec.base() as *mut u8, 0, vec.len()) };
    }
}
