//! Progress of a client with the memory that it holds: for a write whose payload is arriving, and for replies that it
//! takes.
//!
//! Progress is counted in bytes. The kernel reports a receive or a send only when all of it is done. One that takes
//! longer than a client may stall is canceled to learn how far it is: the result is the number of bytes moved, and the
//! rest is started again. (Kernels before 6.1 report that nothing was moved; clients then have to complete one
//! operation within that time.)

use super::{Conn, Receiving};
use crate::reactor::movement::SENT_NOTHING;
use crate::reactor::raw::{Kind, token};
use crate::reactor::requests::Io;

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
        is_quiet.then(|| (counts.answered() + counts.errors, chosen.session.payload_left(), self.progress.sends))
    }
}
