//! How the owner of I/O hears of its end.
//!
//! Owns the calls and no order of them: [`hctx`](crate::hctx) and [`ctx`](crate::ctx) make them, in a poll, at the
//! shutdown of a ring, and where a driver ends in its call what was sent alone. A ring's state is the owner in
//! `sheave-uring`.

use sheave_base::status::Status;

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

    /// That was all for now: the end of each [`IoCtx::poll`](crate::ctx::IoCtx::poll), and of
    /// [`IoCtx::shutdown`](crate::ctx::IoCtx::shutdown).
    #[inline(always)]
    fn end_poll(&mut self) {}
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
