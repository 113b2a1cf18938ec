//! A read for which there is no memory, answered piece by piece in the memory that is the client's own.
//!
//! Thus a long read completes whatever memory others hold, and for however long. It begins only when nothing else of
//! the client is under way, and no other request of the client begins meanwhile: nothing may come between the pieces of
//! one reply. If the device fails after the first piece was sent, the connection ends, as the reply has promised the
//! data.

use sheave_nbd::session::{Command, Request};

use super::{Conn, Ending, NO_MEMORY, Stage};
use crate::reactor::batch::Piece;
use crate::reactor::requests::{Answer, Failed, Io};

#[derive(Clone, Copy, Debug)]
pub(super) struct Pieces {
    whole: Request,
    done: u64,
    in_ring: bool,
}

impl Conn {
    /// Begins to answer in pieces a read that was refused memory. Returns false if that is not possible: other requests
    /// of the client are under way, or not all replies are sent.
    pub(super) fn read_in_pieces(&mut self, io: &mut Io, request: &Request) -> bool {
        // Large reads that wait count as under way, but have no memory and are not in the ring.
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

    /// Returns true if all replies have been sent.
    fn has_sent(&self) -> bool {
        self.out.is_empty() && self.sending.is_none() && self.tls.as_ref().is_none_or(|tls| tls.is_quiet())
    }

    /// Returns true if a read in pieces waits until the client has taken the last piece.
    pub(super) fn waits_between_pieces(&self) -> bool {
        self.pieces.is_some_and(|pieces| !pieces.in_ring)
    }

    /// Returns the bytes of a piece that begins at `offset`: it ends at a block boundary, and its blocks fit into the
    /// client's own memory.
    fn piece(&self, io: &Io, offset: u64) -> u64 {
        match &self.life.stage {
            Stage::Transmission(chosen) => {
                let (bytes, block) = (io.own_piece(chosen.align), u64::from(chosen.session.block_bytes()));
                (bytes - bytes % block).saturating_sub(offset % block)
            }
            Stage::Handshake(_) => 0,
        }
    }

    /// Reads the next piece if the one before has been sent.
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
                unaligned.into_iter().for_each(|unaligned| io.set_unaligned(slot, unaligned));
                io.start(slot);
                self.pieces = Some(Pieces { whole, done, in_ring: true });
            }
            None => self.drop_client(NO_MEMORY),
        }
    }

    /// Called when the read of a piece has ended.
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
                    self.counts().done(whole.command, whole.len);
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
