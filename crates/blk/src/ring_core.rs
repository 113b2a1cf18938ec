//! State that all hardware contexts of one ring share: its bios, its plug, its clock, its kernel ring, and the lists of
//! bios that are in none of the contexts.
//!
//! Owns the steps at the end of a bio: it is recycled, then its owner is called, or the count of its parent is lowered.
//! Does not decide when a bio ends: a hardware context ends bios of requests that its driver has ended, and
//! [`ctx`](crate::ctx) ends bios that never reached a hardware context.
//!
//! - I1: a bio with children ends after it and all of them have ended, with the first error of all.
//!
//! Owned by [`ctx::IoCtx`](crate::ctx::IoCtx), which lends it to one hardware context at a time.

use sheave_base::clock::{Clock, CoarseTs};
use sheave_base::status::Status;
use sheave_base::trace::writer::TraceWriter;

use crate::bio::{BIO_CHILD, BIO_PLAIN, BIO_SLOW, BIO_SLOW_END, BIO_STACKED, BIO_WAITS, BioId};
use crate::bio_set::{BioList, BioSet};
use crate::end_io::{EndIo, PlainEnd, RunEnd};
use crate::kring_slot::KringSlot;
use crate::plug::Plug;
use crate::stack::Lower;
use crate::stats::Split;

/// State that the hardware contexts of a ring share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) bios: BioSet,
    pub(crate) plug: Plug,
    pub(crate) clock: Clock,
    pub(crate) kring: KringSlot,
    /// Bios that ended without a driver. `poll` ends them (I1).
    pub(crate) ended: BioList,
    /// Mask of hardware contexts that may have work.
    pub(crate) active: u64,
    /// Mask of hardware contexts whose driver has panicked since the last poll.
    pub(crate) broken: u64,
    /// Bios of devices with several legs for whose pieces no bios were free.
    pub(crate) starved: BioList,
    /// By number of hardware context: access of stacked drivers to the devices below.
    pub(crate) lowers: Vec<Option<Lower>>,
    /// Mask of hardware contexts of stacked drivers.
    pub(crate) stacked: u64,
    /// True if the ring keeps statistics.
    pub(crate) stats: bool,
    /// Completion time of the last batch that the current poll has ended.
    pub(crate) batch_time: Option<CoarseTs>,
    /// Time of the previous poll for completions: those found by the current one had not ended before it.
    /// `ALL_THE_TIME` if the ring has been polling, or sleeping for completions, since.
    pub(crate) looked: CoarseTs,
    /// Time at which `EndIo::look` is due.
    pub(crate) look_at: CoarseTs,
    /// Split of the request whose bios are being ended; zero for a bio that had no request.
    pub(crate) split: Split,
    /// Trace for the requests that end, while the ring is traced.
    pub(crate) trace: Option<Box<TraceWriter>>,
}

/// Value of `Core::looked` for a ring that has polled without a break until now.
pub(crate) const ALL_THE_TIME: CoarseTs = CoarseTs(u64::MAX);

impl Core {
    /// Called at the end of a poll. `ended` is the time of its last batch. Without a batch the time is computed from
    /// `cycles`, which is 0 if nothing was in flight; the time does not matter then, because every later request is
    /// issued after it.
    #[inline(always)]
    pub(crate) fn has_looked(&mut self, ended: Option<CoarseTs>, cycles: u64) {
        self.looked = ended.unwrap_or_else(|| self.clock.coarse_of(cycles));
    }

    /// Calls `EndIo::look` if it is due.
    #[inline(always)]
    pub(crate) fn look_if_due(&mut self, now: CoarseTs, end: &mut impl EndIo) {
        if now >= self.look_at {
            self.look_at = end.look(now);
        }
    }

