//! A client: its bytes become requests, its replies batches that are sent.
//!
//! States: it negotiates, then it asks for I/O; it ends after its replies (it said goodbye, or the server ends), or now
//! (it is gone, or broke the protocol). It is gone when nothing of it is under way any more.
//!
//! What is needed to go on with a client in another process is in [`Life`], and nowhere else: what was negotiated and
//! how far the stream of bytes was understood, and bytes that were received and not looked at. The rest (requests in
//! the ring, a batch that is being sent) ends before a connection could be handed over.

mod begin;
mod block_status;
mod held_back;
mod large_reads;
mod negotiation;
mod pieces;
mod progress;
mod replies;
mod secure;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::Instant;

use sheave_base::sync::Arc;
use sheave_blk::ctx::sockets::SocketEvent;
use sheave_kring::{MAX_SEGMENTS, Message};
use sheave_nbd::handshake::Handshake;
use sheave_nbd::session::{Request, Session, Step};
use sheave_nbd::wire::Errno;
use sheave_uring::Fd;

use self::large_reads::LargeReads;
use self::pieces::Pieces;
use super::batch::{Batch, Piece};
use super::movement::{self, Progress};
use super::questions::Asked;
use super::raw;
use super::requests::Io;
use super::tls_stream::TlsStream;
use crate::clients::{Arrival, Who};
use crate::counts::Tally;
use crate::export::Served;
use crate::limit::{Bucket, Waits};
use crate::shared::Shared;
use crate::shares::Peer;
use crate::tls::Tls;

/// Requests of a client at a time.
const MAX_REQUESTS: u32 = 512;
/// Requests of a client at a time that rewrite parts of blocks.
const MAX_REWRITING: u32 = 16;
/// Bytes of small replies that wait to be sent, beyond which nothing more is looked at.
const MAX_SMALL: usize = 256 << 10;
/// A payload of which so much is missing is received where it belongs.
const DIRECT: u64 = 16 << 10;
/// What a client that does nothing keeps for its next replies: bytes, and pieces.
const MAX_SPARE: usize = 4 << 10;
const MAX_SPARE_PIECES: usize = 64;
/// Pieces of a batch.
const MAX_PIECES: usize = MAX_SEGMENTS - 2;
const ENOBUFS: i32 = 105;
const ECANCELED: i32 = 125;
const NO_MEMORY: &str = "the server has no memory for it";

/// What survives the process.
#[derive(Debug)]
struct Life {
    stage: Stage,
    /// Received, and not looked at.
    unread: Vec<u8>,
    /// A request that waits for memory.
    deferred: Option<Request>,
}

#[derive(Debug)]
enum Stage {
    /// It has not chosen an export yet. `None` before the greeting.
    Handshake(Option<Handshake>),
    /// It asks for I/O.
    Transmission(Box<Chosen>),
}

/// The export of a client.
#[derive(Debug)]
struct Chosen {
    session: Session,
    /// The export's number.
    id: u32,
    export: Arc<Served>,
    fd: Fd,
    /// The backend's numbers of the metadata contexts that it selected, by the numbers that the client has.
    contexts: Vec<u64>,
    /// Alignment of memory.
    align: usize,
    /// How fast the export may be.
    bucket: Arc<Bucket>,
}

