//! The handshake, in which a client chooses its export: bytes go to the state machine `Handshake`, and its answers
//! into the batch.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use sheave_nbd::handshake::{self, Handshake, Negotiated, Tls};
use sheave_nbd::session::Session;
use sheave_nbd::{Catalog, ExportInfo};

use super::{Chosen, Conn, Ending, MAX_SMALL, Stage};
use crate::clients::Who;
use crate::export::Exports;
use crate::reactor::requests::Io;
use crate::shared::{Notice, Shared};

/// Time that each option adds to the deadline of the handshake. A client that lists thousands of exports sends one or
/// more options for each, one after the other. The number of exports bounds the number of options.
const OPTION_TIME: Duration = Duration::from_millis(5);

impl Conn {
    /// Returns the deadline for choosing an export, until one is chosen.
    pub(in crate::reactor) fn handshake_until(&self) -> Option<Instant> {
        (self.ending != Ending::Now && matches!(self.life.stage, Stage::Handshake(_))).then_some(self.until)
    }

    /// Runs the handshake as far as the received bytes allow.
    pub(super) fn handshake(&mut self, io: &mut Io, shared: &Shared) {
        while self.had_its_turn != Some(io.turn) {
            let negotiates = matches!(self.life.stage, Stage::Handshake(_));
            if !negotiates || self.small_bytes >= MAX_SMALL || self.ending != Ending::No {
                return;
            }
            let tls = match &self.offer {
                None => Tls::Off,
                Some(offer) if offer.required => Tls::Required,
                Some(_) => Tls::Allowed,
            };
            self.batch();
            let Stage::Handshake(handshake) = &mut self.life.stage else { return };
            let Some(batch) = self.out.back_mut() else { return };
            let start = batch.small.len();
            let out = &mut batch.small;
            let mut refused = None;
            let (used, step) = match handshake {
                Some(handshake) => {
                    let seen = Seen::new(&shared.exports, &self.who);
                    let done = handshake.step(&self.life.unread, &seen, out);
                    refused = seen.into_refused();
                    done
                }
                None => {
                    *handshake = Some(Handshake::new(tls, out));
                    (0, handshake::Step::Done)
                }
            };
            self.life.unread.drain(..used);
            if used > 0 && matches!(step, handshake::Step::Done | handshake::Step::Searched) {
                self.until += OPTION_TIME;
            }
            self.small_bytes += batch.small.len() - start;
            if batch.small.len() > start {
                batch.close(start);
            } else if batch.pieces.is_empty() {
                self.spare = self.out.pop_back();
            }
            refused.into_iter().for_each(|export| self.was_refused(shared, export));
            match step {
                handshake::Step::More => return,
                handshake::Step::Done => {}
                // Searching the contexts takes long: other connections proceed before the next search.
                handshake::Step::Searched => self.had_its_turn = Some(io.turn),
                handshake::Step::StartTls => return self.start_tls(),
                handshake::Step::Close => self.ending = Ending::AfterReplies,
                handshake::Step::Negotiated(negotiated) => return self.chose(io, shared, &negotiated),
            }
        }
    }

    /// Reports that the client asked for an export that it may not open. Repeated questions for one export are reported
    /// once.
    fn was_refused(&mut self, shared: &Shared, export: String) {
        if self.refused.as_ref() == Some(&export) {
            return;
        }
        shared.exports.was_refused(&export);
        if let Some(client) = shared.clients.get(self.id) {
            (shared.notices)(&Notice::Refused { client: &client, export: &export });
        }
        self.refused = Some(export);
    }

    fn chose(&mut self, io: &mut Io, shared: &Shared, negotiated: &Negotiated) {
        let id = negotiated.export.id;
        let Some((export, bucket)) = shared.exports.choose(id, &self.who, &self.tally) else {
            return self.drop_client("its export is gone");
        };
        let fd = match io.open(id, &export) {
            Ok(fd) => fd,
            Err(why) => {
                shared.exports.left(id, &self.tally);
                return self.drop_client(&why.to_string());
            }
        };
        shared.clients.chose(self.id, &export.name);
        io.shares.enter(self.number, self.peer, id);
        let align = export.backend.file().device().limits().dma_alignment.max(1) as usize;
        let session = Session::new(negotiated);
        let contexts = negotiated.contexts.clone();
        let chosen = Chosen { session, id, export, fd, contexts, align: align.next_power_of_two(), bucket };
        self.life.stage = Stage::Transmission(Box::new(chosen));
    }
}

/// The exports as one client sees them: the catalog of its handshake, without exports that it may not open.
struct Seen<'a> {
    exports: &'a Exports,
    who: &'a Who,
    /// The last export that the client asked for and may not open.
    refused: RefCell<Option<String>>,
}

impl<'a> Seen<'a> {
    fn new(exports: &'a Exports, who: &'a Who) -> Seen<'a> {
        Seen { exports, who, refused: RefCell::default() }
    }

    /// Returns the last export that the client asked for and may not open.
    fn into_refused(self) -> Option<String> {
        self.refused.into_inner()
    }
}

impl Catalog for Seen<'_> {
    fn find(&self, name: &[u8]) -> Option<ExportInfo> {
        let (name, info) = self.exports.find(name, self.who)?;
        if info.is_none() {
            self.refused.replace(Some(name));
        }
        info
    }

    fn list(&self, each: &mut dyn FnMut(&str, &str)) {
        self.exports.list(self.who, each);
    }

    fn exports(&self) -> usize {
        self.exports.count()
    }

    fn contexts(&self, export: u32, each: &mut dyn FnMut(&str)) {
        self.exports.contexts(export, each);
    }

    fn context(&self, export: u32, name: &[u8]) -> Option<u64> {
        self.exports.context(export, name)
    }
}
