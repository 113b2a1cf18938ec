//! TLS of one connection: records become what the client says, batches become records.
//!
//! rustls is driven without buffers of its own: records are decrypted where they lie, and what is encrypted is written
//! where it is sent from. Nothing here makes a system call; what is to be sent goes with the turn's other operations.
//!
//! Owns the state of rustls and the memory of records. What a connection does with them is in `conn/secure.rs`.
//!
//! Invariants:
//! - L1. Bytes leave in the order in which they were encrypted: all go through [`TlsStream::out`], and a batch is
//!   encrypted only when nothing of the connection is with the kernel.
//! - L2. Memory is bounded: [`OUT_BYTES`] that wait and as many that are with the kernel, apart from what rustls itself
//!   has to say, and [`MAX_INCOMING`] that are no whole record yet. A client that has nothing to send or to take has
//!   neither.

use std::collections::VecDeque;
use std::fmt;

use rustls::ServerConfig;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, EncryptError, UnbufferedStatus, WriteTraffic};
use sheave_base::sync::Arc;
use sheave_kring::IoVec;

use super::batch::{Batch, Piece};
use crate::payload::Payload;
use crate::tls::{common_names, words};

/// Bytes of the memory that is sent from: a little more than sixteen of the longest records.
pub(super) const OUT_BYTES: usize = 16 * (MAX_PLAIN + RECORD) + RECORD;
/// Longest data of a record.
const MAX_PLAIN: usize = 16 << 10;
/// What a record has beside its data, at most: header, nonce, type and tag.
const RECORD: usize = 64;
/// Most bytes that are no whole record, or no whole message of a handshake: the longest message that rustls takes, and
/// what was received with its end.
const MAX_INCOMING: usize = 256 << 10;

/// A client that uses TLS.
pub(super) struct TlsStream {
    session: UnbufferedServerConnection,
    /// Received, and no whole record.
    incoming: Vec<u8>,
    /// Waits to be sent.
    out: Outgoing,
    /// Is being sent: not touched until the send has ended (S1).
    in_kernel: Vec<u8>,
    /// The batch that is being encrypted.
    encrypting: Option<Encrypting>,
    /// The handshake is done.
    established: bool,
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

/// Bytes that wait to be sent, in memory of [`OUT_BYTES`], or none.
#[derive(Debug, Default)]
struct Outgoing {
    memory: Vec<u8>,
    len: usize,
}

/// What came of records.
pub(super) enum Fed {
    Open,
    /// The client has closed.
    Closed,
}

/// What has been encrypted, and is needed no more.
pub(super) enum Spent {
    /// The memory of a read; the records have a copy of it.
    Payload(Payload),
    /// A batch, all of whose payloads were told before.
    Batch(Batch),
}

impl Outgoing {
    /// The room that is left, at least `least`.
    fn room(&mut self, least: usize) -> &mut [u8] {
        let wanted = (self.len + least).max(OUT_BYTES);
        if self.memory.len() < wanted {
            self.memory.resize(wanted, 0);
        }
        &mut self.memory[self.len..]
    }

    /// Takes what rustls itself has to say.
    fn encode(&mut self, data: &mut EncodeTlsData<'_, ServerConnectionData>) -> Result<(), String> {
        let mut encoded = data.encode(self.room(RECORD));
        if let Err(EncodeError::InsufficientSize(short)) = encoded {
            encoded = data.encode(self.room(short.required_size));
        }
        self.len += encoded.map_err(|error| error.to_string())?;
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) {
        self.room(bytes.len())[..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

impl fmt::Debug for TlsStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No keys.
        f.debug_struct("TlsStream").field("established", &self.established).finish_non_exhaustive()
    }
}

impl TlsStream {
    /// TLS with a client that has said STARTTLS. Replies from before leave in the clear, before the first record.
    pub(super) fn new(config: Arc<ServerConfig>, clear: &VecDeque<Batch>) -> Result<TlsStream, rustls::Error> {
        let mut out = Outgoing::default();
        // A handshake has small replies only.
        clear.iter().for_each(|batch| out.put(&batch.small));
        Ok(TlsStream {
            session: UnbufferedServerConnection::new(config)?,
            incoming: Vec::new(),
            out,
            in_kernel: Vec::new(),
            encrypting: None,
            established: false,
            finished: false,
            news: None,
        })
    }

