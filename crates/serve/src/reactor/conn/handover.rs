//! Handing a connection over to another process, and going on with one.
//!
//! A connection that is suspended parses no more bytes and begins no more requests. Those under way end, and their
//! replies are sent; a client that does not take its replies in time keeps the rest as unsent bytes. Then nothing of
//! the connection is under way, and [`Conn::take_out`] collects it.

use std::sync::LazyLock;
use std::time::Instant;

use rustix::system::uname;
use sheave_nbd::handshake::Stage::Ended;
use sheave_nbd::handshake::{Handshake, Negotiated, Tls as Offered};
use sheave_nbd::session::{Command, Refused, Request, Session, SessionState, Step};

use super::{Charge, Chosen, Conn, ECANCELED, Ending, MAX_REQUESTS, Receiving, Stage};
use crate::clients::{Arrival, Known};
use crate::handover::{Moved, MovedStage, ReadState, StageState};
use crate::reactor::batch::Piece;
use crate::reactor::raw::{self, Kind};
use crate::reactor::requests::Io;
use crate::shared::Shared;
use crate::tls::Tls;

/// Progress of a handover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Suspended {
    No,
    /// Requests end, and replies are sent.
    Drains,
    /// Replies are not sent any more.
    Cut,
}

impl Conn {
    /// Parses no more bytes, and begins no more requests. A client that uses TLS cannot be handed over, and ends after
    /// its replies.
    pub(in crate::reactor) fn suspend(&mut self) {
        if self.ending != Ending::No {
            return;
        }
        if self.tls.is_some() || !self.has_state() {
            return self.end_after_replies();
        }
        self.suspended = Suspended::Drains;
    }

    /// Sends no more replies, which the client keeps as unsent bytes. A connection that ends is dropped instead, if it
    /// has taken nothing of its replies since the last call. Returns true if this is to be called again.
    pub(in crate::reactor) fn cut(&mut self) -> bool {
        match (self.suspended, self.ending) {
            // The reply that has begun cannot be handed over.
            (Suspended::Drains, _) if self.pieces.is_some() => true,
            (Suspended::Drains | Suspended::Cut, _) => {
                self.suspended = Suspended::Cut;
                false
            }
            (Suspended::No, Ending::AfterReplies) => {
                let sends = self.sending.is_some().then_some(self.progress.sends);
                if sends.is_some() && sends == self.seen_sends {
                    self.drop_client("the server was upgraded, and it did not take its replies");
                }
                self.seen_sends = sends;
                self.ending == Ending::AfterReplies
            }
            (Suspended::No, _) => false,
        }
    }

    /// Goes on as before.
    pub(in crate::reactor) fn resume(&mut self) {
        self.suspended = Suspended::No;
    }

    pub(super) fn is_suspended(&self) -> bool {
        self.suspended != Suspended::No
    }

    /// Returns true if no replies are sent now.
    pub(super) fn is_cut(&self) -> bool {
        self.suspended == Suspended::Cut
    }

    /// Returns true if a send that came short was cut off for the handover, or was a moment before the connection
    /// resumed. `was_asked` is true if it was canceled to learn how far it is.
    pub(super) fn is_cut_short(&self, sent: usize, res: i32, was_asked: bool) -> bool {
        let (suspended, canceled) = (self.is_suspended(), res == -ECANCELED);
        let is_cut = suspended && (sent > 0 || canceled) || canceled && !was_asked;
        is_cut && self.ending == Ending::No && self.tls.is_none()
    }

    /// Ends the operations of a suspended connection that would wait for the client. If the kernel does not take that,
    /// the next call tries again.
    pub(super) fn end_waits(&mut self, io: &mut Io) {
        // Of a receive into a buffer, the kernel always tells the result.
        if self.receiving == Receiving::Buffer || self.receiving != Receiving::Nothing && kernel_tells_progress() {
            raw::unwatch(&mut io.ring, Kind::Recv, self.number);
        }
        if self.is_cut() && self.sending.is_some() && kernel_tells_progress() {
            raw::unwatch(&mut io.ring, Kind::Send, self.number);
        }
    }

    /// Returns true if the connection can be taken out: it is suspended, and nothing of it is under way.
    pub(in crate::reactor) fn is_quiet(&self) -> bool {
        let sent = self.out.is_empty() || self.is_cut();
        let asks = self.question.is_some() || self.pieces.is_some();
        // Large reads that wait begin in the other process.
        let begun = self.under_way > self.waiting_reads();
        let moves = self.receiving != Receiving::Nothing || self.sending.is_some() || begun;
        self.is_suspended() && self.ending == Ending::No && sent && !asks && !moves
    }

