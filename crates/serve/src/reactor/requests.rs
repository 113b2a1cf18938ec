//! Requests on their way through the ring: started, continued after partial completions, answered.
//!
//! States of a request:
//!
//! - gathering: a write, while its payload is being received;
//! - waiting for its turn: a change, while blocks of it are being rewritten (`turns`);
//! - in the ring, perhaps several times: the operation itself, the rest after a short transfer, zeroes written in
//!   pieces, edges, a sync after a change that must be durable;
//! - ended: it becomes an [`Answer`], and its slot is free.

use std::collections::{BTreeMap, VecDeque};

use sheave_base::status::Errno as SystemErrno;
use sheave_base::sync::Arc;
use sheave_blk::DeviceError;
use sheave_kring::IoVec;
use sheave_nbd::session::{Command, Request};
use sheave_nbd::wire::{Errno, MAX_PAYLOAD, cflag};
use sheave_uring::{Fd, Ring, RingError};

use super::ops::{Ended, Ops, Stage};
use super::questions::Questions;
use super::raw::{self, FileOp, Memory as Target, Segments};
use super::tls_stream::OUT_BYTES;
use crate::block_locks::{Asks, BlockLocks, Standing};
use crate::export::{MAX_MIN_BLOCK, Served};
use crate::payload::{Payload, Pool, Shape};
use crate::shared::{Order, Shared};
use crate::shares::{Granted, Shares, Wish};

pub(super) const ENTRIES: u32 = 1024;
/// Bytes that one SQE trims or zeroes. Some devices do so within the call, and other sessions have their turn between
/// two of these.
const CHANGED_AT_ONCE: u64 = 32 << 20;
/// Bytes of zeroes that one SQE writes where the file cannot zero a range otherwise.
const ZEROES_AT_ONCE: u64 = 1 << 20;

/// Most bytes of memory that one request counts for: the longest payload, its headroom and alignment, and two rewritten
/// blocks, each of which is in memory twice.
pub(super) const MAX_COST: u64 = MAX_PAYLOAD as u64 + (64 << 10) + 4 * MAX_MIN_BLOCK as u64;
/// Growth factor of the memory of a write, applied each time that its payload has filled it.
pub(super) const GROWTH: u64 = 4;
/// Most buffers for TLS records that are kept for later sends.
const MAX_SPARE_RECORDS: usize = 16;
/// Most lists of segments that are kept for later requests.
const MAX_SPARE_VECTORS: usize = 256;

/// A request that has ended.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) conn: usize,
    pub(super) request: Request,
    pub(super) payload: Option<Payload>,
    /// True if the request ended in the turn of the loop in which it began.
    pub(super) at_once: bool,
    pub(super) failed: Option<Failed>,
}

/// Reason why a request failed: one of the protocol's few errnos, and a text for replies that have room for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failed {
    pub(super) errno: Errno,
    pub(super) why: &'static str,
}

impl Failed {
    /// Maps an errno of the file. The text explains errnos that the protocol lacks.
    fn of_file(errno: SystemErrno) -> Failed {
        let why = match errno {
            SystemErrno::ETIMEDOUT => "it did not end in time, or I/O that it waits for did not",
            SystemErrno::ENODATA => "the medium cannot give back what was written",
            SystemErrno::EILSEQ => "what was read does not match its checksum",
            SystemErrno::ECANCELED => "it was canceled",
            _ => "the file refuses it",
        };
        Failed { errno: Errno::of_system(errno.0), why }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    bytes: u64,
    /// True if some of it comes from the room that is reserved for one request of the largest size.
    of_room: bool,
}

/// Returns the bytes that the memory of a request counts for.
fn cost(shape: &Shape) -> u64 {
    if *shape == Shape::NONE { 0 } else { Pool::cost(shape) }
}

/// Reasons why an export is not attached to the ring.
#[derive(Debug)]
pub(super) enum NotOpened {
    /// The ring has as many devices as it can have, and all are in use.
    Full(String),
    Fails(String),
}

impl std::fmt::Display for NotOpened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (NotOpened::Full(why) | NotOpened::Fails(why)) = self;
        f.write_str(why)
    }
}

