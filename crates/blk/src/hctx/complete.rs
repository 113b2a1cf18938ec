//! Completion of a batch: one time stamp, then the end of every record and bio, then the tags, freed with one mask per
//! word.
//!
//! Owns the loop over the requests that the driver has ended. Consecutive plain records that are alike (as those of one
//! run are) end together: their owner receives them in one call, and statistics count them at once. Requests with bios
//! end one by one.
//!
//! Invariants: I2 of the parent, and
//! - C1: `bio_head` of a request is `NONE` before its tag is freed.
//! - C2: each record is reported once: by [`EndIo::end_run`] if the owner takes it, else by [`EndIo::end_plain`].

use sheave_base::clock::CoarseTs;
use sheave_base::status::Status;

use super::Hctx;
use super::account::{Whence, trace_request};
use super::stages::Passed;
use crate::bio::{BIO_PLAIN, BIO_SLOW_END, BioId};
use crate::end_io::{EndIo, PlainEnd, RunEnd};
use crate::request::{DoneList, RQ_DELAYED, RQ_FLUSH_SEQ, RQ_FUA, Requests, RqHead};
use crate::ring_core::Core;
use crate::stats::{BatchAccount, Split};

impl Hctx {
    /// Ends all requests in `done`. Returns their number.
    #[inline]
    pub(super) fn complete(&mut self, core: &mut Core, end: &mut impl EndIo) -> u32 {
        self.epoch = self.epoch.wrapping_add(1);
        let now = self.counts.then(|| core.clock.coarse());
        core.batch_time = now;
        let many = self.end_records(core, 0, now, end);
        if many != self.done.len() {
            return self.complete_rest(core, many, now, end);
        }
        if !self.parts.is_empty() {
            self.end_parts(now);
        }
        self.done.clear();
        self.stamps.clear_calls();
        self.in_driver -= many as u32;
        self.end_busy_if_idle(many as u32, now);
        self.tags.free_all(&mut self.freed);
        many as u32
    }