/// Whether the request that waits has been charged to the export's limit.
#[derive(Debug)]
enum Charge {
    /// It has not, or there is none.
    Due,
    /// It has, and begins then; it came at the other time.
    HeldBack {
        until: Instant,
        since: Instant,
        /// The reactor knows.
        told: bool,
        /// Others are behind it meanwhile.
        place: Waits,
    },
    /// It has, and may begin.
    Paid,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receiving {
    Nothing,
    /// Into a buffer of the kernel's choice.
    Buffer,
    /// So much, into the payload of a write.
    Payload {
        len: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    No,
    /// When all replies are sent.
    AfterReplies,
    /// Its socket is shut.
    Now,
}

/// What the kernel is sending.
#[derive(Debug)]
struct Sending {
    /// The replies, whose memory is sent; none where it is records of TLS.
    batch: Batch,
    /// The turn of the loop in which it began.
    turn: u32,
    bytes: usize,
}

/// A client.
#[derive(Debug)]
pub(super) struct Conn {
    fd: OwnedFd,
    number: usize,
    /// As reports tell it.
    id: u64,
    /// With whom it shares.
    peer: Peer,
    /// By what it is known that opens an export.
    who: Who,
    /// The export that it was last refused, and that was told.
    refused: Option<String>,
    tally: Arc<Tally>,
    life: Life,
    /// TLS, if it may or must use it.
    offer: Option<Tls>,
    /// TLS, when it has begun.
    tls: Option<Box<TlsStream>>,
    until: Instant,
    ending: Ending,
    receiving: Receiving,
    /// The write whose payload comes.
    gathering: Option<u32>,
    /// Requests in the ring, large reads that wait for others, and the question or long read that is being answered.
    under_way: u32,
    /// Those of them that rewrite parts of blocks.
    rewriting: u32,
    large: LargeReads,
    question: Option<Asked>,
    pieces: Option<Pieces>,
    small_bytes: usize,
    out: VecDeque<Batch>,
    sending: Option<Sending>,
    spare: Option<Batch>,
    /// Its last send ended in the call that started it.
    prompt: bool,
    progress: Progress,
    /// The turn of the loop in which it had its part of this thread's time: its other bytes are looked at in the next.
    had_its_turn: Option<u32>,
    /// Its socket was shut, and its requests in the ring have not been told.
    abandons: bool,
    message: Box<Message>,
    complaint: Option<String>,
    charge: Charge,
}

impl Conn {
    /// Of a client that has a place.
    pub(super) fn new(arrival: Arrival, number: usize, until: Instant, offer: Option<Tls>) -> Conn {
        let Arrival { fd, id, peer, who, tally, .. } = arrival;
        Conn {
            fd,
            number,
            id,
            peer,
            who,
            refused: None,
            tally,
            life: Life { stage: Stage::Handshake(None), unread: Vec::new(), deferred: None },
            offer,
            tls: None,
            until,
            ending: Ending::No,
            receiving: Receiving::Nothing,
            gathering: None,
            under_way: 0,
            rewriting: 0,
            large: LargeReads::default(),
            question: None,
            pieces: None,
            small_bytes: 0,
            out: VecDeque::new(),
            sending: None,
            spare: None,
            prompt: true,
            progress: Progress::default(),
            had_its_turn: None,
            abandons: false,
            message: Message::new(),
            complaint: None,
            charge: Charge::Due,
        }
    }

    /// With whom it shares.
    pub(super) fn peer(&self) -> Peer {
        self.peer
    }

    /// Its number in the reactor.
    pub(super) fn number(&self) -> usize {
        self.number
    }

    /// Its number in reports.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// What was done for it.
    pub(super) fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }

    /// The number of its export, when it has chosen one.
    pub(super) fn export(&self) -> Option<u32> {
        match &self.life.stage {
            Stage::Transmission(chosen) => Some(chosen.id),
            Stage::Handshake(_) => None,
        }
    }

    /// Why it was dropped, once.
    pub(super) fn take_complaint(&mut self) -> Option<String> {
        self.complaint.take()
    }

    /// Whether nothing of it is under way, and nothing will be.
    pub(super) fn is_gone(&self) -> bool {
        let quiet = self.receiving == Receiving::Nothing && self.sending.is_none() && self.under_way == 0;
        self.ending == Ending::Now && quiet
    }

    /// Drops the client, and says why.
    pub(super) fn drop_client(&mut self, why: &str) {
        if self.ending != Ending::Now {
            self.complaint = Some(why.into());
            self.hang_up();
        }
    }

    /// Takes no more requests, and ends when those under way are answered.
    pub(super) fn end_after_replies(&mut self) {
        if self.ending == Ending::No {
            self.ending = Ending::AfterReplies;
            if self.receiving != Receiving::Nothing {
                // Ends the receive; a socket that refuses is gone anyway.
                let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Read);
            }
        }
    }

