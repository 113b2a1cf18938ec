//! Begins the large reads of a client that have waited for others of it to be sent ([`LargeReads`]).
//!
//! [`LargeReads`]: crate::reactor::large_reads::LargeReads

use super::{Conn, Ending, Errno, NO_MEMORY, Stage};
use crate::payload::Pool;
use crate::reactor::requests::Io;

impl Conn {
    /// Begins those that may begin now; forgets all when the client is gone.
    pub(super) fn begin_large_reads(&mut self, io: &mut Io) {
        if self.ending == Ending::Now {
            self.under_way -= self.large.forget();
        }
        while let Some(&request) = self.large.next(self.held)
            && let Stage::Transmission(chosen) = &self.life.stage
        {
            let cost = Pool::cost(request.len as usize, chosen.align);
            if !io.has_room(self.number, cost) {
                return;
            }
            self.large.begun();
            if let Some(slot) = io.begin(self.number, chosen.fd, request, chosen.align) {
                self.held += cost;
                io.start(slot);
            } else {
                self.under_way -= 1;
                self.failed(&request, Errno::NoMem, NO_MEMORY);
            }
        }
    }
}
