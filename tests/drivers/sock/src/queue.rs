//! The connection of one ring: sends, receives, and recovery when the connection is lost.
//!
//! Owns the headers that the kernel sends and receives. At most one operation sends and one receives at a time, because
//! the bytes of a stream have an order.
//!
//! Invariants:
//! - K1: `heads` and `head` are used only by the operations in `sending` and `receiving`, and by the driver while there
//!   are none.
//! - K2: the operation in `sending` uses the memory of the writes in `batch`, and the one in `receiving` that of the
//!   read in `inbound`; the driver itself copies nothing.
#![allow(unsafe_code)] // Sends and receives the memory of requests.

use std::collections::VecDeque;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use sheave::drivers::{
    Address, IoVec, OpEnd, OpToken, Open, Polled, Request, RequestId, SafeQueue, Step, Transfer, TransferKind, WaitsFor,
};
use sheave::{Buf, DeviceError, Errno, Op, Status};

use crate::wire::{Asked, Command, REPLY, REQUEST, Replied};

/// Largest number of operations at a time: two of send, receive, connect and timer, and two that are being cancelled.
pub(crate) const OPERATIONS: u16 = 4;
/// Largest number of pieces of memory of a request.
pub(crate) const MAX_PIECES: usize = 64;
/// Largest number of pieces of memory of one send, a limit of the kernel.
const MAX_SEND: usize = 1024;
/// Retry delay after a failed connection.
const RETRY: Duration = Duration::from_millis(10);

/// State of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    /// Not connected.
    Down,
    /// Not connected; the retry timer runs.
    Pausing(OpToken),
    /// A connect is under way.
    Connecting(OpToken),
    /// Connected.
    Up,
    /// Lost, and operations on it have not ended.
    Closing,
}

/// The next bytes expected from the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Inbound {
    /// A reply, and the bytes of it received so far.
    Head(usize),
    /// The data of a read: bytes received so far, and bytes in all.
    Data(RequestId, usize, usize),
}

/// The connection of one ring.
#[derive(Debug)]
pub(crate) struct SockQueue {
    to: Address,
    link: Link,
    fd: Option<Arc<OwnedFd>>,
    /// Requests that are not sent yet.
    waiting: VecDeque<RequestId>,
    /// Requests that have not ended, with their cookies, by slot.
    all: Vec<Option<(u64, RequestId)>>,
    cookies: u64,
    sending: Option<OpToken>,
    receiving: Option<OpToken>,
    /// Memory that `sending` still has to send.
    pieces: Vec<IoVec>,
    batch: Vec<RequestId>,
    heads: Buf,
    inbound: Inbound,
    into: Vec<IoVec>,
    head: Buf,
    /// True if replies are received into buffers that the kernel chooses, and copied.
    any: bool,
    /// True if a request timed out.
    overdue: bool,
}

impl SockQueue {
    pub(crate) fn new(open: &Open, to: Address, any: bool) -> Result<SockQueue, DeviceError> {
        let memory = |len| {
            Buf::zeroed(len, 64).map_err(|error| DeviceError::Host {
                what: "allocating headers".into(),
                fix: "Free some memory".into(),
                source: std::io::Error::other(error),
            })
        };
        Ok(SockQueue {
            to,
            link: Link::Down,
            fd: None,
            waiting: VecDeque::new(),
            all: vec![None; open.depth()],
            cookies: 0,
            sending: None,
            receiving: None,
            pieces: Vec::with_capacity(MAX_SEND),
            batch: Vec::with_capacity(open.depth()),
            heads: memory(open.depth() * REQUEST)?,
            inbound: Inbound::Head(0),
            into: Vec::with_capacity(MAX_PIECES + 1),
            head: memory(REPLY)?,
            any,
            overdue: false,
        })
    }

    /// Connects, or sends waiting requests.
    fn go_on(&mut self, rqs: &mut Polled<'_>) {
        if std::mem::take(&mut self.overdue) {
            self.lose(rqs);
        }
        match self.link {
            Link::Down => self.connect(rqs),
            Link::Up => self.send(rqs),
            _ => {}
        }
    }

    fn connect(&mut self, rqs: &mut Polled<'_>) {
        // SAFETY: no memory is passed.
        let raw = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
        if raw < 0 {
            return self.pause(rqs);
        }
        // SAFETY: the descriptor is new, and no other code has it.
        let fd = Arc::new(unsafe { OwnedFd::from_raw_fd(raw) });
        if let Ok(token) = rqs.connect(&fd, &self.to) {
            (self.link, self.fd) = (Link::Connecting(token), Some(fd));
        }
    }