    /// Ends an I/O as invalid in the next poll, for an error that does not depend on the device. Returns false if no
    /// bio is free.
    #[cold]
    pub(crate) fn refuse(&mut self, owner: u32) -> bool {
        let Some(id) = self.bios.take() else { return false };
        self.bios[id].owner = owner;
        self.end_later(id, Status::Invalid);
        true
    }

    /// Marks the bio as ended. [`IoCtx::poll`](crate::ctx::IoCtx::poll) calls its owner.
    #[cold]
    pub(crate) fn end_later(&mut self, id: BioId, status: Status) {
        let bio = &mut self.bios[id];
        bio.flags |= BIO_SLOW;
        if bio.status.is_ok() {
            bio.status = status;
        }
        self.ended.push_back(&mut self.bios, id);
    }

    #[cold]
    pub(crate) fn end_ended(&mut self, end: &mut dyn EndIo) -> u32 {
        let mut count = 0;
        self.split = Split::default();
        while let Some(id) = self.ended.pop(&mut self.bios) {
            self.end_bio_slow(id, Status::Ok, end);
            count += 1;
        }
        count
    }

    /// Reports the end of an I/O on a device below to the stacked driver, which collects it when polled.
    fn end_lower(&self, owner: u32, token: u64, status: Status) {
        let lower = self.lowers.get(usize::from(owner as u16)).and_then(Option::as_ref);
        debug_assert!(lower.is_some(), "S2: a hardware context outlives its children");
        if let Some(lower) = lower {
            lower.ended(token, status);
        }
    }

    /// Returns the end of a plain record that has become this bio, as a run of one.
    pub(crate) fn run_of(&self, id: BioId) -> RunEnd {
        let bio = &self.bios[id];
        RunEnd {
            op: bio.op,
            split: self.split,
            // A bio that ended without a driver belongs to no batch and has no time.
            ended: self.batch_time.unwrap_or_default(),
            ios: 1,
            sector: bio.sector,
            bytes: bio.bytes,
            bytes_all: bio.bytes.into(),
        }
    }

    /// Ends a bio: recycles it and calls its owner, unless it waits for children or is one.
    #[inline(always)]
    pub(crate) fn end_bio(&mut self, id: BioId, status: Status, end: &mut impl EndIo) {
        let bio = &self.bios[id];
        if bio.flags & BIO_SLOW_END != 0 {
            return self.end_bio_slow(id, status, end);
        }
        let owner = bio.owner;
        self.bios.put(id);
        if self.stats {
            end.timed(owner, &self.split);
        }
        end.end_io(owner, status);
    }

    #[cold]
    pub(crate) fn end_bio_slow(&mut self, mut id: BioId, status: Status, end: &mut dyn EndIo) {
        let bio = &mut self.bios[id];
        if bio.status.is_ok() {
            bio.status = status;
        }
        if bio.remaining > 0 {
            bio.flags |= BIO_WAITS;
            return;
        }
        loop {
            let bio = &self.bios[id];
            let (flags, status, owner, parent) = (bio.flags, bio.status, bio.owner, bio.parent);
            let record = PlainEnd { cookie: bio.cookie, bytes: bio.bytes };
            let run = (self.stats && flags & BIO_PLAIN != 0).then(|| self.run_of(id));
            self.bios.put(id);
            if flags & BIO_CHILD == 0 {
                if flags & BIO_PLAIN != 0 {
                    end.end_plain(owner, record, status);
                    if let Some(run) = run {
                        end.timed_plain(owner, &run);
                    }
                    return;
                }
                if flags & BIO_STACKED != 0 {
                    return self.end_lower(owner, record.cookie, status);
                }
                if self.stats {
                    end.timed(owner, &self.split);
                }
                return end.end_io(owner, status);
            }
            let up = &mut self.bios[parent];
            up.flags |= BIO_SLOW;
            if up.status.is_ok() {
                up.status = status;
            }
            up.remaining -= 1;
            if up.remaining > 0 || up.flags & BIO_WAITS == 0 {
                return;
            }
            id = parent;
        }
    }
}
