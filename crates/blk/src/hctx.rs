//! The hardware context: one ring's way into one device.
//!
//! Owns the preallocated requests, their tags, the gathered, refused and waiting work, and the driver's
//! [`HwQueue`](crate::driver::HwQueue). Belongs to its ring's thread; what other threads may touch is in
//! [`HctxShared`].
//!
//! The way of a bio: [`Hctx::add`] merges it or gives it a request, which is *gathered* under the plug;
//! [`Hctx::flush`] hands the gathered to the driver; what the driver cannot take is *refused* and goes first the next
//! time. A bio that cannot have a request now (no tag, gate closed, to be cut) is *waiting*, first in first out.
//! [`Hctx::complete`] ends requests in batches.
//!
//! Invariants:
//! - I1: order: refused before gathered, waiting before new. While bios wait, new ones queue behind them.
//! - I2: every bio added ends exactly once, through `end` of [`Hctx::complete`] or the core's list of ended bios.
//! - I3: `stalled` is false only if nothing waits and the gate was seen open at the last flush; the fast path
//!   checks nothing else.

mod complete;
mod contained;
mod entry;
mod gather;
mod parts;
mod sequence;
mod stages;
mod stall;
mod stamps;
mod times;
mod traced;

use crossbeam_utils::CachePadded;
use sheave_base::asymmetric::Mark;
use sheave_base::clock::{CoarseTs, PreciseTs};
use sheave_base::identity;
use sheave_base::mpscq::{Consumer, MpscQueue};
use sheave_base::status::Status;
use sheave_base::sync::Arc;
use sheave_base::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use crate::bio::{BIO_FUA, BIO_PREFLUSH, BIO_WAITED, BioId, NO_FIXED_BUF, Op};
use crate::bio_set::BioList;
use crate::driver::{HctxOpen, HwEnv, KernelEvents, NextEvent, Remote};
use crate::end_io::EndIo;
use crate::error::DeviceError;
use crate::flush::FlushQueue;
use crate::hctx_shared::{HctxShared, Waker};
use crate::limits::Capacity;
use crate::merge;
use crate::plain_io::OpenLane;
use crate::queue::{Gate, Queue};
use crate::request::{
    DoneList, PLUG_LONG, RQ_FLUSH_SEQ, RQ_FUA, RQ_NOMERGE, Request, Requests, Rq, RqHead, RqList, RqQueue, RqTable,
};
use crate::ring_core::Core;
use crate::stack::Lower;
use crate::stats::{BusyEdge, HctxStats};
use crate::tag_set::{Freed, TagSet, Tags};
use crate::timeout::TimeoutWalk;

use self::contained::Contained;
use self::parts::Parts;
use self::stamps::Stamps;

/// One ring's way into one device.
#[derive(Debug)]
pub(crate) struct Hctx {
    pub(crate) queue: Arc<Queue>,
    /// The queue's, one step nearer.
    pub(crate) capacity: Capacity,
    pub(crate) shared: Arc<HctxShared>,
    /// No other hardware context of the process has or had it.
    key: u64,
    index: u16,
    /// `1 << index`, its place in the plug's mask.
    bit: u64,
    /// Requests that hold a tag and are not gathered: in the driver's hands or refused.
    in_driver: u32,
    busy_edge: BusyEdge,
    /// Statistics are kept: by the ring, and of the device.
    counts: bool,
    /// The gate as it is when it is open, for a device that is counted or not.
    open_gate: Gate,
    parts: Parts,
    /// Longest plain read or write that surely needs no cut; 0 when a boundary makes that depend on the place.
    plain_bytes: u32,
    /// Attached devices that lead here.
    pub(crate) users: u32,
    stalled: bool,
    /// What marks a plain bio that may be cached.
    cacheable: u16,
    tags: Tags,
    rqs: Requests,
    hw: Contained,
    /// The driver's [`HwQueue::ends_in_call`](crate::driver::HwQueue::ends_in_call).
    ends_in_call: bool,
    /// The driver's [`HwQueue::works_alone`](crate::driver::HwQueue::works_alone).
    works_alone: bool,
    gathered: RqList,
    lane: OpenLane,
    refused: RqQueue,
    pub(crate) waiting: BioList,
    pub(crate) flush: FlushQueue,
    done: DoneList,
    stamps: Stamps,
    freed: Freed,
    remote: Consumer,
    timeouts: TimeoutWalk,
    /// Grows with every batch that frees tags: no tag is used twice in one, so it tells the uses of a tag apart.
    epoch: u32,
    /// The way to the devices below a stacked driver. Such a context is always stalled, so that each kick sends what
    /// the driver wants of them, and no other context is asked for it.
    pub(crate) lower: Option<Lower>,
}

