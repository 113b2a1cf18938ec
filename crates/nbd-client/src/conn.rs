//! One connection: its sends and receives on the kernel ring.
//!
//! Owns the socket, the headers of the batch that is being sent, and the *staging* buffer, into which bytes are
//! received. Does not interpret the bytes (`queue` does). At most one operation sends and one receives at a time,
//! because the bytes of a stream have an order.
//!
//! ```text
//!   Empty -> Connecting -> Shaking -> Up          Empty -> Up: the connection that the device was opened by
//!                 |           |        |
//!                 +-----------+--------+--> Closing -> Empty      when the last operation has ended
//! ```
//!
//! Invariants:
//! - K1: `out` changes only while nothing is being sent, and `staging` only while nothing is being received.
//! - K2: the operation in `sending` has the memory of the writes in `holds` whose data has not been sent (`released`),
//!   and the one in `receiving` that of the read in `inbound`, as far as it has not arrived. Besides, only `place` and
//!   `zero` touch the memory of requests, while nothing is being received; a request is on one connection at a time, so
//!   no other connection has its memory.
//! - K3: while a receive is prepared the staging buffer is compact, and empty if there is an `inbound`.
//! - K4: with TLS, `pieces` are plain text until they are encrypted, during which no send is under way; from then on
//!   they are records in the memory of `secure`, which is not touched until all of them are sent. Records are received
//!   into the room of `secure`; the staging buffer has the plain text that was not consumed.
#![allow(unsafe_code)] // Sends and receives the memory of requests.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use sheave::Buf;
use sheave::drivers::{Address, IoVec, OpToken, Polled, RequestId, Transfer, TransferKind};
use sheave_nbd::handshake::Mode;

use crate::control::First;
use crate::negotiation::Negotiation;
use crate::reply::head_bytes;
use crate::request::{MAX_HEAD, goodbye};
use crate::socket;
use crate::tls::{Secure, Tls};

/// Largest number of bytes of one receive, not counting those that go straight into the memory of a read.
const STAGING_BYTES: usize = 256 << 10;
/// Size in bytes of the buffer for the headers of one send, or for one message of the handshake.
const OUT_BYTES: usize = 16 << 10;
/// Largest number of pieces of memory of a request.
pub(crate) const MAX_PIECES: usize = 128;
/// Largest number of pieces of one send: the kernel's limit (UIO_MAXIOV).
const MAX_SEND: usize = 1024;
/// Size in bytes from which on a batch takes no more requests with TLS, where all of it is encrypted before it is sent.
const SECURE_BATCH: usize = 256 << 10;
/// Load in bytes from which on a connection is busy. Further requests then go to another connection, if there is one.
pub(crate) const BUSY_BYTES: u64 = 512 << 10;
/// Reason for closing a connection on which a request timed out.
pub(crate) const OVERDUE: &str = "a request was not answered in time";
/// Reason for closing a connection on which a write was answered before all of its data was sent.
pub(crate) const EARLY: &str = "the server answered a write before it had taken its data";

#[cfg(test)]
thread_local! {
    /// Largest number of pieces in one send. Tests lower it to simulate kernels before 5.19, which stop at any byte
    /// when the socket is full.
    pub(crate) static MOST_PIECES: std::cell::Cell<usize> = const { std::cell::Cell::new(MAX_SEND) };
}

#[derive(Debug)]
pub(crate) enum Phase {
    Empty,
    Connecting,
    Shaking(Box<Negotiation>),
    Up,
    /// Being closed: some operations on the connection have not ended.
    Closing,
}

/// Data of a read that comes next in the stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inbound {
    pub(crate) slot: usize,
    pub(crate) id: RequestId,
    // `from..to`: the range of the request that is missing.
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// True if the read ends with this data.
    pub(crate) done: bool,
}

/// Kind of an operation that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Connect,
    Send,
    Receive,
    Timer,
}

#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) phase: Phase,
    fd: Option<Arc<OwnedFd>>,
    secure: Option<Box<Secure>>,
    connecting: Option<OpToken>,
    sending: Option<OpToken>,
    receiving: Option<OpToken>,
    timer: Option<OpToken>,
    /// Headers of the batch.
    out: Option<Buf>,
    out_len: usize,
    /// Memory of the batch. The first `gone` pieces have been sent.
    pieces: Vec<IoVec>,
    gone: usize,
    /// Number of bytes in the batch; with TLS, of plain text.
    batch_bytes: usize,
    /// Writes of the batch. The data of the first `released` writes has been sent.
    holds: Vec<RequestId>,
    /// For each of `holds`, the index of its last piece.
    lasts: Vec<usize>,
    released: usize,
    staging: Option<Buf>,
    start: usize,
    end: usize,
    into: Vec<IoVec>,
    pub(crate) inbound: Option<Inbound>,
    pub(crate) mode: Mode,
    /// Number of bytes requested or sent that the server has not answered.
    pub(crate) load: u64,
    /// Number of unanswered reads of at least [`BIG`](crate::request::BIG) bytes.
    pub(crate) big: u32,
}

