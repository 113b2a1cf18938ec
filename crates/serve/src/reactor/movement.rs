//! What a client has done since it was looked at last: the bytes that moved, and how long it has had nothing to do.
//!
//! Owns both notes and the words with which a client is dropped that moves nothing. Called by connections, which write
//! the notes, and by [`places`](super::places), which lets idle clients give way.

use std::time::Instant;

/// Why a client is dropped, and which of the two has not moved.
pub(super) const SENT_NOTHING: &str = "others waited for memory, and nothing came of the write that it held some for";
pub(super) const TOOK_NOTHING: &str =
    "others waited for memory, and it took nothing of the replies that it held some for";

/// What has moved since the client was last looked at.
#[derive(Debug)]
pub(super) struct Progress {
    pub(super) came: bool,
    pub(super) taken: bool,
    /// The kernel was asked how far the receive, and the send, is.
    pub(super) asked: [bool; 2],
    /// Sends that have ended, or moved on.
    pub(super) sends: u32,
}

impl Default for Progress {
    fn default() -> Progress {
        Progress { came: true, taken: true, asked: [false; 2], sends: 0 }
    }
}

impl Progress {
    /// Bytes have come, or begin to be waited for.
    pub(super) fn comes(&mut self) {
        self.came = true;
    }

    /// Replies were taken, or begin to be sent.
    pub(super) fn is_taken(&mut self) {
        self.taken = true;
        self.sends = self.sends.wrapping_add(1);
    }

    /// A receive has ended; whether the kernel was asked how far it is.
    pub(super) fn in_answered(&mut self) -> bool {
        std::mem::take(&mut self.asked[0])
    }

    /// The same of a send.
    pub(super) fn out_answered(&mut self) -> bool {
        std::mem::take(&mut self.asked[1])
    }
}

/// Since when a client has been as it is.
#[derive(Debug, Default)]
pub(super) struct Idle {
    mark: Option<(u64, u64, u32)>,
    since: Option<Instant>,
}

impl Idle {
    /// Looks at it; since when it has had nothing to do.
    pub(super) fn look(&mut self, mark: Option<(u64, u64, u32)>, now: Instant) -> Option<Instant> {
        if mark.is_none() || mark != self.mark {
            (self.mark, self.since) = (mark, mark.map(|_| now));
        }
        self.since
    }
}
