//! The direct-I/O engine: one way for raw devices, volumes and whatever else is a [`File`].
//!
//! Owns the checks a direct I/O must pass, the loop over mappings, and what happens when its bios end. Does not own
//! the kiocb's memory or the place where deferred completions run: the ring calls [`finish_in_task`] and
//! [`finish_in_worker`] where the plan says.
//!
//! Order of the checks, as a block device of the kernel has it: may be written; position; nothing to do; end of file;
//! whole blocks; memory that cannot be any; its alignment.
//!
//! A file in more pieces than there are bios just now gives a short read or write.
//!
//! Order on completion: the file's completion work -> a sync if one is needed -> the result.
//!
//! Invariants:
//! - I1: a kiocb ends once: [`end_bio`] says so when the last reference is gone.
//! - I2: an error demotes the plan to `Task` at least, so that error handling never runs inside a reap.

use sheave_base::status::Status;
use sheave_base::sync::Arc;
use sheave_blk::bio::{BIO_FUA, BIO_POLLED, BVec, NO_FIXED_BUF, Op};
use sheave_blk::ctx::lane::{Lane, PlainKind, Route};
use sheave_blk::ctx::{BioSpec, IoCtx};
use sheave_blk::queue::Queue;

use crate::completion_plan::{CompletionPlan, MayBlock, decide};
use crate::file::{File, WriteDone};
use crate::kiocb::{
    IOCB_COMPLETION_WORK, IOCB_DSYNC, IOCB_NEED_SYNC, IOCB_NOWAIT, IOCB_POLLED, IOCB_SYNC, IOCB_WRITE, Kiocb,
};
use crate::mapping::{Intent, Mapping, MappingKind};

/// Longest transfer of one I/O, as in the kernel: 2 GiB less a page.
pub const MAX_RW_COUNT: u32 = 0x7fff_f000;

/// The first page of the address space is never mapped.
const FIRST_PAGE: usize = 4096;

/// A file as one ring has it: attached, with what the fast path wants at hand.
#[derive(Debug)]
pub struct OpenFile {
    /// The file.
    pub file: Arc<dyn File>,
    /// The number of its device in the ring.
    pub bdev: u16,
    /// `f_pos`: where an I/O at offset -1 goes.
    pub pos: u64,
    /// The queue whose size is the file's, for the raw device that is one.
    queue: Option<Arc<Queue>>,
    /// The way of bios to the raw device, when it is one leg and may be written.
    route: Option<Route>,
    identity: bool,
    read_only: bool,
    block_mask: u32,
    dma_mask: u32,
    writes_through: bool,
}

impl OpenFile {
    /// Takes note of what does not change while the file is attached.
    pub fn new(file: Arc<dyn File>, bdev: u16, io: &IoCtx) -> OpenFile {
        let (limits, caps) = (file.device().limits().clone(), file.device().capabilities());
        let identity = file.is_identity();
        OpenFile {
            queue: file.device().whole_queue().filter(|_| identity).cloned(),
            route: io.route(bdev).filter(|_| identity && !file.is_read_only()),
            identity,
            read_only: file.is_read_only(),
            block_mask: limits.logical_block - 1,
            dma_mask: limits.dma_alignment - 1,
            writes_through: caps.fua || !caps.volatile_cache,
            pos: 0,
            bdev,
            file,
        }
    }

    /// Whether writes are refused.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Whether the file is its device from end to end.
    pub fn is_identity(&self) -> bool {
        self.identity
    }

    /// Size of the smallest addressable unit, less one.
    pub fn block_mask(&self) -> u32 {
        self.block_mask
    }

    /// Size in bytes, now.
    #[inline]
    pub fn size_bytes(&self) -> u64 {
        match &self.queue {
            Some(queue) => queue.sectors() << 9,
            None => self.file.size_bytes(),
        }
    }
}

/// What became of an I/O that was issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Issued {
    /// Bios are in flight; [`end_bio`] will say when it is done.
    Queued,
    /// It ended at once, with this result: bytes, or `-errno`.
    Done(i32),
    /// No bio is free: issue it again when some have ended.
    Again,
    /// The file must block to map the range: [`File::map_blocking`] in a worker, then issue it again.
    Blocks,
}

/// What a completion in a worker comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Finished {
    /// It is done, with this result.
    Done(i32),
    /// The device must be flushed before it is: [`issue_flush`], on the ring's thread.
    Flush,
}

#[inline]
fn error(status: Status) -> Issued {
    Issued::Done(-status.errno())
}

