//! Progress of a client with the memory that it holds: for a write whose payload is arriving, and for replies that it
//! takes.
//!
//! Progress is counted in bytes. The kernel reports a receive or a send only when all of it is done. One that takes
//! longer than a client may stall is canceled to learn how far it is: the result is the number of bytes moved, and the
//! rest is started again. (Kernels before 6.1 report that nothing was moved; clients then have to complete one
//! operation within that time.)

use super::{Conn, Receiving};
use crate::reactor::raw::{Kind, token};
use crate::reactor::requests::Io;

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

impl Conn {
    /// Checks whether the client has moved bytes of everything that it holds memory for since the last call, and
    /// cancels operations whose progress is not known. Returns a reason if the client is to be dropped.
    pub(in crate::reactor) fn look_at_progress(&mut self, io: &mut Io) -> Option<&'static str> {
        let came = std::mem::take(&mut self.progress.came);
        let taken = std::mem::take(&mut self.progress.taken);
        if self.gathering.is_some() && !came {
            match self.receiving {
                // The write itself waits for memory.
                Receiving::Nothing => {}
                // A receive into a buffer ends with the first byte, so none has arrived.
                Receiving::Buffer => return Some(SENT_NOTHING),
                Receiving::Payload { .. } => self.ask_the_kernel(io, Kind::Recv),
            }
        }
        if self.sending.is_some() && !taken {
            self.ask_the_kernel(io, Kind::Send);
        }
        None
    }

    fn ask_the_kernel(&mut self, io: &mut Io, kind: Kind) {
        let of = token(kind, self.number);
        // If the ring is full, the next check tries again.
        if let Ok(Ok(())) = io.ring.sockets(|mut sockets| sockets.cancel(of)) {
            self.progress.asked[usize::from(kind == Kind::Send)] = true;
        }
    }

    /// Returns true if the connection is ending without regard to its replies.
    pub(in crate::reactor) fn is_ending_now(&self) -> bool {
        self.ending == super::Ending::Now
    }

    /// Returns a mark that changes with everything that the client does. `None` while something of it is under way. A
    /// client that is idle keeps its mark.
    pub(in crate::reactor) fn mark(&self) -> Option<(u64, u64, u32)> {
        let super::Stage::Transmission(chosen) = &self.life.stage else { return None };
        let counts = self.tally.read();
        let is_quiet = self.under_way == u32::from(self.waits_between_pieces()) && self.ending == super::Ending::No;
        is_quiet.then(|| {
            (counts.answered().wrapping_add(counts.errors), chosen.session.payload_left(), self.progress.sends)
        })
    }
}
