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
use sheave_nbd::session::{Command, Request};
use sheave_nbd::wire::{Errno, MAX_PAYLOAD, cflag};
use sheave_uring::{Fd, Ring};

use super::questions::Questions;
use super::raw::{self, FileOp};
use super::tls_stream::OUT_BYTES;
use super::unaligned::Unaligned;
use crate::block_locks::{Asks, BlockLocks, Standing};
use crate::export::{MAX_MIN_BLOCK, Served};
use crate::payload::{Payload, Pool, Shape};
use crate::shared::{Order, Shared};
use crate::shares::{Granted, Shares, Wish};

pub(super) const ENTRIES: u32 = 1024;
/// Bytes of zeroes that one SQE writes where the file cannot zero a range otherwise.
const ZEROES_AT_ONCE: u64 = 1 << 20;

/// Most bytes of memory that one request counts for: the longest payload, its headroom and alignment, and two rewritten
/// blocks, each of which is in memory twice.
pub(super) const MAX_COST: u64 = MAX_PAYLOAD as u64 + (64 << 10) + 4 * MAX_MIN_BLOCK as u64;
/// Growth factor of the memory of a write, applied each time that its payload has filled it.
pub(super) const GROWTH: u64 = 4;
/// Most buffers for TLS records that are kept for later sends.
const MAX_SPARE_RECORDS: usize = 16;

/// The operation that a request has in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The operation that the command names.
    Command,
    /// Reads a block of which a part is changed. The index is that in `Unaligned::edges`.
    ReadEdge(usize),
    /// Writes such a block back, with zeroes in it.
    WriteEdge(usize),
    /// Writes zeroes where the file cannot zero a range.
    Zeroes,
    /// Makes the finished change durable (FUA).
    Sync,
}

/// A request that has a slot.
#[derive(Debug)]
pub(super) struct Op {
    conn: usize,
    pub(super) fd: Fd,
    pub(super) request: Request,
    pub(super) payload: Option<Payload>,
    pub(super) stage: Stage,
    /// First byte and length of the range in the file that the stage works on.
    pub(super) range: (u64, u64),
    /// Position of that range in the payload's memory.
    pub(super) at: usize,
    /// Bytes of `range` that are done. While a write gathers its payload: bytes received.
    pub(super) done: u64,
    /// Edges to be rewritten.
    pub(super) unaligned: Option<Box<Unaligned>>,
    pub(super) standing: Standing,
    /// Turn of the loop in which the request arrived.
    turn: u32,
    /// True if its client is gone: the operation in the ring ends, and no other is started.
    pub(super) abandoned: bool,
}

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
    pub(super) ops: Vec<Option<Op>>,
    free: Vec<u32>,
    /// Slots of requests that found the submission queue full.
    waiting: VecDeque<u32>,
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
    /// Connections whose sends began in this turn and will probably end within the call that starts them.
    pub(super) prompt_sends: Vec<usize>,
    pub(super) turn: u32,
    /// Slots and results of requests that have just ended; [`Reactor::finished`](super::Reactor) handles them.
    pub(super) ended: Vec<(u32, i32)>,
    /// Attached exports by number. One without clients stays attached for returning clients until the ring needs its
    /// place.
    pub(super) files: BTreeMap<u32, Way>,
    /// Questions of reactors about changes under way here.
    pub(super) asks: Asks,
    /// Scratch memory for decrypting TLS records, shared by all connections.
    pub(super) records: Vec<u8>,
    /// Buffers for sending TLS records, for reuse.
    spare_records: Vec<Vec<u8>>,
}

impl Io {
    pub(super) fn new(ring: Ring, number: usize, shared: Arc<Shared>, shares: Shares) -> Io {
        let client_bytes = shared.options.client_bytes;
        Io {
            ring,
            number,
            shared,
            ops: Vec::new(),
            free: Vec::new(),
            waiting: VecDeque::new(),
            pushed: false,
            pool: Pool::new(),
            zeroes: None,
            client_bytes,
            shares,
            questions: Questions::default(),
            prompt_sends: Vec::new(),
            turn: 0,
            ended: Vec::new(),
            files: BTreeMap::new(),
            asks: Asks::default(),
            records: Vec::new(),
            spare_records: Vec::new(),
        }
    }

    /// Attaches an export for one more connection, or counts the connection if it is attached. Returns its descriptor
    /// in the ring.
    pub(super) fn open(&mut self, id: u32, export: &Arc<Served>) -> Result<Fd, String> {
        if let Some(way) = self.files.get_mut(&id) {
            way.clients += 1;
            return Ok(way.fd);
        }
        let file = export.backend.file();
        let attached = self.ring.attach_file(file.clone()).or_else(|error| match self.close_unused() {
            true => self.ring.attach_file(file.clone()),
            false => Err(error),
        });
        let fd = attached.map_err(|error| error.to_string())?;
        let seat = Seat::new(export.locks(), &self.shared, self.number);
        self.files.insert(id, Way { fd, clients: 1, seat });
        Ok(fd)
    }

