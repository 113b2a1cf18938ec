//! A client that uses TLS: received bytes pass through its `TlsStream`, and so do its replies.
//!
//! L3. Nothing from before TLS counts after it: a client that has sent bytes after STARTTLS in the clear is dropped,
//! and what it negotiated before is forgotten.

use sheave_kring::IoVec;

use super::{Conn, Ending, Stage};
use crate::reactor::batch::Batch;
use crate::reactor::raw;
use crate::reactor::requests::Io;
use crate::reactor::tls_stream::{Fed, Spent, TlsStream};
use crate::shared::Shared;

impl Conn {
    /// Begins TLS, after the reply to STARTTLS was queued.
    pub(super) fn start_tls(&mut self) {
        if !self.life.unread.is_empty() {
            // L3: a third party between client and server may have injected them.
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

    /// Decrypts and parses received records.
    pub(super) fn look_at_records(&mut self, io: &mut Io, data: &[u8]) {
        let Some(mut tls) = self.tls.take() else { return };
        if !tls.is_finished() {
            let mut scratch = std::mem::take(&mut io.records);
            let fed = tls.read(&mut scratch, data, |said| {
                // A record may be empty, while an empty `data` would mean the end of the connection.
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

    /// Sends the client a TLS alert, and drops it.
    fn fail_tls(&mut self, tls: &mut TlsStream, why: &str) {
        tls.fail();
        if self.ending != Ending::Now {
            self.complaint = Some(format!("TLS: {why}"));
            self.ending = Ending::AfterReplies;
        }
    }

    /// Records for reports and permissions, once, that the client uses TLS.
    pub(super) fn tell_of_tls(&mut self, shared: &Shared) {
        if let Some(names) = self.tls.as_mut().and_then(|tls| tls.take_news()) {
            shared.clients.uses_tls(self.id, &names);
            self.who.certificate = names;
        }
    }

    /// Encrypts and sends waiting replies, at most as many at a time as the record buffer holds.
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

    /// Sends encrypted bytes: new records, or the rest of a short send.
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