/// An export that is attached to the ring.
pub(super) struct Way {
    pub(super) fd: Fd,
    /// Number of connections that use it.
    clients: usize,
    seat: Seat,
}

impl Way {
    pub(super) fn locks(&self) -> &Arc<BlockLocks> {
        &self.seat.locks
    }
}

/// Registers the reactor in a file's `BlockLocks` for as long as it lives: other reactors then ask this one about
/// changes that are under way. Dropped after the ring.
struct Seat {
    locks: Arc<BlockLocks>,
    shared: Arc<Shared>,
    reactor: usize,
}

impl Seat {
    fn new(locks: &Arc<BlockLocks>, shared: &Arc<Shared>, reactor: usize) -> Seat {
        locks.join(reactor);
        Seat { locks: locks.clone(), shared: shared.clone(), reactor }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        for begins in self.locks.leave(self.reactor) {
            self.shared.order(begins.reactor, Order::Turn { slot: begins.slot });
        }
    }
}

pub(super) struct Io {
    /// Declared first, hence dropped first: the fields below hold memory that the kernel may use (S1).
    pub(super) ring: Ring,
    pub(super) number: usize,
    pub(super) shared: Arc<Shared>,
    pub(super) ops: Ops,
    /// Slots of requests that found the submission queue full.
    waiting: VecDeque<u32>,
    /// Slots of requests whose next piece starts in the next turn of the loop.
    pub(super) later: Vec<u32>,
    /// True if SQEs were pushed and not submitted yet.
    pushed: bool,
    pool: Pool,
    /// Source of written zeroes, shared by all requests and never written to. Kept while a request may use it.
    zeroes: Option<Payload>,
    pub(super) client_bytes: u64,
    /// The account of memory per client. A connection enters it when it has chosen its export.
    pub(super) shares: Shares,
    /// Connections with a BLOCK_STATUS request.
    pub(super) questions: Questions,
    /// Sessions of queues that look at their rings by themselves, until the reactor sleeps.
    pub(super) awake: Vec<usize>,
    /// Connections whose sends began in this turn and will probably end within the call that starts them.
    pub(super) prompt_sends: Vec<usize>,
    pub(super) turn: u32,
    /// Slots and results of requests that have just ended; [`Reactor::finished`](super::Reactor) handles them.
    pub(super) ended: Vec<(u32, i32)>,
    /// Attached exports by number. One that no session uses stays attached until the ring needs its place: a device
    /// may have to connect to its server anew.
    pub(super) files: BTreeMap<u32, Way>,
    /// Questions of reactors about changes under way here.
    pub(super) asks: Asks,
    /// Scratch memory for decrypting TLS records, shared by all connections.
    pub(super) records: Vec<u8>,
    /// Buffers for sending TLS records, for reuse.
    spare_records: Vec<Vec<u8>>,
    /// Lists for the segments of requests, for reuse.
    spare_vectors: Vec<Vec<IoVec>>,
}

impl Io {
    pub(super) fn new(ring: Ring, number: usize, shared: Arc<Shared>, shares: Shares) -> Io {
        let client_bytes = shared.options.client_bytes;
        Io {
            ring,
            number,
            shared,
            ops: Ops::default(),
            waiting: VecDeque::new(),
            later: Vec::new(),
            pushed: false,
            pool: Pool::new(),
            zeroes: None,
            client_bytes,
            shares,
            questions: Questions::default(),
            awake: Vec::new(),
            prompt_sends: Vec::new(),
            turn: 0,
            ended: Vec::new(),
            files: BTreeMap::new(),
            asks: Asks::default(),
            records: Vec::new(),
            spare_records: Vec::new(),
            spare_vectors: Vec::new(),
        }
    }