/// Issues the I/O of `kiocb` (`pos`, `len` and `flags` filled in) on memory `vecs`. `owner` comes back in
/// [`end_bio`]; `fixed_buf` names the registered buffer that holds the only vector.
pub fn issue(io: &mut IoCtx, file: &OpenFile, kiocb: &mut Kiocb, owner: u32, vecs: &[BVec], fixed_buf: u16) -> Issued {
    match vecs {
        [vec] => issue_one(io, file, kiocb, owner, *vec, fixed_buf),
        _ => issue_slow(io, file, kiocb, owner, vecs),
    }
}

/// The same for one piece of memory.
pub fn issue_one(io: &mut IoCtx, file: &OpenFile, kiocb: &mut Kiocb, owner: u32, vec: BVec, fixed_buf: u16) -> Issued {
    let (pos, len, flags) = (kiocb.pos, kiocb.len, kiocb.flags);
    let Some(mut run) = PlainRun::start(io, file, flags, fixed_buf) else {
        return issue_slow(io, file, kiocb, owner, &[vec]);
    };
    if vec.base() < FIRST_PAGE || !run.is_plain(pos, len, vec.base()) {
        return issue_slow(io, file, kiocb, owner, &[vec]);
    }
    *kiocb = Kiocb::started(pos, len, flags);
    let submitted = run.submit(pos, len, owner, vec);
    run.finish();
    if submitted { Issued::Queued } else { Issued::Again }
}

/// A run of plain I/O on one raw device: what the checks and the way need is looked up once for all of them.
///
/// Plain is what passes all checks and needs no mapping, as almost every I/O on a raw device does. What is not plain
/// goes through [`issue`], which checks in order and says what is wrong.
#[derive(Debug)]
pub struct PlainRun<'a> {
    lane: Lane<'a>,
    /// Size of the device in bytes.
    size: u64,
    block_mask: u32,
    dma_mask: u32,
}