impl Conn {
    pub(crate) fn new() -> Conn {
        Conn {
            phase: Phase::Empty,
            fd: None,
            secure: None,
            connecting: None,
            sending: None,
            receiving: None,
            timer: None,
            out: None,
            out_len: 0,
            pieces: Vec::new(),
            gone: 0,
            batch_bytes: 0,
            holds: Vec::new(),
            lasts: Vec::new(),
            released: 0,
            staging: None,
            start: 0,
            end: 0,
            into: Vec::new(),
            inbound: None,
            mode: Mode::Simple,
            load: 0,
            big: 0,
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(self.phase, Phase::Up)
    }

    pub(crate) fn is_opening(&self) -> bool {
        matches!(self.phase, Phase::Connecting | Phase::Shaking(_))
    }

    /// Returns true if a batch can be sent now.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_up() && self.sending.is_none()
    }

    /// Returns true if the connection is sending data of writes that were answered already, to a server that may never
    /// receive it. The connection carries no other request, so no timeout would end this.
    pub(crate) fn is_stuck(&self) -> bool {
        self.is_up() && self.sending.is_some() && self.load == 0
    }

    /// Allocates the buffers, which are kept for later connections.
    fn buffers(&mut self) -> Result<(), &'static str> {
        let memory = |len| Buf::zeroed(len, 64).map_err(|_| "there is no memory for its buffers");
        if self.out.is_none() {
            (self.out, self.staging) = (Some(memory(OUT_BYTES)?), Some(memory(STAGING_BYTES)?));
            self.pieces.reserve(MAX_SEND);
            self.into.reserve(MAX_PIECES + 1);
        }
        Ok(())
    }

    /// Takes a connection whose handshake is over.
    pub(crate) fn adopt(&mut self, first: First) -> Result<(), &'static str> {
        self.buffers()?;
        (self.phase, self.fd, self.mode) = (Phase::Up, Some(first.fd), first.mode);
        self.secure = first.secure;
        Ok(())
    }

    /// Begins TLS, with the next byte each way.
    pub(crate) fn begin_tls(&mut self, tls: &Tls) -> Result<(), String> {
        debug_assert!(self.staged().is_empty() && self.pieces.is_empty(), "nothing that was said before is taken");
        self.secure = Some(Box::new(Secure::new(tls)?));
        Ok(())
    }

    pub(crate) fn fd(&self) -> Option<&Arc<OwnedFd>> {
        self.fd.as_ref()
    }

    /// Returns the TLS records, if the connection uses TLS.
    pub(crate) fn secure(&mut self) -> &mut Option<Box<Secure>> {
        &mut self.secure
    }

    /// Connects. Fails after `within`, unless [`Conn::go_up`] is called before.
    pub(crate) fn connect(
        &mut self,
        (fd, to): (OwnedFd, &Address),
        within: Duration,
        rqs: &mut Polled<'_>,
    ) -> Result<(), &'static str> {
        const REFUSED: &str = "the kernel ring takes no more operations";
        self.buffers()?;
        let fd = Arc::new(fd);
        self.connecting = Some(rqs.connect(&fd, to).map_err(|_| REFUSED)?);
        (self.phase, self.fd) = (Phase::Connecting, Some(fd));
        self.timer = Some(rqs.timer(within).map_err(|_| REFUSED)?);
        Ok(())
    }

    /// Ends the handshake.
    pub(crate) fn go_up(&mut self, mode: Mode, rqs: &mut Polled<'_>) {
        (self.phase, self.mode) = (Phase::Up, mode);
        self.timer.into_iter().for_each(|token| _ = rqs.cancel(token));
    }

    /// Starts closing the connection: cancels its operations.
    pub(crate) fn close(&mut self, rqs: &mut Polled<'_>) {
        if matches!(self.phase, Phase::Empty) {
            return;
        }
        self.phase = Phase::Closing;
        let all = [self.connecting, self.sending, self.receiving, self.timer];
        all.into_iter().flatten().for_each(|token| _ = rqs.cancel(token));
        self.settle();
    }

    /// Resets the connection if it is closing and its last operation has ended. Returns true if it is empty.
    pub(crate) fn settle(&mut self) -> bool {
        let busy = [self.connecting, self.sending, self.receiving, self.timer].iter().any(Option::is_some);
        if matches!(self.phase, Phase::Closing) && !busy {
            (self.phase, self.fd, self.inbound) = (Phase::Empty, None, None);
            self.clear_out();
            self.secure = None;
            (self.start, self.end, self.load, self.big) = (0, 0, 0, 0);
        }
        matches!(self.phase, Phase::Empty)
    }

    /// Clears the operation that has `token`, and returns its kind. Returns `None` if the operation belongs to another
    /// connection.
    pub(crate) fn ended(&mut self, token: OpToken) -> Option<Ended> {
        let all = [
            (&mut self.receiving, Ended::Receive),
            (&mut self.sending, Ended::Send),
            (&mut self.connecting, Ended::Connect),
            (&mut self.timer, Ended::Timer),
        ];
        all.into_iter().find_map(|(of, ended)| of.take_if(|of| *of == token).map(|_| ended))
    }

    fn clear_out(&mut self) {
        (self.out_len, self.gone, self.batch_bytes, self.released) = (0, 0, 0, 0);
        self.pieces.clear();
        self.holds.clear();
        self.lasts.clear();
    }

    /// Returns true if one more request fits into the batch.
    pub(crate) fn has_room(&self) -> bool {
        self.out_len + MAX_HEAD <= OUT_BYTES
            && self.pieces.len() + 1 + MAX_PIECES <= MAX_SEND
            && (self.secure.is_none() || self.batch_bytes < SECURE_BATCH)
    }

    /// Adds the header of a request, or a message of the handshake, to the batch.
    pub(crate) fn push_head(&mut self, head: &[u8]) -> Result<(), &'static str> {
        debug_assert!(self.sending.is_none(), "K1");
        let (from, to) = (self.out_len, self.out_len + head.len());
        let Some(out) = &mut self.out else { return Err("it has no buffers") };
        let place = out.get_mut(from..to).ok_or("it wants more said than there is room for")?;
        place.copy_from_slice(head);
        let base = place.as_mut_ptr();
        self.out_len = to;
        self.batch_bytes += head.len();
        match self.pieces.last_mut() {
            Some(last) if last.base.wrapping_add(last.len) == base => last.len += head.len(),
            _ => self.pieces.push(IoVec { base, len: head.len() }),
        }
        Ok(())
    }

    /// Adds a write to the batch, header and data. Returns false if the request has ended meanwhile.
    pub(crate) fn push_write(
        &mut self,
        head: &[u8],
        (id, len): (RequestId, u32),
        rqs: &Polled<'_>,
    ) -> Result<bool, &'static str> {
        self.into.clear();
        if rqs.memory(id, 0..len as usize, &mut self.into).is_err() {
            return Ok(false);
        }
        self.push_head(head)?;
        self.pieces.append(&mut self.into);
        self.holds.push(id);
        self.lasts.push(self.pieces.len() - 1);
        self.batch_bytes += len as usize;
        Ok(true)
    }

    /// Sends the rest of the batch.
    pub(crate) fn send(&mut self, rqs: &mut Polled<'_>) -> Result<(), String> {
        if self.sending.is_none() && self.secure.is_some() {
            self.encrypt()?;
        }
        let left = &self.pieces[self.gone..];
        #[cfg(test)]
        let left = &left[..left.len().min(MOST_PIECES.get())];
        let (Some(fd), false, None) = (&self.fd, left.is_empty(), self.sending) else { return Ok(()) };
        let transfer = Transfer::new(TransferKind::Send, fd, left, &self.holds[self.released..]);
        // SAFETY: K1 for the headers, K2 for the data of the writes, which the operation holds, K4 for records.
        let token = unsafe { rqs.transfer(transfer) };
        self.sending = Some(token.map_err(|_| EARLY)?); // A write of the batch has ended, and its memory is gone.
        Ok(())
    }

    /// Replaces the batch with its TLS records, and with those that rustls itself has produced. Does nothing while
    /// records are being sent.
    fn encrypt(&mut self) -> Result<(), String> {
        let Some(secure) = self.secure.as_mut().filter(|secure| !secure.is_sending()) else { return Ok(()) };
        let (mut at, mut from) = (0, 0);
        let pieces = &self.pieces;
        let fill = |place: &mut [u8]| {
            let mut len = 0;
            while let Some(piece) = pieces.get(at)
                && len < place.len()
            {
                let many = (piece.len - from).min(place.len() - len);
                // SAFETY: K1 for headers, K2 for the data of writes, none of which has ended, for this is called while
                // their batch is made; `place` is memory of `secure`, and the range lies within both.
                unsafe { std::ptr::copy_nonoverlapping(piece.base.add(from), place[len..].as_mut_ptr(), many) };
                (len, from) = (len + many, from + many);
                if from == piece.len {
                    (at, from) = (at + 1, 0);
                }
            }
            len
        };
        if !pieces.is_empty() {
            secure.encrypt(fill)?;
        }
        let records = secure.take_to_send().map(|records| IoVec { base: records.as_mut_ptr(), len: records.len() });
        self.clear_out();
        self.pieces.extend(records);
        Ok(())
    }

    /// Records that `many` bytes were sent. Returns true if that was the rest of the batch.
    pub(crate) fn sent(&mut self, mut many: usize) -> bool {
        while let Some(piece) = self.pieces.get_mut(self.gone) {
            let part = many.min(piece.len);
            (piece.base, piece.len) = (piece.base.wrapping_add(part), piece.len - part);
            many -= part;
            if piece.len > 0 {
                // The server may answer the writes that it has received whole, so the rest of the send must not hold
                // them.
                self.released += self.lasts[self.released..].partition_point(|&last| last < self.gone);
                return false;
            }
            self.gone += 1;
        }
        self.clear_out();
        self.secure.iter_mut().for_each(|secure| secure.sent());
        true
    }

    /// Receives the next bytes: awaited data into the memory of its read, and the bytes after it into the staging
    /// buffer.
    pub(crate) fn receive(&mut self, rqs: &mut Polled<'_>) -> Result<(), &'static str> {
        let (Some(fd), None, Phase::Shaking(_) | Phase::Up) = (&self.fd, self.receiving, &self.phase) else {
            return Ok(());
        };
        if let Some(secure) = &mut self.secure {
            let room = secure.room();
            self.into.clear();
            self.into.push(IoVec { base: room.as_mut_ptr(), len: room.len() });
            let transfer = Transfer::new(TransferKind::Receive, fd, &self.into, &[]);
            // SAFETY: K4.
            let token = unsafe { rqs.transfer(transfer) };
            self.receiving = Some(token.map_err(|_| OVERDUE)?);
            return Ok(());
        }
        let Some(staging) = &mut self.staging else { return Ok(()) };
        debug_assert!(self.start == 0 && (self.inbound.is_none() || self.end == 0), "K3");
        self.into.clear();
        let mut holds = None;
        if let Some(Inbound { id, from, to, .. }) = self.inbound {
            rqs.memory(id, from..to, &mut self.into).map_err(|_| OVERDUE)?;
            holds = Some(id);
        }
        // While a big read is unanswered, only a header is received, so that the data does not go into the staging
        // buffer.
        let head = head_bytes(self.mode);
        let most = if self.big > 0 && self.end < head { head } else { STAGING_BYTES };
        let base = staging.as_mut_ptr().wrapping_add(self.end);
        self.into.push(IoVec { base, len: most - self.end });
        let transfer = Transfer::new(TransferKind::Receive, fd, &self.into, holds.as_slice());
        // SAFETY: K1 for the staging buffer, K2 for the memory of the read, which the operation holds.
        let token = unsafe { rqs.transfer(transfer) };
        self.receiving = Some(token.map_err(|_| OVERDUE)?);
        Ok(())
    }

    /// Records that `many` bytes were received.
    pub(crate) fn received(&mut self, mut many: usize) {
        if let Some(inbound) = &mut self.inbound {
            let data = many.min(inbound.to - inbound.from);
            inbound.from += data;
            many -= data;
        }
        self.end = (self.end + many).min(STAGING_BYTES);
    }

    /// Takes the plain text of a record: copies awaited data into its read, and the bytes after it into the staging
    /// buffer.
    pub(crate) fn said(&mut self, data: &[u8], rqs: &Polled<'_>) -> Result<(), &'static str> {
        let mut data = data;
        if let (Some(inbound), true) = (&mut self.inbound, self.start == self.end) {
            let (here, rest) = data.split_at(data.len().min(inbound.to - inbound.from));
            place(&mut self.into, inbound, here, rqs)?;
            data = rest;
        }
        self.compact();
        let Some(staging) = &mut self.staging else { return Ok(()) };
        let place = staging.get_mut(self.end..self.end + data.len());
        place.ok_or("it says more than there is room for")?.copy_from_slice(data);
        self.end += data.len();
        Ok(())
    }

    /// Returns the received bytes that are not consumed.
    pub(crate) fn staged(&self) -> &[u8] {
        self.staging.as_ref().map_or(&[], |staging| &staging[self.start..self.end])
    }

    pub(crate) fn consume(&mut self, many: usize) {
        self.start += many;
    }

    /// Moves the staged bytes to the front (K3).
    pub(crate) fn compact(&mut self) {
        if let (Some(staging), 1..) = (&mut self.staging, self.start) {
            staging.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }

    /// Copies awaited data from the staging buffer into its read. Returns true if all of the data has arrived.
    pub(crate) fn fill(&mut self, rqs: &Polled<'_>) -> Result<bool, &'static str> {
        let (Some(inbound), Some(staging)) = (&mut self.inbound, &self.staging) else { return Ok(true) };
        let many = (inbound.to - inbound.from).min(self.end - self.start);
        place(&mut self.into, inbound, &staging[self.start..self.start + many], rqs)?;
        self.start += many;
        Ok(inbound.from == inbound.to)
    }

    /// Zeroes a part of a read.
    pub(crate) fn zero(&mut self, id: RequestId, range: Range<usize>, rqs: &Polled<'_>) -> Result<(), &'static str> {
        self.into.clear();
        rqs.memory(id, range, &mut self.into).map_err(|_| OVERDUE)?;
        for piece in &self.into {
            // SAFETY: K2, as in `place`.
            unsafe { std::ptr::write_bytes(piece.base, 0, piece.len) };
        }
        Ok(())
    }

    /// Releases the socket to another owner. Returns `None` if something is under way on the connection.
    pub(crate) fn leave(&mut self) -> Option<First> {
        let quiet = self.is_up() && self.load == 0 && self.pieces.is_empty() && self.inbound.is_none();
        let fd = self.fd.take_if(|_| quiet && self.start == self.end)?;
        self.phase = Phase::Empty;
        Some(First { fd, secure: self.secure.take(), mode: self.mode, allocation: None })
    }

    /// Sends a disconnect request, if nothing is left to send. Called before the socket is closed.
    pub(crate) fn farewell(&mut self) {
        let (true, true, Some(fd)) = (self.is_up(), self.pieces.is_empty(), &self.fd) else { return };
        let (head, len) = goodbye(self.mode);
        let Some(secure) = &mut self.secure else { return socket::send_now(fd, &head[..len]) };
        let mut left = Some(&head[..len]);
        let fill = |place: &mut [u8]| {
            let head = left.take().unwrap_or_default();
            place[..head.len()].copy_from_slice(head);
            head.len()
        };
        if secure.encrypt(fill).is_ok() {
            secure.say_goodbye();
            secure.take_to_send().into_iter().for_each(|records| socket::send_now(fd, records));
        }
    }
}

/// Chooses the connection for the next batch: the first one that is not busy, or else the one with the least load.
/// Returns `None` if the connections that could be chosen are all sending.
pub(crate) fn choose(conns: &[Conn]) -> Option<usize> {
    let mut best: Option<usize> = None;
    for (at, conn) in conns.iter().enumerate().filter(|(_, conn)| conn.is_up()) {
        if conn.load < BUSY_BYTES {
            return Some(at).filter(|_| conn.is_ready());
        }
        if conn.is_ready() && best.is_none_or(|best| conn.load < conns[best].load) {
            best = Some(at);
        }
    }
    best
}

/// Copies `data` into the read, and advances `inbound`.
fn place(into: &mut Vec<IoVec>, inbound: &mut Inbound, data: &[u8], rqs: &Polled<'_>) -> Result<(), &'static str> {
    if data.is_empty() {
        return Ok(());
    }
    into.clear();
    let range = inbound.from..inbound.from + data.len();
    rqs.memory(inbound.id, range, into).map_err(|_| OVERDUE)?;
    let mut left = data;
    for piece in into.iter() {
        let (here, rest) = left.split_at(piece.len.min(left.len()));
        // SAFETY: K2: the memory is of a read that has not ended, no operation has it, and what came lies elsewhere;
        // `here` is no longer than the piece.
        unsafe { std::ptr::copy_nonoverlapping(here.as_ptr(), piece.base, here.len()) };
        left = rest;
    }
    inbound.from += data.len();
    Ok(())
}
