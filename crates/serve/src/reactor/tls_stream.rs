//! TLS of one connection: records become what the client says, batches become records.
//!
//! How rustls is driven is in `sheave_nbd::tls`, for both sides of NBD. Nothing here makes a system call; what is to be
//! sent goes with the turn's other operations.
//!
//! Owns the memory of records. What a connection does with them is in `conn/secure.rs`.
//!
//! Invariants:
//! - L1. Bytes leave in the order in which they were encrypted: all go through [`Records::out`], and a batch is
//!   encrypted only when nothing of the connection is with the kernel.
//! - L2. Memory is bounded: [`OUT_BYTES`] that wait and as many that are with the kernel, apart from what rustls itself
//!   has to say, and [`MAX_INCOMING`] that are no whole record yet. A client that has nothing to send or to take has
//!   neither.

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

/// A client that uses TLS.
pub(super) struct TlsStream {
    records: Records<UnbufferedServerConnection>,
    /// Received, and no whole record.
    incoming: Vec<u8>,
    /// Is being sent: not touched until the send has ended (S1).
    in_kernel: Vec<u8>,
    /// Bytes of it that are sent.
    sending_bytes: usize,
    /// The batch that is being encrypted.
    encrypting: Option<Encrypting>,
    /// Nothing is encrypted any more: the client broke the protocol, or was told goodbye.
    finished: bool,
    /// The common names of the client's certificate, until reports have them.
    news: Option<Vec<String>>,
}

/// A batch, and how far it was encrypted.
#[derive(Debug)]
struct Encrypting {
    batch: Batch,
    /// The piece that comes next, and how much of it was encrypted.
    piece: usize,
    done: usize,
}

/// What has been encrypted, and is needed no more.
pub(super) enum Spent {
    /// The memory of a read; the records have a copy of it.
    Payload(Payload),
    /// A batch, all of whose payloads were told before.
    Batch(Batch),
}

impl fmt::Debug for TlsStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No keys.
        f.debug_struct("TlsStream").field("established", &self.records.is_established()).finish_non_exhaustive()
    }
}

impl TlsStream {
    /// TLS with a client that has said STARTTLS. Replies from before leave in the clear, before the first record.
    pub(super) fn new(config: Arc<ServerConfig>, clear: &VecDeque<Batch>) -> Result<TlsStream, rustls::Error> {
        let mut records = Records::new(UnbufferedServerConnection::new(config)?, words);
        // A handshake has small replies only.
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

    /// Whether it has nothing more to send.
    pub(super) fn is_quiet(&self) -> bool {
        self.records.out.len == 0 && (self.encrypting.is_none() || self.finished)
    }

    /// Whether the handshake of TLS is done.
    pub(super) fn is_established(&self) -> bool {
        self.records.is_established()
    }

    /// Whether nothing is encrypted any more.
    pub(super) fn is_finished(&self) -> bool {
        self.finished
    }

    /// The common names of the client's certificate, once, when the handshake of TLS is done.
    pub(super) fn take_news(&mut self) -> Option<Vec<String>> {
        self.news.take()
    }

    /// Gives back the batch that was being encrypted.
    pub(super) fn take_batch(&mut self) -> Option<Batch> {
        Some(self.encrypting.take()?.batch)
    }

    /// Takes bytes that were received; what the client says goes to `says`. `scratch` is used meanwhile.
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

    /// The client broke the rules: what rustls has to say about it waits to be sent, and nothing else will.
    pub(super) fn fail(&mut self) {
        if !self.finished {
            self.incoming.clear();
            self.records.say_why();
            self.finished = true;
        }
    }

    /// Whether there is something to encrypt.
    pub(super) fn has_to_write(&self, batches: &VecDeque<Batch>) -> bool {
        !self.finished && self.is_established() && (self.encrypting.is_some() || !batches.is_empty())
    }

    /// Encrypts batches from the front as long as there is room, in this memory of [`OUT_BYTES`] if there is none yet;
    /// gives it back otherwise.
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

    /// Tells the client that nothing more comes, if it can be told so and was not.
    pub(super) fn say_goodbye(&mut self) {
        if !self.is_established() || self.finished {
            return;
        }
        self.finished = true;
        let mut incoming = std::mem::take(&mut self.incoming);
        // A client that cannot be told so hears the end of its socket.
        let _ = self.records.turn(
            &mut incoming,
            |_| {},
            |traffic, out| {
                out.len += traffic.queue_close_notify(out.room(RECORD))?;
                Ok(())
            },
        );
    }

    /// What is to be sent now, if there is something: it stays where it is until [`TlsStream::sent`].
    pub(super) fn take_to_send(&mut self) -> Option<IoVec> {
        debug_assert!(self.in_kernel.is_empty(), "L1: one send at a time");
        if self.records.out.len == 0 {
            return None;
        }
        let Outgoing { memory, len } = std::mem::take(&mut self.records.out);
        (self.in_kernel, self.sending_bytes) = (memory, len);
        Some(IoVec { base: self.in_kernel.as_mut_ptr(), len })
    }

    /// So many bytes at the end of what was to be sent were not.
    pub(super) fn rest(&mut self, len: usize) -> IoVec {
        let base = self.in_kernel.as_mut_ptr();
        let all = self.sending_bytes;
        IoVec { base: base.wrapping_add(all - len), len }
    }

    /// The send has ended: its memory, or memory that was not needed.
    pub(super) fn sent(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.in_kernel)
    }
}

impl Encrypting {
    /// Encrypts what is left of the batch as far as there is room; whether that was all of it.
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
