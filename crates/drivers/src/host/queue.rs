//! Hardware queue of one ring for a file or block device of the host: requests to operations of the kernel ring, and
//! back.
//!
//! Owns the translation and the vectors of merged requests. Enters the kernel ring only when it is full: the ring's
//! owner sends a whole batch with one system call. `recover` judges all results that are not simply successful. Without
//! a kernel ring `sync` replaces this module.
//!
//! | request | operation |
//! |---|---|
//! | read, write | READ_FIXED, WRITE_FIXED in one registered buffer; READ, WRITE; else READV, WRITEV |
//! | with `RQ_FUA` | the same with `RWF_DSYNC`; discard and write-zeroes: FSYNC after it |
//! | flush | FSYNC with DATASYNC |
//! | discard | FALLOCATE, punch hole |
//! | write-zeroes | FALLOCATE, zero range; else punch hole; else WRITEV of zeroes |
//!
//! Invariants:
//! - I1: a request has at most one operation that is prepared or in the kernel. `held` counts them.
//! - I2: memory that an operation names outlives it: that of bios by their I1; bios do not move while live; the vectors
//!   in `vecs[tag]` are changed only while the tag's request has no operation; zeroes live as long as `shared`, and the
//!   ring drops a queue only when it holds no request ([`HwQueue::shutdown`]).
//! - I4: on a thread that may block, a write into the page cache is a system call of its own: many file systems cannot
//!   do such a write without blocking, and the kernel ring would hand it to another thread. Durable writes, and those
//!   that fail, go to the kernel ring all the same.
//! - I3: `Request::private` is 0 for a request on its first, plain path; else it is a [`Progress`].
#![allow(unsafe_code)] // prepares operations that name memory

use std::os::fd::AsRawFd;

use sheave_base::status::Status;
use sheave_base::sync::Arc;

use super::calls::Ask;
use super::recover::{Judge, KIND_IO, Progress, Verdict};
use super::shared::{HostShared, ZEROES_BYTES, Zeroing};
use super::workers::{Way, Workers};
use sheave_blk::bio::{NO_FIXED_BUF, Op, SECTOR_SHIFT, Segment};
use sheave_blk::driver::{
    HctxOpen, HwEnv, HwQueue, KIND_IGNORED, KernelEvent, KernelEvents, NextEvent, Started, TimedOut, kernel_user_data,
};
use sheave_blk::limits::Capacity;
use sheave_blk::request::{DoneList, RQ_FUA, Request, Rq, RqHead, RqList, RqQueue, RqTable};
use sheave_kring::{BUFFER_SLOTS, Full, IoVec, KOp, KernelRing, MAX_SEGMENTS, RwOp, Target};

const PUNCH_HOLE: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
const ZERO_RANGE: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
/// A mode of fallocate that no kernel has.
const NO_SUCH_MODE: i32 = i32::MIN;

const _: () = {
    assert!(NO_FIXED_BUF as u32 >= BUFFER_SLOTS, "no buffer has this number");
    assert!(size_of::<Segment>() == size_of::<IoVec>() && align_of::<Segment>() == align_of::<IoVec>());
    // The block layer asserts the same of `Segment`.
    assert!(std::mem::offset_of!(IoVec, base) == 0 && std::mem::offset_of!(IoVec, len) == size_of::<usize>());
};

#[derive(Debug)]
pub(super) struct HostQueue {
    shared: Arc<HostShared>,
    /// Bytes of a logical block.
    block: u32,
    capacity: Capacity,
    target: Target,
    /// Number of requests with an operation (I1).
    held: u32,
    /// Requests to be sent again, which found the kernel ring full.
    again: RqQueue,
    /// Vectors of requests that are not exactly one bio, by tag; each allocated when first needed.
    vecs: Box<[Vec<IoVec>]>,
    /// True if each request must be checked before it is prepared, because the file is read-only or writes are done on
    /// this thread.
    looks: bool,
    /// True if writes are done at once, on this thread (I4).
    writes_here: bool,
    ending: bool,
    /// For a kernel ring that polls: the threads that do flushes, discards and write-zeroes for it.
    beside: Option<Way>,
}