    /// Called when a connection that had an export is gone and all its requests have ended.
    pub(super) fn leave(&mut self, id: u32) {
        if let Some(way) = self.files.get_mut(&id) {
            way.clients -= 1;
        }
    }

    /// Detaches all exports without connections, as a ring has room for few devices. Returns true if there were any.
    fn close_unused(&mut self) -> bool {
        let unused = self.files.iter().filter(|(_, way)| way.clients == 0);
        let unused: Vec<u32> = unused.map(|(id, _)| *id).collect();
        unused.iter().for_each(|id| self.close(*id));
        !unused.is_empty()
    }

    /// Detaches an export. No request of it may be under way.
    pub(super) fn close(&mut self, id: u32) {
        if let Some(Way { fd, .. }) = self.files.remove(&id) {
            debug_assert!(!self.ops.iter().flatten().any(|op| op.fd == fd), "a request outlives its client");
            // Cannot fail: only a descriptor that is not attached is refused.
            let _ = self.ring.detach(fd);
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.free.len() == self.ops.len()
    }

    pub(super) fn keeps_memory(&self) -> bool {
        let records = self.records.capacity() > 0 || !self.spare_records.is_empty();
        self.pool.keeps_memory() || self.zeroes.is_some() || records
    }

    /// Gives unused memory back to the system. No request may be under way.
    pub(super) fn trim(&mut self) {
        debug_assert!(self.is_idle(), "S1: a write of zeroes may be in the ring");
        self.zeroes = None;
        (self.records, self.spare_records) = (Vec::new(), Vec::new());
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
        if *shape == Shape::NONE {
            return Some(Memory { bytes: 0, of_room: false });
        }
        let whole = Pool::cost(shape);
        let bytes = match request.command {
            Command::Write => whole.min(self.shares.own().max((shape.around() + shape.align) as u64)),
            _ => whole,
        };
        let granted = self.shares.ask(conn, Wish { now: bytes, until_whole: whole, has_room: false })?;
        Some(Memory { bytes, of_room: granted == Granted::Room })
    }

    /// Returns the bytes of data, aligned as devices require, that fit into the memory that is a client's own (F2).
    pub(super) fn own_piece(&self, align: usize) -> u64 {
        Pool::fits(self.shares.own(), align)
    }

    /// Grows the memory of a write whose payload has filled it, to [`GROWTH`] times its size, so that a long payload is
    /// received in few pieces. Returns the bytes of data that there is memory for.
    pub(super) fn grow(&mut self, conn: usize, slot: u32) -> u64 {
        let Some(Some(op)) = self.ops.get_mut(slot as usize) else { return 0 };
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
        let op = Op {
            conn,
            fd,
            request,
            at: payload.as_ref().map_or(0, Payload::start),
            payload,
            stage: Stage::Command,
            range: (request.offset, request.len),
            done: 0,
            unaligned: None,
            standing: Standing::Apart,
            turn: self.turn,
            abandoned: false,
        };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.ops[slot as usize] = Some(op);
                slot
            }
            None => {
                self.ops.push(Some(op));
                self.ops.len() as u32 - 1
            }
        };
        Some(slot)
    }

    /// Returns the payload of a write that is being received, the count of its received bytes, and the ring.
    pub(super) fn gathering(&mut self, slot: u32) -> Option<(&mut Payload, &mut u64, &mut Ring)> {
        let op = self.ops.get_mut(slot as usize)?.as_mut()?;
        Some((op.payload.as_mut()?, &mut op.done, &mut self.ring))
    }

    /// Begins a write whose payload is complete.
    pub(super) fn gathered(&mut self, slot: u32, locks: &Arc<BlockLocks>) {
        if let Some(Some(op)) = self.ops.get_mut(slot as usize) {
            // Counted received bytes until now; from here on it counts bytes written.
            op.done = 0;
        }
        self.begin_change(slot, locks);
    }

    /// Drops a request that was not started, such as a write whose payload will never be complete.
    pub(super) fn forget(&mut self, slot: u32) {
        if let Some(Op { conn, payload: Some(payload), .. }) = self.free_slot(slot) {
            self.give_back(conn, payload);
        }
    }

    fn free_slot(&mut self, slot: u32) -> Option<Op> {
        let op = self.ops.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        Some(op)
    }

    /// Pushes a request, or what is left of it, to the ring.
    pub(super) fn start(&mut self, slot: u32) {
        // Behind those that wait, so that requests start in the order in which they came.
        if !self.waiting.is_empty() || !self.push(slot) {
            self.waiting.push_back(slot);
        }
    }

    fn push(&mut self, slot: u32) -> bool {
        let Some(Some(op)) = self.ops.get_mut(slot as usize) else { return true };
        let command = op.request.command;
        let rest = (op.range.0 + op.done, op.range.1 - op.done);
        let fd = op.fd.raw();
        let at = op.at + op.done as usize;
        let durable = op.request.has(cflag::FUA);
        let ring = &mut self.ring;
        let pushed = match (op.stage, command) {
            (Stage::Sync, _) | (_, Command::Flush) => raw::push(ring, FileOp::Sync, fd, (0, 0), None, slot),
            (Stage::Zeroes, _) => {
                let piece = (rest.0, rest.1.min(ZEROES_AT_ONCE));
                let memory = self.zeroes.as_mut().map(|zeroes| (zeroes, 0));
                raw::push(ring, FileOp::Write { durable: false }, fd, piece, memory, slot)
            }
            (Stage::ReadEdge(_), _) => {
                raw::push(ring, FileOp::Read, fd, rest, op.payload.as_mut().map(|payload| (payload, at)), slot)
            }
            (Stage::WriteEdge(_), _) => {
                let memory = op.payload.as_mut().map(|payload| (payload, at));
                raw::push(ring, FileOp::Write { durable: false }, fd, rest, memory, slot)
            }
            (Stage::Command, Command::Trim) => raw::push(ring, FileOp::Punch, fd, rest, None, slot),
            (Stage::Command, Command::WriteZeroes) => raw::push(ring, FileOp::Zero, fd, rest, None, slot),
            (Stage::Command, _) => {
                let what = if command == Command::Read { FileOp::Read } else { FileOp::Write { durable } };
                let memory = op.payload.as_mut().map(|payload| (payload, at));
                raw::push(ring, what, fd, rest, memory, slot)
            }
        };
        self.pushed |= pushed;
        pushed
    }

    /// Makes a request write zeroes when it is started. Returns false if there is no memory for the zeroes.
    pub(super) fn take_zeroes(&mut self, slot: u32) -> bool {
        if self.zeroes.is_none() {
            self.zeroes = Payload::zeroes(ZEROES_AT_ONCE as usize);
        }
        let (Some(Some(op)), true) = (self.ops.get_mut(slot as usize), self.zeroes.is_some()) else { return false };
        op.stage = Stage::Zeroes;
        true
    }

    /// Starts the sync that a request needs at its end, and no other operation of it.
    pub(super) fn start_sync(&mut self, slot: u32) {
        if let Some(Some(op)) = self.ops.get_mut(slot as usize) {
            op.stage = Stage::Sync;
        }
        self.start(slot);
    }

    /// Marks the requests of a connection whose client is gone, so that no further operation of them starts. Otherwise
    /// a request that zeroes a large export could go on for hours with no client, and delay the end of the server.
    pub(super) fn abandon(&mut self, conn: usize) {
        self.ops.iter_mut().flatten().filter(|op| op.conn == conn).for_each(|op| op.abandoned = true);
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
    pub(super) fn op_ended(&mut self, slot: u32, res: i32) -> Option<Answer> {
        let op = self.ops.get_mut(slot as usize)?.as_mut()?;
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
                    self.start(slot);
                    return None;
                }
            } else {
                // The requests of a session end within the export's size: a file that returns 0 bytes has lost data.
                let errno = if res == 0 { SystemErrno::EIO } else { SystemErrno(-res) };
                failed = Some(Failed::of_file(errno));
            }
        } else if res < 0 {
            failed = Some(Failed::of_file(SystemErrno(-res)));
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
        let goes_on = is_edge && failed.is_none() && !self.ops.get(slot as usize)?.as_ref()?.abandoned;
        if goes_on && self.edge_moved(slot) {
            return None;
        }
        let op = self.ops.get_mut(slot as usize)?.as_mut()?;
        let changes = matches!(op.request.command, Command::Trim | Command::WriteZeroes);
        if failed.is_none() && op.stage != Stage::Sync && changes && op.request.has(cflag::FUA) {
            op.stage = Stage::Sync;
            self.start(slot);
            return None;
        }
        self.end_change(slot);
        let Op { conn, request, payload, turn, .. } = self.free_slot(slot)?;
        Some(Answer { conn, request, payload, at_once: turn == self.turn, failed })
    }
}
