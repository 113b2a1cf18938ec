//! Flushes of one hardware context, and the sequences of bios that need them.
//!
//! Owns the bios that wait for a flush, and the steps of a sequence ([`Step`]), which only [`Hctx::advance`] changes.
//! A device without a volatile cache needs no sequences: its flushes end at once, and FUA and PREFLUSH are dropped. On
//! any other device a bio passes through up to three steps: PREFLUSH, DATA, POSTFLUSH. Native FUA saves the last of
//! them.
//!
//! The flush request has a tag of its own, so that a flush never waits for a data request.
//!
//! Conditions:
//! - C1: at most one flush is in flight on a hardware context. Bios that need one meanwhile wait for the next, which
//!   serves them all.
//! - C2: a flush issued at T covers every write that completed before T. A bio joins `pending`, never the running
//!   flush.
//! - C3: a bio ends when its last step has ended; the first error ends the sequence.
//! - C4: a failed flush triggers the [alarms](crate::flush_alarm) of the device's watchers before any bio ends with it.
//!   From then on every flush that a watcher relies on fails.
//!
//! Called by `stall` when a bio is admitted, and by `complete` when a flush or the data of a sequence has ended.

use sheave_base::clock::CoarseTs;
use sheave_base::status::Status;
use sheave_base::sync::atomic::Ordering;

use super::Hctx;
use crate::bio::{BIO_FUA, BIO_OWNER, BIO_PREFLUSH, BIO_WAITED, Bio, BioId, Op};
use crate::bio_set::{BioList, BioSet};
use crate::driver::Capabilities;
use crate::end_io::EndIo;
use crate::request::{RQ_FLUSH_SEQ, RQ_FUA, RQ_NOMERGE, Request, RqHead};
use crate::ring_core::Core;
use crate::stats::Split;

/// Steps of a sequence, in order. A bio skips those that it does not need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// The bio was not admitted yet, or needs no sequence.
    Start,
    /// The bio waits for a flush of the writes that completed before it. The only step of a flush.
    PreFlush,
    /// The bio waits for a request, or its requests are in flight.
    Data,
    /// The data is in the device's cache, and the bio waits for a flush that makes it durable.
    PostFlush,
    /// No step is left: the bio ends.
    Done,
}

impl Step {
    /// Returns the step of `bio` that follows this one, if this one has succeeded.
    fn next(self, bio: &Bio, caps: Capabilities) -> Step {
        let preflush = caps.volatile_cache && (bio.op == Op::Flush || bio.flags & BIO_PREFLUSH != 0);
        let postflush = caps.volatile_cache && !caps.fua && is_fua_write(bio);
        match self {
            Step::Start if preflush => Step::PreFlush,
            Step::Start | Step::PreFlush if bio.op == Op::Flush => Step::Done,
            Step::Start | Step::PreFlush => Step::Data,
            Step::Data if postflush => Step::PostFlush,
            Step::Data | Step::PostFlush | Step::Done => Step::Done,
        }
    }
}

/// Returns true if the data of the bio must be durable when it ends. FUA means nothing to a read.
fn is_fua_write(bio: &Bio) -> bool {
    bio.flags & BIO_FUA != 0 && bio.op != Op::Read
}

impl Hctx {
    /// Ends the current step of a bio with `status`, and returns the next one (C3). A step that waits for a flush is
    /// begun here. For DATA the caller sends or queues the bio; after the last step it ends the bio.
    fn advance(&mut self, core: &mut Core, id: BioId, status: Status) -> Step {
        let bio = &mut core.bios[id];
        let step = if status.is_ok() { bio.step.next(bio, self.queue.capabilities()) } else { Step::Done };
        bio.step = step;
        match step {
            Step::PreFlush | Step::PostFlush => self.flush.join(&mut core.bios, id), // C2
            // Its flush has ended, so the data may be merged with that of other bios.
            Step::Data => bio.flags &= !BIO_PREFLUSH,
            Step::Start | Step::Done => {}
        }
        step
    }

