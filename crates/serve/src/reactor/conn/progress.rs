//! How far a client is with what it has memory for: a write whose payload comes, and replies that it takes.
//!
//! Progress is bytes. The kernel tells of a receive or a send when all of it is done; one that took longer than a
//! client may do nothing is asked how far it is, by canceling it: what was moved is its result then, and the rest is
//! begun again. (Kernels before 6.1 say that nothing was moved; their clients have to be done with one operation in
//! that time.)

use super::{Conn, Receiving};
use crate::reactor::movement::SENT_NOTHING;
use crate::reactor::raw::{Kind, token};
use crate::reactor::requests::Io;

impl Conn {
    /// Looks whether it was done with something of what it holds memory for since this was called last, and asks the
    /// kernel where that is not known. Why it is to be dropped, if it is.
    pub(in crate::reactor) fn look_at_progress(&mut self, io: &mut Io) -> Option<&'static str> {
        let came = std::mem::take(&mut self.progress.came);
        let taken = std::mem::take(&mut self.progress.taken);
        if self.gathering.is_some() && !came {
            match self.receiving {
                // It waits for memory itself.
                Receiving::Nothing => {}
                // One into a buffer ends with any byte.
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
        // With no room for it in the ring it is asked the next time.
        if let Ok(Ok(())) = io.ring.sockets(|mut sockets| sockets.cancel(of)) {
            self.progress.asked[usize::from(kind == Kind::Send)] = true;
        }
    }

    /// Whether it is about to be gone.
    pub(in crate::reactor) fn is_ending_now(&self) -> bool {
        self.ending == super::Ending::Now
    }

    /// What it has been done with until now. Who does nothing stays where it is, and has nothing under way.
    pub(in crate::reactor) fn mark(&self) -> Option<(u64, u64, u32)> {
        let super::Stage::Transmission(chosen) = &self.life.stage else { return None };
        let counts = self.tally.read();
        let is_quiet = self.under_way == u32::from(self.waits_between_pieces()) && self.ending == super::Ending::No;
        is_quiet.then(|| (counts.answered() + counts.errors, chosen.session.payload_left(), self.progress.sends))
    }
}
