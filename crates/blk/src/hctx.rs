//! The hardware context (hctx): the submission and completion path between one ring and one device.
//!
//! Owns the preallocated requests, their tags, the gathered and refused requests, the waiting bios, and the driver's
//! [`HwQueue`](crate::driver::HwQueue). Used by its ring's thread alone, except [`HctxShared`], which other threads
//! access.
//!
//! Path of a bio: [`Hctx::add`] merges it into a request or gives it one, which is *gathered* under the plug.
//! [`Hctx::flush`] passes the gathered requests to the driver. A request that the driver does not take is *refused* and
//! goes first the next time. A bio that cannot have a request now (no tag, gate closed, must be cut) is *waiting*, in a
//! first-in first-out list. [`Hctx::complete`] ends requests in batches.
//!
//! Invariants:
//! - I1: order: refused before gathered, waiting before new. While bios wait, new ones queue behind them.
//! - I2: every bio added ends exactly once, through `end` of [`Hctx::complete`] or the core's list of ended bios.
//! - I3: `stalled` is false only if nothing waits and the gate was seen open at the last flush; the fast path
//!   checks nothing else.

mod account;
mod complete;
mod contained;
pub(crate) mod flush;
mod gather;
mod parts;
mod stages;
mod stall;

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
use crate::driver::{HctxOpen, KernelEvents, NextEvent, Remote};
use crate::end_io::EndIo;
use crate::error::DeviceError;
use crate::hctx_shared::{HctxShared, Waker};
use crate::limits::Capacity;
use crate::merge;
use crate::plain_io::OpenLane;
use crate::queue::{Gate, Queue};
use crate::request::{DoneList, PLUG_LONG, RQ_FLUSH_SEQ, RQ_NOMERGE, Request, Requests, Rq, RqHead, RqList, RqQueue};
use crate::ring_core::Core;
use crate::stack::Lower;
use crate::stats::{BusyEdge, HctxStats};
use crate::tag_set::{Freed, TagSet, Tags};
use crate::timeout::TimeoutWalk;

use self::contained::Contained;
use self::flush::FlushQueue;
use self::parts::Parts;
use self::stages::Stamps;

/// The hardware context of one ring for one device.
#[derive(Debug)]
pub(crate) struct Hctx {
    pub(crate) queue: Arc<Queue>,
    /// Copy of the queue's handle, so that the fast path follows one pointer less.
    pub(crate) capacity: Capacity,
    pub(crate) shared: Arc<HctxShared>,
    /// Unique in the process and never reused: a stale [`Route`](crate::ctx::lane::Route) must not match a newer
    /// context.
    key: u64,
    /// This context's bit in `Core::active`, `Core::broken` and the plug's dirty mask.
    bit: u64,
    /// Requests that hold a tag and are not gathered: with the driver, or refused.
    in_driver: u32,
    busy_edge: BusyEdge,
    /// True if both the ring and the device keep statistics.
    counts: bool,
    /// Value of the gate when it was last seen open. It contains the flag for statistics, so one compare checks both.
    open_gate: Gate,
    parts: Parts,
    /// Longest plain read or write that never needs a cut; 0 if the device has chunk boundaries, for then it depends on
    /// the sector.
    plain_bytes: u32,
    /// Number of attached devices that lead to this context.
    pub(crate) users: u32,
    stalled: bool,
    /// Flag given to each plain bio that the cache of bios may keep.
    cacheable: u16,
    tags: Tags,
    rqs: Requests,
    hw: Contained,
    ends_in_call: bool,
    works_alone: bool,
    gathered: RqList,
    lane: OpenLane,
    refused: RqQueue,
    pub(crate) waiting: BioList,
    flush: FlushQueue,
    done: DoneList,
    stamps: Stamps,
    freed: Freed,
    remote: Consumer,
    timeouts: TimeoutWalk,
    /// Incremented by every batch that frees tags. No tag is used twice within a batch, so (tag, epoch) identifies one
    /// use of a tag.
    epoch: u32,
    /// Access of a stacked driver to the devices below it. Such a context is always `stalled`, so that every kick also
    /// sends the driver's I/O to the devices below, and the fast path of other contexts needs no check.
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
        // One more than the depth, for the flush request.
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
            hw: Contained::new(hw, index),
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

    /// Returns the key that a valid [`Route`](crate::ctx::lane::Route) to this context has.
    #[inline(always)]
    pub(crate) fn key(&self) -> u64 {
        self.key
    }

