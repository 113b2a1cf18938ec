//! Replies of a client: written into batches, of which one at a time is sent.

use sheave_kring::{IoVec, Message};
use sheave_nbd::session::{Command, Refused, Request, Session};
use sheave_nbd::wire::Errno;

use super::begin::rewrites;
use super::progress::TOOK_NOTHING;
use super::{Conn, ECANCELED, Ending, MAX_PIECES, MAX_SPARE, MAX_SPARE_PIECES, Sending, Stage};
use crate::payload::Payload;
use crate::reactor::batch::{Batch, Piece};
use crate::reactor::raw;
use crate::reactor::requests::{Answer, Failed, Io};

impl Conn {
    /// Called when a request has ended. Queues its reply.
    pub(in crate::reactor) fn answer(&mut self, io: &mut Io, answer: Answer) {
        self.under_way -= 1;
        if self.pieces.is_some() {
            return self.piece_read(io, answer);
        }
        let Answer { request, failed, at_once, .. } = answer;
        let request = &request;
        self.large.ended(request, at_once);
        if let Stage::Transmission(chosen) = &self.life.stage
            && self.rewriting > 0
        {
            self.rewriting -= u32::from(rewrites(request, chosen.unaligned(request).as_ref()));
        }
        let payload = match (request.command, failed, answer.payload) {
            (Command::Read, None, Some(payload)) if self.ending != Ending::Now => {
                return self.reply_data(request, payload);
            }
            (.., payload) => payload,
        };
        if let Some(payload) = payload {
            io.give_back(self.number, payload);
        }
        match failed {
            _ if self.ending == Ending::Now => {}
            None => self.done(request),
            Some(Failed { errno, why }) => self.failed(request, errno, why),
        }
    }

    /// Returns the batch that is being filled.
    pub(super) fn batch(&mut self) -> &mut Batch {
        let full = self.out.back().is_none_or(|batch| batch.pieces.len() >= MAX_PIECES);
        if full {
            let batch = self.spare.take().unwrap_or_default();
            self.out.push_back(batch);
        }
        self.out.back_mut().expect("one was just pushed")
    }

    fn reply_data(&mut self, request: &Request, mut payload: Payload) {
        self.counts().done(request.command, request.len);
        let Stage::Transmission(chosen) = &self.life.stage else { return };
        let header = chosen.session.read_header(request, payload.headroom());
        let start = payload.start() - header;
        let len = header + request.len as usize;
        self.batch().pieces.push(Piece::Data { payload, start, len });
    }

    /// Queues a reply that `write` writes, without a payload of its own.
    pub(super) fn reply(&mut self, write: impl FnOnce(&Session, &mut Vec<u8>)) {
        self.batch();
        let Stage::Transmission(chosen) = &self.life.stage else { return };
        let Some(batch) = self.out.back_mut() else { return };
        let start = batch.small.len();
        write(&chosen.session, &mut batch.small);
        self.small_bytes += batch.small.len() - start;
        batch.close(start);
    }

    /// Queues the reply to a successful request that returns no data.
    pub(super) fn done(&mut self, request: &Request) {
        self.counts().done(request.command, request.len);
        self.reply(|session, out| session.done(request, out));
    }

    /// Queues the reply to a request that failed.
    pub(super) fn failed(&mut self, request: &Request, errno: Errno, why: &'static str) {
        self.counts().failed();
        self.reply(|session, out| session.failed(request, errno, why, out));
    }

    /// Queues the reply to a request that the session refused.
    pub(super) fn refused(&mut self, refused: &Refused) {
        self.counts().failed();
        self.reply(|session, out| session.refused(refused, out));
    }

    /// Queues the reply to a read of length 0, in the form of a read's reply.
    pub(super) fn empty_read(&mut self, request: &Request) {
        self.counts().done(request.command, request.len);
        self.reply(|session, out| {
            let mut header = [0; sheave_nbd::reply::MAX_READ_HEADER];
            let len = session.read_header(request, &mut header);
            out.extend_from_slice(&header[header.len() - len..]);
        });
    }