    pub(super) fn hang_up(&mut self) {
        self.ending = Ending::Now;
        self.abandons = true;
        // A request that was held back does not begin any more: those behind it move up.
        self.charge = Charge::Due;
        // Ends what is under way on it; a socket that refuses is gone anyway.
        let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Both);
    }

    /// Gives all its memory back, when it is gone.
    pub(super) fn give_back(&mut self, io: &mut Io) {
        let encrypting = self.tls.as_mut().and_then(|tls| tls.take_batch());
        let sending = self.sending.take().map(|sending| sending.batch);
        for batch in self.out.drain(..).chain(sending).chain(encrypting) {
            for piece in batch.pieces {
                if let Piece::Data { payload, .. } = piece {
                    io.give_back(self.number, payload);
                }
            }
        }
        if let Some(slot) = self.gathering.take() {
            io.forget(slot);
        }
    }

    /// A receive has ended.
    pub(super) fn received(&mut self, io: &mut Io, event: &SocketEvent) {
        match std::mem::replace(&mut self.receiving, Receiving::Nothing) {
            Receiving::Payload { len } => self.received_payload(io, len, event.res),
            _ => {
                let whole = raw::with_received(io, |io| &mut io.ring, event, |io, data| self.look(io, data));
                if whole.is_none() && event.res != -ENOBUFS {
                    self.gone(io);
                }
            }
        }
    }

    /// Of so many bytes of a write's payload that were to be received where they belong, some have come.
    fn received_payload(&mut self, io: &mut Io, len: u64, res: i32) {
        let got = u64::try_from(res).unwrap_or(0);
        let was_asked = self.progress.in_answered();
        if got == 0 && was_asked && res == -ECANCELED && self.ending == Ending::No {
            return self.drop_client(movement::SENT_NOTHING);
        }
        if got == 0 || self.ending == Ending::Now {
            return self.gone(io);
        }
        debug_assert!(got <= len);
        let Some(slot) = self.gathering else { return };
        let Stage::Transmission(chosen) = &mut self.life.stage else { return };
        chosen.session.received(got);
        self.progress.comes();
        if let Some((_, done, _)) = io.gathering(slot) {
            *done += got;
        }
        // Where it is less than it was to be, the kernel was asked how far it is; or the connection has ended, which
        // the next receive tells, unless there will be none.
        if chosen.session.payload_left() == 0 {
            self.gathered(io, slot);
        } else if got < len && self.ending != Ending::No {
            self.gone(io);
        }
    }

    /// The client has closed, or its connection is broken.
    fn gone(&mut self, io: &mut Io) {
        if self.ending == Ending::No {
            if self.tls.as_ref().is_some_and(|tls| !tls.is_established()) {
                return self.drop_client("TLS: it left before TLS had begun. Does it know the server's authority?");
            }
            return self.hang_up();
        }
        // The end of the server has cut off a write: it was not asked for, but what was before it is answered.
        if let Some(slot) = self.gathering.take() {
            io.forget(slot);
        }
    }

    /// Looks at bytes that have come; keeps those that are for later.
    fn look(&mut self, io: &mut Io, data: &[u8]) {
        if data.is_empty() {
            return self.gone(io);
        }
        if self.tls.is_some() { self.look_at_records(io, data) } else { self.look_at_plain(io, data) }
    }

    /// Looks at bytes as the client means them.
    fn look_at_plain(&mut self, io: &mut Io, data: &[u8]) {
        if self.life.unread.is_empty() {
            let used = self.consume(io, data);
            self.life.unread.extend_from_slice(&data[used..]);
        } else {
            self.life.unread.extend_from_slice(data);
            self.look_at_unread(io);
        }
    }

    fn look_at_unread(&mut self, io: &mut Io) {
        let mut unread = std::mem::take(&mut self.life.unread);
        let used = self.consume(io, &unread);
        unread.drain(..used);
        if unread.is_empty() && unread.capacity() > 4096 {
            unread = Vec::new();
        }
        self.life.unread = unread;
    }

    /// Whether it has as much under way as it may.
    fn is_full(&self, io: &Io) -> bool {
        let held = io.shares.held(self.number);
        let many = self.under_way >= MAX_REQUESTS || self.rewriting >= MAX_REWRITING;
        many || held >= io.client_bytes || self.small_bytes >= MAX_SMALL
    }

    /// Whether bytes of it are looked at and received now. The payload of a write that has its memory always is: one
    /// write may by itself count for as much as a client may have, and would never be complete.
    fn takes_bytes(&self, io: &Io) -> bool {
        let answers = self.question.is_some() || self.pieces.is_some();
        let ready = self.ending == Ending::No && self.life.deferred.is_none() && !answers;
        ready && !self.yields(io) && (self.gathering.is_some() || !self.is_full(io))
    }

    /// Whether it goes on with the bytes that it has in the next turn, whatever happens.
    pub(super) fn yields(&self, io: &Io) -> bool {
        !self.life.unread.is_empty() && self.had_its_turn == Some(io.turn)
    }

    /// Takes requests out of bytes, as many as it may have; how many bytes these were.
    fn consume(&mut self, io: &mut Io, data: &[u8]) -> usize {
        let mut at = 0;
        while self.takes_bytes(io) && self.had_its_turn != Some(io.turn) {
            let room = self.room(io);
            let Stage::Transmission(chosen) = &mut self.life.stage else { return at };
            let input = &data[at..];
            // What there is no memory for yet waits.
            let input = &input[..room.map_or(input.len(), |room| input.len().min(room as usize))];
            let (used, step) = chosen.session.next(input);
            let bytes = &data[at..at + used];
            at += used;
            match step {
                Step::More => return at,
                Step::Skipped => {}
                Step::Payload => self.gather(io, bytes),
                Step::Request(request) => self.request(io, request),
                Step::Refused(refused) => self.refused(&refused),
                Step::Disconnect => self.ending = Ending::AfterReplies,
                Step::Broken(why) => self.drop_client(why),
            }
        }
        at
    }

    /// Bytes of the payload of the write that is being received for which there is memory, more of which it takes here.
    fn room(&self, io: &mut Io) -> Option<u64> {
        self.gathering.map(|slot| io.grow(self.number, slot))
    }

    /// Bytes of a write's payload.
    fn gather(&mut self, io: &mut Io, bytes: &[u8]) {
        let Stage::Transmission(chosen) = &self.life.stage else { return };
        let all = chosen.session.payload_left() == 0;
        let Some(slot) = self.gathering else { return };
        if let Some((payload, done, _)) = io.gathering(slot) {
            payload.fill(*done as usize, bytes);
            *done += bytes.len() as u64;
        }
        self.progress.comes();
        if all {
            self.gathered(io, slot);
        }
    }

    /// A write has all its payload.
    fn gathered(&mut self, io: &mut Io, slot: u32) {
        let Stage::Transmission(chosen) = &self.life.stage else { return };
        self.gathering = None;
        self.under_way += 1;
        io.gathered(slot, chosen.export.locks());
    }

    /// Does what can be done now: looks at bytes that waited, sends, receives, ends.
    pub(super) fn go_on(&mut self, io: &mut Io, shared: &Shared) {
        // Before it chooses an export, which its certificate may let it.
        self.tell_of_tls(shared);
        if self.ending == Ending::No {
            self.handshake(io, shared);
            if !self.is_full(io)
                && self.held_back_until().is_none()
                && self.pieces.is_none()
                && let Some(request) = self.life.deferred.take()
            {
                self.request(io, request);
            }
            if !self.life.unread.is_empty() && self.takes_bytes(io) {
                self.look_at_unread(io);
            }
        }
        self.forget_question(io);
        self.line_up_question(io);
        self.begin_large_reads(io);
        self.next_piece(io);
        self.send(io);
        self.receive(io);
        if std::mem::take(&mut self.abandons) {
            io.abandon(self.number);
        }
        let sent = self.sending.is_none() && self.tls.as_ref().is_none_or(|tls| tls.is_quiet());
        let answered = self.under_way == 0 && self.out.is_empty();
        let mute = self.tls.as_ref().is_some_and(|tls| tls.is_finished());
        if self.ending == Ending::AfterReplies && sent && (answered || mute) {
            if let Some(tls) = &mut self.tls {
                tls.say_goodbye();
                self.send(io);
            }
            if self.sending.is_none() {
                self.hang_up();
            }
        }
    }

    /// Whether nothing of the client waits for the end of its send: neither replies that are sent after it, nor
    /// requests for which there is no room before it.
    pub(super) fn has_time(&self, io: &Io) -> bool {
        let more = self.tls.as_ref().is_some_and(|tls| tls.has_to_write(&self.out)) || !self.out.is_empty();
        !more && !self.large.is_waiting() && self.takes_bytes(io)
    }

    fn receive(&mut self, io: &mut Io) {
        if self.receiving != Receiving::Nothing || !self.takes_bytes(io) {
            return;
        }
        let room = self.room(io);
        if room == Some(0) {
            return; // It waits for memory.
        }
        let left = match &self.life.stage {
            Stage::Transmission(chosen) => chosen.session.payload_left(),
            Stage::Handshake(_) => 0,
        };
        if left >= DIRECT
            && self.tls.is_none()
            && let Some(slot) = self.gathering
            && let Some((payload, done, ring)) = io.gathering(slot)
        {
            let (from, len) = (*done as usize, left.min(room.unwrap_or(0)));
            if raw::recv_into(ring, &self.fd, self.number, payload, from, len as usize) {
                self.receiving = Receiving::Payload { len };
            }
        } else if raw::recv(&mut io.ring, &self.fd, self.number) {
            self.receiving = Receiving::Buffer;
        }
        self.progress.comes();
        if self.receiving == Receiving::Nothing {
            self.drop_client("the kernel does not take a receive");
        }
    }
}