impl Hctx {
    pub(crate) fn open(
        queue: Arc<Queue>,
        index: u16,
        core: &mut Core,
        waker: Waker,
        lower: Option<Lower>,
    ) -> Result<Hctx, DeviceError> {
        let tag_set = queue.host_tags().cloned().unwrap_or_else(|| TagSet::owned(queue.limits().queue_depth));
        let depth = tag_set.depth();
        let (remote_queue, remote) = MpscQueue::new(u32::from(depth) + 1);
        let shared = Arc::new(HctxShared {
            stats: HctxStats::new(core.clock.clone()),
            tags: tag_set.clone(),
            flushing: AtomicU32::new(0),
            dispatching: CachePadded::new(Mark::new()),
            remote: remote_queue,
            remote_status: (0..=depth).map(|_| AtomicU8::new(0)).collect(),
            waker,
        });
        let mut open = HctxOpen {
            kring: &mut core.kring,
            depth,
            remote: Remote { shared: shared.clone() },
            limits: queue.limits(),
            capacity: queue.capacity(),
            hctx: index,
            clock: &core.clock,
            lower: lower.clone(),
        };
        let hw = queue.driver().open_hctx(&mut open)?;
        queue.add_hctx(shared.clone());
        let limits = queue.limits();
        let plain_bytes = if limits.chunk_sectors == 0 { limits.max_bytes(Op::Write) } else { 0 };
        Ok(Hctx {
            key: identity::unique(),
            index,
            bit: 1 << index,
            in_driver: 0,
            busy_edge: BusyEdge::default(),
            counts: core.stats && queue.keeps_stats(),
            open_gate: queue.gate().opened(),
            parts: Parts::default(),
            plain_bytes,
            users: 0,
            stalled: true,
            cacheable: core.bios.cacheable(),
            tags: Tags::new(tag_set),
            rqs: Requests::new(depth),
            ends_in_call: hw.ends_in_call(),
            works_alone: hw.works_alone(),
            hw: Contained::new(hw),
            gathered: RqList::default(),
            lane: OpenLane::default(),
            refused: RqQueue::with_depth(depth),
            waiting: BioList::default(),
            flush: FlushQueue::default(),
            done: DoneList::with_depth(depth),
            stamps: Stamps::new(depth),
            freed: Freed::default(),
            remote,
            timeouts: TimeoutWalk::new(queue.timeout(), depth),
            epoch: 0,
            shared,
            capacity: queue.capacity().clone(),
            queue,
            lower,
        })
    }

    /// By what a [`Route`](crate::ctx::lane::Route) knows it.
    #[inline(always)]
    pub(crate) fn key(&self) -> u64 {
        self.key
    }

    pub(crate) fn flush_tag(&self) -> u16 {
        self.shared.tags.depth()
    }

    /// Requests that hold a tag, the flush request included.
    #[inline]
    pub(crate) fn live(&self) -> u32 {
        self.in_driver + self.gathered.len() as u32
    }

    /// Whether anything is to be ended or sent on.
    pub(crate) fn has_work(&self) -> bool {
        self.live() != 0 || !self.waiting.is_empty() || self.flush.has_pending()
    }

    /// Takes a bio whose sector is an address of this queue.
    pub(crate) fn add(&mut self, core: &mut Core, id: BioId) {
        let bio = &core.bios[id];
        match self.queue.check_range(bio) {
            Ok(()) => self.add_checked(core, id),
            Err(status) => core.end_later(id, status),
        }
    }

    /// Takes a bio that surely lies within the device.
    fn add_checked(&mut self, core: &mut Core, id: BioId) {
        let bio = &core.bios[id];
        let special = bio.flags & (BIO_FUA | BIO_PREFLUSH) != 0 || !bio.op.has_data();
        let fits = bio.bytes <= self.plain_bytes && bio.nr_vecs <= self.queue.limits().max_segments;
        if self.stalled || special || !fits {
            return self.add_slow(core, id);
        }
        if !self.gather(core, id, 0) {
            self.wait(core, id);
        }
    }

