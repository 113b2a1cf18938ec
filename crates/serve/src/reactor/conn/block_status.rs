//! A client asks for the status of a range: a chunk for each metadata context that it wants.

use sheave_nbd::session::Request;
use sheave_nbd::wire::Errno;

use super::{Conn, Ending, MAX_SMALL, Stage};
use crate::export::{NoStatus, Question};
use crate::reactor::questions::Asked;
use crate::reactor::requests::Io;

impl Conn {
    /// Keeps a question until it is its turn ([`Questions`](crate::reactor::questions::Questions)).
    pub(super) fn block_status(&mut self, request: &Request) {
        self.question = Some(Asked { request: *request, left: request.contexts, waits: false });
        self.under_way += 1;
    }

    /// Lets a question wait for its turn, unless many replies wait for the client: each context may have a long one.
    pub(super) fn line_up_question(&mut self, io: &mut Io) {
        if let Some(asked) = self.question.as_mut().filter(|asked| !asked.waits)
            && self.small_bytes < MAX_SMALL
        {
            asked.waits = true;
            io.questions.wait(self.number);
        }
    }

    /// Whether it waits for an answer.
    pub(in crate::reactor) fn has_question(&self) -> bool {
        self.question.is_some()
    }

    /// Answers for one context, which a backend does without I/O; whether the next may be answered at once.
    pub(in crate::reactor) fn answer_question(&mut self) -> bool {
        let Some(Asked { request, left, .. }) = self.question.take() else { return false };
        let Stage::Transmission(chosen) = &self.life.stage else { return false };
        let number = left.trailing_zeros();
        let left = left & left.wrapping_sub(1);
        let context = chosen.contexts.get(number as usize).copied();
        let (pos, len, among) = (request.offset, request.len, request.contexts.count_ones());
        let found = context
            .ok_or(NoStatus("that context was not selected"))
            .and_then(|context| chosen.export.backend.extents(&Question { context, pos, len, among }));
        match found.map(|extents| (extents.first().is_some_and(|first| first.len > 0), extents)) {
            Ok((true, extents)) => {
                self.reply(|session, out| session.status(&request, number, &extents, left == 0, out));
                if left != 0 {
                    self.question = Some(Asked { request, left, waits: false });
                    return self.small_bytes < MAX_SMALL;
                }
                self.tally.done(&request);
            }
            // An error ends the reply: for a backup no answer is better than a wrong one.
            Ok((false, _)) => self.failed(&request, Errno::Inval, "nothing is known of the range"),
            Err(NoStatus(why)) => self.failed(&request, Errno::Inval, why),
        }
        self.under_way -= 1;
        false
    }

    /// Forgets the question of a client that is gone.
    pub(super) fn forget_question(&mut self, io: &mut Io) {
        if self.ending == Ending::Now && self.question.take().is_some() {
            io.questions.forget(self.number);
            self.under_way -= 1;
        }
    }
}