impl HostQueue {
    pub(super) fn new(
        shared: Arc<HostShared>,
        open: &HctxOpen<'_>,
        target: Target,
        beside: Option<Arc<Workers>>,
    ) -> HostQueue {
        let writes_here = open.kring.may_block() && !shared.file.is_direct();
        HostQueue {
            block: open.limits.logical_block,
            capacity: open.capacity.clone(),
            target,
            held: 0,
            again: RqQueue::with_depth(open.depth),
            vecs: (0..=open.depth).map(|_| Vec::new()).collect(),
            looks: shared.file.is_readonly() || writes_here,
            writes_here,
            ending: false,
            beside: beside.map(|workers| Way::new(workers, open)),
            shared,
        }
    }

    /// Prepares the operation of a single plain record, the usual case at depth 1. Returns false if it could not.
    #[inline(always)]
    fn prep_only(&mut self, tag: u16, rqs: &mut RqTable<'_>, env: &mut HwEnv<'_>) -> bool {
        let (Some(kring), false) = (&mut env.kring, self.looks) else { return false };
        let rq = rqs.by_tag_mut(tag);
        let Some((vec, fixed_buf)) = rq.plain_memory() else { return false };
        rq.private = 0;
        let op = if rq.op == Op::Read { KOp::Read } else { KOp::Write };
        let user_data = kernel_user_data(env.hctx, tag, KIND_IO);
        let data = RwOp { len: rq.bytes, base: vec.base(), offset: rq.sector << SECTOR_SHIFT, user_data };
        // SAFETY: I2.
        let prepared = unsafe { kring.prep_only(op, self.target, fixed_buf, data) };
        self.held += u32::from(prepared);
        prepared
    }

    /// Prepares operations for the requests of `list` as long as there is room.
    #[inline(never)]
    fn queue_many(&mut self, list: &mut RqList, rqs: &mut RqTable<'_>, env: &mut HwEnv<'_>, done: &mut DoneList) {
        loop {
            if !self.looks {
                self.prep_plain(list, rqs, env);
            }
            if list.is_empty() || !self.queue_other(list, rqs, env, done) {
                return;
            }
        }
    }

    /// Prepares operations for the plain records at the front of the list, as long as there is room.
    #[inline(always)]
    fn prep_plain(&mut self, list: &mut RqList, rqs: &mut RqTable<'_>, env: &mut HwEnv<'_>) {
        let Some(kring) = &mut env.kring else { return };
        let user_data = kernel_user_data(env.hctx, 0, KIND_IO);
        while let Some(&first) = list.tags().first() {
            let first = rqs.by_tag(first);
            let Some((_, fixed_buf)) = first.plain_memory() else { return };
            let first: RqHead = **first;
            let op = if first.op == Op::Read { KOp::Read } else { KOp::Write };
            let data_of = |tag: u16, rq: &mut Request| {
                let (vec, buf) = rq.plain_memory()?;
                rq.private = 0;
                let (offset, user_data) = (rq.sector << SECTOR_SHIFT, user_data | u64::from(tag));
                Some((RwOp { len: rq.bytes, base: vec.base(), offset, user_data }, buf))
            };
            let prepared = if fixed_buf.is_some_and(|slot| kring.has_buffer(slot)) {
                let alike = |&tag: &u16| {
                    let rq = rqs.by_tag_mut(tag);
                    let (data, buf) = rq.goes_like_in_any_buffer(&first).then(|| data_of(tag, rq))??;
                    // `NO_FIXED_BUF` lies beyond the slots of the kernel ring, so it never has a buffer.
                    Some((data, buf.unwrap_or(NO_FIXED_BUF)))
                };
                // SAFETY: I2.
                unsafe { kring.prep_run_fixed(op, self.target, list.tags(), alike) }
            } else {
                let alike = |&tag: &u16| {
                    let rq = rqs.by_tag_mut(tag);
                    rq.goes_like(&first).then(|| data_of(tag, rq))?.map(|(data, _)| data)
                };
                // SAFETY: I2.
                unsafe { kring.prep_run(op, self.target, fixed_buf, list.tags(), alike) }
            };
            if prepared == 0 {
                return;
            }
            self.held += prepared;
            list.took(prepared);
        }
    }