    /// Admits a bio that has no data, or has FUA or PREFLUSH set. Returns false if it must wait for tags or bios.
    pub(super) fn admit_special(&mut self, core: &mut Core, id: BioId) -> bool {
        let bio = &mut core.bios[id];
        if bio.step != Step::Start {
            debug_assert_eq!(bio.step, Step::Data, "a bio that waits for a flush is in no other list");
            return self.send_data(core, id);
        }
        if !self.queue.capabilities().volatile_cache {
            bio.flags &= !(BIO_FUA | BIO_PREFLUSH);
        }
        let lacks_op = matches!(bio.op, Op::Discard | Op::WriteZeroes) && self.queue.limits().max_bytes(bio.op) == 0;
        let status = if lacks_op { Status::NotSupp } else { Status::Ok };
        match self.advance(core, id, status) {
            Step::Data => return self.send_data(core, id),
            Step::Done => core.end_later(id, status),
            Step::Start | Step::PreFlush | Step::PostFlush => {}
        }
        true
    }

    /// Makes requests of a bio's data. Returns false if the bio must wait for tags or bios.
    fn send_data(&mut self, core: &mut Core, id: BioId) -> bool {
        // Without native FUA the request comes back to `complete_sequences`, for a POSTFLUSH to follow.
        let flags = match is_fua_write(&core.bios[id]) {
            false => 0,
            true if self.queue.capabilities().fua => RQ_FUA | RQ_NOMERGE,
            true => RQ_FLUSH_SEQ | RQ_NOMERGE,
        };
        self.cut_and_gather(core, id, flags)
    }

    /// Called when a step of a bio that was admitted has ended with `status`.
    fn step_ended(&mut self, core: &mut Core, id: BioId, status: Status, last: LastStep, end: &mut dyn EndIo) {
        match self.advance(core, id, status) {
            Step::Data => self.waiting.push_back(&mut core.bios, id),
            Step::Done => end_sequence(core, id, status, last, end),
            Step::Start | Step::PreFlush | Step::PostFlush => {}
        }
    }

    /// Returns the tag of the flush request.
    pub(crate) fn flush_tag(&self) -> u16 {
        self.shared.tags.depth()
    }

    /// Gathers the flush request if bios wait for a flush and none is in flight (C1).
    pub(super) fn kick_flush(&mut self, core: &mut Core) {
        if !self.flush.issue() {
            return;
        }
        let tag = self.flush_tag();
        let start = if self.counts { core.plug.now(&core.clock) } else { CoarseTs::default() };
        let generation = self.rqs[tag].generation.wrapping_add(1);
        let head = RqHead { op: Op::Flush, flags: RQ_FLUSH_SEQ, start, generation, ..RqHead::default() };
        self.rqs[tag] = Request { head, ..Request::unused() };
        // `publish_batch` sets `HctxShared::flushing`, which stands for the tag of the flush request.
        self.tags.publish_by_words();
        self.push_gathered(core, tag);
    }

    /// Takes back the flush request, which the driver did not get.
    pub(super) fn take_back_flush(&mut self, core: &mut Core) {
        // Release: like a tag that is freed.
        self.shared.flushing.store(0, Ordering::Release);
        self.flush.unissue(&mut core.bios);
    }

    /// Ends the requests of the batch that belong to flush sequences, and reports writes with FUA that failed to the
    /// watches.
    #[cold]
    pub(super) fn complete_sequences(&mut self, core: &mut Core, now: Option<CoarseTs>, end: &mut dyn EndIo) {
        let flush_tag = self.flush_tag();
        self.stamps.look_again();
        for at in 0..self.done.len() {
            let tag = self.done.tags()[at];
            let status = self.done.status(tag);
            let rq = &mut self.rqs[tag];
            // A write refused for lack of space reached no cache, so it does not show that earlier writes were lost.
            if rq.flags & RQ_FUA != 0 && status != Status::NoSpc {
                self.queue.watches().failed(status);
            }
            if rq.flags & RQ_FLUSH_SEQ == 0 {
                continue;
            }
            // The split of this step alone. `end_sequence` adds the time that its bios have waited before it.
            let split = now.map(|now| self.stamps.split_of(at, tag, rq, core.looked, now)).unwrap_or_default();
            if tag == flush_tag {
                // Release: like a tag that is freed.
                self.shared.flushing.store(0, Ordering::Release);
                self.flush_done(core, status, (split, now), end);
                continue;
            }
            let mut id = std::mem::replace(&mut rq.bio_head, BioId::NONE); // C1 of `complete`
            while id.is_some() {
                let next = core.bios[id].next;
                self.step_ended(core, id, status, (split, now), end);
                id = next;
            }
            self.freed.add(tag);
        }
        self.stalled = true;
    }

