//! Begins the large reads of a client that have waited for others of it to be sent ([`LargeReads`]).
//!
//! [`LargeReads`]: crate::reactor::large_reads::LargeReads

use super::{Conn, Ending, Errno, NO_MEMORY, Stage};
use crate::reactor::requests::Io;

impl Conn {
    /// Begins those that may begin now; forgets all when the client is gone.
    pub(super) fn begin_large_reads(&mut self, io: &mut Io) {
        if self.ending == Ending::Now {
            self.under_way -= self.large.forget();
        }
        while let Some(&request) = self.large.next(io.shares.held(self.number))
            && let Stage::Transmission(chosen) = &self.life.stage
        {
            if self.pieces.is_some() {
                return;
            }
            let unaligned = chosen.unaligned(&request);
            let shape = chosen.shape(&request, unaligned.as_ref());
            let Some(memory) = io.ask(self.number, &request, &shape) else {
                if self.read_in_pieces(io, &request) {
                    // It was among those that wait, and is counted already.
                    self.large.begun();
                    self.under_way -= 1;
                }
                return;
            };
            self.large.begun();
            if let Some(slot) = io.begin(self.number, chosen.fd, request, &shape, memory) {
                unaligned.into_iter().for_each(|unaligned| _ = io.set_unaligned(slot, unaligned));
                io.start(slot);
            } else {
                self.under_way -= 1;
                self.failed(&request, Errno::NoMem, NO_MEMORY);
            }
        }
    }
}