    /// Prepares the operation for a request (I1); after an error the request has none.
    #[inline]
    fn prep(&mut self, tag: u16, rqs: &RqTable<'_>, kring: &mut KernelRing, hctx: u16) -> Result<(), Full> {
        let rq = rqs.by_tag(tag);
        let user_data = kernel_user_data(hctx, tag, KIND_IO);
        let done = if !rq.op.has_data() || rq.private != 0 {
            self.prep_other(tag, rqs, kring, user_data)
        } else if let Some((vec, fixed)) = rq.plain_memory() {
            let fixed = fixed.filter(|&slot| kring.has_buffer(slot));
            let seg = IoVec { base: vec.base() as *mut u8, len: vec.len() };
            prep_data(kring, self.target, rq, &[seg], fixed, 0, user_data)
        } else if let Some(bio) = rqs.single_bio(tag) {
            let fixed = bio.fixed_buf().filter(|&slot| kring.has_buffer(slot));
            let vecs = bio.segments();
            // SAFETY: I2: the bio's own pieces, whose layout is that of `IoVec` (asserted above).
            let segs = unsafe { std::slice::from_raw_parts(vecs.as_ptr().cast::<IoVec>(), vecs.len()) };
            prep_data(kring, self.target, rq, segs, fixed, 0, user_data)
        } else {
            self.prep_gathered(tag, rqs, kring, 0, user_data)
        };
        if done.is_ok() {
            self.held += 1;
        }
        done
    }

    /// Prepares a read or write of several bios, or the rest of a request.
    fn prep_gathered(
        &mut self,
        tag: u16,
        rqs: &RqTable<'_>,
        kring: &mut KernelRing,
        skip: u32,
        user_data: u64,
    ) -> Result<(), Full> {
        let vecs = &mut self.vecs[usize::from(tag)];
        gather(vecs, rqs.segments(tag), skip as usize);
        prep_data(kring, self.target, rqs.by_tag(tag), vecs, None, skip, user_data)
    }

    #[cold]
    fn prep_other(&mut self, tag: u16, rqs: &RqTable<'_>, kring: &mut KernelRing, user_data: u64) -> Result<(), Full> {
        let rq = rqs.by_tag(tag);
        let progress = Progress::from_bits(rq.private);
        let (offset, len) = (rq.sector << SECTOR_SHIFT, u64::from(rq.bytes));
        match rq.op {
            Op::Read | Op::Write => self.prep_gathered(tag, rqs, kring, progress.done, user_data),
            Op::Flush => kring.prep_fsync(self.target, true, user_data),
            _ if progress.syncs() => kring.prep_fsync(self.target, true, user_data),
            Op::Discard => kring.prep_fallocate(self.target, PUNCH_HOLE, offset, len, user_data),
            Op::WriteZeroes => match progress.zeroing() {
                Zeroing::ZeroRange => kring.prep_fallocate(self.target, ZERO_RANGE, offset, len, user_data),
                Zeroing::PunchHole => kring.prep_fallocate(self.target, PUNCH_HOLE, offset, len, user_data),
                Zeroing::Write => self.prep_zeroes(tag, rq, kring, progress.done, user_data),
            },
            // No such operation is sent yet. The kernel returns EOPNOTSUPP for an unknown mode.
            _ => kring.prep_fallocate(self.target, NO_SUCH_MODE, offset, len, user_data),
        }
    }

    /// Writes zeroes, as many as one operation can name; `recover` sends the rest.
    fn prep_zeroes(
        &mut self,
        tag: u16,
        rq: &Request,
        kring: &mut KernelRing,
        skip: u32,
        user_data: u64,
    ) -> Result<(), Full> {
        // Without zeroes the operation names no memory and writes nothing, and the request ends with an error.
        let zeroes = self.shared.zeroes().map_or(std::ptr::null_mut(), |zeroes| zeroes.as_ptr().cast_mut());
        let left = if zeroes.is_null() { 0 } else { (rq.bytes - skip) as usize };
        let vecs = &mut self.vecs[usize::from(tag)];
        vecs.clear();
        vecs.extend(
            (0..left.div_ceil(ZEROES_BYTES).min(MAX_SEGMENTS))
                .map(|at| IoVec { base: zeroes, len: (left - at * ZEROES_BYTES).min(ZEROES_BYTES) }),
        );
        prep_data(kring, self.target, rq, vecs, None, skip, user_data)
    }

