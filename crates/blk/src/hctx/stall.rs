//! What does not go straight through: bios that wait, requests that the driver or the gate held back.
//!
//! Owns the second chances of [`hctx`](super): admitting waiting bios in order, cutting them, retrying refused
//! requests, taking requests apart when the queue is frozen. Invariants I1 to I3 of the parent hold here too.

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
    /// The driver gets nothing new, as after a panic: what it lives on has gone.
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
            if !self.dispatch(core, &mut list) {
                break;
            }
        }
    }

    /// The driver left these in the list: they go first the next time.
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

    /// Shows to readers what was gathered, where that is more than one word of an owned set.
    #[cold]
    pub(super) fn publish_batch(&mut self) {
        self.tags.publish_words(self.gathered.tags());
        let flush_tag = self.flush_tag();
        if self.gathered.tags().contains(&flush_tag) {
            self.set_held(flush_tag, false);
        }
    }

    /// Whether the block layer holds a request back that is accounted, or the driver has it.
    pub(super) fn set_held(&self, tag: u16, held: bool) {
        if tag == self.flush_tag() {
            let mark = if held { FLUSH_HELD } else { FLUSH_IN_DRIVER };
            // Relaxed: published by `start_dispatch`, like a tag.
            return self.shared.flushing.store(mark, Ordering::Relaxed);
        }
        self.tags.set_held(tag, held);
    }

    /// What was gathered queues behind what was refused.
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

    /// The gate is closed: a quiesced queue keeps its requests, a frozen one takes them apart, for their tags must
    /// not be seen in flight.
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
            // Release: like a tag that is freed.
            self.shared.flushing.store(0, Ordering::Release);
            self.flush.unissue(&mut core.bios);
            return;
        }
        let now = self.counts.then(|| core.clock.coarse());
        self.parts.end(self.rqs[tag].part, now);
        self.make_bio(core, tag);
        // Its tag may be used again before a batch is completed.
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

    /// The bio waits: there is no tag for it now, or others wait before it.
    #[cold]
    pub(super) fn wait(&mut self, core: &mut Core, id: BioId) {
        // Nothing may be in flight, so that only this bio makes the ring poll here.
        core.active |= self.bit;
        self.stalled = true;
        self.stamp_waiting(core, id, None);
        self.waiting.push_back(&mut core.bios, id);
    }

    /// Everything that is not a plain read or write that fits, or that has to wait.
    #[cold]
    pub(super) fn add_slow(&mut self, core: &mut Core, id: BioId) {
        self.wait(core, id);
        self.kick(core);
    }

    /// Sends on what waits, as far as tags, bios and the gate allow.
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

    /// Makes bios of what a stacked driver wants of the devices below. They go before all that waits for bios, for what
    /// is above them may wait for them.
    fn send_lower(&mut self, core: &mut Core) {
        let Some(lower) = &self.lower else { return };
        let mut behind = core.starved.take();
        while lower.has_wanted() {
            let Some(id) = core.bios.take_stacked(lower.level(), false) else { break };
            let Some((bdev, io)) = lower.next_wanted() else { break };
            let bio = &mut core.bios[id];
            bio.owner = u32::from(self.index) | u32::from(lower.level()) << 16;
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
            // Requests that were refused before the queue was frozen would keep it from becoming idle.
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

    /// Before the ring sleeps: hands on what can go, and asks for a wake-up where only another ring can help.
    pub(crate) fn send_off(&mut self, core: &mut Core) {
        self.kick(core);
        self.flush_gathered(core);
        if self.stalled && !self.waiting.is_empty() && self.tags.ask_for_wake_up(&self.shared.waker.unparker) {
            self.kick(core);
            self.flush_gathered(core);
        }
        self.end_plug();
    }

    /// Whether a bio or a request waits here for the end of another: for its tag, or for a flush.
    pub(crate) fn has_waiting(&self) -> bool {
        let sent = self.waiting.is_empty() && self.refused.is_empty();
        !sent || self.flush.has_pending() || self.flush.is_running()
    }

    /// Whether the driver refuses though it holds nothing, so that only asking again will help.
    pub(crate) fn must_retry(&self) -> bool {
        !self.refused.is_empty() && self.hw.next_event() == NextEvent::Idle && self.queue.gate().is_open()
    }

    /// Takes one waiting bio on, cutting it if need be; false when it must wait on.
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

    /// Cuts the bio to the limits and gathers all pieces; false when tags or bios ran out, or what was gathered is held
    /// back, with the rest still in it.
    pub(crate) fn cut_and_gather(&mut self, core: &mut Core, id: BioId, flags: u8) -> bool {
        loop {
            let front = crate::split::front(&core.bios[id], self.queue.limits());
            // Before the look for a tag, which is for the piece.
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
