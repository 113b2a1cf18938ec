//! Entries that a hardware context writes to the trace of its ring: one for each request that ends.
//!
//! Owns the conversion of a request to an entry. Not called while the ring has no trace. The file format is in
//! [`sheave_base::trace`]. Entries of records that ended together differ only in sector and length.

use sheave_base::clock::CoarseTs;
use sheave_base::status::Status;
use sheave_base::trace::writer::TraceWriter;
use sheave_base::trace::{Common, TraceOp};

use super::Hctx;
use crate::bio::Op;
use crate::end_io::EndIo;
use crate::queue::Queue;
use crate::request::{Request, RqHead};
use crate::ring_core::Core;
use crate::stats::Split;

/// File number of a request with bios, whose owners are not known here.
const NO_FILE: u16 = u16::MAX;

/// The hardware context in which a request ends.
pub(super) struct Whence<'a> {
    pub(super) queue: &'a Queue,
    pub(super) index: u16,
    pub(super) in_driver: u32,
}

impl Whence<'_> {
    #[inline(always)]
    fn common(&self, trace: &mut TraceWriter, op: Op, status: Status, split: &Split, now: CoarseTs) -> Common {
        Common {
            ended_ns: now.0,
            depth: u16::try_from(self.in_driver).unwrap_or(u16::MAX),
            file: NO_FILE,
            device: trace.number(self.index as u8, || self.queue.name()),
            status: status as u8,
            op: traced(op),
            stages: [split.worker_ns, split.tag_ns, split.plugged_ns, split.driver_ns, split.reap_ns],
        }
    }
}

fn traced(op: Op) -> TraceOp {
    match op {
        Op::Read => TraceOp::Read,
        Op::Write => TraceOp::Write,
        Op::Flush => TraceOp::Flush,
        Op::Discard => TraceOp::Discard,
        Op::WriteZeroes => TraceOp::WriteZeroes,
    }
}

/// Writes the entry of a request with bios.
#[cold]
pub(super) fn put(
    trace: &mut TraceWriter,
    whence: &Whence<'_>,
    rq: &Request,
    status: Status,
    split: &Split,
    now: CoarseTs,
) {
    let common = whence.common(trace, rq.op, status, split, now);
    trace.push(&common, 1, |_| (rq.sector, rq.bytes));
}

impl Hctx {
    /// Writes the entries of `many` plain records that ended together, from index `at` of the batch on. `first` is the
    /// head of the first one.
    #[inline(never)]
    pub(super) fn trace_run(
        &self,
        core: &mut Core,
        (at, many): (usize, usize),
        first: &RqHead,
        times: (&Split, CoarseTs),
        end: &impl EndIo,
    ) {
        let (Some(trace), Some(tags)) = (&mut core.trace, self.done.tags().get(at..at + many)) else { return };
        let Some(&tag) = tags.first() else { return };
        // Several records end together only if all have succeeded, so one status serves for all.
        self.trace_records(trace, tags, self.done.status(tag), first, times, end);
    }

    /// Writes the entry of a plain record that succeeded in the call that sent it alone.
    #[inline(always)]
    pub(super) fn trace_alone(&self, core: &mut Core, tag: u16, times: (u64, CoarseTs), end: &impl EndIo) {
        if let Some(trace) = &mut core.trace {
            self.trace_one(trace, tag, times, end);
        }
    }

    /// Reads the operation from the request, so that a call without a trace keeps no values in memory for it.
    #[cold]
    #[inline(never)]
    fn trace_one(&self, trace: &mut TraceWriter, tag: u16, (latency_ns, now): (u64, CoarseTs), end: &impl EndIo) {
        let (first, split) = (self.rqs[tag].head, Split::in_driver(latency_ns));
        self.trace_records(trace, &[tag], Status::Ok, &first, (&split, now), end);
    }

    #[inline(always)]
    fn trace_records(
        &self,
        trace: &mut TraceWriter,
        tags: &[u16],
        status: Status,
        first: &RqHead,
        (split, now): (&Split, CoarseTs),
        end: &impl EndIo,
    ) {
        // A record that was sent alone is not in the count any more, or is not yet.
        let in_driver = self.in_driver.max(tags.len() as u32);
        let whence = Whence { queue: &self.queue, index: self.index, in_driver };
        let file = end.file_of(first.tail_or_owner).unwrap_or(NO_FILE);
        let common = Common { file, ..whence.common(trace, first.op, status, split, now) };
        trace.push(&common, tags.len(), |at| {
            let rq = &self.rqs[tags[at]];
            (rq.sector, rq.bytes)
        });
    }
}