    /// Prepares the operation for a request, after an enter if the kernel ring is full.
    fn prep_entering(&mut self, tag: u16, rqs: &RqTable<'_>, env: &mut HwEnv<'_>) -> Result<(), Full> {
        let Some(kring) = &mut env.kring else { return Err(Full) };
        if self.prep(tag, rqs, kring, env.hctx).is_ok() {
            return Ok(());
        }
        // After a refusal there is still no room, and the next try returns `Full`.
        let _ = kring.enter(0, None);
        self.prep(tag, rqs, kring, env.hctx)
    }

    /// Handles a request that is not a plain read or write. Returns the request if the kernel ring must execute it.
    #[cold]
    fn divert(&mut self, rq: Rq, rqs: &mut RqTable<'_>, done: &mut DoneList) -> Option<Rq> {
        let request = rqs.get_mut(&rq);
        if self.shared.refuses(request.op) {
            done.push(rq, Status::ReadOnly);
            return None;
        }
        if self.writes_here && self.is_written_here(rq.tag(), rqs) {
            done.push(rq, Status::Ok);
            return None;
        }
        let request = rqs.get_mut(&rq);
        if request.op == Op::WriteZeroes {
            request.private = Progress::zeroing_by(self.shared.zeroing()).to_bits();
        }
        match &mut self.beside {
            Some(way) if !request.op.has_data() => {
                // SAFETY: no memory is named.
                let ask = unsafe { Ask::new(request, &[]) };
                way.add(rq, ask, false);
                way.send();
                None
            }
            _ => Some(rq),
        }
    }

    /// Writes a request's data into the page cache (I4). Returns false if it is not such a write, or was not completely
    /// successful: the kernel ring then finds the reason.
    fn is_written_here(&mut self, tag: u16, rqs: &RqTable<'_>) -> bool {
        let rq = rqs.by_tag(tag);
        if rq.op != Op::Write || rq.flags & RQ_FUA != 0 || self.shared.refuses(rq.op) {
            return false;
        }
        let vecs = &mut self.vecs[usize::from(tag)];
        gather(vecs, rqs.segments(tag), 0);
        let (Ok(count), Ok(offset)) = (i32::try_from(vecs.len()), i64::try_from(rq.sector << SECTOR_SHIFT)) else {
            return false;
        };
        // SAFETY: I2, for the time of the call; `IoVec` is an `iovec`.
        let written = unsafe { libc::pwritev(self.shared.file.as_raw_fd(), vecs.as_ptr().cast(), count, offset) };
        u32::try_from(written) == Ok(rq.bytes)
    }

    /// Prepares the first request, which is no plain record or found the kernel ring full. Returns true if there was
    /// room (D4).
    #[inline(never)]
    fn queue_other(
        &mut self,
        list: &mut RqList,
        rqs: &mut RqTable<'_>,
        env: &mut HwEnv<'_>,
        done: &mut DoneList,
    ) -> bool {
        let Some(mut rq) = list.pop() else { return true };
        let request = rqs.get_mut(&rq);
        request.private = 0;
        if !request.op.has_data() || self.looks {
            let Some(back) = self.divert(rq, rqs, done) else { return true };
            rq = back;
        }
        if self.prep_entering(rq.tag(), rqs, env).is_err() {
            list.unpop(rq);
            return false;
        }
        drop_token(rq);
        true
    }

    /// Sends a request again, now or with the next poll.
    fn send_again(&mut self, rq: Rq, rqs: &RqTable<'_>, env: &mut HwEnv<'_>) {
        match self.prep_entering(rq.tag(), rqs, env) {
            Ok(()) => drop_token(rq),
            Err(Full) => self.again.push(rq),
        }
    }

    /// Sends requests again that found the kernel ring full.
    #[cold]
    fn send_all_again(&mut self, rqs: &RqTable<'_>, env: &mut HwEnv<'_>) {
        for _ in 0..self.again.len() {
            let Some(rq) = self.again.pop() else { break };
            self.send_again(rq, rqs, env);
        }
    }

