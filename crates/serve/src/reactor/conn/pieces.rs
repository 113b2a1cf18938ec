//! A read for which there is no memory, answered piece by piece in the memory that is the client's own.
//!
//! So a long read gets to its end however much others hold, and however slowly these take it. It begins when nothing
//! else of the client is under way, for nothing may come between the pieces of one reply, and no other request of the
//! client begins meanwhile. A device that fails after the first piece was sent ends the connection: the reply has
//! promised the data.

use sheave_nbd::session::{Command, Request};

use super::{Conn, Ending, NO_MEMORY, Stage};
use crate::reactor::batch::Piece;
use crate::reactor::requests::{Answer, Failed, Io};

/// A read that is answered in pieces.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pieces {
    whole: Request,
    /// Bytes read.
    done: u64,
    in_ring: bool,
}

impl Conn {
    /// Answers in pieces a read that was refused its memory, when nothing else of the client is under way.
    pub(super) fn read_in_pieces(&mut self, io: &mut Io, request: &Request) -> bool {
        let waits = self.waiting_reads();
        let is_quiet = self.under_way == waits && self.gathering.is_none() && self.pieces.is_none();
        let is_read = request.command == Command::Read && self.ending == Ending::No;
        if !is_read
            || !is_quiet
            || !self.has_sent()
            || io.shares.held(self.number) > 0
            || self.piece(io, request.offset) == 0
        {
            return false;
        }
        self.under_way += 1;
        self.pieces = Some(Pieces { whole: *request, done: 0, in_ring: false });
        true
    }

    /// Whether all replies have been sent.
    fn has_sent(&self) -> bool {
        self.out.is_empty() && self.sending.is_none() && self.tls.as_ref().is_none_or(|tls| tls.is_quiet())
    }

    /// Whether a read waits until a piece of its reply is taken.
    pub(super) fn waits_between_pieces(&self) -> bool {
        self.pieces.is_some_and(|pieces| !pieces.in_ring)
    }

    /// Bytes of a piece that begins at this byte: it ends with a block, and its blocks have the memory that is there.
    fn piece(&self, io: &Io, offset: u64) -> u64 {
        match &self.life.stage {
            Stage::Transmission(chosen) => {
                let (bytes, block) = (io.own_piece(chosen.align), u64::from(chosen.session.block_bytes()));
                (bytes - bytes % block).saturating_sub(offset % block)
            }
            Stage::Handshake(_) => 0,
        }
    }

    /// Reads the next piece when the one before has been sent.
    pub(super) fn next_piece(&mut self, io: &mut Io) {
        let Some(Pieces { whole, done, in_ring: false }) = self.pieces else { return };
        if self.ending == Ending::Now {
            self.pieces = None;
            self.under_way -= 1;
            return;
        }
        let offset = whole.offset + done;
        let request = Request { offset, len: self.piece(io, offset).min(whole.len - done), ..whole };
        let Stage::Transmission(chosen) = &self.life.stage else { return };
        if !self.has_sent() {
            return;
        }
        let unaligned = chosen.unaligned(&request);
        let shape = chosen.shape(&request, unaligned.as_ref());
        let Some(memory) = io.ask(self.number, &request, &shape) else { return };
        match io.begin(self.number, chosen.fd, request, &shape, memory) {
            Some(slot) => {
                unaligned.into_iter().for_each(|unaligned| _ = io.set_unaligned(slot, unaligned));
                io.start(slot);
                self.pieces = Some(Pieces { whole, done, in_ring: true });
            }
            None => self.drop_client(NO_MEMORY),
        }
    }

    /// A piece was read, or was not.
    pub(super) fn piece_read(&mut self, io: &mut Io, answer: Answer) {
        let Some(Pieces { whole, done, .. }) = self.pieces.take() else { return };
        let Answer { request, payload, failed, .. } = answer;
        match (failed, payload) {
            (None, Some(mut payload)) if self.ending != Ending::Now => {
                let Stage::Transmission(chosen) = &self.life.stage else { return };
                let header = if done == 0 { chosen.session.read_header(&whole, payload.headroom()) } else { 0 };
                let (start, len) = (payload.start() - header, header + request.len as usize);
                self.batch().pieces.push(Piece::Data { payload, start, len });
                if done + request.len < whole.len {
                    self.under_way += 1;
                    self.pieces = Some(Pieces { whole, done: done + request.len, in_ring: false });
                } else {
                    self.tally.done(&whole);
                }
            }
            (failed, payload) => {
                payload.into_iter().for_each(|payload| io.give_back(self.number, payload));
                match failed {
                    Some(Failed { errno, why }) if done == 0 && self.ending != Ending::Now => {
                        self.failed(&whole, errno, why);
                    }
                    Some(_) => self.drop_client("its device has failed within a long read, whose reply had begun"),
                    None => {}
                }
            }
        }
    }
}
