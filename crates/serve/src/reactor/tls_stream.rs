//! TLS of one connection: decrypts received records, encrypts batches of replies.
//!
//! `sheave_nbd::tls` drives rustls, for both sides of NBD. Nothing here makes a system call: records are sent with the
//! other operations of the turn.
//!
//! Owns the memory of records. Their use by a connection is in `conn/secure.rs`.
//!
//! Invariants:
//! - L1. Bytes are sent in the order in which they were encrypted: all go through [`Records::out`], and a batch is
//!   encrypted only when nothing of the connection is with the kernel.
//! - L2. Memory is bounded: [`OUT_BYTES`] that wait and as many that are with the kernel, besides the handshake
//!   messages and alerts of rustls, and [`MAX_INCOMING`] of incomplete records. An idle client has none of these.

use std::collections::VecDeque;
use std::fmt;

use rustls::ServerConfig;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{EncryptError, WriteTraffic};
use sheave_base::sync::Arc;
use sheave_kring::IoVec;
pub(super) use sheave_nbd::tls::{Fed, OUT_BYTES};
use sheave_nbd::tls::{MAX_INCOMING, MAX_PLAIN, Outgoing, RECORD, Records};

use super::batch::{Batch, Piece};
use crate::payload::Payload;
use crate::tls::{common_names, words};

/// The TLS session of a client.
pub(super) struct TlsStream {
    records: Records<UnbufferedServerConnection>,
    /// Received bytes of an incomplete record.
    incoming: Vec<u8>,
    /// Bytes being sent. Not touched until the send has ended (S1).
    in_kernel: Vec<u8>,
    /// Number of bytes of `in_kernel` that are to be sent.
    sending_bytes: usize,
    encrypting: Option<Encrypting>,
    /// True if no more is encrypted: the client broke the protocol, or close_notify was sent.
    finished: bool,
    /// Common names of the client's certificate, until `take_news`.
    news: Option<Vec<String>>,
}

/// A batch that is partly encrypted.
#[derive(Debug)]
struct Encrypting {
    batch: Batch,
    /// Index of the next piece, and the bytes of it that are encrypted.
    piece: usize,
    done: usize,
}

/// Memory that is free again after encryption.
pub(super) enum Spent {
    /// The payload of a read, of which the records have a copy.
    Payload(Payload),
    /// A batch, after all of its payloads were handed back.
    Batch(Batch),
}

impl fmt::Debug for TlsStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The session is not printed: it contains keys.
        f.debug_struct("TlsStream").field("established", &self.records.is_established()).finish_non_exhaustive()
    }
}

impl TlsStream {
    /// Begins TLS with a client that has said STARTTLS. Replies in `clear` are sent unencrypted, before the first
    /// record.
    pub(super) fn new(config: Arc<ServerConfig>, clear: &VecDeque<Batch>) -> Result<TlsStream, rustls::Error> {
        let mut records = Records::new(UnbufferedServerConnection::new(config)?, words);
        // All are in `small`: before an export is chosen no reply has a payload.
        clear.iter().for_each(|batch| records.out.put(&batch.small));
        Ok(TlsStream {
            records,
            incoming: Vec::new(),
            in_kernel: Vec::new(),
            sending_bytes: 0,
            encrypting: None,
            finished: false,
            news: None,
        })
    }

    /// Returns true if there is nothing to send.
    pub(super) fn is_quiet(&self) -> bool {
        self.records.out.len == 0 && (self.encrypting.is_none() || self.finished)
    }

    /// Returns true if the TLS handshake is done.
    pub(super) fn is_established(&self) -> bool {
        self.records.is_established()
    }

    /// Returns true if no more will be encrypted.
    pub(super) fn is_finished(&self) -> bool {
        self.finished
    }

    /// Returns the common names of the client's certificate, once, when the TLS handshake is done. Empty without a
    /// certificate.
    pub(super) fn take_news(&mut self) -> Option<Vec<String>> {
        self.news.take()
    }

    /// Returns the batch that was being encrypted, to give its memory back.
    pub(super) fn take_batch(&mut self) -> Option<Batch> {
        Some(self.encrypting.take()?.batch)
    }

    /// Decrypts received bytes, and passes the plaintext to `says`. `scratch` is overwritten.
    pub(super) fn read(&mut self, scratch: &mut Vec<u8>, data: &[u8], says: impl FnMut(&[u8])) -> Result<Fed, String> {
        scratch.clear();
        scratch.append(&mut self.incoming);
        scratch.extend_from_slice(data);
        let was_established = self.is_established();
        let (used, fed) = self.records.turn(scratch, says, |_, _| Ok(()));
        if self.is_established() && !was_established {
            let certificate = self.records.session.peer_certificates().and_then(|chain| chain.first());
            self.news = Some(certificate.map(|one| common_names(one)).unwrap_or_default());
        }
        if scratch.len() - used > MAX_INCOMING {
            return Err("a message is too long".into());
        }
        self.incoming = scratch[used..].to_vec();
        fed
    }

