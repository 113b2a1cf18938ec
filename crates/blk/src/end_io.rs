//! How the owner of I/O hears of its end.
//!
//! Owns the calls and no order of them: [`hctx`](crate::hctx) and [`ctx`](crate::ctx) make them, in a poll, at the
//! shutdown of a ring, and where a driver ends in its call what was sent alone. A ring's state is the owner in
//! `sheave-uring`.

use sheave_base::clock::CoarseTs;
use sheave_base::status::Status;

use crate::bio::Op;
use crate::stats::{RecordStats, Split};

/// Who is told that bios and plain records ended: their owner.
pub trait EndIo {
    /// The bio that was submitted with this owner's number has ended with this status.
    fn end_io(&mut self, owner: u32, status: Status);

    /// Plain records with this owner's number have ended with success, `most` at most. Asks `end_at` for each, from
    /// number 0 on, until it gives none or there is no room; what was not asked for comes by [`EndIo::end_plain`].
    #[inline(always)]
    fn end_run(&mut self, owner: u32, most: usize, end_at: impl FnMut(usize) -> Option<PlainEnd>)
    where
        Self: Sized,
    {
        let _ = (owner, most, end_at);
    }

    /// A plain I/O has ended with success in the call that [sent it alone](crate::ctx::IoCtx::send_alone). False when
    /// there is no room for it; then it comes by [`EndIo::end_plain`] in the next poll.
    #[inline(always)]
    fn end_one(&mut self, end: PlainEnd) -> bool {
        let _ = end;
        false
    }

    /// One plain record with this owner's number has ended with this status.
    fn end_plain(&mut self, owner: u32, end: PlainEnd, status: Status);

    /// Where the plain records of this owner count, if it has counts of its own that are a part of the hardware
    /// context's ([`IoCtx::record_seat`](crate::ctx::IoCtx::record_seat)).
    #[inline(always)]
    fn records(&self, owner: u32) -> Option<&RecordStats> {
        let _ = owner;
        None
    }

    /// The file of this owner's plain records, by its number in the ring, for a trace.
    #[inline(always)]
    fn file_of(&self, owner: u32) -> Option<u16> {
        let _ = owner;
        None
    }

    /// Where the time went of plain records that have become bios, and have ended, after [`EndIo::end_plain`] or
    /// [`EndIo::end_run`] has told of them. They count with their request, and not in [`EndIo::records`].
    /// Only with statistics.
    fn timed_plain(&mut self, owner: u32, run: &RunEnd) {
        let _ = (owner, run);
    }

    /// Plain records of an owner have ended that [count as slow](crate::stats::IoTally::note).
    #[cold]
    fn slow_run(&mut self, owner: u32, run: &RunEnd) {
        let _ = (owner, run);
    }

    /// Where the time went of a bio of which [`EndIo::end_io`] tells next. Only with statistics.
    #[inline(always)]
    fn timed(&mut self, owner: u32, split: &Split) {
        let _ = (owner, split);
    }

    /// A look at what is usual is due, about once a second while there is I/O: when the next one is.
    #[cold]
    fn look(&mut self, now: CoarseTs) -> CoarseTs {
        let _ = now;
        CoarseTs(u64::MAX)
    }

    /// That was all for now: the end of each [`IoCtx::poll`](crate::ctx::IoCtx::poll), and of
    /// [`IoCtx::shutdown`](crate::ctx::IoCtx::shutdown).
    #[inline(always)]
    fn end_poll(&mut self) {}
}

/// Plain records of one owner that ended together.
#[derive(Clone, Copy, Debug)]
pub struct RunEnd {
    /// What they did.
    pub op: Op,
    /// Where their time went.
    pub split: Split,
    /// When they ended.
    pub ended: CoarseTs,
    /// How many they were.
    pub ios: u64,
    /// Where the first of them lies on the device of its hardware context.
    pub sector: u64,
    /// The length of the first, in bytes.
    pub bytes: u32,
    /// The length of all of them.
    pub bytes_all: u64,
}

/// A plain record that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainEnd {
    /// The submitter's user data.
    pub cookie: u64,
    /// Its length.
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
