//! Calls that report the end of I/O to its owner.
//!
//! Owns the trait, not the order of the calls. [`hctx`](crate::hctx) and [`ctx`](crate::ctx) make the calls: in a poll,
//! at the shutdown of a ring, and for an I/O that was sent alone and ended within the driver's call. The owner is a
//! ring's state in `sheave-uring`.

use sheave_base::clock::CoarseTs;
use sheave_base::status::Status;

use crate::bio::Op;
use crate::stats::{RecordStats, Split};

/// Owner of bios and plain records, called at their end.
pub trait EndIo {
    /// Called when the bio with this owner's number has ended.
    fn end_io(&mut self, owner: u32, status: Status);

    /// Called when up to `most` plain records with this owner's number have ended with success. The owner calls
    /// `end_at` from 0 on until it returns `None` or the owner has no room. Records that it did not call for are passed
    /// to [`EndIo::end_plain`].
    #[inline(always)]
    fn end_run(&mut self, owner: u32, most: usize, end_at: impl FnMut(usize) -> Option<PlainEnd>)
    where
        Self: Sized,
    {
        let _ = (owner, most, end_at);
    }

    /// Called when a plain I/O has ended with success in the call that [sent it alone](crate::ctx::IoCtx::send_alone).
    /// Returns false if the owner has no room; the next poll then passes it to [`EndIo::end_plain`].
    #[inline(always)]
    fn end_one(&mut self, end: PlainEnd) -> bool {
        let _ = end;
        false
    }

    /// Called when one plain record with this owner's number has ended.
    fn end_plain(&mut self, owner: u32, end: PlainEnd, status: Status);

    /// Returns this owner's own counts of its plain records, if it has any. The hardware context's statistics contain
    /// them ([`IoCtx::record_seat`](crate::ctx::IoCtx::record_seat)).
    #[inline(always)]
    fn records(&self, owner: u32) -> Option<&RecordStats> {
        let _ = owner;
        None
    }

    /// Returns the file of this owner's plain records, by its number in the ring, for a trace.
    #[inline(always)]
    fn file_of(&self, owner: u32) -> Option<u16> {
        let _ = owner;
        None
    }

    /// Called with statistics on, after [`EndIo::end_plain`] or [`EndIo::end_run`], for plain records that have become
    /// bios. Such records are counted with their request, and not in [`EndIo::records`].
    fn timed_plain(&mut self, owner: u32, run: &RunEnd) {
        let _ = (owner, run);
    }

    /// Called when plain records have ended that [count as slow](crate::stats::IoTally::note).
    #[cold]
    fn slow_run(&mut self, owner: u32, run: &RunEnd) {
        let _ = (owner, run);
    }

    /// Called with statistics on, before [`EndIo::end_io`], with the split of the same bio.
    #[inline(always)]
    fn timed(&mut self, owner: u32, split: &Split) {
        let _ = (owner, split);
    }

    /// Called about once a second while there is I/O, so that the owner can update its measure of usual latencies.
    /// Returns the time of the next call.
    #[cold]
    fn look(&mut self, now: CoarseTs) -> CoarseTs {
        let _ = now;
        CoarseTs(u64::MAX)
    }

    /// Called at the end of each [`IoCtx::poll`](crate::ctx::IoCtx::poll) and of
    /// [`IoCtx::shutdown`](crate::ctx::IoCtx::shutdown).
    #[inline(always)]
    fn end_poll(&mut self) {}
}

/// Plain records of one owner that ended together.
#[derive(Clone, Copy, Debug)]
pub struct RunEnd {
    /// Operation.
    pub op: Op,
    /// Time by stages.
    pub split: Split,
    /// Time of the end.
    pub ended: CoarseTs,
    /// Number of records.
    pub ios: u64,
    /// First sector of the first record, on the device of its hardware context.
    pub sector: u64,
    /// Length of the first record in bytes.
    pub bytes: u32,
    /// Length of all records together.
    pub bytes_all: u64,
}

/// A plain record that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainEnd {
    /// User data of the submitter.
    pub cookie: u64,
    /// Length in bytes.
    pub bytes: u32,
}

impl<F: FnMut(u32, Status)> EndIo for F {
    #[inline]
    fn end_io(&mut self, owner: u32, status: Status) {
        self(owner, status);
    }

    fn end_plain(&mut self, owner: u32, _: PlainEnd, status: Status) {
        self(owner, status);
    }
}