    /// Whether the bio rides along in the last gathered request.
    #[inline(never)]
    fn try_merge(&mut self, core: &mut Core, id: BioId, sector: u64, bytes: u32) -> bool {
        match self.gathered.last() {
            Some(last) => {
                let limits = self.queue.limits();
                let (rq, bio) = (&self.rqs[last], &core.bios[id]);
                if !merge::is_adjacent(rq, sector, bytes) || !merge::fits(rq, &bio.attrs, sector, bytes, limits) {
                    return false;
                }
                self.make_bio(core, last);
                merge::link(&mut self.rqs[last], &mut core.bios, id);
                true
            }
            None => false,
        }
    }

    /// Whether nothing may be gathered behind the request that was gathered last ([`PLUG_LONG`]).
    #[inline(always)]
    fn is_last_long(&self) -> bool {
        self.gathered.last().is_some_and(|last| self.rqs[last].bytes >= PLUG_LONG)
    }

    /// Hands on what was gathered if its last request is long; false when something holds it back, and so whatever
    /// comes behind it.
    #[inline(always)]
    fn send_long(&mut self, core: &mut Core) -> bool {
        if !self.is_last_long() {
            return true;
        }
        self.flush(core);
        !self.stalled
    }

    /// Merges the bio into the last gathered request or gives it one of its own; false when it must wait: there is no
    /// tag, or what was gathered before it is held back.
    pub(crate) fn gather(&mut self, core: &mut Core, id: BioId, flags: u8) -> bool {
        let bio = &core.bios[id];
        let (sector, bytes, op, part, nr_vecs) = (bio.sector, bio.bytes, bio.op, bio.part, bio.nr_vecs);
        let flags = flags | (bio.flags as u8 & RQ_NOMERGE);
        if self.try_merge(core, id, sector, bytes) {
            return true;
        }
        if !self.send_long(core) {
            return false;
        }
        let Some(tag) = self.tags.take(core.plug.hint()) else {
            return false;
        };
        self.tags.set_info(tag, self.tags.info_of(op, part));
        let start = if self.counts { core.plug.now(&core.clock) } else { CoarseTs::default() };
        let generation = self.epoch;
        let head = RqHead { op, flags, nr_segs: nr_vecs, part, bytes, generation, start, ..RqHead::default() };
        self.rqs[tag].fill(id, sector, &head);
        if core.bios[id].flags & BIO_WAITED != 0 {
            self.stamp_waited(core.bios[id].waited_from, tag, start);
        }
        self.push_gathered(core, tag);
        true
    }

    fn push_gathered(&mut self, core: &mut Core, tag: u16) {
        core.plug.dirty |= self.bit;
        self.gathered.push(tag);
        if self.gathered.is_full() {
            self.flush(core);
        }
    }

    /// Prepares the flush request and gathers it.
    pub(crate) fn gather_flush(&mut self, core: &mut Core) {
        let tag = self.flush_tag();
        let start = if self.counts { core.plug.now(&core.clock) } else { CoarseTs::default() };
        let generation = self.rqs[tag].generation.wrapping_add(1);
        let head = RqHead { op: Op::Flush, flags: RQ_FLUSH_SEQ, start, generation, ..RqHead::default() };
        self.rqs[tag] = Request { head, ..Request::unused() };
        // Its own mark is set with the batch, by `publish_batch`.
        self.tags.publish_by_words();
        self.push_gathered(core, tag);
    }

    /// As [`Hctx::flush`], and asks the driver nothing when there is nothing new.
    #[inline]
    fn flush_gathered(&mut self, core: &mut Core) {
        if !self.gathered.is_empty() {
            self.flush(core);
        }
    }