    /// Attaches an export for one more session, or counts the session if it is attached. Returns its descriptor in the
    /// ring.
    pub(super) fn open(&mut self, id: u32, export: &Arc<Served>) -> Result<Fd, NotOpened> {
        if let Some(way) = self.files.get_mut(&id) {
            way.clients += 1;
            return Ok(way.fd);
        }
        let file = export.backend.file();
        let attached = self.ring.attach_file(file.clone()).or_else(|error| match self.close_unused() {
            true => self.ring.attach_file(file.clone()),
            false => Err(error),
        });
        let fd = attached.map_err(|error| match error {
            RingError::Device(DeviceError::Limit { .. }) => NotOpened::Full(error.to_string()),
            error => NotOpened::Fails(error.to_string()),
        })?;
        let seat = Seat::new(export.locks(), &self.shared, self.number);
        self.files.insert(id, Way { fd, clients: 1, seat });
        Ok(fd)
    }

    /// Called when a session uses an export no more, and all its requests have ended.
    pub(super) fn leave(&mut self, id: u32) {
        if let Some(way) = self.files.get_mut(&id) {
            way.clients -= 1;
        }
    }

    /// Detaches all exports that no session uses, as a ring has room for few devices. Returns true if there were any.
    fn close_unused(&mut self) -> bool {
        let unused = self.files.iter().filter(|(_, way)| way.clients == 0);
        let unused: Vec<u32> = unused.map(|(id, _)| *id).collect();
        unused.iter().for_each(|id| self.close(*id));
        !unused.is_empty()
    }

