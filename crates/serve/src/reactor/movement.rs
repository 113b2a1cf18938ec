//! Progress of a client since the last check: whether bytes moved, and how long it has had nothing to do.
//!
//! Owns both records and the messages for clients that are dropped because nothing moves. Called by connections, which
//! write the records, and by [`places`](super::places), which lets idle clients give way.

use std::time::Instant;

/// Reasons for dropping a client whose writes, or whose replies, do not move.
pub(super) const SENT_NOTHING: &str = "others waited for memory, and nothing came of the write that it held some for";
pub(super) const TOOK_NOTHING: &str =
    "others waited for memory, and it took nothing of the replies that it held some for";

#[derive(Debug)]
pub(super) struct Progress {
    pub(super) came: bool,
    pub(super) taken: bool,
    /// For the receive, and for the send: true if it was canceled to learn how far it is.
    pub(super) asked: [bool; 2],
    /// Number of sends that have ended or moved on.
    pub(super) sends: u32,
}

impl Default for Progress {
    fn default() -> Progress {
        Progress { came: true, taken: true, asked: [false; 2], sends: 0 }
    }
}

impl Progress {
    /// Records that bytes have arrived, or that waiting for some begins.
    pub(super) fn comes(&mut self) {
        self.came = true;
    }

    /// Records that the client has taken replies, or that sending some begins.
    pub(super) fn is_taken(&mut self) {
        self.taken = true;
        self.sends = self.sends.wrapping_add(1);
    }

    /// Called at the end of a receive. Returns true if it was canceled to learn how far it is.
    pub(super) fn in_answered(&mut self) -> bool {
        std::mem::take(&mut self.asked[0])
    }

    /// Called at the end of a send. Returns true if it was canceled to learn how far it is.
    pub(super) fn out_answered(&mut self) -> bool {
        std::mem::take(&mut self.asked[1])
    }
}

/// Time since which a client's mark (`Conn::mark`) has not changed.
#[derive(Debug, Default)]
pub(super) struct Idle {
    mark: Option<(u64, u64, u32)>,
    since: Option<Instant>,
}

impl Idle {
    /// Compares `mark` with that of the last call. Returns the time since which the client has had nothing to do;
    /// `None` while it has (`mark` is `None`).
    pub(super) fn look(&mut self, mark: Option<(u64, u64, u32)>, now: Instant) -> Option<Instant> {
        if mark.is_none() || mark != self.mark {
            (self.mark, self.since) = (mark, mark.map(|_| now));
        }
        self.since
    }
}