    /// Hands what was gathered (and what was refused before) to the driver.
    #[inline(never)]
    pub(crate) fn flush(&mut self, core: &mut Core) {
        core.active |= self.bit;
        self.in_driver += self.gathered.len() as u32;
        if !self.refused.is_empty() {
            return self.flush_behind_refused(core);
        }
        if self.gathered.is_empty() {
            return;
        }
        if !self.tags.publish() {
            self.publish_batch();
        }
        if let Err(gate) = self.start_dispatch(core, self.gathered.len()) {
            let mut list = std::mem::take(&mut self.gathered);
            self.begin_held(core, gate, list.tags(), self.rqs[list.tags()[0]].start);
            return self.hold_back(core, &mut list, gate);
        }
        self.begin_busy();
        let (sent, before) = (self.stamp_sent(core), self.done.len());
        let mut env = HwEnv { kring: core.kring.ring.as_mut(), clock: &core.clock, hctx: self.index };
        let mut table = RqTable { rqs: self.rqs.all(), bios: &core.bios };
        if self.hw.call(|hw| hw.queue_rqs(&mut self.gathered, &mut table, &mut env, &mut self.done)).is_none() {
            core.broken |= self.bit;
        }
        self.shared.end_dispatch();
        self.stamp_call(core, before, sent);
        if !self.gathered.is_empty() {
            let mut list = std::mem::take(&mut self.gathered);
            self.refuse(core, &mut list);
        }
        self.gathered.reset();
    }

    /// One call into the driver with a list of its own; true when it took everything.
    fn dispatch(&mut self, core: &mut Core, list: &mut RqList) -> bool {
        list.tags().iter().for_each(|&tag| self.set_held(tag, false));
        if let Err(gate) = self.start_dispatch(core, 0) {
            self.hold_back(core, list, gate);
            return false;
        }
        let (sent, before) = (self.stamp_sent_again(core, list.tags()), self.done.len());
        let mut env = HwEnv { kring: core.kring.ring.as_mut(), clock: &core.clock, hctx: self.index };
        let mut table = RqTable { rqs: self.rqs.all(), bios: &core.bios };
        if self.hw.call(|hw| hw.queue_rqs(list, &mut table, &mut env, &mut self.done)).is_none() {
            core.broken |= self.bit;
        }
        self.shared.end_dispatch();
        self.stamp_call(core, before, sent);
        let took_all = list.is_empty();
        if !took_all {
            self.refuse(core, list);
        }
        took_all
    }

    /// Asks the driver and the other threads for completions and ends them; returns how many requests ended.
    #[inline]
    pub(crate) fn poll(&mut self, core: &mut Core, end: &mut impl EndIo) -> u32 {
        if !self.ends_in_call && (self.live() != 0 || self.works_alone) {
            self.poll_driver(core);
        }
        let ended = if self.done.is_empty() { 0 } else { self.complete(core, end) };
        self.kick(core);
        ended
    }

    #[inline]
    fn poll_driver(&mut self, core: &mut Core) {
        let mut env = HwEnv { kring: core.kring.ring.as_mut(), clock: &core.clock, hctx: self.index };
        let mut table = RqTable { rqs: self.rqs.all(), bios: &core.bios };
        if self.hw.call(|hw| hw.poll(&mut table, &mut env, &mut self.done)).is_none() {
            core.broken |= self.bit;
        }
        self.take_remote(core);
    }

    #[inline]
    fn take_remote(&mut self, core: &mut Core) {
        while let Some(tag) = self.remote.pop() {
            // Relaxed: stored before the push that this pop saw.
            let status = Status::from_u8(self.shared.remote_status[tag as usize].load(Ordering::Relaxed));
            let mut table = RqTable { rqs: self.rqs.all(), bios: &core.bios };
            let status = self.hw.call(|hw| hw.ended_remotely(tag as u16, status, &mut table));
            core.broken |= if status.is_none() { self.bit } else { 0 };
            self.done.push(Rq::new(tag as u16), status.unwrap_or(Status::IoErr));
        }
    }

    /// Hands completions of the kernel ring, which are this hardware context's own, to the driver.
    #[inline]
    pub(crate) fn kernel_done(&mut self, core: &mut Core, events: KernelEvents<'_>) {
        let mut env = HwEnv { kring: core.kring.ring.as_mut(), clock: &core.clock, hctx: self.index };
        let mut table = RqTable { rqs: self.rqs.all(), bios: &core.bios };
        if self.hw.call(|hw| hw.kernel_done(events, &mut table, &mut env, &mut self.done)).is_none() {
            core.broken |= self.bit;
        }
    }