    pub(super) fn send(&mut self, io: &mut Io) {
        if self.sending.is_some() || self.ending == Ending::Now || self.is_cut() {
            return;
        }
        if self.tls.is_some() {
            return self.send_records(io);
        }
        if let Some(batch) = self.out.pop_front() {
            self.send_batch(io, batch);
        }
    }

    fn send_batch(&mut self, io: &mut Io, mut batch: Batch) {
        debug_assert!(!batch.pieces.is_empty(), "S4: a send of nothing would end at once, and be followed by the next");
        self.message.clear();
        let small = batch.small.as_mut_ptr();
        let mut bytes = 0;
        for piece in &mut batch.pieces {
            let piece = match piece {
                Piece::Small { start, end } => IoVec { base: small.wrapping_add(*start), len: *end - *start },
                Piece::Data { payload, start, len } => IoVec { base: payload.address(*start), len: *len },
            };
            bytes += piece.len;
            let fits = self.message.push(piece);
            debug_assert!(fits, "a batch has no more pieces than a message");
        }
        if raw::send(&mut io.ring, &self.fd, self.number, &mut self.message) {
            self.began_to_send(io, batch, bytes);
        } else {
            self.out.push_front(batch);
            self.drop_client("the kernel does not take what is to be sent");
        }
    }

    /// Records that `bytes` bytes of a batch are being sent. Tells the reactor if the send will probably end at once.
    pub(super) fn began_to_send(&mut self, io: &mut Io, batch: Batch, bytes: usize) {
        if std::mem::take(&mut self.prompt) {
            io.prompt_sends.push(self.number);
        }
        self.progress.is_taken();
        self.sending = Some(Sending { batch, turn: io.turn, bytes });
    }

    /// Called when a send has ended.
    pub(in crate::reactor) fn sent(&mut self, io: &mut Io, res: i32) {
        let Some(Sending { mut batch, turn, bytes }) = self.sending.take() else { return };
        // A wait starts the send and ends the turn, so a send that ends within that call is seen in the next turn.
        self.prompt = turn.wrapping_add(1) == io.turn;
        let sent = usize::try_from(res).unwrap_or(0);
        let was_asked = self.progress.out_answered();
        if sent < bytes && self.is_cut_short(sent, res, was_asked) {
            // The rest is sent when the connection resumes, or by the other process.
            batch.sent(sent, |payload| io.give_back(self.number, payload));
            return self.out.push_front(batch);
        }
        if sent > 0 && sent < bytes && self.ending != Ending::Now {
            // A send that came short was either canceled by `ask_the_kernel`, or the connection has ended. The next
            // send tells which.
            return self.send_rest(io, batch, sent, bytes);
        }
        self.progress.is_taken();
        if let Some(tls) = &mut self.tls {
            io.keep_records(tls.sent());
        }
        for payload in batch.pieces.iter_mut().filter_map(Piece::take_payload) {
            io.give_back(self.number, payload);
        }
        self.batch_done(batch);
        match self.ending {
            Ending::Now => {}
            _ if sent == bytes => {}
            _ if was_asked && res == -ECANCELED => self.drop_client(TOOK_NOTHING),
            _ => self.hang_up(),
        }
    }

    /// Sends the rest of a batch of which `sent` of `bytes` bytes were sent, and gives back the memory of what was
    /// sent.
    fn send_rest(&mut self, io: &mut Io, mut batch: Batch, sent: usize, bytes: usize) {
        if let Some(tls) = &mut self.tls {
            let rest = tls.rest(bytes - sent);
            return self.send_piece(io, rest);
        }
        batch.sent(sent, |payload| io.give_back(self.number, payload));
        self.send_batch(io, batch);
    }

    /// Called when a batch has been sent, or encrypted in full. Keeps its memory for the next one.
    pub(super) fn batch_done(&mut self, mut batch: Batch) {
        self.small_bytes -= batch.small.len();
        batch.small.clear();
        batch.pieces.clear();
        let few = batch.pieces.capacity() <= MAX_SPARE_PIECES;
        if !few {
            // Its list of pieces has grown long; an idle client is to keep little memory (S4).
            self.message = Message::new();
        } else if batch.small.capacity() <= MAX_SPARE && self.spare.is_none() {
            self.spare = Some(batch);
        }
    }
}