    fn pause(&mut self, rqs: &mut Polled<'_>) {
        self.fd = None;
        self.link = rqs.timer(RETRY).map_or(Link::Down, Link::Pausing);
    }

    /// Sends all waiting requests in one operation.
    fn send(&mut self, rqs: &mut Polled<'_>) {
        if self.sending.is_some() {
            return;
        }
        self.batch.clear();
        self.pieces.clear();
        while self.pieces.len() + 1 + MAX_PIECES <= MAX_SEND
            && let Some(id) = self.waiting.pop_front()
        {
            let Some(rq) = rqs.get(id) else { continue };
            let (command, bytes) = match rq.op() {
                Op::Read => (Command::Read, rq.bytes()),
                Op::Write => (Command::Write, rq.bytes()),
                _ => (Command::Flush, 0),
            };
            let Some((cookie, _)) = self.all[id.slot()] else { continue };
            let asked = Asked { command, cookie, at: rq.sector() * 512, len: bytes };
            let at = self.batch.len() * REQUEST;
            self.heads[at..at + REQUEST].copy_from_slice(&asked.to_bytes()); // K1
            self.pieces.push(IoVec { base: self.heads.as_mut_ptr().wrapping_add(at), len: REQUEST });
            if command == Command::Write && rqs.memory(id, 0..bytes as usize, &mut self.pieces).is_err() {
                return self.lose(rqs);
            }
            self.batch.push(id);
        }
        self.send_pieces(rqs);
    }

    fn send_pieces(&mut self, rqs: &mut Polled<'_>) {
        let (Some(fd), false) = (&self.fd, self.pieces.is_empty()) else { return };
        let transfer = Transfer::new(TransferKind::Send, fd, &self.pieces, &self.batch);
        // SAFETY: K1 for the headers, K2 for the data of the writes, which the operation holds.
        match unsafe { rqs.transfer(transfer) } {
            Ok(token) => self.sending = Some(token),
            // A request of the batch has ended, so its data cannot follow its header.
            Err(_) => self.lose(rqs),
        }
    }

    /// Receives the next expected bytes, and the reply after them.
    fn receive(&mut self, rqs: &mut Polled<'_>) {
        let (Some(fd), None, Link::Up) = (&self.fd, self.receiving, self.link) else { return };
        if self.any {
            return match rqs.receive_any(fd) {
                Ok(token) => self.receiving = Some(token),
                Err(_) => self.lose(rqs),
            };
        }
        self.into.clear();
        let (mut got, mut holds) = (0, None);
        match self.inbound {
            Inbound::Head(already) => got = already,
            Inbound::Data(id, from, to) => {
                if rqs.memory(id, from..to, &mut self.into).is_err() {
                    return self.lose(rqs); // It was overdue.
                }
                holds = Some(id);
            }
        }
        self.into.push(IoVec { base: self.head.as_mut_ptr().wrapping_add(got), len: REPLY - got });
        let transfer = Transfer::new(TransferKind::Receive, fd, &self.into, holds.as_slice());
        // SAFETY: K1 for the reply, K2 for the memory of the read, which the operation holds.
        match unsafe { rqs.transfer(transfer) } {
            Ok(token) => self.receiving = Some(token),
            Err(_) => self.lose(rqs),
        }
    }

    /// Copies received bytes to where they belong.
    fn copy(&mut self, mut data: &[u8], rqs: &mut Polled<'_>) {
        while !data.is_empty() && self.link == Link::Up {
            let (here, rest) = match self.inbound {
                Inbound::Head(got) => {
                    let (here, rest) = data.split_at(data.len().min(REPLY - got));
                    self.head[got..got + here.len()].copy_from_slice(here);
                    (here, rest)
                }
                Inbound::Data(id, from, to) => {
                    let (here, rest) = data.split_at(data.len().min(to - from));
                    if rqs.get(id).is_none_or(|mut rq| rq.copy_from(from, here).is_err()) {
                        return self.lose(rqs); // It was overdue.
                    }
                    (here, rest)
                }
            };
            data = rest;
            self.received(here.len(), rqs);
        }
    }

    /// Advances the state by `bytes` bytes that have arrived where `receive` wanted them.
    fn received(&mut self, mut bytes: usize, rqs: &mut Polled<'_>) {
        if let Inbound::Data(id, from, to) = self.inbound {
            let data = bytes.min(to - from);
            bytes -= data;
            if from + data < to {
                self.inbound = Inbound::Data(id, from + data, to);
                return;
            }
            self.end(id, Status::Ok, rqs);
            self.inbound = Inbound::Head(0);
        }
        let Inbound::Head(got) = self.inbound else { return };
        self.inbound = Inbound::Head(got + bytes);
        if got + bytes == REPLY {
            self.inbound = Inbound::Head(0);
            let replied = Replied::from_bytes(&self.head).and_then(|replied| Some((replied, self.whose(replied)?)));
            match replied {
                Some((replied, id)) => self.replied(replied, id, rqs),
                // The stream cannot be parsed any further.
                None => self.lose(rqs),
            }
        }
    }