    /// The request's flags for a write that the driver makes durable itself.
    pub(crate) fn fua_flags(&self) -> u8 {
        if self.queue.capabilities().fua { RQ_FUA } else { RQ_FLUSH_SEQ }
    }

    /// Walks the tags for requests that take too long, when a walk is due.
    pub(crate) fn walk_timeouts(&mut self, core: &mut Core, now: PreciseTs) {
        // What has ended already must not be asked about; the poll that takes it is next.
        if !self.timeouts.is_due(now) || !self.done.is_empty() {
            return;
        }
        let flush_running = self.flush.is_running();
        for tag in self.timeouts.walk(now, self.rqs.all(), flush_running) {
            if self.gathered.tags().contains(&tag) || self.refused.position(tag).is_some() {
                continue;
            }
            let mut env = HwEnv { kring: core.kring.ring.as_mut(), clock: &core.clock, hctx: self.index };
            let mut table = RqTable { rqs: self.rqs.all(), bios: &core.bios };
            // Either way the request ends once: by the driver now, or by its completion later.
            if self.hw.call(|hw| hw.timed_out(tag, &mut table, &mut env, &mut self.done)).is_none() {
                core.broken |= self.bit;
            }
        }
    }

    /// Whether a plain record on its way here is one that is asked for: its owner, its registered buffer, where its
    /// memory begins.
    pub(crate) fn any_plain(&self, is: &mut dyn FnMut(u32, u16, usize) -> bool) -> bool {
        let is = |rq: &Request| rq.is_plain() && is(rq.tail_or_owner, rq.merged_or_buf, rq.base);
        self.rqs.iter().any(is)
    }

    /// Plain records in this registered buffer name it no more.
    pub(crate) fn forget_fixed_buf(&mut self, index: u16) {
        let of_it = |rq: &&mut Request| rq.is_plain() && rq.merged_or_buf == index;
        self.rqs.all().iter_mut().filter(of_it).for_each(|rq| rq.merged_or_buf = NO_FIXED_BUF);
    }

    pub(crate) fn next_walk(&self) -> PreciseTs {
        self.timeouts.next_walk()
    }

    /// Whether all there is to wait for is in the kernel ring: everything that came is sent on, and nothing has ended.
    #[inline]
    pub(crate) fn waits_for_kernel(&self) -> bool {
        let sent = !self.stalled && self.gathered.is_empty() && self.refused.is_empty() && !self.tags.is_shared();
        sent && !self.works_alone && self.next_event() == NextEvent::Kernel
    }

    /// The most I/Os that end with one request of this hardware context, where each of its requests is in the hands of
    /// another thread and nothing waits for one of them to end; else `None`.
    pub(crate) fn ends_remotely(&self) -> Option<u32> {
        let sent = !self.stalled && self.gathered.is_empty() && !self.has_waiting();
        if !sent || self.tags.is_shared() || self.next_event() != NextEvent::Remote {
            return None;
        }
        let in_flight = self.rqs.iter().filter(|rq| rq.bio_head.is_some());
        in_flight.map(|rq| if rq.flags & RQ_FLUSH_SEQ == 0 { 1 + u32::from(rq.merged()) } else { u32::MAX }).max()
    }

    /// Whether another thread has completed a request, or is about to.
    pub(crate) fn has_remote(&self) -> bool {
        !self.remote.is_empty()
    }

    #[inline(always)]
    pub(crate) fn next_event(&self) -> NextEvent {
        if !self.done.is_empty() {
            return NextEvent::Ready;
        }
        if self.live() == 0 && !self.works_alone { NextEvent::Idle } else { self.hw.next_event() }
    }

    /// Whether the driver may have something to do without a request.
    pub(crate) fn works_alone(&self) -> bool {
        self.works_alone
    }

    /// The plug has ended: unused tags of a shared set go back.
    #[inline]
    pub(crate) fn end_plug(&mut self) {
        self.tags.return_unused();
    }

    /// Whether the driver has panicked, and [`Hctx::close`] was not called since.
    pub(crate) fn wants_close(&self) -> bool {
        self.hw.wants_close()
    }