    /// Ends the leading successful requests together, then all others one by one.
    #[inline(never)]
    fn kernel_done_many(
        &mut self,
        events: KernelEvents<'_>,
        rqs: &mut RqTable<'_>,
        env: &mut HwEnv<'_>,
        done: &mut DoneList,
    ) {
        let events = events.iter();
        self.held -= events.len() as u32;
        let many = events.clone().take_while(|&event| is_plain_success(event, rqs)).count();
        // SAFETY: I1: as in `kernel_done_slow`.
        unsafe { done.push_ok(events.clone().take(many).map(|event| event.tag)) };
        for event in events.skip(many) {
            self.kernel_done_slow(event, rqs, env, done);
        }
    }

    /// Ends a request, or sends it again, for any result of its operation.
    #[cold]
    fn kernel_done_slow(
        &mut self,
        event: KernelEvent,
        rqs: &mut RqTable<'_>,
        env: &mut HwEnv<'_>,
        done: &mut DoneList,
    ) {
        // SAFETY: I1: the operation that completed was the request's only one, and its token was given up for it.
        let rq = unsafe { Rq::from_tag(event.tag) };
        if is_plain_success(event, rqs) {
            return done.push(rq, Status::Ok);
        }
        let judge = Judge { shared: &self.shared, capacity: &self.capacity, block: self.block, ending: self.ending };
        let request = rqs.get_mut(&rq);
        let mut progress = request.private;
        let verdict = judge.verdict(request, &mut progress, event.res);
        request.private = progress;
        match verdict {
            Verdict::End(status) => done.push(rq, status),
            Verdict::Again => self.send_again(rq, rqs, env),
        }
    }

    fn cancel(&self, tag: u16, env: &mut HwEnv<'_>) {
        let Some(kring) = &mut env.kring else { return };
        let victim = kernel_user_data(env.hctx, tag, KIND_IO);
        let ignored = kernel_user_data(env.hctx, tag, KIND_IGNORED);
        if kring.prep_cancel(victim, ignored).is_err() {
            let _ = kring.enter(0, None);
            // If it is still full, the timeout walk cancels again one timeout later, unless the request has ended.
            let _ = kring.prep_cancel(victim, ignored);
        }
    }
}

#[allow(unsafe_code)] // A driver vouches for the memory of its requests.
// SAFETY: D1 to D6: I1 and I2 of this file: a tag is with the kernel once, and ends when the kernel has given it back.
unsafe impl HwQueue for HostQueue {
    #[inline]
    fn queue_rqs(&mut self, list: &mut RqList, rqs: &mut RqTable<'_>, env: &mut HwEnv<'_>, done: &mut DoneList) {
        match list.only() {
            Some(tag) if self.prep_only(tag, rqs, env) => list.took(1),
            _ => self.queue_many(list, rqs, env, done),
        }
    }

    #[inline]
    fn queue_rq(&mut self, rq: Rq, rqs: &mut RqTable<'_>, env: &mut HwEnv<'_>, done: &mut DoneList) -> Started {
        if self.prep_only(rq.tag(), rqs, env) {
            drop_token(rq);
            return Started::Taken;
        }
        if self.writes_here && self.is_written_here(rq.tag(), rqs) {
            return Started::Ended(rq, Status::Ok);
        }
        let mut list = RqList::default();
        list.add(rq);
        self.queue_many(&mut list, rqs, env, done);
        list.pop().map_or(Started::Taken, Started::Refused)
    }

    #[inline]
    fn poll(&mut self, rqs: &mut RqTable<'_>, env: &mut HwEnv<'_>, _: &mut DoneList) {
        if !self.again.is_empty() {
            self.send_all_again(rqs, env);
        }
    }

    #[inline]
    fn kernel_done(
        &mut self,
        events: KernelEvents<'_>,
        rqs: &mut RqTable<'_>,
        env: &mut HwEnv<'_>,
        done: &mut DoneList,
    ) {
        if let Some(event) = events.only()
            && is_plain_success(event, rqs)
        {
            // The only completion, the usual case at depth 1.
            self.held -= 1;
            // SAFETY: I1: as in `kernel_done_slow`.
            let rq = unsafe { Rq::from_tag(event.tag) };
            return done.push(rq, Status::Ok);
        }
        self.kernel_done_many(events, rqs, env, done);
    }

