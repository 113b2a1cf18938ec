//! The end of a batch: one time stamp, the end of every record and bio, then the tags with one mask a word.
//!
//! Owns the loop over what the driver has finished. Plain records that are alike, as those of one run are, end
//! together: their owner gets them in a row, and statistics count them at once. Requests with bios end one by one.
//!
//! Invariants: I2 of the parent, and
//! - C1: a request is nobody's (`bio_head` is `NONE`) before its tag is freed.
//! - C2: a record is told of once: by [`EndIo::end_run`] if that takes it, else by [`EndIo::end_plain`].

use sheave_base::clock::CoarseTs;
use sheave_base::status::Status;
use sheave_base::sync::atomic::Ordering;

use super::Hctx;
use crate::bio::{BIO_PLAIN, BIO_SLOW_END, BioId};
use crate::end_io::{EndIo, PlainEnd};
use crate::request::{DoneList, RQ_FLUSH_SEQ, RQ_FUA, RqHead};
use crate::ring_core::Core;
use crate::stats::BatchAccount;

impl Hctx {
    /// Ends what is done; how many requests that was.
    #[inline]
    pub(super) fn complete(&mut self, core: &mut Core, end: &mut impl EndIo) -> u32 {
        self.epoch = self.epoch.wrapping_add(1);
        let now = core.stats.then(|| core.clock.coarse());
        core.batch_time = now;
        let many = self.end_records(core, 0, now, end);
        if many != self.done.len() {
            return self.complete_rest(core, many, now, end);
        }
        self.done.clear();
        self.in_driver -= many as u32;
        self.end_busy_if_idle(many as u32, now);
        self.tags.free_all(&mut self.freed);
        many as u32
    }

    /// Ends what is done, where that is one plain record which has succeeded, and its owner has room; false, and
    /// nothing has changed, where it is not. For an I/O alone: all that [`Hctx::complete`] does for it, without its
    /// loops.
    #[inline(always)]
    pub(crate) fn end_only(&mut self, core: &mut Core, end: &mut impl EndIo) -> bool {
        let (&[tag], false) = (self.done.tags(), self.done.any_failed()) else { return false };
        let rq = &mut self.rqs[tag];
        let head: RqHead = rq.head;
        if !head.is_plain() {
            return false;
        }
        let one = PlainEnd { cookie: rq.cookie, bytes: head.bytes };
        let mut told = false;
        end.end_run(head.tail_or_owner, 1, |at| {
            told = at == 0;
            told.then_some(one)
        });
        if !told {
            return false;
        }
        rq.bio_head = BioId::NONE; // C1
        self.epoch = self.epoch.wrapping_add(1);
        self.in_driver -= 1;
        if core.stats {
            let latency_ns = core.clock.coarse().ns_since(head.start);
            if self.in_driver == 0 {
                self.shared.stats.busy.end_at(&mut self.busy_edge, CoarseTs(head.start.0 + latency_ns));
            }
            self.shared.stats.note(head.op, latency_ns, 1, head.bytes.into());
        }
        core.bios.release(1);
        self.done.clear();
        self.tags.free_batch(usize::from(tag / 64), 1 << (tag % 64));
        true
    }

    /// Ends plain records that succeeded, from number `at` of the batch on, as far as they are alike and their owner
    /// has room; how many.
    #[inline(never)]
    fn end_records(&mut self, core: &mut Core, at: usize, now: Option<CoarseTs>, end: &mut impl EndIo) -> usize {
        let Hctx { done, rqs, freed, shared, .. } = self;
        let tags = done.tags().get(at..).unwrap_or_default();
        let Some(&tag) = tags.first() else { return 0 };
        let first: RqHead = rqs[tag].head;
        if !first.is_plain() {
            return 0;
        }
        freed.go_to(tag);
        let tags = in_one_word(tags);
        let tags = if done.any_failed() { that_succeeded(done, tags) } else { tags };
        let (mut many, mut bytes, mut mask) = (0, 0, freed.mask);
        end.end_run(first.tail_or_owner, tags.len(), |at| {
            let tag = *tags.get(at)?;
            let rq = &mut rqs[tag];
            if !rq.ends_like(&first) {
                return None;
            }
            rq.bio_head = BioId::NONE; // C1
            bytes += u64::from(rq.bytes);
            mask |= 1 << (tag % 64);
            many += 1;
            Some(PlainEnd { cookie: rq.cookie, bytes: rq.bytes })
        });
        freed.mask = mask;
        if let Some(now) = now {
            shared.stats.note(first.op, now.ns_since(first.start), many, bytes);
        }
        core.bios.release(many as u32);
        many as usize
    }

    /// Ends what comes behind the first `many`.
    #[inline(never)]
    fn complete_rest(&mut self, core: &mut Core, many: usize, now: Option<CoarseTs>, end: &mut impl EndIo) -> u32 {
        let mut seq = false;
        let mut at = many;
        while let Some(&tag) = self.done.tags().get(at) {
            let status = self.done.status(tag);
            if !self.rqs[tag].is_plain() {
                let until = self.end_requests(core, at, now, &mut seq, end);
                at = until;
                continue;
            }
            let mut many = 0;
            if status.is_ok() {
                many = self.end_records(core, at, now, end);
            }
            if many == 0 {
                self.end_record(core, tag, status, now, end);
                many = 1;
            }
            at += many;
        }
        let ended = self.done.len() as u32;
        self.in_driver -= ended;
        self.end_busy_if_idle(ended, now);
        if seq {
            self.complete_sequences(core, end);
        }
        self.done.clear();
        self.tags.free_all(&mut self.freed);
        ended
    }