    /// Detaches an export. No request of it may be under way.
    pub(super) fn close(&mut self, id: u32) {
        if let Some(Way { fd, .. }) = self.files.remove(&id) {
            debug_assert!(!self.ops.iter().any(|op| op.fd == fd.raw()), "a request outlives its client");
            // Cannot fail: only a descriptor that is not attached is refused.
            let _ = self.ring.detach(fd);
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.ops.is_empty()
    }

    pub(super) fn keeps_memory(&self) -> bool {
        let records = self.records.capacity() > 0 || !self.spare_records.is_empty() || !self.spare_vectors.is_empty();
        self.pool.keeps_memory() || self.zeroes.is_some() || records
    }

    /// Gives unused memory back to the system. No request may be under way.
    pub(super) fn trim(&mut self) {
        debug_assert!(self.is_idle(), "S1: a write of zeroes may be in the ring");
        self.zeroes = None;
        (self.records, self.spare_records) = (Vec::new(), Vec::new());
        self.spare_vectors = Vec::new();
        self.pool.trim();
    }

    /// Returns a buffer for sending TLS records.
    pub(super) fn records_to_send(&mut self) -> Vec<u8> {
        self.spare_records.pop().unwrap_or_else(|| vec![0; OUT_BYTES])
    }

    /// Keeps such a buffer for the next send.
    pub(super) fn keep_records(&mut self, memory: Vec<u8>) {
        if memory.len() == OUT_BYTES && self.spare_records.len() < MAX_SPARE_RECORDS {
            self.spare_records.push(memory);
        }
    }

    /// Grants a connection the memory that a request takes when it begins, or puts the connection in line for it. A
    /// read takes all that it needs. A write takes a first part with its header, and more as its payload arrives
    /// ([`Io::grow`]), so that a client that announces much and sends little holds little.
    pub(super) fn ask(&mut self, conn: usize, request: &Request, shape: &Shape) -> Option<Memory> {
        let whole = cost(shape);
        let bytes = match request.command {
            Command::Write => whole.min(self.shares.own().max((shape.around() + shape.align) as u64)),
            _ => whole,
        };
        self.ask_for(conn, bytes, whole)
    }

    /// Grants a session all the memory of this shape, or puts the session in line for it.
    pub(super) fn ask_whole(&mut self, conn: usize, shape: &Shape) -> Option<Memory> {
        let whole = cost(shape);
        self.ask_for(conn, whole, whole)
    }

    fn ask_for(&mut self, conn: usize, bytes: u64, until_whole: u64) -> Option<Memory> {
        if until_whole == 0 {
            return Some(Memory { bytes: 0, of_room: false });
        }
        let granted = self.shares.ask(conn, Wish { now: bytes, until_whole, has_room: false })?;
        Some(Memory { bytes, of_room: granted == Granted::Room })
    }

    /// Returns the bytes of data, aligned as devices require, that fit into the memory that is a client's own (F2).
    pub(super) fn own_piece(&self, align: usize) -> u64 {
        Pool::fits(self.shares.own(), align)
    }

    /// Grows the memory of a write whose payload has filled it, to [`GROWTH`] times its size, so that a long payload is
    /// received in few pieces. Returns the bytes of data that there is memory for.
    pub(super) fn grow(&mut self, conn: usize, slot: u32) -> u64 {
        let Some(op) = self.ops.get_mut(slot) else { return 0 };
        let Some(payload) = &mut op.payload else { return 0 };
        let (whole, counted) = (payload.cost(), payload.counted());
        if op.done == payload.room() && counted < whole {
            let mut now = (counted * (GROWTH - 1)).min(whole - counted);
            let least = now.min(self.shares.own());
            // Halves the wish until it is granted: with a part of it, a write of a slow client can at least be received
            // further.
            while now >= least {
                let wish = Wish { now, until_whole: whole - counted, has_room: payload.is_of_room() };
                if let Some(granted) = self.shares.ask(conn, wish) {
                    self.pool.grow(payload, now, granted == Granted::Room);
                    break;
                }
                now /= 2;
            }
        }
        payload.room() - op.done
    }

    pub(super) fn give_back(&mut self, conn: usize, payload: Payload) {
        self.shares.give(conn, payload.counted(), payload.is_of_room());
        self.pool.put(payload);
    }

    /// Gives a request a slot, with memory of the `shape` for the bytes that were granted. `None` if the system has no
    /// memory.
    pub(super) fn begin(
        &mut self,
        conn: usize,
        fd: Fd,
        request: Request,
        shape: &Shape,
        memory: Memory,
    ) -> Option<u32> {
        let payload = match *shape {
            Shape::NONE => None,
            _ => {
                let taken = self.pool.take(shape, memory.bytes, memory.of_room);
                if taken.is_none() {
                    self.shares.give(conn, memory.bytes, memory.of_room);
                }
                Some(taken?)
            }
        };
        let (slot, op) = self.ops.begin(conn, fd, request, self.turn);
        op.at = payload.as_ref().map_or(0, Payload::start);
        op.payload = payload;
        Some(slot)
    }

    /// Gives a request a slot whose memory is the guest's.
    #[inline]
    pub(super) fn begin_with(&mut self, conn: usize, fd: Fd, request: Request, segments: Option<Segments>) -> u32 {
        let (slot, op) = self.ops.begin(conn, fd, request, self.turn);
        op.segments = segments;
        slot
    }

    /// Returns the payload of a write that is being received or copied, the count of its received bytes, and the ring.
    pub(super) fn gathering(&mut self, slot: u32) -> Option<(&mut Payload, &mut u64, &mut Ring)> {
        let op = self.ops.get_mut(slot)?;
        Some((op.payload.as_mut()?, &mut op.done, &mut self.ring))
    }

    /// Returns the write that is being received, and as much of its payload as has come.
    pub(super) fn received_so_far(&mut self, slot: u32) -> Option<(Request, Vec<u8>)> {
        let op = self.ops.get_mut(slot)?;
        let payload = op.payload.as_ref()?;
        Some((op.request, payload.bytes(payload.start(), op.done as usize).to_vec()))
    }

    /// Begins a write whose payload is complete.
    pub(super) fn gathered(&mut self, slot: u32, locks: &Arc<BlockLocks>) {
        if let Some(op) = self.ops.get_mut(slot) {
            // Counted received bytes until now; from here on it counts bytes written.
            op.done = 0;
        }
        self.begin_change(slot, locks);
    }

    /// Drops a request that was not started, such as a write whose payload will never be complete.
    pub(super) fn forget(&mut self, slot: u32) {
        let Some(Ended { conn, payload, segments, .. }) = self.ops.end(slot) else { return };
        payload.into_iter().for_each(|payload| self.give_back(conn, payload));
        self.keep_vector(segments);
    }

    /// Returns an empty list for the segments of a request.
    pub(super) fn vector(&mut self) -> Vec<IoVec> {
        self.spare_vectors.pop().unwrap_or_default()
    }

    /// Keeps the list of an ended request for the next one.
    #[inline]
    fn keep_vector(&mut self, segments: Option<Segments>) {
        if let Some(Segments::Many(mut vector)) = segments
            && self.spare_vectors.len() < MAX_SPARE_VECTORS
        {
            vector.clear();
            self.spare_vectors.push(vector);
        }
    }

    /// Pushes a request, or what is left of it, to the ring.
    #[inline]
    pub(super) fn start(&mut self, slot: u32) {
        // Behind those that wait, so that requests start in the order in which they came.
        if !self.waiting.is_empty() || !self.push(slot) {
            self.waiting.push_back(slot);
        }
    }

    #[inline]
    fn push(&mut self, slot: u32) -> bool {
        let Some(op) = self.ops.get_mut(slot) else { return true };
        let (mut from, mut len) = (op.range.0 + op.done, op.range.1 - op.done);
        let mut memory = Target::None;
        let what = match (op.stage, op.request.command) {
            (Stage::Command, Command::Read) | (Stage::ReadEdge(_), _) => FileOp::Read,
            (Stage::Command, Command::Write) => FileOp::Write { durable: op.request.has(cflag::FUA) },
            (Stage::WriteEdge(_) | Stage::Zeroes, _) => FileOp::Write { durable: false },
            (Stage::Command, Command::Trim) => FileOp::Punch,
            (Stage::Command, Command::WriteZeroes) => FileOp::Zero,
            (Stage::Sync | Stage::Command, _) => FileOp::Sync,
        };
        match (what, &mut op.segments) {
            (FileOp::Read | FileOp::Write { .. }, _) if op.stage == Stage::Zeroes => {
                len = len.min(ZEROES_AT_ONCE);
                memory = Target::of(&mut self.zeroes, 0);
            }
            (FileOp::Read | FileOp::Write { .. }, Some(segments)) => memory = Target::Segments(segments),
            (FileOp::Read | FileOp::Write { .. }, None) => {
                memory = Target::of(&mut op.payload, op.at + op.done as usize);
            }
            (FileOp::Sync, _) => (from, len) = (0, 0),
            (FileOp::Punch | FileOp::Zero, _) => len = len.min(CHANGED_AT_ONCE),
        }
        let pushed = raw::push(&mut self.ring, what, op.fd, (from, len), memory, slot);
        self.pushed |= pushed;
        pushed
    }

    /// Starts the next pieces of trims and zeroes, one of each request in a turn of the loop.
    pub(super) fn start_later(&mut self) {
        for slot in std::mem::take(&mut self.later) {
            self.turn_came(slot);
        }
    }

    /// Makes a request write zeroes when it is started. Returns false if there is no memory for the zeroes.
    pub(super) fn take_zeroes(&mut self, slot: u32) -> bool {
        if self.zeroes.is_none() {
            self.zeroes = Payload::zeroes(ZEROES_AT_ONCE as usize);
        }
        let (Some(op), true) = (self.ops.get_mut(slot), self.zeroes.is_some()) else { return false };
        op.stage = Stage::Zeroes;
        true
    }

    /// Starts the sync that a request needs at its end, and no other operation of it.
    pub(super) fn start_sync(&mut self, slot: u32) {
        if let Some(op) = self.ops.get_mut(slot) {
            op.stage = Stage::Sync;
        }
        self.start(slot);
    }

    /// Marks the requests of a connection whose client is gone, so that no further operation of them starts. Otherwise
    /// a request that zeroes a large export could go on for hours with no client, and delay the end of the server.
    pub(super) fn abandon(&mut self, conn: usize) {
        self.ops.iter_mut().filter(|op| op.conn == conn as u32).for_each(|op| op.abandoned = true);
    }

    /// Returns true if there are requests to submit or to handle.
    pub(super) fn to_start(&self) -> bool {
        self.pushed || !self.waiting.is_empty() || self.was_asked() || !self.ended.is_empty()
    }

    /// Submits the pushed SQEs. Returns true if there were any and all were taken.
    pub(super) fn issue(&mut self) -> bool {
        if self.was_asked() {
            self.look_for_changes();
        }
        while let Some(slot) = self.waiting.pop_front() {
            if !self.push(slot) {
                self.waiting.push_front(slot);
                break;
            }
        }
        if !std::mem::take(&mut self.pushed) {
            return false;
        }
        // A busy ring leaves SQEs in the queue; they are submitted when something has ended.
        match self.ring.issue() {
            Ok(_) if self.ring.sq_space() == ENTRIES => true,
            _ => {
                self.pushed = true;
                false
            }
        }
    }

    /// Called when an operation of a request has ended. Starts the next one, or returns the answer.
    #[inline]
    pub(super) fn op_ended(&mut self, slot: u32, res: i32) -> Option<Answer> {
        let op = self.ops.get(slot)?;
        let is_whole = match op.request.command {
            Command::Read | Command::Write => res > 0 && op.done + res as u64 == op.range.1,
            Command::Trim | Command::WriteZeroes => {
                res >= 0 && !op.request.has(cflag::FUA) && op.range.1 - op.done <= CHANGED_AT_ONCE
            }
            _ => res >= 0,
        };
        let failed = match is_whole && op.stage == Stage::Command {
            true => None,
            false => self.go_on(slot, res)?,
        };
        if !matches!(self.ops.get(slot)?.standing, Standing::Apart) {
            self.end_change(slot);
        }
        let Ended { conn, turn, request, payload, segments } = self.ops.end(slot)?;
        self.keep_vector(segments);
        Some(Answer { conn, request, payload, at_once: turn == self.turn, failed })
    }

    /// Starts the next operation of a request that is not done, or has failed. Returns `None` if there is one,
    /// otherwise the reason why the request has failed, if it has.
    #[cold]
    #[expect(clippy::option_option, reason = "the inner one is part of the answer")]
    fn go_on(&mut self, slot: u32, res: i32) -> Option<Option<Failed>> {
        let op = self.ops.get_mut(slot)?;
        let len = op.range.1;
        let writes_zeroes = op.request.command == Command::WriteZeroes;
        let is_edge = matches!(op.stage, Stage::ReadEdge(_) | Stage::WriteEdge(_));
        let moves =
            is_edge || op.stage == Stage::Zeroes || matches!(op.request.command, Command::Read | Command::Write);
        let mut failed = None;
        if op.stage != Stage::Sync && moves {
            if res > 0 {
                op.done += res as u64;
                if op.done < len && !op.abandoned {
                    op.segments.as_mut().into_iter().for_each(|segments| segments.advance(res as usize));
                    match op.stage {
                        Stage::Zeroes => self.later.push(slot),
                        _ => self.start(slot),
                    }
                    return None;
                }
            } else {
                // The requests of a session end within the export's size: a file that returns 0 bytes has lost data.
                let errno = if res == 0 { SystemErrno::EIO } else { SystemErrno(-res) };
                failed = Some(Failed::of_file(errno));
            }
        } else if res < 0 {
            failed = Some(Failed::of_file(SystemErrno(-res)));
        } else if op.stage == Stage::Command && len - op.done > CHANGED_AT_ONCE && !op.abandoned {
            op.done += CHANGED_AT_ONCE;
            self.later.push(slot);
            return None;
        }
        if failed.is_some_and(|failed| failed.errno == Errno::NotSup) && op.stage == Stage::Command && !op.abandoned {
            // A trim is only advice and may fail silently. Zeroes are written if the file cannot do better, which may
            // take long.
            if op.request.command == Command::Trim {
                failed = None;
            } else if writes_zeroes && !op.request.has(cflag::FAST_ZERO) {
                if self.take_zeroes(slot) {
                    self.start(slot);
                    return None;
                }
                failed = Some(Failed::of_file(SystemErrno::ENOMEM));
            }
        }
        let goes_on = is_edge && failed.is_none() && !self.ops.get(slot)?.abandoned;
        if goes_on && self.edge_moved(slot) {
            return None;
        }
        let op = self.ops.get_mut(slot)?;
        let changes = matches!(op.request.command, Command::Trim | Command::WriteZeroes);
        if failed.is_none() && op.stage != Stage::Sync && changes && op.request.has(cflag::FUA) {
            op.stage = Stage::Sync;
            self.start(slot);
            return None;
        }
        Some(failed)
    }
}
