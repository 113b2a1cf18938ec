//! A client's connection: parses received bytes into requests, and gathers replies into batches that are sent.
//!
//! States: handshake, then transmission. A connection ends after its replies (the client said goodbye, or the server
//! ends) or now (the client left, or broke the protocol). It is gone once nothing of it is under way.
//!
//! [`Life`] alone holds what another process would need to take the connection over: the negotiated session, how far
//! the stream of bytes was parsed, and bytes that were received and not parsed. Everything else (requests in the ring,
//! a batch that is being sent) has to end before a handover.

mod begin;
mod block_status;
mod handover;
mod large_reads;
mod negotiation;
mod pieces;
mod progress;
mod replies;
mod secure;

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use sheave_base::sync::Arc;
use sheave_blk::ctx::sockets::SocketEvent;
use sheave_kring::{MAX_SEGMENTS, Message};
use sheave_nbd::handshake::Handshake;
use sheave_nbd::session::{Request, Session, Step};
use sheave_nbd::wire::Errno;
use sheave_uring::Fd;

use self::handover::Suspended;
use self::large_reads::LargeReads;
use self::pieces::Pieces;
use self::progress::{Progress, SENT_NOTHING};
use super::batch::{Batch, Piece};
use super::held_back::Charge;
use super::questions::Asked;
use super::raw;
use super::requests::Io;
use super::tls_stream::TlsStream;
use crate::clients::{Arrival, Who};
use crate::counts::{Part, Tally};
use crate::export::Served;
use crate::limit::Bucket;
use crate::shared::Shared;
use crate::shares::Peer;
use crate::tls::Tls;

/// Most requests of a client at a time.
const MAX_REQUESTS: u32 = 512;
/// Most requests of a client at a time that rewrite parts of blocks.
const MAX_REWRITING: u32 = 16;
/// Bytes of small replies that wait to be sent, beyond which no further requests are parsed.
const MAX_SMALL: usize = 256 << 10;
/// Smallest number of missing payload bytes that are received directly into the payload, instead of into a receive
/// buffer.
const DIRECT: u64 = 16 << 10;
/// Most bytes, and most pieces, that an idle connection keeps allocated for its next replies.
const MAX_SPARE: usize = 4 << 10;
const MAX_SPARE_PIECES: usize = 64;
/// Most pieces of a batch.
const MAX_PIECES: usize = MAX_SEGMENTS - 2;
const ENOBUFS: i32 = 105;
const ECANCELED: i32 = 125;
const NO_MEMORY: &str = "the server has no memory for it";

/// The state that a handover to another process would need.
#[derive(Debug)]
struct Life {
    stage: Stage,
    /// Received, and not parsed yet.
    unread: Vec<u8>,
    /// A request that waits for memory or for the export's limit.
    deferred: Option<Request>,
}

#[derive(Debug)]
enum Stage {
    /// The client has not chosen an export yet. `None` before the greeting is sent.
    Handshake(Option<Handshake>),
    Transmission(Box<Chosen>),
}

