//! A client asks for the status of a range: a chunk for each metadata context that it wants.

use sheave_nbd::session::Request;
use sheave_nbd::wire::Errno;

use super::{Conn, Stage};
use crate::export::{NoStatus, Question};
use crate::reactor::requests::Io;

impl Conn {
    /// Answers at once: a backend does not wait for I/O.
    pub(super) fn block_status(&mut self, io: &Io, request: &Request) {
        let Stage::Transmission(chosen) = &self.life.stage else { return };
        let export = chosen.export.clone();
        let contexts = chosen.contexts.clone();
        let among = request.contexts.count_ones();
        let mut left = request.contexts;
        while left != 0 {
            let number = left.trailing_zeros();
            left &= left - 1;
            let context = contexts.get(number as usize).copied().ok_or(NoStatus("that context was not selected"));
            let (pos, len) = (request.offset, request.len);
            let found = context.and_then(|context| export.backend.extents(&Question { context, pos, len, among }));
            match found.map(|extents| (extents.first().is_some_and(|first| first.len > 0), extents)) {
                Ok((true, extents)) => {
                    if left == 0 {
                        self.tally.done(request);
                    }
                    self.reply(|session, out| session.status(request, number, &extents, left == 0, out));
                }
                // An error ends the reply: for a backup no answer is better than a wrong one.
                Ok((false, _)) => left = self.no_status(request, "nothing is known of the range"),
                Err(NoStatus(why)) => left = self.no_status(request, why),
            }
        }
        // Looking for extents takes this thread's time: others have their turn before it does again.
        self.had_its_turn = Some(io.turn);
    }

    /// Ends a reply to BLOCK_STATUS with an error; no context is left to be told of.
    fn no_status(&mut self, request: &Request, why: &'static str) -> u32 {
        self.failed(request, Errno::Inval, why);
        0
    }
}
