//! A client asks for the status of a range: a chunk for each metadata context that it wants.

use std::time::Instant;

use sheave_nbd::session::Request;
use sheave_nbd::wire::Errno;

use super::{Conn, Ending, Stage};
use crate::export::{NoStatus, Question};
use crate::reactor::questions::Asked;
use crate::reactor::requests::Io;

impl Conn {
    /// Keeps a question until it is its turn ([`Questions`](crate::reactor::questions::Questions)).
    pub(super) fn block_status(&mut self, io: &mut Io, request: &Request) {
        self.question = Some(Asked { request: *request, left: request.contexts });
        self.under_way += 1;
        io.questions.wait(self.number);
    }

    /// Answers for one context: a backend does not wait for I/O.
    pub(in crate::reactor) fn answer_question(&mut self, io: &mut Io) {
        let Some(Asked { request, left }) = self.question.take() else { return };
        let Stage::Transmission(chosen) = &self.life.stage else { return };
        let number = left.trailing_zeros();
        let left = left & left.wrapping_sub(1);
        let context = chosen.contexts.get(number as usize).copied();
        let (pos, len, among) = (request.offset, request.len, request.contexts.count_ones());
        let begun = Instant::now();
        let found = context
            .ok_or(NoStatus("that context was not selected"))
            .and_then(|context| chosen.export.backend.extents(&Question { context, pos, len, among }));
        io.questions.answered(begun, Instant::now());
        match found.map(|extents| (extents.first().is_some_and(|first| first.len > 0), extents)) {
            Ok((true, extents)) => {
                self.reply(|session, out| session.status(&request, number, &extents, left == 0, out));
                if left != 0 {
                    self.question = Some(Asked { request, left });
                    return io.questions.wait(self.number);
                }
                self.tally.done(&request);
            }
            // An error ends the reply: for a backup no answer is better than a wrong one.
            Ok((false, _)) => self.failed(&request, Errno::Inval, "nothing is known of the range"),
            Err(NoStatus(why)) => self.failed(&request, Errno::Inval, why),
        }
        self.under_way -= 1;
    }

    /// Forgets the question of a client that is gone.
    pub(super) fn forget_question(&mut self, io: &mut Io) {
        if self.ending == Ending::Now && self.question.take().is_some() {
            io.questions.forget(self.number);
            self.under_way -= 1;
        }
    }
}
