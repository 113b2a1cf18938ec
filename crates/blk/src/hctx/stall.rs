//! Slow path: waiting bios, and requests that the driver or the gate held back.
//!
//! Owns the retries of [`hctx`](super): admits waiting bios in order, cuts them, retries refused requests, and takes
//! requests apart while the queue is frozen. Invariants I1 to I3 of the parent hold here too.

use sheave_base::sync::atomic::Ordering;

use super::Hctx;
use crate::bio::{BIO_FUA, BIO_PREFLUSH, BIO_STACKED, BioId};
use crate::bio_set::BioList;
use crate::driver::NextEvent;
use crate::hctx_shared::{FLUSH_HELD, FLUSH_IN_DRIVER};
use crate::queue::Gate;
use crate::request::{PLUG_MAX, Rq, RqList};
use crate::ring_core::Core;

impl Hctx {
    /// Stops new requests to the driver, as after a panic. Called when a resource that the driver needs is gone.
    #[cold]
    pub(crate) fn stop(&mut self) {
        self.hw.stop();
    }

    pub(super) fn retry_refused(&mut self, core: &mut Core) {
        for _ in 0..self.refused.len().div_ceil(PLUG_MAX) {
            let mut list = RqList::default();
            while !list.is_full() {
                let Some(rq) = self.refused.pop() else { break };
                list.push(rq.into_tag());
            }
            list.tags().iter().for_each(|&tag| self.set_held(tag, false));
            if !self.dispatch(core, Some(&mut list)) {
                break;
            }
        }
    }

    /// Moves to `refused` the requests that the driver left in `list`. They go first the next time.
    #[cold]
    pub(super) fn refuse(&mut self, core: &Core, list: &mut RqList) {
        self.stalled = true;
        let now = self.counts.then(|| core.clock.coarse());
        for &tag in list.tags() {
            self.set_held(tag, true);
            if let Some(now) = now {
                self.stamp_held(tag, now);
            }
        }
        self.refused.put_back(list);
    }

    /// Publishes a batch that spans several words of an owned set, belongs to a shared set, or includes the flush
    /// request.
    #[cold]
    pub(super) fn publish_batch(&mut self) {
        self.tags.publish_words(self.gathered.tags());
        let flush_tag = self.flush_tag();
        if self.gathered.tags().contains(&flush_tag) {
            self.set_held(flush_tag, false);
        }
    }

    /// Records whether the block layer (`held`) or the driver has an accounted request. Readers of requests in flight
    /// show it.
    pub(super) fn set_held(&self, tag: u16, held: bool) {
        if tag == self.flush_tag() {
            let mark = if held { FLUSH_HELD } else { FLUSH_IN_DRIVER };
            // Relaxed: published by `start_dispatch`, like a tag.
            return self.shared.flushing.store(mark, Ordering::Relaxed);
        }
        self.tags.set_held(tag, held);
    }

    /// Moves the gathered requests behind the refused ones (I1), and retries.
    #[cold]
    pub(super) fn flush_behind_refused(&mut self, core: &mut Core) {
        self.publish_batch();
        self.begin_gathered_parts();
        let now = self.counts.then(|| core.clock.coarse());
        while let Some(rq) = self.gathered.pop() {
            self.set_held(rq.tag(), true);
            if let Some(now) = now {
                self.stamp_held(rq.tag(), now);
            }
            self.refused.push(rq);
        }
        self.gathered.reset();
        self.retry_refused(core);
    }

    /// Called if the gate is closed. A quiesced queue keeps its requests. A frozen one takes them apart into bios,
    /// because their tags must not be seen in flight.
    #[cold]
    pub(super) fn hold_back(&mut self, core: &mut Core, list: &mut RqList, gate: Gate) {
        self.stalled = true;
        if !gate.is_frozen() {
            return self.refuse(core, list);
        }
        let mut back = BioList::default();
        while let Some(rq) = list.pop() {
            self.take_apart(core, rq, &mut back);
        }
        while let Some(rq) = self.refused.pop() {
            self.take_apart(core, rq, &mut back);
        }
        self.end_busy_if_apart(core);
        // Bios taken apart were added before those that wait already, so they go first (I1).
        let mut behind = self.waiting.take();
        while let Some(id) = behind.pop(&mut core.bios) {
            back.push_back(&mut core.bios, id);
        }
        self.waiting = back;
    }

    fn take_apart(&mut self, core: &mut Core, rq: Rq, back: &mut BioList) {
        self.in_driver -= 1;
        let tag = rq.into_tag();
        if tag == self.flush_tag() {
            return self.take_back_flush(core);
        }
        let now = self.counts.then(|| core.clock.coarse());
        self.parts.end(self.rqs[tag].part, now);
        self.make_bio(core, tag);
        // The tag may be used again before a batch completes, so the epoch must change here.
        self.epoch = self.epoch.wrapping_add(1);
        let start = self.rqs[tag].start;
        let mut id = std::mem::replace(&mut self.rqs[tag].bio_head, BioId::NONE);
        while id.is_some() {
            let next = core.bios[id].next;
            self.stamp_waiting(core, id, Some(start));
            back.push_back(&mut core.bios, id);
            id = next;
        }
        self.tags.free_batch(usize::from(tag) / 64, 1 << (tag % 64));
    }

    /// Queues a bio for which there is no tag now, or behind other waiting bios.
    #[cold]
    pub(super) fn wait(&mut self, core: &mut Core, id: BioId) {
        // This bio alone must make the ring poll this context, for nothing else may be in flight.
        core.active |= self.bit;
        self.stalled = true;
        self.stamp_waiting(core, id, None);
        self.waiting.push_back(&mut core.bios, id);
    }