    /// Returns the number of requests that hold a tag, including the flush request.
    #[inline]
    pub(crate) fn live(&self) -> u32 {
        self.in_driver + self.gathered.len() as u32
    }

    /// Returns true if a request has not ended, or a bio waits for a request or a flush.
    pub(crate) fn has_work(&self) -> bool {
        self.live() != 0 || !self.waiting.is_empty() || self.flush.has_pending()
    }

    /// Adds a bio whose sector counts from the start of this queue's device. Ends it with an error if it is out of
    /// range.
    pub(crate) fn add(&mut self, core: &mut Core, id: BioId) {
        let bio = &core.bios[id];
        match self.queue.check_range(bio) {
            Ok(()) => self.add_checked(core, id),
            Err(status) => core.end_later(id, status),
        }
    }

    /// Adds a bio whose range was checked.
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

    /// Appends or prepends the bio to the last gathered request. Returns false if they are not adjacent or do not fit
    /// in one.
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

    /// Returns true if the last gathered request is so long ([`PLUG_LONG`]) that the next one must not be gathered
    /// behind it.
    #[inline(always)]
    fn is_last_long(&self) -> bool {
        self.gathered.last().is_some_and(|last| self.rqs[last].bytes >= PLUG_LONG)
    }

    /// Flushes the gathered requests if the last one is long. Returns false if any of them was held back, for then a
    /// later bio must not overtake it.
    #[inline(always)]
    fn send_long(&mut self, core: &mut Core) -> bool {
        if !self.is_last_long() {
            return true;
        }
        self.flush(core);
        !self.stalled
    }

    /// Merges the bio into the last gathered request, or gives it a request of its own. Returns false if the bio must
    /// wait: no tag is free, or requests gathered before it were held back.
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

    /// Calls [`Hctx::flush`] if a request is gathered. Refused requests alone are left to `kick`.
    #[inline]
    fn flush_gathered(&mut self, core: &mut Core) {
        if !self.gathered.is_empty() {
            self.flush(core);
        }
    }