    /// Ends one record: it has failed, or its owner has no place for it in a row.
    #[cold]
    fn end_record(&mut self, core: &mut Core, tag: u16, status: Status, now: Option<CoarseTs>, end: &mut impl EndIo) {
        let rq = &mut self.rqs[tag];
        let (head, cookie) = (rq.head, rq.cookie);
        rq.bio_head = BioId::NONE; // C1
        let mut account = BatchAccount::new(&self.shared.stats, now.unwrap_or_default());
        if now.is_some() {
            account.request(head.op, head.start, head.bytes, 0);
            account.write();
            if !status.is_ok() {
                account.error(head.op);
            }
        }
        core.bios.release(1);
        end.end_plain(head.tail_or_owner, PlainEnd { cookie, bytes: head.bytes }, status);
        self.freed.add(tag);
    }

    /// Ends requests with bios, from number `at` of the batch on, until the next record; its number. Those that belong
    /// to flush sequences are left, and said so, as are writes with FUA that failed.
    #[inline(never)]
    fn end_requests(
        &mut self,
        core: &mut Core,
        mut at: usize,
        now: Option<CoarseTs>,
        seq: &mut bool,
        end: &mut impl EndIo,
    ) -> usize {
        let Hctx { done, rqs, freed, shared, .. } = self;
        let mut account = BatchAccount::new(&shared.stats, now.unwrap_or_default());
        while let Some(&tag) = done.tags().get(at) {
            let (rq, status) = (&mut rqs[tag], done.status(tag));
            if rq.is_plain() {
                break;
            }
            at += 1;
            if now.is_some() {
                account.request(rq.op, rq.start, rq.bytes, rq.merged());
                if !status.is_ok() {
                    account.error(rq.op);
                }
            }
            if !status.is_ok() {
                *seq |= rq.flags & RQ_FUA != 0;
            }
            if rq.flags & RQ_FLUSH_SEQ != 0 {
                *seq = true;
                continue;
            }
            let id = std::mem::replace(&mut rq.bio_head, BioId::NONE); // C1
            end_bios(core, id, status, end);
            freed.add(tag);
        }
        account.write();
        at
    }

    /// The requests of the batch that belong to flush sequences, and writes with FUA that failed.
    #[cold]
    fn complete_sequences(&mut self, core: &mut Core, end: &mut dyn EndIo) {
        let flush_tag = self.flush_tag();
        for at in 0..self.done.len() {
            let tag = self.done.tags()[at];
            let status = self.done.status(tag);
            let rq = &mut self.rqs[tag];
            // What has no space was refused before anything was flushed.
            if rq.flags & RQ_FUA != 0 && status != Status::NoSpc {
                self.queue.watches().failed(status);
            }
            if rq.flags & RQ_FLUSH_SEQ == 0 {
                continue;
            }
            if tag == flush_tag {
                // Release: like a tag that is freed.
                self.shared.flushing.store(0, Ordering::Release);
                self.flush_done(core, status, end);
                continue;
            }
            let mut id = std::mem::replace(&mut rq.bio_head, BioId::NONE); // C1
            while id.is_some() {
                let next = core.bios[id].next;
                self.data_done(core, id, status, end);
                id = next;
            }
            self.freed.add(tag);
        }
        self.stalled = true;
    }
}

/// The first of the tags that lie in one word of a set.
#[inline(always)]
fn in_one_word(tags: &[u16]) -> &[u16] {
    let first = tags.first().copied().unwrap_or_default();
    // All at once, without a branch for each.
    if tags.iter().fold(0, |apart, tag| apart | (tag ^ first)) < 64 {
        return tags;
    }
    let many = tags.iter().take_while(|&tag| tag ^ first < 64).count();
    &tags[..many]
}

/// The first of the tags whose requests have not failed.
#[cold]
fn that_succeeded<'a>(done: &DoneList, tags: &'a [u16]) -> &'a [u16] {
    let many = tags.iter().take_while(|&&tag| done.status(tag).is_ok()).count();
    &tags[..many]
}

/// Ends the bios of a request, which are linked.
#[inline(always)]
fn end_bios(core: &mut Core, mut id: BioId, status: Status, end: &mut impl EndIo) {
    while id.is_some() {
        if core.bios[id].flags & BIO_SLOW_END == BIO_PLAIN && status.is_ok() {
            let owner = core.bios[id].owner;
            let before = id;
            end.end_run(owner, usize::MAX, |_| {
                let bio = id.is_some().then(|| &core.bios[id])?;
                if bio.flags & BIO_SLOW_END != BIO_PLAIN || bio.owner != owner {
                    return None;
                }
                let (next, end) = (bio.next, PlainEnd { cookie: bio.cookie, bytes: bio.bytes });
                core.bios.put(id);
                id = next;
                Some(end)
            });
            if id != before {
                continue;
            }
        }
        let next = core.bios[id].next;
        core.end_bio(id, status, end);
        id = next;
    }
}