    /// Names what keeps the connection from being taken out.
    pub(in crate::reactor) fn what_is_under_way(&self) -> String {
        let many = self.under_way - self.waiting_reads();
        match self.ending {
            Ending::No if many == 0 && self.receiving != Receiving::Nothing => {
                format!("client {}: a write that it has sent in part", self.id)
            }
            Ending::No if many == 0 => format!("client {}: replies that it does not take", self.id),
            Ending::No if self.question.is_some() => {
                format!("client {}: a question about the status of a range", self.id)
            }
            Ending::No if self.pieces.is_some() => {
                format!("client {}: a large read, whose reply it does not take", self.id)
            }
            _ => format!("client {}: {many} requests", self.id),
        }
    }

    fn has_state(&self) -> bool {
        match &self.life.stage {
            Stage::Handshake(Some(handshake)) => handshake.state().is_some(),
            Stage::Handshake(None) | Stage::Transmission(_) => true,
        }
    }

    /// Takes everything out that another process needs to go on with the connection. It is quiet (H1).
    pub(in crate::reactor) fn take_out(mut self, io: &mut Io, shared: &Shared) -> Moved {
        let mut paid = matches!(self.charge, Charge::Paid);
        let mut unread = Vec::new();
        let stage = match &self.life.stage {
            Stage::Handshake(None) => StageState::New,
            Stage::Handshake(Some(handshake)) => match handshake.state() {
                Some(handshake) => {
                    let name = |id: u32| Some((id, shared.exports.by_id(id)?.name.clone()));
                    let ids = handshake.contexts.iter().map(|(id, _)| *id).chain(handshake.block_sizes);
                    let exports = ids.filter_map(name).collect();
                    StageState::Handshake { handshake, exports }
                }
                None => StageState::New,
            },
            Stage::Transmission(chosen) => {
                // At most one of the two: a request is deferred before its payload is received.
                if let Some(slot) = self.gathering
                    && let Some((request, received)) = io.received_so_far(slot)
                {
                    unread.extend(chosen.session.encode(&request));
                    unread.extend(received);
                    paid = true;
                } else if let Some(request) = &self.life.deferred {
                    unread.extend(chosen.session.encode(request));
                }
                StageState::Transmission {
                    export: chosen.export.name.clone(),
                    mode: chosen.session.mode(),
                    keeps_to_blocks: chosen.session.keeps_to_blocks(),
                    contexts: chosen.contexts.clone(),
                    session: chosen.session.state(),
                    paid,
                    reads: self.large.waiting().iter().map(read_state).collect(),
                }
            }
        };
        unread.append(&mut self.life.unread);
        let unsent = self.unsent();
        self.give_back(io);
        if let Stage::Transmission(chosen) = &self.life.stage {
            io.leave(chosen.id);
            shared.exports.moved(chosen.id, &self.tally);
        }
        let listener = self.who.at.first().map(ToString::to_string).unwrap_or_default();
        Moved { id: self.id, fd: self.fd, listener, unread, unsent, stage: MovedStage::Nbd(stage) }
    }

    /// Returns the bytes of all replies that wait.
    fn unsent(&self) -> Vec<u8> {
        let mut unsent = Vec::new();
        for batch in &self.out {
            for piece in &batch.pieces {
                unsent.extend_from_slice(match piece {
                    Piece::Small { start, end } => &batch.small[*start..*end],
                    Piece::Data { payload, start, len } => payload.bytes(*start, *len),
                });
            }
        }
        unsent
    }