    /// Fast path of [`Hctx::complete`] for a single I/O: ends the batch if it is one plain record that succeeded and
    /// its owner has room. Otherwise changes nothing and returns false. Has all effects of `complete`, without its
    /// loops.
    #[inline(always)]
    pub(crate) fn end_only(&mut self, core: &mut Core, end: &mut impl EndIo) -> bool {
        let (&[tag], false) = (self.done.tags(), self.done.any_failed()) else { return false };
        let rq = &mut self.rqs[tag];
        let head: RqHead = rq.head;
        if !head.is_plain() || head.flags & RQ_DELAYED != 0 {
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
        if self.counts {
            let now = core.clock.coarse().max(head.start);
            if self.in_driver == 0 {
                self.shared.stats.busy.end_at(&mut self.busy_edge, now);
            }
            let split = self.stamps.split_of_only(tag, &head, core.looked, now);
            core.looked = now;
            self.count_run(tag, &head, &split, now, (1, head.bytes.into()), end);
            if core.trace.is_some() {
                self.trace_run(core, (0, 1), &head, (&split, now), end);
            }
            core.look_if_due(now, end);
        }
        if !self.parts.is_empty() {
            self.end_parts(self.counts.then_some(core.looked));
        }
        core.bios.release(1);
        self.done.clear();
        self.stamps.clear_calls();
        self.tags.free_batch(usize::from(tag / 64), 1 << (tag % 64));
        true
    }

    /// Ends plain records that succeeded, from index `at` of the batch on, while they are alike and their owner has
    /// room. Returns their number.
    #[inline(never)]
    fn end_records(&mut self, core: &mut Core, at: usize, now: Option<CoarseTs>, end: &mut impl EndIo) -> usize {
        let Some(&tag) = self.done.tags().get(at) else { return 0 };
        let first: RqHead = self.rqs[tag].head;
        if !first.is_plain() {
            return 0;
        }
        let Some(now) = now else { return self.end_alike(core, (at, usize::MAX), tag, &first, end).0 as usize };
        let passed = self.stamps.of_run(at, tag, core.looked);
        if first.flags & RQ_DELAYED != 0 {
            return self.end_delayed(core, at, now, passed, end);
        }
        let counts = self.end_alike(core, (at, passed.until), tag, &first, end);
        let split = Split::between(first.start, passed.sent, passed.ended, now);
        self.count_run(tag, &first, &split, now, counts, end);
        if core.trace.is_some() {
            self.trace_run(core, (at, counts.0 as usize), &first, (&split, now), end);
        }
        counts.0 as usize
    }

    /// [`Hctx::end_records`] for a record that was held back. It ends alone, because no other record shares its stamps.
    #[cold]
    fn end_delayed(
        &mut self,
        core: &mut Core,
        at: usize,
        now: CoarseTs,
        passed: Passed,
        end: &mut impl EndIo,
    ) -> usize {
        let Some(&tag) = self.done.tags().get(at) else { return 0 };
        let first: RqHead = self.rqs[tag].head;
        let counts = self.end_alike(core, (at, at + 1), tag, &first, end);
        let split = Split::between(first.start, passed.sent, passed.ended, now);
        let split = self.stamps.add_delay(tag, split);
        self.count_run(tag, &first, &split, now, counts, end);
        self.trace_run(core, (at, counts.0 as usize), &first, (&split, now), end);
        counts.0 as usize
    }

    /// Ends plain records that succeeded, in the range `at..until` of the batch, while they are like `first` and their
    /// owner has room. Returns their number and their bytes.
    #[inline(always)]
    fn end_alike(
        &mut self,
        core: &mut Core,
        (at, until): (usize, usize),
        tag: u16,
        first: &RqHead,
        end: &mut impl EndIo,
    ) -> (u64, u64) {
        let Hctx { done, rqs, freed, .. } = self;
        let tags = done.tags().get(at..until.min(done.len())).unwrap_or_default();
        freed.go_to(tag);
        let tags = in_one_word(tags);
        let tags = if done.any_failed() { that_succeeded(done, tags) } else { tags };
        let (many, bytes) = end_alike(rqs, tags, first, &mut freed.mask, end);
        core.bios.release(many);
        (many.into(), bytes)
    }

    /// Counts `many` records of `bytes` in all that ended together. `tag` and `first` are those of the first of them.
    #[inline(always)]
    pub(super) fn count_run(
        &self,
        tag: u16,
        first: &RqHead,
        split: &Split,
        now: CoarseTs,
        (many, bytes): (u64, u64),
        end: &mut impl EndIo,
    ) {
        let slow = match end.records(first.tail_or_owner) {
            Some(records) => records.tally(first.op).note(split, many, bytes),
            None => {
                self.tallies_of(first.part).note(first.op, split, many, bytes);
                false
            }
        };
        if slow {
            self.tell_slow(tag, first, split, now, (many, bytes), end);
        }
    }

    #[cold]
    fn tell_slow(
        &self,
        tag: u16,
        first: &RqHead,
        split: &Split,
        now: CoarseTs,
        (ios, bytes_all): (u64, u64),
        end: &mut impl EndIo,
    ) {
        // The owner had room for none of them; `end_record` reports the first one.
        if ios == 0 {
            return;
        }
        let (op, bytes, sector) = (first.op, first.bytes, self.rqs[tag].sector);
        end.slow_run(first.tail_or_owner, &RunEnd { op, split: *split, ended: now, ios, sector, bytes, bytes_all });
    }

    /// Ends the rest of the batch behind the first `many`.
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
                self.end_record(core, at, status, now, end);
                many = 1;
            }
            at += many;
        }
        let ended = self.done.len() as u32;
        if !self.parts.is_empty() {
            self.end_parts(now);
        }
        self.in_driver -= ended;
        self.end_busy_if_idle(ended, now);
        if seq {
            self.complete_sequences(core, now, end);
        }
        self.done.clear();
        self.stamps.clear_calls();
        self.tags.free_all(&mut self.freed);
        ended
    }

    /// Ends one record that has failed, or for which its owner has no room in a run.
    #[cold]
    fn end_record(&mut self, core: &mut Core, at: usize, status: Status, now: Option<CoarseTs>, end: &mut impl EndIo) {
        let tag = self.done.tags()[at];
        let rq = &mut self.rqs[tag];
        let (head, cookie) = (rq.head, rq.cookie);
        rq.bio_head = BioId::NONE; // C1
        core.bios.release(1);
        end.end_plain(head.tail_or_owner, PlainEnd { cookie, bytes: head.bytes }, status);
        if let Some(now) = now {
            let split = self.stamps.split_of(at, tag, &head, core.looked, now);
            self.count_run(tag, &head, &split, now, (1, head.bytes.into()), end);
            self.trace_run(core, (at, 1), &head, (&split, now), end);
        }
        if !status.is_ok() {
            let tallies = now.map(|_| self.tallies_of(head.part));
            self.shared.stats.note_error(tallies, head.op, status);
        }
        self.freed.add(tag);
    }

    /// Ends requests with bios from index `at` of the batch up to the next record, and returns its index. Leaves
    /// requests of flush sequences to `complete_sequences` and sets `seq`; sets `seq` also for a write with FUA that
    /// failed.
    #[inline(never)]
    fn end_requests(
        &mut self,
        core: &mut Core,
        mut at: usize,
        now: Option<CoarseTs>,
        seq: &mut bool,
        end: &mut impl EndIo,
    ) -> usize {
        let Hctx { done, rqs, freed, shared, stamps, queue, hw, in_driver, parts, .. } = self;
        let mut account = BatchAccount::new(&shared.stats);
        while let Some(&tag) = done.tags().get(at) {
            let (rq, status) = (&mut rqs[tag], done.status(tag));
            if rq.is_plain() {
                break;
            }
            let part = parts.get(rq.part).map(|slot| &slot.stats.tallies);
            if let Some(now) = now {
                let split = stamps.split_of(at, tag, rq, core.looked, now);
                match part {
                    None => account.request(rq.op, &split, rq.bytes, rq.merged()),
                    Some(part) => {
                        part.note(rq.op, &split, 1, rq.bytes.into());
                        part.note_merges(rq.op, rq.merged().into());
                    }
                }
                core.split = split;
                if let Some(trace) = &mut core.trace {
                    trace_request(
                        trace,
                        &Whence { queue, index: hw.index(), in_driver: *in_driver },
                        rq,
                        status,
                        &split,
                        now,
                    );
                }
            } else {
                core.split = Split::default();
            }
            at += 1;
            if !status.is_ok() {
                let tallies = now.map(|_| part.unwrap_or(&shared.stats.own));
                shared.stats.note_error(tallies, rq.op, status);
                *seq |= rq.flags & RQ_FUA != 0;
            }
            if rq.flags & RQ_FLUSH_SEQ != 0 {
                *seq = true;
                continue;
            }
            let id = std::mem::replace(&mut rq.bio_head, BioId::NONE); // C1
            end_bios(core, id, status, now.is_some(), end);
            freed.add(tag);
        }
        account.write();
        at
    }
}