    /// Ends the flush in flight. Each of its bios goes on to its next step.
    fn flush_done(&mut self, core: &mut Core, status: Status, last: LastStep, end: &mut dyn EndIo) {
        if !status.is_ok() {
            self.queue.watches().failed(status); // C4
        }
        let mut served = self.flush.end();
        while let Some(id) = served.pop(&mut core.bios) {
            let bio = &core.bios[id];
            // Once an alarm was triggered, no flush of the watched part may succeed, even if the device says so (A2 of
            // `flush_alarm`). Flushes of the owner itself get the device's own result.
            let believed = bio.flags & BIO_OWNER != 0 || !self.queue.watches().distrusts(bio.part);
            let status = if status.is_ok() && !believed { Status::IoErr } else { status };
            self.step_ended(core, id, status, last, end);
        }
    }
}

/// Split of a sequence's last step, and the time it was reaped, which is `None` without statistics.
type LastStep = (Split, Option<CoarseTs>);

/// Ends a bio after its last step. All time before that step counts as waiting for a tag, including the earlier steps.
fn end_sequence(core: &mut Core, id: BioId, status: Status, (mut split, now): LastStep, end: &mut dyn EndIo) {
    let bio = &core.bios[id];
    if let Some(now) = now
        && bio.flags & BIO_WAITED != 0
    {
        split.tag_ns += now.ns_since(bio.waited_from).saturating_sub(split.total_ns());
    }
    core.split = split;
    core.end_bio_slow(id, status, end);
}

/// Bios that wait for a flush of one hardware context.
#[derive(Debug, Default)]
pub(super) struct FlushQueue {
    /// Bios that wait for the next flush.
    pending: BioList,
    /// Bios that wait for the flush in flight.
    running: BioList,
    in_flight: bool,
}

impl FlushQueue {
    /// Makes the bio wait for the next flush (C2).
    fn join(&mut self, bios: &mut BioSet, id: BioId) {
        self.pending.push_back(bios, id);
    }

    /// Returns true if a flush must be issued now, for all waiting bios (C1). It counts as in flight from then on.
    fn issue(&mut self) -> bool {
        if self.in_flight || self.pending.is_empty() {
            return false;
        }
        self.in_flight = true;
        self.running = self.pending.take();
        true
    }

    /// Ends the flush in flight. Returns the bios that waited for it.
    fn end(&mut self) -> BioList {
        self.in_flight = false;
        self.running.take()
    }

    pub(super) fn is_running(&self) -> bool {
        self.in_flight
    }

    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Takes back a flush that was not passed to the driver after all. Its bios wait again, before those that came
    /// later.
    fn unissue(&mut self, bios: &mut BioSet) {
        self.in_flight = false;
        let mut later = self.pending.take();
        self.pending = self.running.take();
        while let Some(id) = later.pop(bios) {
            self.pending.push_back(bios, id);
        }
    }

