//! BLOCK_STATUS: one reply chunk for each metadata context that the client wants.

use sheave_base::sync::Arc;
use sheave_nbd::Extent;
use sheave_nbd::session::Request;
use sheave_nbd::wire::Errno;

use super::{Conn, Ending, MAX_SMALL, Stage};
use crate::export::{NoStatus, Question, Served};
use crate::reactor::questions::{Asked, Turn};
use crate::reactor::requests::Io;
use crate::shared::Order;

impl Conn {
    /// Keeps a BLOCK_STATUS request until its turn comes ([`Questions`](crate::reactor::questions::Questions)).
    pub(super) fn block_status(&mut self, request: &Request) {
        self.question = Some(Asked { request: *request, left: request.contexts, turn: Turn::Out });
        self.under_way += 1;
    }

    /// Puts the request in line, unless many replies wait to be sent: each context may add a long one. A connection
    /// that is suspended has to answer the request in any case.
    pub(super) fn line_up_question(&mut self, io: &mut Io) {
        let has_room = self.small_bytes < MAX_SMALL || self.is_suspended();
        if let Some(asked) = self.question.as_mut().filter(|asked| asked.turn == Turn::Out)
            && has_room
        {
            asked.turn = Turn::Waits;
            io.questions.wait(self.number);
        }
    }

    /// Returns true if a BLOCK_STATUS request is being answered.
    pub(in crate::reactor) fn has_question(&self) -> bool {
        self.question.is_some()
    }

    /// Answers for one context. If that takes I/O, the export's thread does it and delivers its answer to
    /// [`Conn::status`]. Returns true if the next context may be answered at once.
    pub(in crate::reactor) fn answer_question(&mut self, io: &Io) -> bool {
        let (Some(asked), Stage::Transmission(chosen)) = (&mut self.question, &self.life.stage) else { return false };
        let Request { offset, len, contexts, .. } = asked.request;
        let Some(&context) = chosen.contexts.get(asked.left.trailing_zeros() as usize) else {
            return self.status(Err(NoStatus("that context was not selected")));
        };
        let question = Question { context, pos: offset, len, among: contexts.count_ones() };
        if chosen.export.backend.reads_for_status(context) {
            asked.turn = Turn::Reads;
            if read_on_a_thread(&chosen.export, question, self.number, io).is_err() {
                return self.status(Err(NoStatus("the server can start no thread to read for it")));
            }
            return false;
        }
        let found = chosen.export.backend.extents(&question);
        self.status(found)
    }

    /// Replies for the first of the contexts that are left. Returns true if the next may be answered at once.
    pub(in crate::reactor) fn status(&mut self, found: Result<Vec<Extent>, NoStatus>) -> bool {
        let Some(Asked { request, left, .. }) = self.question.take() else { return false };
        let (number, left) = (left.trailing_zeros(), left & left.wrapping_sub(1));
        match found.map(|extents| (extents.first().is_some_and(|first| first.len > 0), extents)) {
            _ if self.ending == Ending::Now => {}
            Ok((true, extents)) => {
                self.reply(|session, out| session.status(&request, number, &extents, left == 0, out));
                if left != 0 {
                    self.question = Some(Asked { request, left, turn: Turn::Out });
                    return self.small_bytes < MAX_SMALL;
                }
                self.counts().done(request.command, request.len);
            }
            // An error ends the whole reply: a backup must rather fail than rely on a wrong status.
            Ok((false, _)) => self.failed(&request, Errno::Inval, "nothing is known of the range"),
            Err(NoStatus(why)) => self.failed(&request, Errno::Inval, why),
        }
        self.under_way -= 1;
        false
    }

    /// Drops the request of a client that is gone, unless the export's thread has it: its answer will still arrive.
    pub(super) fn forget_question(&mut self, io: &mut Io) {
        if self.ending == Ending::Now && self.question.take_if(|asked| asked.turn != Turn::Reads).is_some() {
            io.questions.forget(self.number);
            self.under_way -= 1;
        }
    }
}

/// Answers for one context on the export's thread. The thread releases the export before it delivers the answer, and
/// holds no other export: taking an export out, and ending the server, wait for clients alone.
fn read_on_a_thread(export: &Arc<Served>, question: Question, conn: usize, io: &Io) -> std::io::Result<()> {
    let (of, orders) = (Arc::clone(export), io.shared.orders_of(io.number));
    export.status_thread().run(move || {
        let found = of.backend.extents(&question);
        drop(of);
        orders.put(Order::Status { conn, found });
    })
}