    /// Called when the client broke the protocol. Queues the alert of rustls; nothing is encrypted after it.
    pub(super) fn fail(&mut self) {
        if !self.finished {
            self.incoming.clear();
            self.records.say_why();
            self.finished = true;
        }
    }

    /// Returns true if there is something to encrypt.
    pub(super) fn has_to_write(&self, batches: &VecDeque<Batch>) -> bool {
        !self.finished && self.is_established() && (self.encrypting.is_some() || !batches.is_empty())
    }

    /// Encrypts batches from the front while there is room, in `memory` (of [`OUT_BYTES`]) if the stream has none.
    /// Returns the memory if it is not needed.
    pub(super) fn write(
        &mut self,
        batches: &mut VecDeque<Batch>,
        mut memory: Vec<u8>,
        spent: &mut dyn FnMut(Spent),
    ) -> (Vec<u8>, Result<(), String>) {
        if self.records.out.memory.is_empty() {
            self.records.out.memory = std::mem::take(&mut memory);
        }
        let mut encrypting = self.encrypting.take();
        let mut incoming = std::mem::take(&mut self.incoming);
        let encrypt = |traffic: &mut WriteTraffic<'_, ServerConnectionData>, out: &mut Outgoing| {
            loop {
                if encrypting.is_none() {
                    encrypting = batches.pop_front().map(|batch| Encrypting { batch, piece: 0, done: 0 });
                }
                let Some(batch) = &mut encrypting else { return Ok(()) };
                if !batch.encrypt(traffic, out, spent)? {
                    return Ok(());
                }
                encrypting.take().into_iter().for_each(|done| spent(Spent::Batch(done.batch)));
            }
        };
        let (used, result) =
            self.records.turn(&mut incoming, |_| debug_assert!(false, "no whole record waits"), encrypt);
        incoming.drain(..used);
        (self.incoming, self.encrypting) = (incoming, encrypting);
        if self.records.out.len == 0 && memory.is_empty() {
            memory = std::mem::take(&mut self.records.out.memory);
        }
        (memory, result.map(|_| ()))
    }

    /// Sends close_notify if the handshake is done and nothing ended the stream before.
    pub(super) fn say_goodbye(&mut self) {
        if !self.is_established() || self.finished {
            return;
        }
        self.finished = true;
        let mut incoming = std::mem::take(&mut self.incoming);
        // If that fails, the client still sees the end of the socket.
        let _ = self.records.turn(
            &mut incoming,
            |_| {},
            |traffic, out| {
                out.len += traffic.queue_close_notify(out.room(RECORD))?;
                Ok(())
            },
        );
    }

    /// Returns the encrypted bytes to send, if there are any. They stay in place until [`TlsStream::sent`].
    pub(super) fn take_to_send(&mut self) -> Option<IoVec> {
        debug_assert!(self.in_kernel.is_empty(), "L1: one send at a time");
        if self.records.out.len == 0 {
            return None;
        }
        let Outgoing { memory, len } = std::mem::take(&mut self.records.out);
        (self.in_kernel, self.sending_bytes) = (memory, len);
        Some(IoVec { base: self.in_kernel.as_mut_ptr(), len })
    }

    /// Returns the last `len` bytes of the send, which a short send has left.
    pub(super) fn rest(&mut self, len: usize) -> IoVec {
        let base = self.in_kernel.as_mut_ptr();
        let all = self.sending_bytes;
        IoVec { base: base.wrapping_add(all - len), len }
    }

    /// Called when a send has ended. Returns its memory.
    pub(super) fn sent(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.in_kernel)
    }
}

impl Encrypting {
    /// Encrypts the rest of the batch while there is room. Returns true if all of it is encrypted.
    fn encrypt(
        &mut self,
        traffic: &mut WriteTraffic<'_, ServerConnectionData>,
        out: &mut Outgoing,
        spent: &mut dyn FnMut(Spent),
    ) -> Result<bool, EncryptError> {
        while let Some(piece) = self.batch.pieces.get_mut(self.piece) {
            let bytes = match piece {
                Piece::Small { start, end } => &self.batch.small[*start..*end],
                Piece::Data { payload, start, len } => payload.bytes(*start, *len),
            };
            while self.done < bytes.len() {
                let len = MAX_PLAIN.min(bytes.len() - self.done);
                let room = out.room(0);
                if room.len() < len + RECORD {
                    return Ok(false);
                }
                out.len += traffic.encrypt(&bytes[self.done..self.done + len], room)?;
                self.done += len;
            }
            piece.take_payload().into_iter().for_each(|payload| spent(Spent::Payload(payload)));
            (self.piece, self.done) = (self.piece + 1, 0);
        }
        Ok(true)
    }
}