/// The export that a client has chosen.
#[derive(Debug)]
struct Chosen {
    session: Session,
    id: u32,
    export: Arc<Served>,
    fd: Fd,
    /// The backend's ids of the metadata contexts that the client selected, indexed by the ids that the client uses.
    contexts: Vec<u64>,
    /// Alignment that the device requires of memory, in bytes.
    align: usize,
    bucket: Arc<Bucket>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receiving {
    Nothing,
    /// Receives into a buffer that the kernel chooses.
    Buffer,
    /// Receives `len` bytes directly into the payload of a write.
    Payload {
        len: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    No,
    /// Ends when all replies are sent.
    AfterReplies,
    /// The socket was shut down.
    Now,
}

/// A send that is under way.
#[derive(Debug)]
struct Sending {
    /// The replies whose memory is being sent. Empty with TLS: the memory of records is in `tls`.
    batch: Batch,
    /// Turn of the reactor's loop in which the send began.
    turn: u32,
    bytes: usize,
}

#[derive(Debug)]
pub(super) struct Conn {
    fd: OwnedFd,
    number: usize,
    /// Number of the client in reports.
    id: u64,
    peer: Peer,
    who: Who,
    /// Name of the export that the client was last refused. A notice about it was given.
    refused: Option<String>,
    tally: Arc<Tally>,
    life: Life,
    /// TLS that the listener offers or requires.
    offer: Option<Tls>,
    /// The TLS session, once the client has said STARTTLS.
    tls: Option<Box<TlsStream>>,
    until: Instant,
    ending: Ending,
    suspended: Suspended,
    /// Number of sends at the last look of [`Conn::cut`], while the connection ends.
    seen_sends: Option<u32>,
    receiving: Receiving,
    /// Slot of the write whose payload is being received.
    gathering: Option<u32>,
    /// Number of requests in the ring, of large reads that wait for others, and of the block status request or read in
    /// pieces that is being answered.
    under_way: u32,
    /// Number of those requests that rewrite parts of blocks.
    rewriting: u32,
    large: LargeReads,
    question: Option<Asked>,
    pieces: Option<Pieces>,
    small_bytes: usize,
    out: VecDeque<Batch>,
    sending: Option<Sending>,
    spare: Option<Batch>,
    /// True if the last send ended within the system call that started it.
    prompt: bool,
    progress: Progress,
    /// Turn of the loop in which the connection used up its part of this thread's time. Its remaining bytes are parsed
    /// in the next turn.
    had_its_turn: Option<u32>,
    /// True if the socket was shut down, and the requests in the ring are still to be marked as abandoned.
    abandons: bool,
    message: Box<Message>,
    complaint: Option<String>,
    /// The charge for the deferred request.
    charge: Charge,
}

impl Conn {
    /// Makes the connection of a client that has a place. `until` is the deadline of its handshake.
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
            suspended: Suspended::No,
            seen_sends: None,
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

    pub(super) fn peer(&self) -> Peer {
        self.peer
    }

    pub(super) fn number(&self) -> usize {
        self.number
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }

    /// Returns the counters of this connection.
    pub(super) fn counts(&self) -> &Part {
        self.tally.part(0)
    }

    /// Returns the charge for the request that waits, while requests may still begin.
    pub(super) fn charge(&mut self) -> Option<&mut Charge> {
        (self.ending == Ending::No).then_some(&mut self.charge)
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns the number of the chosen export.
    pub(super) fn export(&self) -> Option<u32> {
        match &self.life.stage {
            Stage::Transmission(chosen) => Some(chosen.id),
            Stage::Handshake(_) => None,
        }
    }

    /// Returns the reason why the client was dropped, once.
    pub(super) fn take_complaint(&mut self) -> Option<String> {
        self.complaint.take()
    }

    /// Returns true if the connection ends now and nothing of it is under way: the reactor may drop it.
    pub(super) fn is_gone(&self) -> bool {
        let quiet = self.receiving == Receiving::Nothing && self.sending.is_none() && self.under_way == 0;
        self.ending == Ending::Now && quiet
    }

    /// Drops the client. `why` goes into a notice.
    pub(super) fn drop_client(&mut self, why: &str) {
        if self.ending != Ending::Now {
            self.complaint = Some(why.into());
            self.hang_up();
        }
    }

    /// Accepts no more requests, and ends when those under way are answered.
    pub(super) fn end_after_replies(&mut self) {
        if self.ending == Ending::No {
            self.ending = Ending::AfterReplies;
            if self.receiving != Receiving::Nothing {
                // Ends the receive. If the shutdown fails, the connection is broken already.
                let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Read);
            }
        }
    }

    pub(super) fn hang_up(&mut self) {
        self.ending = Ending::Now;
        self.abandons = true;
        // A request that was held back never begins now: dropping its place moves those behind it up.
        self.charge = Charge::Due;
        // Ends the operations under way on the socket. If the shutdown fails, the connection is broken already.
        let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Both);
    }

    /// Gives all memory of a connection that is gone back to the pool.
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

    /// Called when a receive has ended.
    pub(super) fn received(&mut self, io: &mut Io, event: &SocketEvent) {
        match std::mem::replace(&mut self.receiving, Receiving::Nothing) {
            Receiving::Payload { len } => self.received_payload(io, len, event.res),
            _ => {
                let whole = raw::with_received(io, |io| &mut io.ring, event, |io, data| self.look(io, data));
                // ENOBUFS: all receive buffers are in use. ECANCELED: the connection is suspended, or was a moment ago.
                // `go_on` starts the receive again.
                let canceled = self.ending == Ending::No && event.res == -ECANCELED;
                if whole.is_none() && event.res != -ENOBUFS && !canceled {
                    self.gone(io);
                }
            }
        }
    }

    /// Called when a receive of `len` bytes directly into a payload has ended.
    fn received_payload(&mut self, io: &mut Io, len: u64, res: i32) {
        let got = u64::try_from(res).unwrap_or(0);
        let was_asked = self.progress.in_answered();
        if got == 0 && res == -ECANCELED && self.ending == Ending::No {
            if was_asked && !self.is_suspended() {
                self.drop_client(SENT_NOTHING);
            }
            // Otherwise the connection is suspended, or was a moment ago. `go_on` starts the receive again.
            return;
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
        // A receive that came short was either canceled by `ask_the_kernel`, or the connection has ended. The next
        // receive tells which, unless the connection is ending and starts none.
        if chosen.session.payload_left() == 0 {
            self.gathered(io, slot);
        } else if got < len && self.ending != Ending::No {
            self.gone(io);
        }
    }

    /// Called when the client has closed its side, or the connection is broken.
    fn gone(&mut self, io: &mut Io) {
        if self.ending == Ending::No {
            if self.tls.as_ref().is_some_and(|tls| !tls.is_established()) {
                return self.drop_client("TLS: it left before TLS had begun. Does it know the server's authority?");
            }
            return self.hang_up();
        }
        // The connection is ending and has cut off a write. That write was never accepted in full and gets no reply;
        // the requests before it do.
        if let Some(slot) = self.gathering.take() {
            io.forget(slot);
        }
    }

    /// Parses received bytes, and keeps those that cannot be used yet.
    fn look(&mut self, io: &mut Io, data: &[u8]) {
        if data.is_empty() {
            return self.gone(io);
        }
        if self.tls.is_some() { self.look_at_records(io, data) } else { self.look_at_plain(io, data) }
    }

    /// Parses plaintext, after decryption if the client uses TLS.
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
        // An idle client keeps no large buffer (S4).
        if unread.is_empty() && unread.capacity() > 4096 {
            unread = Vec::new();
        }
        self.life.unread = unread;
    }

    /// Returns true if the client has as many requests, or as much memory, as it may.
    fn is_full(&self, io: &Io) -> bool {
        let held = io.shares.held(self.number);
        let many = self.under_way >= MAX_REQUESTS || self.rewriting >= MAX_REWRITING;
        many || held >= io.client_bytes || self.small_bytes >= MAX_SMALL
    }

    /// Returns true if bytes of the client are parsed and received now. Always true for the payload of a write that has
    /// its memory: one write may by itself take all the memory that a client may have, and would otherwise never be
    /// complete.
    fn takes_bytes(&self, io: &Io) -> bool {
        let answers = self.question.is_some() || self.pieces.is_some();
        let ready = self.ending == Ending::No && !self.is_suspended() && self.life.deferred.is_none() && !answers;
        ready && !self.yields(io) && (self.gathering.is_some() || !self.is_full(io))
    }

    /// Returns true if the client has unparsed bytes and has used up its part of this turn. The connection then
    /// proceeds in the next turn without waiting for an event.
    pub(super) fn yields(&self, io: &Io) -> bool {
        !self.life.unread.is_empty() && self.had_its_turn == Some(io.turn)
    }

    /// Parses `data` into as many requests as the client may have. Returns the number of bytes used.
    fn consume(&mut self, io: &mut Io, data: &[u8]) -> usize {
        let mut at = 0;
        while self.takes_bytes(io) && self.had_its_turn != Some(io.turn) {
            let room = self.room(io);
            let Stage::Transmission(chosen) = &mut self.life.stage else { return at };
            let input = &data[at..];
            // Payload bytes that have no memory yet are left for later.
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

    /// Returns the bytes that can be received of the write in `gathering`, after taking more memory for it if possible.
    /// `None` if no write is being received.
    fn room(&self, io: &mut Io) -> Option<u64> {
        self.gathering.map(|slot| io.grow(self.number, slot))
    }

    /// Copies received bytes into the payload of a write.
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

    /// Called when the payload of a write is complete.
    fn gathered(&mut self, io: &mut Io, slot: u32) {
        let Stage::Transmission(chosen) = &self.life.stage else { return };
        self.gathering = None;
        self.under_way += 1;
        io.gathered(slot, chosen.export.locks());
    }

    /// Does everything that can be done now: parses kept bytes, starts requests, sends, receives, ends.
    pub(super) fn go_on(&mut self, io: &mut Io, shared: &Shared) {
        // Before the handshake: the certificate may be what permits the client to open an export.
        self.tell_of_tls(shared);
        if self.is_suspended() {
            self.end_waits(io);
        } else if self.ending == Ending::No {
            self.handshake(io, shared);
            if !self.is_full(io)
                && self.charge.held_back_until().is_none()
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
        // Once TLS has failed or said goodbye, replies can no longer be encrypted: nothing is gained by waiting for
        // them.
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

    /// Returns true if nothing of the client depends on the end of its send: no replies are to follow, and no requests
    /// wait for the memory or the room that the end gives back.
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
            return; // Waits for memory, and is in line for it.
        }
        let left = match &self.life.stage {
            Stage::Transmission(chosen) => chosen.session.payload_left(),
            Stage::Handshake(_) => 0,
        };
        // With TLS, the received bytes are records, which cannot go directly into the payload.
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