    /// Whether it has nothing more to send.
    pub(super) fn is_quiet(&self) -> bool {
        self.out.len == 0 && (self.encrypting.is_none() || self.finished)
    }

    /// Whether the handshake of TLS is done.
    pub(super) fn is_established(&self) -> bool {
        self.established
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
        let was_established = self.established;
        let (used, fed) = self.turn(scratch, says, |_, _| Ok(()));
        if self.established && !was_established {
            let certificate = self.session.peer_certificates().and_then(|chain| chain.first());
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
            // The error comes once more, after what is to be sent.
            let _ = self.turn(&mut [], |_| {}, |_, _| Ok(()));
            self.finished = true;
        }
    }

    /// Whether there is something to encrypt.
    pub(super) fn has_to_write(&self, batches: &VecDeque<Batch>) -> bool {
        !self.finished && self.established && (self.encrypting.is_some() || !batches.is_empty())
    }

    /// Encrypts batches from the front as long as there is room, in this memory of [`OUT_BYTES`] if there is none yet;
    /// gives it back otherwise.
    pub(super) fn write(
        &mut self,
        batches: &mut VecDeque<Batch>,
        mut memory: Vec<u8>,
        spent: &mut dyn FnMut(Spent),
    ) -> (Vec<u8>, Result<(), String>) {
        if self.out.memory.is_empty() {
            self.out.memory = std::mem::take(&mut memory);
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
        let (used, result) = self.turn(&mut incoming, |_| debug_assert!(false, "no whole record waits"), encrypt);
        incoming.drain(..used);
        (self.incoming, self.encrypting) = (incoming, encrypting);
        if self.out.len == 0 && memory.is_empty() {
            memory = std::mem::take(&mut self.out.memory);
        }
        (memory, result.map(|_| ()))
    }

    /// Tells the client that nothing more comes, if it can be told so and was not.
    pub(super) fn say_goodbye(&mut self) {
        if !self.established || self.finished {
            return;
        }
        self.finished = true;
        let mut incoming = std::mem::take(&mut self.incoming);
        // A client that cannot be told so hears the end of its socket.
        let _ = self.turn(
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
        if self.out.len == 0 {
            return None;
        }
        let Outgoing { memory, len } = std::mem::take(&mut self.out);
        self.in_kernel = memory;
        Some(IoVec { base: self.in_kernel.as_mut_ptr(), len })
    }

    /// The send has ended: its memory, or memory that was not needed.
    pub(super) fn sent(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.in_kernel)
    }

    /// Takes records from the front of `bytes`; how many bytes they were. What the client says goes to `says`; when
    /// nothing more can be taken and something may be written, `write` is called.
    fn turn(
        &mut self,
        bytes: &mut [u8],
        mut says: impl FnMut(&[u8]),
        write: impl FnOnce(&mut WriteTraffic<'_, ServerConnectionData>, &mut Outgoing) -> Result<(), EncryptError>,
    ) -> (usize, Result<Fed, String>) {
        let (mut used, mut fed) = (0, Fed::Open);
        loop {
            let UnbufferedStatus { mut discard, state } = self.session.process_tls_records(&mut bytes[used..]);
            let more = match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => loop {
                    match traffic.next_record() {
                        Some(Ok(record)) => {
                            discard += record.discard;
                            says(record.payload);
                        }
                        Some(Err(error)) => break Err(error.to_string()),
                        None => break Ok(true),
                    }
                },
                Ok(ConnectionState::EncodeTlsData(mut data)) => self.out.encode(&mut data).map(|()| true),
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    // It is in `out`, and goes before all that comes later (L1).
                    data.done();
                    Ok(true)
                }
                Ok(ConnectionState::PeerClosed) => {
                    fed = Fed::Closed;
                    Ok(true)
                }
                Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                    self.established = true;
                    let written = write(&mut traffic, &mut self.out);
                    return (used + discard, written.map(|()| fed).map_err(|error| error.to_string()));
                }
                // More bytes are needed, or none will come. Early data is not offered, so none is accepted.
                Ok(_) => Ok(false),
                Err(error) => Err(words(&error)),
            };
            used += discard;
            match more {
                Ok(true) => {}
                Ok(false) => return (used, Ok(fed)),
                Err(why) => return (used, Err(why)),
            }
        }
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