/// Ends records that succeeded and are like `first`, while their owner has room. Returns their number and bytes. Not
/// inlined, since its loop needs all registers.
#[inline(never)]
fn end_alike(rqs: &mut Requests, tags: &[u16], first: &RqHead, mask: &mut u64, end: &mut impl EndIo) -> (u32, u64) {
    let (mut many, mut bytes, mut ended) = (0, 0, *mask);
    end.end_run(first.tail_or_owner, tags.len(), |at| {
        let tag = *tags.get(at)?;
        let rq = &mut rqs[tag];
        if !rq.ends_like(first) {
            return None;
        }
        rq.bio_head = BioId::NONE; // C1
        bytes += u64::from(rq.bytes);
        ended |= 1 << (tag % 64);
        many = at as u32 + 1;
        Some(PlainEnd { cookie: rq.cookie, bytes: rq.bytes })
    });
    *mask = ended;
    (many, bytes)
}

/// Returns the prefix of `tags` that lies in one word of the tag set.
#[inline(always)]
fn in_one_word(tags: &[u16]) -> &[u16] {
    let first = tags.first().copied().unwrap_or_default();
    // One test over all tags, without a branch for each, because nearly all batches lie in one word.
    if tags.iter().fold(0, |apart, tag| apart | (tag ^ first)) < 64 {
        return tags;
    }
    let many = tags.iter().take_while(|&tag| tag ^ first < 64).count();
    &tags[..many]
}

/// Returns the prefix of `tags` whose requests have not failed.
#[cold]
fn that_succeeded<'a>(done: &DoneList, tags: &'a [u16]) -> &'a [u16] {
    let many = tags.iter().take_while(|&&tag| done.status(tag).is_ok()).count();
    &tags[..many]
}

/// Ends the linked bios of a request.
#[inline(always)]
fn end_bios(core: &mut Core, mut id: BioId, status: Status, timed: bool, end: &mut impl EndIo) {
    while id.is_some() {
        if core.bios[id].flags & BIO_SLOW_END == BIO_PLAIN && status.is_ok() {
            let owner = core.bios[id].owner;
            let mut run = RunEnd { ios: 0, bytes_all: 0, ..core.run_of(id) };
            end.end_run(owner, usize::MAX, |_| {
                let bio = id.is_some().then(|| &core.bios[id])?;
                if bio.flags & BIO_SLOW_END != BIO_PLAIN || bio.owner != owner {
                    return None;
                }
                let (next, end) = (bio.next, PlainEnd { cookie: bio.cookie, bytes: bio.bytes });
                core.bios.put(id);
                id = next;
                run.ios += 1;
                run.bytes_all += u64::from(end.bytes);
                Some(end)
            });
            if run.ios != 0 {
                if timed {
                    end.timed_plain(owner, &run);
                }
                continue;
            }
        }
        let next = core.bios[id].next;
        core.end_bio(id, status, end);
        id = next;
    }
}