    fn whose(&self, replied: Replied) -> Option<RequestId> {
        let (cookie, id) = (*self.all.get(replied.cookie as usize & 0xffff)?)?;
        (cookie == replied.cookie).then_some(id)
    }

    fn replied(&mut self, replied: Replied, id: RequestId, rqs: &mut Polled<'_>) {
        let Some(rq) = rqs.get(id) else { return self.lose(rqs) };
        match (replied.errno, rq.op()) {
            (0, Op::Read) => self.inbound = Inbound::Data(id, 0, rq.bytes() as usize),
            (0, _) => self.end(id, Status::Ok, rqs),
            (errno, _) => self.end(id, Status::from_errno(Errno(errno.cast_signed())), rqs),
        }
    }

    fn end(&mut self, id: RequestId, status: Status, rqs: &mut Polled<'_>) {
        self.all[id.slot()] = None;
        rqs.end(id, status);
    }

    /// Called when the connection is lost: fails its requests, once no operation uses their memory.
    fn lose(&mut self, rqs: &mut Polled<'_>) {
        if self.link != Link::Up {
            return;
        }
        self.link = Link::Closing;
        [self.sending, self.receiving].into_iter().flatten().for_each(|token| _ = rqs.cancel(token));
        self.waiting.clear();
        for (_, id) in self.all.iter_mut().filter_map(Option::take) {
            rqs.end(id, Status::IoErr);
        }
        self.close(rqs);
    }

    /// Starts a new connection when the operations on the lost one have ended.
    fn close(&mut self, rqs: &mut Polled<'_>) {
        if (self.link, self.sending, self.receiving) == (Link::Closing, None, None) {
            self.inbound = Inbound::Head(0);
            self.pause(rqs);
        }
    }

    fn sent(&mut self, res: i32, rqs: &mut Polled<'_>) {
        let Ok(mut gone) = usize::try_from(res) else { return self.lose(rqs) };
        while let Some(piece) = self.pieces.first_mut() {
            let part = gone.min(piece.len);
            (piece.base, piece.len) = (piece.base.wrapping_add(part), piece.len - part);
            gone -= part;
            if piece.len > 0 {
                break;
            }
            self.pieces.remove(0);
        }
        if self.pieces.is_empty() { self.send(rqs) } else { self.send_pieces(rqs) }
    }
}

impl SafeQueue for SockQueue {
    fn start(&mut self, rq: &mut Request<'_>) -> Step {
        let id = rq.id();
        self.cookies += 1;
        self.all[id.slot()] = Some((self.cookies << 16 | id.slot() as u64, id));
        self.waiting.push_back(id);
        Step::Wait
    }

    fn commit(&mut self, rqs: &mut Polled<'_>) {
        self.go_on(rqs);
    }

    fn poll(&mut self, rqs: &mut Polled<'_>) {
        self.go_on(rqs);
    }

    fn op_ended(&mut self, rqs: &mut Polled<'_>, end: OpEnd<'_>) {
        let token = Some(end.token);
        if self.sending == token {
            self.sending = None;
            if self.link == Link::Up {
                self.sent(end.res, rqs);
            }
        } else if self.receiving == token {
            if !end.more {
                self.receiving = None;
            }
            match usize::try_from(end.res) {
                _ if self.link != Link::Up => {}
                Ok(1..) if self.any => self.copy(end.data, rqs),
                Ok(bytes @ 1..) => self.received(bytes, rqs),
                // The buffers are free again by now.
                Err(_) if end.res == -libc::ENOBUFS => {}
                _ => self.lose(rqs),
            }
            self.receive(rqs);
        } else if self.link == Link::Pausing(end.token) {
            self.connect(rqs);
        } else if self.link == Link::Connecting(end.token) {
            if end.res == 0 {
                self.link = Link::Up;
                self.receive(rqs);
                self.send(rqs);
            } else {
                self.pause(rqs);
            }
        }
        self.close(rqs);
    }

    fn waits_for(&self) -> WaitsFor {
        if self.overdue { WaitsFor::Now } else { WaitsFor::Nothing }
    }

    fn timed_out(&mut self, rq: &mut Request<'_>) -> Step {
        // A late reply would match no request, so the connection can no longer be used.
        self.all[rq.id().slot()] = None;
        self.overdue = true;
        Step::End(Status::Timeout)
    }
}
