//! Accounting of requests: busy time of the hardware context, and entries in the trace of its ring.
//!
//! Owns the points at which the [statistics](crate::stats) are updated, and the conversion of a request to an entry.
//!
//! Busy time lasts from the issue of a request that finds the context idle to the end of the last one. A request counts
//! from when it is accounted: the driver has it or refused it, or a quiesced queue holds it back. Gathered requests do
//! not count, nor do those that a frozen queue takes apart before the driver got them.
//!
//! A trace gets one entry for each request that ends; the file format is in [`sheave_base::trace`]. Entries of records
//! that ended together differ only in sector and length. Without a trace none of this is called.
//!
//! - T1: with statistics on, a busy period is open exactly while `in_driver` is not 0, except within calls.

use sheave_base::clock::CoarseTs;
use sheave_base::status::Status;
use sheave_base::trace::writer::TraceWriter;
use sheave_base::trace::{Common, TraceOp};

use super::Hctx;
use crate::bio::Op;
use crate::end_io::EndIo;
use crate::queue::{Gate, Queue};
use crate::request::{Request, RqHead};
use crate::ring_core::Core;
use crate::stats::{OpTallies, Split};

impl Hctx {
    /// Begins a busy period with the gathered requests if no other request is accounted.
    #[inline(always)]
    pub(super) fn begin_busy(&mut self) {
        if self.counts
            && self.in_driver == self.gathered.len() as u32
            && let Some(&first) = self.gathered.tags().first()
        {
            self.shared.stats.busy.begin(self.busy_edge, self.rqs[first].start);
        }
        if !self.parts.is_empty() {
            self.begin_gathered_parts();
        }
    }

    #[cold]
    pub(super) fn begin_gathered_parts(&mut self) {
        let gathered = std::mem::take(&mut self.gathered);
        self.begin_parts(gathered.tags(), None);
        self.gathered = gathered;
    }

    /// Accounts requests that the closed gate keeps from the driver: the gathered ones, or one that was sent alone at
    /// `start`.
    #[cold]
    pub(super) fn begin_held(&mut self, core: &Core, gate: Gate, tags: &[u16], start: CoarseTs) {
        let now = gate.is_frozen().then(|| core.clock.coarse());
        if self.counts && self.in_driver == tags.len() as u32 {
            self.shared.stats.busy.begin(self.busy_edge, now.unwrap_or(start));
        }
        self.begin_parts(tags, now);
    }

    /// Accounts a request that was sent alone and is with the driver.
    #[inline(always)]
    pub(super) fn begin_alone(&mut self, start: CoarseTs) {
        if self.in_driver == 1 && self.counts {
            self.shared.stats.busy.begin_at(start);
        }
        if !self.parts.is_empty() {
            self.parts.begin(self.lane.head.part, self.counts.then_some(start));
        }
    }

    /// Ends the busy period if `ended` requests have ended and no other is accounted.
    #[inline(always)]
    pub(super) fn end_busy_if_idle(&mut self, ended: u32, now: Option<CoarseTs>) {
        if self.in_driver == 0
            && ended != 0
            && let Some(now) = now
        {
            self.shared.stats.busy.end(&mut self.busy_edge, now);
        }
    }

    /// Ends the busy period if all accounted requests were taken apart.
    #[cold]
    pub(super) fn end_busy_if_apart(&mut self, core: &Core) {
        let now = self.counts.then(|| core.clock.coarse());
        self.end_busy_if_idle(1, now);
    }

    /// Turns statistics on or off. Requests in flight count from the moment at which they are turned on; requests that
    /// end while they are off are not counted. `new` requests are counted in `in_driver` already, but belong to no busy
    /// period yet.
    #[cold]
    pub(crate) fn set_counts(&mut self, core: &Core, on: bool, new: u32) {
        if on == self.counts {
            return;
        }
        self.counts = on;
        let now = core.clock.coarse();
        if on {
            self.rqs.all().iter_mut().for_each(|rq| rq.start = now);
            self.lane.time = now;
            self.restart_stamps(now);
        }
        if self.in_driver > new {
            let busy = &self.shared.stats.busy;
            if on { busy.begin(self.busy_edge, now) } else { busy.end(&mut self.busy_edge, now) }
        }
        self.parts.turn(on, now);
    }

    /// Follows the ring's setting for statistics, if the device keeps them too.
    pub(crate) fn set_ring_counts(&mut self, core: &Core, on: bool) {
        self.set_counts(core, on && self.open_gate.keeps_stats(), 0);
    }

    /// Adds the busy time of an I/O that was sent alone and ended in its call.
    #[inline(always)]
    pub(super) fn add_alone(&mut self, start: CoarseTs, now: CoarseTs) {
        if self.in_driver == 0 {
            self.shared.stats.busy.add_period(&mut self.busy_edge, start, now);
        }
        if !self.parts.is_empty() {
            self.parts.add_period(self.lane.head.part, start, now);
        }
    }

    /// Gives partition `part` statistics of its own.
    pub(crate) fn open_part(&mut self, part: u16) {
        self.parts.open(part, &self.shared.stats);
    }

    /// Returns the partition under which records of `part` are counted: its own, or 0 for the whole device.
    pub(crate) fn known_part(&self, part: u16) -> u16 {
        if self.parts.get(part).is_some() { part } else { 0 }
    }

    /// Returns the tallies of the partition, or of the whole device if the partition has none.
    #[inline]
    pub(super) fn tallies_of(&self, part: u16) -> &OpTallies {
        self.parts.get(part).map_or(&self.shared.stats.own, |slot| &slot.stats.tallies)
    }

    /// Accounts requests for their partitions, from `start` or from their issue.
    #[cold]
    pub(super) fn begin_parts(&mut self, tags: &[u16], start: Option<CoarseTs>) {
        for &tag in tags {
            let rq = &self.rqs[tag];
            self.parts.begin(rq.part, self.counts.then(|| start.unwrap_or(rq.start)));
        }
    }

    /// Ends the accounting of all requests in `done` for their partitions.
    #[cold]
    pub(super) fn end_parts(&mut self, now: Option<CoarseTs>) {
        let Hctx { parts, done, rqs, .. } = self;
        done.tags().iter().for_each(|&tag| parts.end(rqs[tag].part, now));
    }
}

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
pub(super) fn trace_request(
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
        let whence = Whence { queue: &self.queue, index: self.hw.index(), in_driver };
        let file = end.file_of(first.tail_or_owner).unwrap_or(NO_FILE);
        let common = Common { file, ..whence.common(trace, first.op, status, split, now) };
        trace.push(&common, tags.len(), |at| {
            let rq = &self.rqs[tags[at]];
            (rq.sector, rq.bytes)
        });
    }
}