    /// Adds a bio that takes the slow path: it is not a plain read or write, it needs more than one request, or it has
    /// to wait.
    #[cold]
    pub(super) fn add_slow(&mut self, core: &mut Core, id: BioId) {
        self.wait(core, id);
        self.kick(core);
    }

    /// Retries refused requests and admits waiting bios, as far as tags, bios and the gate allow.
    #[inline]
    pub(crate) fn kick(&mut self, core: &mut Core) {
        if self.stalled {
            self.kick_slow(core);
        }
    }

    #[cold]
    fn kick_slow(&mut self, core: &mut Core) {
        self.kick_through(core);
        if self.lower.is_some() {
            self.stalled = true;
            self.send_lower(core);
        }
    }

    /// Makes bios of the I/O that a stacked driver wants to send below. They go ahead of all starved bios, because bios
    /// of the device above may wait for them.
    fn send_lower(&mut self, core: &mut Core) {
        let Some(lower) = &self.lower else { return };
        let mut behind = core.starved.take();
        while lower.has_wanted() {
            let Some(id) = core.bios.take_stacked(lower.level(), false) else { break };
            let Some((bdev, io)) = lower.next_wanted() else { break };
            let bio = &mut core.bios[id];
            bio.owner = u32::from(self.hw.index()) | u32::from(lower.level()) << 16;
            bio.cookie = io.token;
            bio.op = io.op;
            bio.flags |= BIO_STACKED | if io.fua { BIO_FUA } else { 0 };
            bio.bdev = bdev;
            bio.sector = io.sector;
            bio.bytes = io.bytes;
            core.bios.set_vecs(id, &io.vecs);
            core.starved.push_back(&mut core.bios, id);
        }
        core.starved.append(&mut core.bios, &mut behind);
    }

    fn kick_through(&mut self, core: &mut Core) {
        let gate = self.queue.gate();
        if !gate.is_open() {
            // Requests that were refused before the freeze would keep the queue from becoming idle.
            if gate.is_frozen() && !self.refused.is_empty() {
                self.hold_back(core, &mut RqList::default(), gate);
            }
            return;
        }
        self.stalled = false;
        if !self.refused.is_empty() {
            self.retry_refused(core);
        }
        while !self.stalled {
            let Some(id) = self.waiting.pop(&mut core.bios) else { break };
            if !self.admit(core, id) {
                self.waiting.push_front(&mut core.bios, id);
                self.stalled = true;
            }
        }
        self.kick_flush(core);
        if !core.plug.is_open() {
            self.flush_gathered(core);
            self.end_plug();
        }
        self.stalled |= !self.waiting.is_empty() || !self.refused.is_empty();
    }

    /// Called before the ring sleeps: sends all that can be sent. If bios wait for tags of a shared set, requests a
    /// wake-up from the ring that frees one.
    pub(crate) fn send_off(&mut self, core: &mut Core) {
        self.kick(core);
        self.flush_gathered(core);
        if self.stalled && !self.waiting.is_empty() && self.tags.ask_for_wake_up(&self.shared.waker.unparker) {
            self.kick(core);
            self.flush_gathered(core);
        }
        self.end_plug();
    }

    /// Returns true if a bio or a request here waits for another one to end: for its tag, or for a flush.
    pub(crate) fn has_waiting(&self) -> bool {
        let sent = self.waiting.is_empty() && self.refused.is_empty();
        !sent || self.flush.has_pending() || self.flush.is_running()
    }

    /// Returns true if the driver refuses requests while it holds none: no completion will come, so only a retry helps.
    pub(crate) fn must_retry(&self) -> bool {
        !self.refused.is_empty() && self.hw.next_event() == NextEvent::Idle && self.queue.gate().is_open()
    }

    /// Admits one waiting bio, and cuts it if it is too large. Returns false if it must keep waiting.
    fn admit(&mut self, core: &mut Core, id: BioId) -> bool {
        let bio = &core.bios[id];
        if let Err(status) = self.queue.check_range(bio) {
            core.end_later(id, status);
            return true;
        }
        if !bio.op.has_data() || bio.flags & (BIO_FUA | BIO_PREFLUSH) != 0 {
            return self.admit_special(core, id);
        }
        self.cut_and_gather(core, id, 0)
    }

    /// Cuts the bio to the limits and gathers all pieces. Returns false if tags or bios ran out, or gathered requests
    /// were held back; the rest is then still in the bio.
    pub(crate) fn cut_and_gather(&mut self, core: &mut Core, id: BioId, flags: u8) -> bool {
        loop {
            let front = crate::split::front(&core.bios[id], self.queue.limits());
            // Before the cut, because `gather` would refuse the piece if the requests before it were held back.
            let cuts = matches!(front, Ok(Some(_)));
            if (cuts && !self.send_long(core)) || !self.tags.ensure(core.plug.hint()) {
                return false;
            }
            match front {
                Ok(None) => return self.gather(core, id, flags),
                Ok(Some(bytes)) => {
                    let Some(front) = crate::split::cut(&mut core.bios, id, bytes, 0) else {
                        return false;
                    };
                    let gathered = self.gather(core, front, flags);
                    debug_assert!(gathered, "the tag was there before the cut");
                }
                Err(status) => {
                    core.end_later(id, status);
                    return true;
                }
            }
        }
    }
}