    /// One step towards the end: cancels what never reached the driver, ends what the driver gives back. False while
    /// the device may still touch memory: then the caller waits for it, hands over what comes, and calls again. Bios
    /// that never had a request end later, through the core's list. After a panic of the driver all end as failed.
    ///
    /// `of_others` operations of the kernel ring are known to be those of other drivers.
    pub(crate) fn shut_down_step(&mut self, core: &mut Core, of_others: u32, end: &mut impl EndIo) -> bool {
        let status = if self.hw.has_panicked() { Status::IoErr } else { Status::Canceled };
        self.in_driver += self.gathered.len() as u32;
        self.begin_busy();
        while let Some(rq) = self.gathered.pop() {
            self.done.push(rq, status);
        }
        self.gathered.reset();
        while let Some(rq) = self.refused.pop() {
            self.done.push(rq, status);
        }
        while let Some(id) = self.waiting.pop(&mut core.bios) {
            core.end_later(id, status);
        }
        let mut env = HwEnv { kring: core.kring.ring.as_mut(), clock: &core.clock, hctx: self.index };
        let mut table = RqTable { rqs: self.rqs.all(), bios: &core.bios };
        let _ = self.hw.call(|hw| hw.shutdown(&mut table, &mut env, &mut self.done));
        (!self.hw.is_closed()).then(|| self.take_remote(core));
        let in_kernel = core.kring.ring.as_ref().map_or(0, |kring| kring.outstanding());
        if self.hw.has_panicked() && in_kernel <= of_others && !self.has_below() {
            self.end_held(Status::IoErr);
        } else if core.kring.ring.is_none() && self.hw.next_event() == NextEvent::Kernel {
            // The kernel ring is gone: what the driver had in it touches no memory any more, and will not come back.
            self.end_held(Status::Canceled);
        }
        self.complete(core, end);
        self.flush.cancel_pending(core);
        debug_assert!(self.in_driver <= self.owned(), "what nobody has would be waited for for ever");
        let in_kernel = core.kring.ring.is_some() && self.hw.next_event() == NextEvent::Kernel;
        !self.has_work() && !in_kernel && !self.has_below()
    }

    /// See [`HwQueue::lasting_in_kernel`](crate::driver::HwQueue::lasting_in_kernel).
    pub(crate) fn lasting_in_kernel(&self) -> u32 {
        self.hw.lasting_in_kernel()
    }

    /// Whether devices below have I/O of a stacked driver. One that has panicked does not ask for the ends of its I/O.
    fn has_below(&self) -> bool {
        let Some(lower) = &self.lower else { return false };
        if self.hw.has_panicked() {
            lower.cancel_unsent();
            while lower.take_ended().is_some() {}
        }
        lower.unfinished() > 0
    }

    /// Requests that somebody has, the flush request included, by a look at each.
    fn owned(&self) -> u32 {
        let flush_tag = self.flush_tag();
        let live = self.rqs.iter().zip(0..flush_tag).filter(|(rq, _)| rq.bio_head.is_some()).count() as u32;
        live + u32::from(self.flush.is_running())
    }

    /// Ends whatever the driver has and will not give back, and whose memory nobody touches any more (D6).
    #[cold]
    fn end_held(&mut self, status: Status) {
        let flush_tag = self.flush_tag();
        for tag in 0..=flush_tag {
            let live = if tag == flush_tag { self.flush.is_running() } else { self.rqs[tag].bio_head.is_some() };
            if live && !self.done.tags().contains(&tag) {
                self.done.push(Rq::new(tag), status);
            }
        }
    }

    /// After the last [`Hctx::shut_down_step`] of a driver that has panicked: its queue goes, and what comes fails.
    #[cold]
    pub(crate) fn close(&mut self) {
        self.hw.close();
        // Nor is anything heard of what the driver had sent to other threads: it has ended.
        (self.ends_in_call, self.works_alone) = (true, false);
    }

    /// Leaves the queue's lists, after the last [`Hctx::shut_down_step`].
    pub(crate) fn retire(&mut self) {
        // What one that has panicked has of tokens is of requests that have ended, and says so when it is dropped.
        self.hw.close();
        debug_assert_eq!((self.owned(), self.in_driver), (0, 0), "what counts as ended has ended, and nothing else");
        self.tags.return_unused();
        self.queue.remove_hctx(&self.shared);
    }
}
