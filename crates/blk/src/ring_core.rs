//! What all hardware contexts of one ring share: its bios, its plug, its clock, its kernel ring, and the lists of bios
//! that are in none of them.
//!
//! Owns how a bio ends: it is recycled, then its owner is told, or its parent is counted down. Does not own when: a
//! hardware context ends what its driver has finished, and [`ctx`](crate::ctx) what never came to one.
//!
//! - I1: a bio with children ends when it and all of them have ended, with the first error of all.
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

/// What the hardware contexts of a ring share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) bios: BioSet,
    pub(crate) plug: Plug,
    pub(crate) clock: Clock,
    pub(crate) kring: KringSlot,
    /// Bios that ended without a driver; `poll` ends them (I1).
    pub(crate) ended: BioList,
    /// Hardware contexts that may have work, as a mask.
    pub(crate) active: u64,
    /// Hardware contexts whose driver has panicked since the last poll, as a mask.
    pub(crate) broken: u64,
    /// Bios of devices with several legs for whose pieces there were no bios.
    pub(crate) starved: BioList,
    /// The ways of stacked drivers to the devices below, by the number of their hardware context.
    pub(crate) lowers: Vec<Option<Lower>>,
    /// The hardware contexts of stacked drivers, as a mask.
    pub(crate) stacked: u64,
    /// Whether statistics are kept.
    pub(crate) stats: bool,
    /// When the last batch was completed that this poll has ended.
    pub(crate) batch_time: Option<CoarseTs>,
    /// When the ring last looked for completions, before the look that goes on: what it finds had not ended before. Of
    /// one that has looked all the time, the end of time.
    pub(crate) looked: CoarseTs,
    /// When its owner is to [look](EndIo::look) next.
    pub(crate) look_at: CoarseTs,
    /// Where the time went of the request whose bios are being ended; none, of a bio that had no request.
    pub(crate) split: Split,
    /// Where each request goes that ends, while the ring is traced.
    pub(crate) trace: Option<Box<TraceWriter>>,
}

/// Of a ring that has looked for completions all the time until now.
pub(crate) const ALL_THE_TIME: CoarseTs = CoarseTs(u64::MAX);

impl Core {
    /// A look for completions is over, which has ended its last batch at this time. If there was none, the cycle
    /// counter says when it was; with nothing in flight it does not matter, for what comes is issued later.
    #[inline(always)]
    pub(crate) fn has_looked(&mut self, ended: Option<CoarseTs>, cycles: u64) {
        self.looked = ended.unwrap_or_else(|| self.clock.coarse_of(cycles));
    }

    /// Has the owner look at what is usual, if that is due.
    #[inline(always)]
    pub(crate) fn look_if_due(&mut self, now: CoarseTs, end: &mut impl EndIo) {
        if now >= self.look_at {
            self.look_at = end.look(now);
        }
    }

    /// An I/O that cannot be, whatever the device: the next poll ends it as invalid. False when no bio is free.
    #[cold]
    pub(crate) fn refuse(&mut self, owner: u32) -> bool {
        let Some(id) = self.bios.take() else { return false };
        self.bios[id].owner = owner;
        self.end_later(id, Status::Invalid);
        true
    }

    /// Marks the bio as ended; [`IoCtx::poll`](crate::ctx::IoCtx::poll) tells its owner.
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

    /// A stacked driver's I/O to a device below has ended: the driver hears of it when it is polled.
    fn end_lower(&self, owner: u32, token: u64, status: Status) {
        let lower = self.lowers.get(usize::from(owner as u16)).and_then(Option::as_ref);
        debug_assert!(lower.is_some(), "S2: a hardware context outlives its children");
        if let Some(lower) = lower {
            lower.ended(token, status);
        }
    }

    /// A plain record that has become this bio, as a run of one.
    pub(crate) fn run_of(&self, id: BioId) -> RunEnd {
        let bio = &self.bios[id];
        RunEnd {
            op: bio.op,
            split: self.split,
            // One that ended without a driver has no batch, and no time either.
            ended: self.batch_time.unwrap_or_default(),
            ios: 1,
            sector: bio.sector,
            bytes: bio.bytes,
            bytes_all: bio.bytes.into(),
        }
    }

    /// Ends a bio: recycles it and tells its owner, unless it waits for children or is one.
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