impl<'a> PlainRun<'a> {
    /// A run with the same `IOCB_*` flags and the same registered buffer (or none). For a raw device that is one leg
    /// and may be written; others have no plain I/O.
    #[inline(always)]
    pub fn start(io: &'a mut IoCtx, file: &OpenFile, iocb_flags: u16, fixed_buf: u16) -> Option<PlainRun<'a>> {
        let fua = iocb_flags & (IOCB_DSYNC | IOCB_SYNC) != 0;
        let spec = bio_spec(file.bdev, iocb_flags, 0, 0, 0, fua);
        Some(PlainRun {
            size: file.queue.as_ref()?.sectors() << 9,
            lane: io.lane(file.route?, PlainKind { op: spec.op, flags: spec.flags, fixed_buf })?,
            block_mask: file.block_mask,
            dma_mask: file.dma_mask,
        })
    }

    /// Whether an I/O is plain.
    #[inline(always)]
    pub fn is_plain(&self, pos: u64, len: u32, addr: usize) -> bool {
        let misaligned = (pos as u32 | len) & self.block_mask | addr as u32 & self.dma_mask;
        let end = pos.checked_add(u64::from(len));
        misaligned == 0 && len != 0 && end.is_some_and(|end| end <= self.size)
    }

    /// Sends a plain I/O whose kiocb was [started](Kiocb::started); false when no bio is free.
    #[inline(always)]
    pub fn submit(&mut self, pos: u64, len: u32, owner: u32, vec: BVec) -> bool {
        self.lane.submit(owner, pos >> 9, len, vec)
    }

    /// Ends the run.
    #[inline]
    pub fn finish(self) {
        self.lane.finish();
    }
}

#[inline(always)]
fn bio_spec(bdev: u16, iocb_flags: u16, owner: u32, addr: u64, bytes: u32, fua: bool) -> BioSpec {
    let write = iocb_flags & IOCB_WRITE != 0;
    let polled = if iocb_flags & IOCB_POLLED != 0 { BIO_POLLED } else { 0 };
    let fua = if write && fua { BIO_FUA } else { 0 };
    let op = if write { Op::Write } else { Op::Read };
    BioSpec { bdev, op, flags: polled | fua, sector: addr >> 9, bytes, owner }
}

/// Everything but one aligned vector on a raw device within its end.
#[cold]
fn issue_slow(io: &mut IoCtx, file: &OpenFile, kiocb: &mut Kiocb, owner: u32, vecs: &[BVec]) -> Issued {
    let write = kiocb.is_write();
    if write && file.read_only {
        return Issued::Done(-9); // EBADF
    }
    if kiocb.pos.saturating_add(kiocb.len.into()) > i64::MAX as u64 {
        return error(Status::Invalid);
    }
    if kiocb.len == 0 {
        return Issued::Done(0);
    }
    let size = file.size_bytes();
    if kiocb.pos >= size && (file.identity || !write) {
        return if write { error(Status::NoSpc) } else { Issued::Done(0) };
    }
    let mut cut = Vec::new();
    let mut vecs = vecs;
    if kiocb.pos + u64::from(kiocb.len) > size && (file.identity || !write) {
        kiocb.len = (size - kiocb.pos) as u32;
        cut.extend_from_slice(vecs);
        truncate(&mut cut, kiocb.len as usize);
        vecs = &cut;
    }
    if (kiocb.pos as u32 | kiocb.len) & file.block_mask != 0 || !in_blocks(vecs, file) {
        return error(Status::Invalid);
    }
    if vecs.iter().any(|vec| vec.base() < FIRST_PAGE && !vec.is_empty()) {
        return Issued::Done(-14); // EFAULT
    }
    if !aligned(vecs, file) {
        return error(Status::Invalid);
    }
    kiocb.refs = 1;
    kiocb.status = Status::Ok;
    kiocb.plan = CompletionPlan::Inline;
    if file.identity {
        let fua = kiocb.flags & (IOCB_DSYNC | IOCB_SYNC) != 0;
        let spec = bio_spec(file.bdev, kiocb.flags, owner, kiocb.pos, kiocb.len, fua);
        return if io.submit(&spec, vecs, NO_FIXED_BUF) { Issued::Queued } else { Issued::Again };
    }
    issue_mapped(io, file, kiocb, owner, vecs, size)
}

/// Cuts the vectors to `bytes` in all.
fn truncate(vecs: &mut Vec<BVec>, mut bytes: usize) {
    vecs.retain_mut(|vec| {
        vec.truncate(bytes);
        bytes -= vec.len();
        !vec.is_empty()
    });
}

/// The runs of adjacent memory: where each starts, and its bytes.
fn runs(vecs: &[BVec]) -> impl Iterator<Item = (usize, usize)> {
    let mut vecs = vecs.iter().filter(|vec| !vec.is_empty()).peekable();
    std::iter::from_fn(move || {
        let first = vecs.next()?;
        let mut end = first.base() + first.len();
        while let Some(vec) = vecs.next_if(|vec| vec.base() == end) {
            end += vec.len();
        }
        Some((first.base(), end - first.base()))
    })
}

/// Whether every run is a whole number of blocks.
fn in_blocks(vecs: &[BVec], file: &OpenFile) -> bool {
    runs(vecs).all(|(_, len)| len & file.block_mask as usize == 0)
}

/// Whether the device can take every run where it is.
fn aligned(vecs: &[BVec], file: &OpenFile) -> bool {
    runs(vecs).all(|(base, _)| base & file.dma_mask as usize == 0)
}

/// The loop over mappings: begin (ask the file), advance (a bio for the mapping), end (when the bios end).
fn issue_mapped(io: &mut IoCtx, file: &OpenFile, kiocb: &mut Kiocb, owner: u32, vecs: &[BVec], size: u64) -> Issued {
    let intent = if kiocb.is_write() { Intent::Write } else { Intent::Read };
    let end = kiocb.pos + u64::from(kiocb.len);
    let wants_sync = kiocb.is_write() && kiocb.flags & (IOCB_DSYNC | IOCB_SYNC) != 0;
    // First pass: all mappings, so that the plan and FUA are decided before the first bio (I1 of the plan).
    let mut mappings = Vec::new();
    let mut at = kiocb.pos;
    let mut fua = wants_sync;
    while at < end {
        match file.file.map(at, end - at, intent) {
            Ok(mapping) if is_sound(&mapping, at, intent) => {
                let decision = decide(&mapping, end, size, kiocb.flags, file.writes_through);
                fua &= decision.fua;
                if decision.completion_work {
                    kiocb.flags |= IOCB_COMPLETION_WORK;
                }
                at += mapping.len.min(end - at);
                mappings.push(mapping);
            }
            Ok(_) => return error(Status::IoErr),
            Err(Status::Again) if kiocb.flags & IOCB_NOWAIT == 0 => return Issued::Blocks,
            Err(status) => return error(status),
        }
    }
    if wants_sync && !fua {
        kiocb.flags |= IOCB_NEED_SYNC;
    }
    if kiocb.flags & (IOCB_COMPLETION_WORK | IOCB_NEED_SYNC) != 0 {
        kiocb.plan = kiocb.plan.demote(CompletionPlan::Worker);
    }
    submit_mapped(io, file, kiocb, owner, vecs, &mappings, fua)
}

/// Whether the file gave what was asked for: a mapping from there on, and room for what is to be written.
fn is_sound(mapping: &Mapping, at: u64, intent: Intent) -> bool {
    let has_room = mapping.kind != MappingKind::Hole || intent == Intent::Read;
    mapping.offset == at && mapping.len != 0 && has_room
}

fn submit_mapped(
    io: &mut IoCtx,
    file: &OpenFile,
    kiocb: &mut Kiocb,
    owner: u32,
    vecs: &[BVec],
    mappings: &[Mapping],
    fua: bool,
) -> Issued {
    let mut memory = vecs.to_vec();
    let (mut at, end) = (kiocb.pos, kiocb.pos + u64::from(kiocb.len));
    for mapping in mappings {
        let bytes = mapping.len.min(end - at) as u32;
        let piece = take_front(&mut memory, bytes as usize);
        let done = (at - kiocb.pos) as u32;
        at += u64::from(bytes);
        if !kiocb.is_write() && mapping.kind != MappingKind::Mapped {
            zero(&piece);
            continue;
        }
        let spec = bio_spec(file.bdev, kiocb.flags, owner, mapping.addr, bytes, fua);
        if kiocb.refs == u16::MAX || !io.submit(&spec, &piece, NO_FIXED_BUF) {
            if kiocb.refs == 1 {
                return Issued::Again;
            }
            // As far as the bios went: a short read or write.
            kiocb.len = done;
            break;
        }
        kiocb.refs += 1;
    }
    kiocb.refs -= 1;
    if kiocb.refs == 0 { Issued::Done(kiocb.result()) } else { Issued::Queued }
}

/// Takes the first `bytes` off the vectors.
fn take_front(vecs: &mut Vec<BVec>, mut bytes: usize) -> Vec<BVec> {
    let mut front = Vec::new();
    let mut used = 0;
    for vec in vecs.iter_mut() {
        if bytes == 0 {
            break;
        }
        let piece = vec.take_front(bytes);
        front.push(piece);
        bytes -= piece.len();
        used += usize::from(vec.is_empty());
    }
    vecs.drain(..used);
    front
}

/// Fills memory that a reader gave with zeroes.
#[allow(unsafe_code)] // A hole has no bio whose driver would write the memory.
fn zero(vecs: &[BVec]) {
    for vec in vecs {
        // SAFETY: I1 of `sheave_blk::bio`: the submitter keeps the memory valid and unaliased until the I/O ends.
        unsafe { std::ptr::write_bytes(vec.base() as *mut u8, 0, vec.len()) };
    }
}

/// A bio of the kiocb has ended. True when that was the last reference: then the kiocb completes as its plan says.
#[inline(always)]
pub fn end_bio(kiocb: &mut Kiocb, status: Status) -> bool {
    if !status.is_ok() {
        kiocb.fail(status);
    }
    kiocb.refs -= 1;
    kiocb.refs == 0
}

/// Whether the completion of what has ended belongs to a worker. No longer once a worker has asked for a flush.
pub fn wants_worker(kiocb: &Kiocb) -> bool {
    kiocb.plan == CompletionPlan::Worker && kiocb.flags & (IOCB_COMPLETION_WORK | IOCB_NEED_SYNC) != 0
}

/// Completion in the issuer's task: what needs no blocking. The result.
pub fn finish_in_task(kiocb: &Kiocb) -> i32 {
    debug_assert!(!wants_worker(kiocb), "a worker's completion stays a worker's");
    kiocb.result()
}

/// Makes `kiocb` a sync of the file, to be finished by [`finish_in_worker`].
pub fn start_sync(kiocb: &mut Kiocb) {
    *kiocb = Kiocb { flags: IOCB_NEED_SYNC, plan: CompletionPlan::Worker, ..Kiocb::default() };
}

/// Flushes the device, as the last step of a completion for which a worker said so; all other steps are done.
/// [`end_bio`] says when it has ended.
pub fn issue_flush(io: &mut IoCtx, file: &OpenFile, kiocb: &mut Kiocb, owner: u32) -> Issued {
    kiocb.flags &= !(IOCB_COMPLETION_WORK | IOCB_NEED_SYNC);
    kiocb.refs = 1;
    let spec = BioSpec { bdev: file.bdev, op: Op::Flush, flags: 0, sector: 0, bytes: 0, owner };
    if io.submit(&spec, &[], NO_FIXED_BUF) { Issued::Queued } else { Issued::Again }
}

/// Completion where blocking is allowed: the file's work, then the sync.
pub fn finish_in_worker(file: &dyn File, kiocb: &mut Kiocb, pieces: &[Mapping], token: &MayBlock) -> Finished {
    if kiocb.flags & IOCB_COMPLETION_WORK != 0 {
        let done = WriteDone { pos: kiocb.pos, len: u64::from(kiocb.len), status: kiocb.status, pieces };
        if let Err(status) = file.end_write(done, token) {
            kiocb.fail(status);
        }
    }
    if kiocb.flags & IOCB_NEED_SYNC != 0 && kiocb.status.is_ok() {
        match file.sync(token) {
            None => return Finished::Flush,
            Some(Err(status)) => kiocb.fail(status),
            Some(Ok(())) => {}
        }
    }
    Finished::Done(kiocb.result())
}

#[cfg(test)]
mod tests;