    /// Cancels the bios that wait for a flush which will not be issued.
    pub(super) fn cancel_pending(&mut self, core: &mut Core) {
        while let Some(id) = self.pending.pop(&mut core.bios) {
            core.end_later(id, Status::Canceled);
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::support::{BLOCK, Puppet, Rig};

    fn device(volatile_cache: bool, fua: bool) -> Puppet {
        Puppet::new().caps(|caps| (caps.volatile_cache, caps.fua) = (volatile_cache, fua))
    }

    /// Returns the requests that the device got, as words.
    fn asked(puppet: &Puppet) -> Vec<&'static str> {
        let name = |op, fua| match (op, fua) {
            (Op::Write, true) => "write-fua",
            (op, false) => Op::name(op),
            _ => "odd",
        };
        puppet.script().seen.iter().map(|seen| name(seen.op, seen.flags & RQ_FUA != 0)).collect()
    }

    fn write(rig: &mut Rig, flags: u16, owner: u32) {
        assert!(rig.io_flags(Op::Write, flags, u64::from(owner) * 16, BLOCK, owner));
    }

    #[test]
    fn what_each_device_is_asked_for() {
        let both = BIO_FUA | BIO_PREFLUSH;
        let cases: [(bool, bool, u16, &[&str]); 9] = [
            (false, false, both, &["write"]),
            (false, true, both, &["write"]),
            (true, false, 0, &["write"]),
            (true, false, BIO_FUA, &["write", "flush"]),
            (true, false, BIO_PREFLUSH, &["flush", "write"]),
            (true, false, both, &["flush", "write", "flush"]),
            (true, true, BIO_FUA, &["write-fua"]),
            (true, true, BIO_PREFLUSH, &["flush", "write"]),
            (true, true, both, &["flush", "write-fua"]),
        ];
        for (cache, fua, flags, expect) in cases {
            let puppet = device(cache, fua);
            let mut rig = Rig::new(&[&puppet.device()]);
            write(&mut rig, flags, 0);
            rig.drain();
            assert_eq!(asked(&puppet), expect, "cache {cache}, FUA {fua}, flags {flags:#x}");
            assert_eq!(rig.take_ok(), [0]);
        }
    }

    #[test]
    fn flushes_of_a_device_without_a_cache_end_at_once() {
        let puppet = device(false, true).holding();
        let mut rig = Rig::new(&[&puppet.device()]);
        rig.flush(0);
        rig.poll();
        assert_eq!(rig.take_ok(), [0]);
        assert!(asked(&puppet).is_empty());
    }

    #[test]
    fn a_read_may_carry_the_flags() {
        let puppet = device(true, true);
        let mut rig = Rig::new(&[&puppet.device()]);
        rig.io_flags(Op::Read, BIO_FUA | BIO_PREFLUSH, 0, BLOCK, 0);
        rig.drain();
        assert_eq!(asked(&puppet), ["flush", "read"], "FUA means nothing to a read");
        assert_eq!(rig.take_ok(), [0]);
    }

    #[test]
    fn discards_and_write_zeroes_take_part() {
        let puppet = device(true, false);
        let mut rig = Rig::new(&[&puppet.device()]);
        rig.io_flags(Op::WriteZeroes, BIO_FUA, 0, BLOCK, 0);
        rig.drain();
        rig.io_flags(Op::Discard, BIO_PREFLUSH, 0, BLOCK, 1);
        rig.drain();
        assert_eq!(asked(&puppet), ["write-zeroes", "flush", "flush", "discard"]);
        assert_eq!(rig.take_ok(), [0, 1]);
        let puppet = device(true, false).limits(|limits| limits.max_discard_sectors = 0);
        let mut rig = Rig::new(&[&puppet.device()]);
        rig.io_flags(Op::Discard, BIO_PREFLUSH, 0, BLOCK, 0);
        rig.drain();
        assert_eq!(rig.take_ended(), [(0, Status::NotSupp)]);
        assert!(asked(&puppet).is_empty(), "what cannot be done needs no flush");
    }

    #[test]
    fn one_flush_in_flight_and_the_next_serves_all_who_came_meanwhile() {
        let puppet = device(true, false).holding();
        let mut rig = Rig::new(&[&puppet.device()]);
        rig.flush(0);
        (1..10).for_each(|owner| assert!(rig.flush(owner)));
        for _ in 0..3 {
            rig.poll();
        }
        assert_eq!(asked(&puppet), ["flush"], "C1");
        puppet.script().finish = 1;
        rig.poll();
        assert_eq!(rig.take_ok(), [0], "C2: who came later is not served by it");
        assert_eq!(asked(&puppet), ["flush", "flush"]);
        rig.flush(10);
        puppet.script().finish = 1;
        rig.poll();
        assert_eq!(rig.take_ok(), (1..10).collect::<Vec<u32>>());
        puppet.script().finish = 1;
        rig.poll();
        assert_eq!(rig.take_ok(), [10]);
        assert_eq!(asked(&puppet).len(), 3);
    }

    #[test]
    fn an_error_in_any_step_ends_the_sequence_with_it() {
        // The n-th request of the sequence fails, and the device gets no later ones.
        for (fail_at, expect) in [(0, &["flush"][..]), (1, &["flush", "write"]), (2, &["flush", "write", "flush"])] {
            let puppet = device(true, false).holding();
            let mut rig = Rig::new(&[&puppet.device()]);
            write(&mut rig, BIO_FUA | BIO_PREFLUSH, 0);
            for at in 0..3 {
                rig.poll();
                let bad = vec![(Op::Flush, Status::Medium), (Op::Write, Status::Medium)];
                puppet.script().fail = if at == fail_at { bad } else { Vec::new() };
                puppet.script().finish = 1;
                rig.poll();
            }
            assert_eq!(rig.take_ended(), [(0, Status::Medium)]);
            assert_eq!(asked(&puppet), expect);
            assert!(rig.ctx.is_idle());
            // The next sequence is not affected.
            puppet.script().fail.clear();
            puppet.script().finish = u32::MAX;
            write(&mut rig, BIO_FUA | BIO_PREFLUSH, 1);
            rig.drain();
            assert_eq!(rig.take_ok(), [1]);
        }
    }

    #[test]
    fn a_failed_flush_fails_all_who_waited_for_it() {
        let puppet = device(true, false).holding();
        let mut rig = Rig::new(&[&puppet.device()]);
        rig.flush(0);
        rig.flush(1);
        write(&mut rig, BIO_PREFLUSH, 2);
        puppet.script().finish = 1;
        rig.poll();
        puppet.script().fail = vec![(Op::Flush, Status::Transport)];
        puppet.script().finish = 1;
        rig.poll();
        assert_eq!(rig.take_ended(), [(0, Status::Ok), (1, Status::Transport), (2, Status::Transport)]);
        assert_eq!(asked(&puppet), ["flush", "flush"], "no data after a flush that failed");
    }

    #[test]
    fn a_flush_needs_no_tag_of_the_data() {
        for host_depth in [None, Some(2)] {
            let puppet = Puppet { host_depth, ..device(true, false).depth(2).holding() };
            let mut rig = Rig::new(&[&puppet.device()]);
            (0..6).for_each(|owner| write(&mut rig, 0, owner));
            rig.poll();
            assert_eq!(asked(&puppet).len(), 2, "all tags are in use, and bios wait");
            rig.flush(6);
            write(&mut rig, BIO_FUA, 7);
            puppet.script().lifo = true;
            puppet.script().finish = 1;
            for _ in 0..3 {
                rig.poll();
            }
            puppet.script().finish = u32::MAX;
            rig.drain();
            let mut ended = rig.take_ok();
            ended.sort_unstable();
            assert_eq!(ended, (0..8).collect::<Vec<u32>>());
        }
    }

    #[test]
    fn the_pieces_of_a_split_write_are_all_made_durable() {
        for (fua, expect) in [(true, 0), (false, 1)] {
            let puppet = device(true, fua).limits(|limits| limits.max_sectors = 8).holding();
            let mut rig = Rig::new(&[&puppet.device()]);
            rig.io_flags(Op::Write, BIO_FUA | BIO_PREFLUSH, 0, 4 * BLOCK, 0);
            puppet.script().finish = 1;
            rig.poll();
            rig.poll();
            assert_eq!(asked(&puppet).len(), 5, "one flush before all the pieces");
            puppet.script().finish = 4;
            rig.poll();
            assert_eq!(rig.ended.is_empty(), !fua, "without FUA of its own the device is flushed after the last piece");
            puppet.script().finish = u32::MAX;
            rig.drain();
            assert_eq!(rig.take_ok(), [0]);
            let flushes = asked(&puppet).iter().filter(|&&op| op == "flush").count();
            assert_eq!(flushes, 1 + expect);
            assert_eq!(asked(&puppet).iter().filter(|&&op| op == "write-fua").count(), if fua { 4 } else { 0 });
        }
    }

    #[test]
    fn a_flush_that_was_not_issued_comes_again_before_later_ones() {
        let mut bios = BioSet::new(8, 8);
        let ids: Vec<BioId> = (0..5).map(|_| bios.take().unwrap()).collect();
        let mut flush = FlushQueue::default();
        ids[..2].iter().for_each(|&id| flush.join(&mut bios, id));
        assert!(flush.issue());
        ids[2..].iter().for_each(|&id| flush.join(&mut bios, id));
        assert!(!flush.issue(), "one is in flight");
        flush.unissue(&mut bios);
        assert!(!flush.is_running() && flush.has_pending());
        assert!(flush.issue());
        let mut served = flush.end();
        let order: Vec<BioId> = std::iter::from_fn(|| served.pop(&mut bios)).collect();
        assert_eq!(order, ids);
    }
}