    /// Makes the connection of a client that another process has served until now. Its first step is
    /// [`Conn::go_on`]. Fails, with the reason, if the data makes no sense, or the client cannot be served here (H2).
    pub(in crate::reactor) fn restored(
        (fd, known, listener): (std::os::fd::OwnedFd, Known, usize),
        (unread, unsent, stage): (Vec<u8>, Vec<u8>, &StageState),
        number: usize,
        offer: Option<Tls>,
        (io, shared): (&mut Io, &Shared),
    ) -> Result<Conn, String> {
        let Known { id, peer, who, tally } = known;
        let until = Instant::now() + shared.options.handshake;
        let offered = match &offer {
            None => Offered::Off,
            Some(offer) if offer.required => Offered::Required,
            Some(_) => Offered::Allowed,
        };
        let mut conn = Conn::new(Arrival { fd, listener, id, peer, who, tally }, number, until, offer);
        conn.life.unread = unread;
        let mut refused = Vec::new();
        match stage {
            StageState::New => {}
            StageState::Handshake { handshake, exports } => {
                let id = |old: u32| shared.exports.id_of(&exports.iter().find(|(id, _)| *id == old)?.1);
                let handshake = Handshake::restored(&handshake.clone().map_exports(id), offered);
                let handshake = handshake.filter(|handshake| !has_ended(handshake));
                conn.life.stage = Stage::Handshake(Some(handshake.ok_or("the state of its handshake makes no sense")?));
            }
            StageState::Transmission { export: name, mode, keeps_to_blocks, contexts, session, paid, reads } => {
                if session.ended {
                    return Err("the state of its session makes no sense".into());
                }
                let gone = || format!("its export '{name}' is gone");
                let info = shared.exports.id_of(name).and_then(|id| shared.exports.info_of(id)).ok_or_else(gone)?;
                let (mode, keeps_to_blocks, contexts) = (*mode, *keeps_to_blocks, contexts.clone());
                let negotiated = Negotiated { export: info, mode, contexts: contexts.clone(), keeps_to_blocks };
                refused = conn.wait_for(&negotiated, reads)?;
                let (id, export, bucket) = shared.exports.keeps(name, &conn.tally).ok_or_else(gone)?;
                let opened = io.open(id, &export).map_err(|why| why.to_string());
                let fd = opened.inspect_err(|_| shared.exports.left(id, &conn.tally))?;
                shared.clients.chose(conn.id, name);
                io.shares.enter(number, conn.peer, id);
                let align = export.backend.file().device().limits().dma_alignment.max(1) as usize;
                let (session, align) = (Session::restored(&negotiated, session), align.next_power_of_two());
                let chosen = Chosen { session, id, export, fd, contexts, align, bucket };
                conn.life.stage = Stage::Transmission(Box::new(chosen));
                conn.charge = if *paid { Charge::Paid } else { Charge::Due };
            }
            StageState::FrontEnd { .. } => return Err("it is no NBD client".into()),
        }
        if !unsent.is_empty() {
            let batch = conn.batch();
            batch.small = unsent;
            batch.close(0);
            conn.small_bytes = batch_bytes(&conn);
        }
        // Behind the unsent replies, of which the first may have been sent in part.
        refused.iter().for_each(|refused| conn.refused(refused));
        Ok(conn)
    }

    /// Lets reads wait as they did in the other process. They are parsed again, and thereby checked (H2). Returns those
    /// that are refused now.
    fn wait_for(&mut self, negotiated: &Negotiated, reads: &[ReadState]) -> Result<Vec<Refused>, String> {
        let mut refused = Vec::new();
        let mut parser = Session::restored(negotiated, &SessionState::default());
        for &ReadState { cookie, flags, offset, len } in reads {
            let read = Request { command: Command::Read, flags, cookie, offset, len, contexts: 0 };
            match parser.next(&parser.encode(&read)).1 {
                Step::Request(read) if read.command == Command::Read && self.under_way < MAX_REQUESTS => {
                    self.large.keep_waiting(read);
                    self.under_way += 1;
                }
                Step::Refused(read) => refused.push(read),
                _ => return Err("one of its reads makes no sense".into()),
            }
        }
        Ok(refused)
    }
}

fn read_state(request: &Request) -> ReadState {
    let &Request { cookie, flags, offset, len, .. } = request;
    ReadState { cookie, flags, offset, len }
}

fn has_ended(handshake: &Handshake) -> bool {
    handshake.state().is_some_and(|state| state.stage == Ended)
}

/// Returns true if the kernel tells how far a transfer was when it was canceled. Kernels before 6.1 do not: a transfer
/// that has begun has to end there.
fn kernel_tells_progress() -> bool {
    static TELLS: LazyLock<bool> = LazyLock::new(|| tells_progress(&uname().release().to_string_lossy()));
    *TELLS
}

/// Returns true for releases from 6.1 on, and for those that are not understood.
fn tells_progress(release: &str) -> bool {
    let mut numbers = release.split(['.', '-']).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= (6, 1),
        _ => true,
    }
}

/// Returns the bytes of small replies that wait.
fn batch_bytes(conn: &Conn) -> usize {
    conn.out.iter().map(|batch| batch.small.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_from_6_1_on_tell_how_far_a_canceled_transfer_was() {
        for (release, tells) in [
            ("5.19.0", false),
            ("6.0.19-1", false),
            ("6.1.0-rc1", true),
            ("6.18.44-fc", true),
            ("7.0", true),
            ("?", true),
        ] {
            assert_eq!(tells_progress(release), tells, "{release}");
        }
    }
}
