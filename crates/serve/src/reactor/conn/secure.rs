//! A client that uses TLS: what is received goes through its stream of records, and so do its replies.
//!
//! L3. What was said in the clear ends where TLS begins: a client that has sent bytes behind STARTTLS is dropped, and
//! what it has negotiated before is forgotten.

use sheave_kring::IoVec;

use super::{Conn, Ending, Stage};
use crate::reactor::batch::Batch;
use crate::reactor::raw;
use crate::reactor::requests::Io;
use crate::reactor::tls_stream::{Fed, Spent, TlsStream};
use crate::shared::Shared;

impl Conn {
    /// The client has said STARTTLS, which was answered.
    pub(super) fn start_tls(&mut self) {
        if !self.life.unread.is_empty() {
            // L3: they may be from somebody between the two.
            return self.drop_client("it sent something in the clear after STARTTLS");
        }
        let Some(offer) = &self.offer else { return };
        match TlsStream::new(offer.config.clone(), &self.out) {
            Ok(stream) => self.tls = Some(Box::new(stream)),
            Err(error) => return self.drop_client(&format!("TLS cannot begin: {error}")),
        }
        self.small_bytes -= self.out.drain(..).map(|batch| batch.small.len()).sum::<usize>();
        if let Stage::Handshake(Some(handshake)) = &mut self.life.stage {
            handshake.tls_started();
        }
    }

    /// Looks at records that have come.
    pub(super) fn look_at_records(&mut self, io: &mut Io, data: &[u8]) {
        let Some(mut tls) = self.tls.take() else { return };
        if !tls.is_finished() {
            let mut scratch = std::mem::take(&mut io.records);
            let fed = tls.read(&mut scratch, data, |said| {
                // A record may be empty, which is not the end.
                if !said.is_empty() {
                    self.look_at_plain(io, said);
                }
            });
            io.records = scratch;
            match fed {
                Ok(Fed::Open) => {}
                Ok(Fed::Closed) => self.gone(io),
                Err(why) => self.fail_tls(&mut tls, &why),
            }
        }
        self.tls = Some(tls);
    }

    /// The client broke the rules of TLS: it is told so, and dropped.
    fn fail_tls(&mut self, tls: &mut TlsStream, why: &str) {
        tls.fail();
        if self.ending != Ending::Now {
            self.complaint = Some(format!("TLS: {why}"));
            self.ending = Ending::AfterReplies;
        }
    }

    /// Tells reports that the client uses TLS, once.
    pub(super) fn tell_of_tls(&mut self, shared: &Shared) {
        if let Some(names) = self.tls.as_mut().and_then(|tls| tls.take_news()) {
            shared.clients.uses_tls(self.id, &names);
            self.who.certificate = names;
        }
    }

    /// Sends what waits, as records; at most so much as there is memory for at a time.
    pub(super) fn send_records(&mut self, io: &mut Io) {
        let Some(mut tls) = self.tls.take() else { return };
        if tls.has_to_write(&self.out) {
            let mut batches = std::mem::take(&mut self.out);
            let (memory, number) = (io.records_to_send(), self.number);
            let (memory, written) = tls.write(&mut batches, memory, &mut |spent| match spent {
                Spent::Payload(payload) => io.give_back(number, payload),
                Spent::Batch(batch) => self.batch_done(batch),
            });
            io.keep_records(memory);
            self.out = batches;
            if let Err(why) = written {
                self.fail_tls(&mut tls, &why);
            }
        }
        if let Some(piece) = tls.take_to_send() {
            self.send_piece(io, piece);
        }
        self.tls = Some(tls);
    }

    /// Sends records, or the rest of what was sent in part.
    pub(super) fn send_piece(&mut self, io: &mut Io, piece: IoVec) {
        self.message.clear();
        let (bytes, fits) = (piece.len, self.message.push(piece));
        debug_assert!(fits, "a message has room for one piece");
        if raw::send(&mut io.ring, &self.fd, self.number, &mut self.message) {
            self.began_to_send(io, Batch::default(), bytes);
        } else {
            self.drop_client("the kernel does not take what is to be sent");
        }
    }
}