    fn ended_remotely(&mut self, _: u16, status: Status, _: &mut RqTable<'_>) -> Status {
        if let Some(way) = &mut self.beside {
            way.seen();
        }
        status
    }

    fn next_event(&self) -> NextEvent {
        if !self.again.is_empty() {
            NextEvent::Ready
        } else if self.beside.as_ref().is_some_and(Way::is_busy) {
            NextEvent::Remote
        } else if self.held > 0 {
            NextEvent::Kernel
        } else {
            NextEvent::Idle
        }
    }

    fn timed_out(&mut self, tag: u16, rqs: &mut RqTable<'_>, env: &mut HwEnv<'_>, done: &mut DoneList) -> TimedOut {
        if let Some(rq) = self.again.remove(tag) {
            done.push(rq, Status::Timeout);
            return TimedOut::Ended;
        }
        let request = rqs.by_tag_mut(tag);
        request.private = Progress::from_bits(request.private).timed_out().to_bits();
        self.cancel(tag, env);
        TimedOut::Waiting
    }

    fn shutdown(&mut self, rqs: &mut RqTable<'_>, env: &mut HwEnv<'_>, done: &mut DoneList) {
        if let Some(way) = &mut self.beside {
            way.finish();
        }
        while let Some(rq) = self.again.pop() {
            done.push(rq, Status::Canceled);
        }
        if !std::mem::replace(&mut self.ending, true) && self.held > 0 {
            // Cancelling a request that is not in the kernel is merely useless; the last tag is that of the flush.
            let flush_tag = self.vecs.len() as u16 - 1;
            for tag in (0..=flush_tag).filter(|&tag| tag == flush_tag || rqs.is_live(tag)) {
                self.cancel(tag, env);
            }
        }
        if self.held == 0
            && let (Some(kring), Target::Fixed(slot)) = (&mut env.kring, self.target)
        {
            kring.unregister_file(slot);
            self.target = Target::Raw(-1);
        }
    }
}

/// Returns true if a request has moved all its bytes with its first operation, so that it has no [`Progress`] (I3).
#[inline(always)]
fn is_plain_success(event: KernelEvent, rqs: &RqTable<'_>) -> bool {
    let rq = rqs.by_tag(event.tag);
    // No length equals a negative errno taken as unsigned. A flush has no bytes and is judged by `recover`.
    event.res.cast_unsigned() == rq.bytes && rq.private == 0 && event.res != 0
}

/// Gives up the token of a request that the kernel has now: its completion makes a new one.
#[inline]
fn drop_token(rq: Rq) {
    let _ = rq.into_tag();
}

/// Prepares a read or write of the rest of a request after `skip` bytes, whose memory is `segs`.
#[inline]
fn prep_data(
    kring: &mut KernelRing,
    target: Target,
    rq: &Request,
    segs: &[IoVec],
    fixed: Option<u16>,
    skip: u32,
    user_data: u64,
) -> Result<(), Full> {
    let op = if rq.op == Op::Read { KOp::Read } else { KOp::Write };
    let rw_flags = if rq.flags & RQ_FUA != 0 { libc::RWF_DSYNC } else { 0 };
    let offset = (rq.sector << SECTOR_SHIFT) + u64::from(skip);
    // SAFETY: I2.
    unsafe { kring.prep_rw(op, target, segs, fixed, offset, rw_flags, user_data) }
}

/// Fills `vecs` with the memory after the first `skip` bytes; pieces that are adjacent in memory become one.
pub(super) fn gather(vecs: &mut Vec<IoVec>, segments: impl Iterator<Item = Segment>, mut skip: usize) {
    vecs.clear();
    for mut seg in segments {
        skip -= seg.take_front(skip).len();
        match vecs.last_mut() {
            _ if seg.is_empty() => {}
            Some(last) if last.base.addr() + last.len == seg.base() => last.len += seg.len(),
            _ => vecs.push(IoVec { base: seg.base() as *mut u8, len: seg.len() }),
        }
    }
}