    /// Passes the gathered requests to the driver. Requests refused before go first (I1).
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
        self.dispatch(core, None);
    }

    /// Calls the driver with the gathered requests, or with those of `again`, which were refused before. Returns true
    /// if the driver took all of them. Inlined, so that [`Hctx::flush`] does not test `again` at run time.
    #[inline(always)]
    fn dispatch(&mut self, core: &mut Core, mut again: Option<&mut RqList>) -> bool {
        let new = if again.is_none() { self.gathered.len() } else { 0 };
        let gate = self.start_dispatch(core, new);
        if gate.is_ok() {
            let sent = match &again {
                None => {
                    self.begin_busy();
                    self.stamp_sent(core)
                }
                Some(again) => self.stamp_sent_again(core, again.tags()),
            };
            let before = self.done.len();
            // Chosen outside of the call, which may panic and is therefore not inlined.
            let list = again.as_deref_mut().unwrap_or(&mut self.gathered);
            self.hw.with_driver(core, &mut self.rqs, &mut self.done, |hw, env, table, done| {
                hw.queue_rqs(list, table, env, done);
            });
            self.shared.end_dispatch();
            self.stamp_call(core, before, sent);
        }
        let mut gathered;
        let list = match again {
            Some(again) => again,
            None if self.gathered.is_empty() => {
                self.gathered.reset();
                return true;
            }
            None => {
                gathered = std::mem::take(&mut self.gathered);
                &mut gathered
            }
        };
        if list.is_empty() {
            return true;
        }
        match gate {
            Ok(()) => self.refuse(core, list),
            Err(gate) => {
                if new != 0 {
                    self.begin_held(core, gate, list.tags(), self.rqs[list.tags()[0]].start);
                }
                self.hold_back(core, list, gate);
            }
        }
        false
    }

    /// Runs the steps before every call into the driver, in this order: publishes the batch's tags, ends the plug's
    /// cached time, then reads the gate. Returns `Err` if the gate is closed. Invariants I1 and I2 of
    /// [`queue`](crate::queue) rely on that order.
    ///
    /// `new` requests are counted in `in_driver` already, but belong to no busy period yet.
    #[inline(always)]
    fn start_dispatch(&mut self, core: &mut Core, new: usize) -> Result<(), Gate> {
        core.plug.invalidate();
        self.shared.start_dispatch();
        let gate = self.queue.gate();
        if gate == self.open_gate { Ok(()) } else { self.gate_changed(core, gate, new) }
    }

    #[cold]
    fn gate_changed(&mut self, core: &Core, gate: Gate, new: usize) -> Result<(), Gate> {
        if !gate.is_open() {
            self.shared.end_dispatch();
            return Err(gate);
        }
        self.open_gate = gate;
        self.set_counts(core, core.stats && gate.keeps_stats(), new as u32);
        Ok(())
    }

    /// Collects completions from the driver and from other threads, and ends them. Returns the number of requests
    /// ended.
    #[inline]
    pub(crate) fn poll(&mut self, core: &mut Core, end: &mut impl EndIo) -> u32 {
        if !self.ends_in_call && (self.live() != 0 || self.works_alone) {
            self.poll_driver(core);
        }
        let ended = if self.done.is_empty() { 0 } else { self.complete(core, end) };
        // After the completions, which have freed tags for the waiting bios.
        self.kick(core);
        ended
    }

    #[inline]
    fn poll_driver(&mut self, core: &mut Core) {
        self.hw.with_driver(core, &mut self.rqs, &mut self.done, |hw, env, table, done| hw.poll(table, env, done));
        self.take_remote(core);
    }

    #[inline]
    fn take_remote(&mut self, core: &mut Core) {
        while let Some(tag) = self.remote.pop() {
            // Relaxed: stored before the push that this pop saw.
            let status = Status::from_u8(self.shared.remote_status[tag as usize].load(Ordering::Relaxed));
            let status = self.hw.with_driver(core, &mut self.rqs, &mut self.done, |hw, _, table, _| {
                hw.ended_remotely(tag as u16, status, table)
            });
            self.done.push(Rq::new(tag as u16), status.unwrap_or(Status::IoErr));
        }
    }

    /// Passes to the driver the completions of the kernel ring that belong to this context.
    #[inline]
    pub(crate) fn kernel_done(&mut self, core: &mut Core, events: KernelEvents<'_>) {
        self.hw.with_driver(core, &mut self.rqs, &mut self.done, |hw, env, table, done| {
            hw.kernel_done(events, table, env, done);
        });
    }

    /// Calls `HwQueue::timed_out` for each overdue request, if a walk over the tags is due.
    pub(crate) fn walk_timeouts(&mut self, core: &mut Core, now: PreciseTs) {
        // A request in `done` has ended already and must not time out. The next poll empties `done`.
        if !self.timeouts.is_due(now) || !self.done.is_empty() {
            return;
        }
        let flush_running = self.flush.is_running();
        for tag in self.timeouts.walk(now, self.rqs.all(), flush_running) {
            if self.gathered.tags().contains(&tag) || self.refused.position(tag).is_some() {
                continue;
            }
            // Either way the request ends once: by the driver in this call, or by its completion later.
            self.hw.with_driver(core, &mut self.rqs, &mut self.done, |hw, env, table, done| {
                hw.timed_out(tag, table, env, done)
            });
        }
    }

    /// Returns true if `is` accepts a plain record in flight. Its arguments are the owner, the index of the registered
    /// buffer and the address of the memory.
    pub(crate) fn any_plain(&self, is: &mut dyn FnMut(u32, u16, usize) -> bool) -> bool {
        let is = |rq: &Request| rq.is_plain() && is(rq.tail_or_owner, rq.merged_or_buf, rq.base);
        self.rqs.iter().any(is)
    }

    /// Removes the registered buffer `index` from the plain records in flight that use it.
    pub(crate) fn forget_fixed_buf(&mut self, index: u16) {
        let of_it = |rq: &&mut Request| rq.is_plain() && rq.merged_or_buf == index;
        self.rqs.all().iter_mut().filter(of_it).for_each(|rq| rq.merged_or_buf = NO_FIXED_BUF);
    }

    pub(crate) fn next_walk(&self) -> PreciseTs {
        self.timeouts.next_walk()
    }

    /// Returns true if only a completion in the kernel ring can make progress: all requests are with the driver, and
    /// none has ended.
    #[inline]
    pub(crate) fn waits_for_kernel(&self) -> bool {
        let sent = !self.stalled && self.gathered.is_empty() && self.refused.is_empty() && !self.tags.is_shared();
        sent && !self.works_alone && self.next_event() == NextEvent::Kernel
    }

    /// Returns the largest number of I/Os that end with one request of this context, if other threads hold all its
    /// requests and no bio waits for one of them to end; else `None`.
    pub(crate) fn ends_remotely(&self) -> Option<u32> {
        let sent = !self.stalled && self.gathered.is_empty() && !self.has_waiting();
        if !sent || self.tags.is_shared() || self.next_event() != NextEvent::Remote {
            return None;
        }
        // A request of a flush sequence may end any number of bios, so it counts as without limit.
        let in_flight = self.rqs.iter().filter(|rq| rq.bio_head.is_some());
        in_flight.map(|rq| if rq.flags & RQ_FLUSH_SEQ == 0 { 1 + u32::from(rq.merged()) } else { u32::MAX }).max()
    }

    /// Returns true if another thread has completed a request, or is about to.
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

    /// Returns [`HwQueue::works_alone`](crate::driver::HwQueue::works_alone): the driver may need polls although no
    /// request is in flight.
    pub(crate) fn works_alone(&self) -> bool {
        self.works_alone
    }

    /// Called when the plug ends. Returns unused tags of a shared tag set to it.
    #[inline]
    pub(crate) fn end_plug(&mut self) {
        self.tags.return_unused();
    }

    /// Returns true if the driver has panicked and [`Hctx::close`] was not called since.
    pub(crate) fn wants_close(&self) -> bool {
        self.hw.wants_close()
    }

    /// Runs one step of the shutdown: cancels requests that the driver never got, and ends those that it gives back.
    /// Returns false while the device may still access memory; the caller then waits, passes on completions, and calls
    /// again.
    /// Bios without a request end later, through the core's list of ended bios. After a panic of the driver all
    /// requests fail with `IoErr`.
    ///
    /// `of_others` is the number of operations in the kernel ring that are known to belong to other drivers.
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
        let broken = core.broken;
        self.hw.with_driver(core, &mut self.rqs, &mut self.done, |hw, env, table, done| hw.shutdown(table, env, done));
        // A panic in this call needs no further shutdown, and the next poll may find another context at this index.
        core.broken = broken;
        (!self.hw.is_closed()).then(|| self.take_remote(core));
        let in_kernel = core.kring.ring.as_ref().map_or(0, |kring| kring.outstanding());
        if self.hw.has_panicked() && in_kernel <= of_others && !self.has_below() {
            self.end_held(Status::IoErr);
        } else if core.kring.ring.is_none() && self.hw.next_event() == NextEvent::Kernel {
            // The kernel ring is closed: its operations no longer access memory, and no completion will come.
            self.end_held(Status::Canceled);
        }
        self.complete(core, end);
        self.flush.cancel_pending(core);
        debug_assert!(self.in_driver <= self.owned(), "what nobody has would be waited for for ever");
        let in_kernel = core.kring.ring.is_some() && self.hw.next_event() == NextEvent::Kernel;
        !self.has_work() && !in_kernel && !self.has_below()
    }

    /// Returns [`HwQueue::lasting_in_kernel`](crate::driver::HwQueue::lasting_in_kernel).
    pub(crate) fn lasting_in_kernel(&self) -> u32 {
        self.hw.lasting_in_kernel()
    }

    /// Returns true if I/O of a stacked driver has not ended on the devices below. After a panic the driver does not
    /// collect the ends of its I/O, so this function discards them.
    fn has_below(&self) -> bool {
        let Some(lower) = &self.lower else { return false };
        if self.hw.has_panicked() {
            lower.cancel_unsent();
            while lower.take_ended().is_some() {}
        }
        lower.unfinished() > 0
    }

    /// Counts the requests in use, including the flush request, by looking at every tag. Used to check `in_driver`.
    fn owned(&self) -> u32 {
        let flush_tag = self.flush_tag();
        let live = self.rqs.iter().zip(0..flush_tag).filter(|(rq, _)| rq.bio_head.is_some()).count() as u32;
        live + u32::from(self.flush.is_running())
    }

    /// Ends every request that the driver holds and will not give back. Called when the device no longer accesses their
    /// memory (D6).
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

    /// Drops the driver's queue after the last [`Hctx::shut_down_step`] that follows a panic. Later requests fail.
    #[cold]
    pub(crate) fn close(&mut self) {
        self.hw.close();
        // Completions by other threads are not collected any more: the requests that the driver had sent there have
        // ended.
        (self.ends_in_call, self.works_alone) = (true, false);
    }

    /// Removes this context from the queue's list. Called after the last [`Hctx::shut_down_step`].
    pub(crate) fn retire(&mut self) {
        // After a panic the driver's queue may still own tokens. Dropping one reports to `remote`, which nobody reads
        // any more; its request has ended already.
        self.hw.close();
        debug_assert_eq!((self.owned(), self.in_driver), (0, 0), "what counts as ended has ended, and nothing else");
        self.tags.return_unused();
        self.queue.remove_hctx(&self.shared);
    }
}
