//! Requests on their way through the ring: started, gone on with when they were done in part, answered.
//!
//! States of a request: a write gathers its payload; what changes something waits for its turn where blocks of it are
//! being rewritten (`turns`); all are with the ring, perhaps several times (what came short, a sync after what must
//! be durable, zeroes written in pieces, edges); then there is an [`Answer`], and the slot is free.

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

/// SQEs of a reactor's ring.
pub(super) const ENTRIES: u32 = 1024;
/// Zeroes that are written at a time where a range cannot be zeroed otherwise.
const ZEROES_AT_ONCE: u64 = 1 << 20;

/// Most that one request counts for: the longest payload, what lies before it, and two blocks that are rewritten, which
/// are there twice.
pub(super) const MAX_COST: u64 = MAX_PAYLOAD as u64 + (64 << 10) + 4 * MAX_MIN_BLOCK as u64;
/// The payload of a write grows to so many times its size when that has come.
pub(super) const GROWTH: u64 = 4;
/// Memory that records were sent from, kept for the next at most.
const MAX_SPARE_RECORDS: usize = 16;

/// What is under way for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// What the command says.
    Command,
    /// Reading a block of which a part is changed, by its number among those.
    ReadEdge(usize),
    /// Writing such a block with zeroes in it.
    WriteEdge(usize),
    /// Writing zeroes.
    Zeroes,
    /// Making durable what was done.
    Sync,
}

/// A request that was started.
#[derive(Debug)]
pub(super) struct Op {
    conn: usize,
    pub(super) fd: Fd,
    pub(super) request: Request,
    pub(super) payload: Option<Payload>,
    pub(super) stage: Stage,
    /// What the stage moves: first byte, and bytes.
    pub(super) range: (u64, u64),
    /// Where that begins in the memory.
    pub(super) at: usize,
    /// Bytes of it that are done; of a write that gathers its payload, bytes of that.
    pub(super) done: u64,
    /// Edges that are to be rewritten.
    pub(super) unaligned: Option<Box<Unaligned>>,
    pub(super) standing: Standing,
    /// The turn of the loop in which it came.
    turn: u32,
    /// Its client is gone: what is with the ring ends, and nothing more of it begins.
    pub(super) abandoned: bool,
}

/// A request that has ended.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) conn: usize,
    pub(super) request: Request,
    pub(super) payload: Option<Payload>,
    /// It ended in the turn of the loop in which it began.
    pub(super) at_once: bool,
    /// Why it failed, if it did.
    pub(super) failed: Option<Failed>,
}

/// Why a request has failed: for the protocol, which has few errors, and in words for replies that have room for some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failed {
    pub(super) errno: Errno,
    pub(super) why: &'static str,
}

impl Failed {
    /// By the errno of the file. Those that the protocol has no error for have words of their own.
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

/// Memory that was granted to a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    bytes: u64,
    /// It is of the room for one request of the largest size.
    of_room: bool,
}

/// The ring's way to an export.
pub(super) struct Way {
    pub(super) fd: Fd,
    /// Connections that have it.
    clients: usize,
    seat: Seat,
}

impl Way {
    pub(super) fn locks(&self) -> &Arc<BlockLocks> {
        &self.seat.locks
    }
}

/// The reactor is asked about changes of a file for as long as there is this; it is dropped after the ring.
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

/// The ring, and all requests that are in it.
pub(super) struct Io {
    /// Dropped first: what follows is memory that it may use (S1).
    pub(super) ring: Ring,
    pub(super) number: usize,
    pub(super) shared: Arc<Shared>,
    pub(super) ops: Vec<Option<Op>>,
    free: Vec<u32>,
    /// Requests that found the ring's queue full.
    waiting: VecDeque<u32>,
    /// SQEs that were pushed and not submitted.
    pushed: bool,
    pool: Pool,
    /// Zeroes to be written, the same for all requests: nobody writes to them. Kept while a request may use them.
    zeroes: Option<Payload>,
    pub(super) client_bytes: u64,
    /// Who may hold how much of the memory; a connection is in it from when it has chosen its export.
    pub(super) shares: Shares,
    /// Connections with questions for the status of a range.
    pub(super) questions: Questions,
    /// The connections whose sends began in this turn and will probably end in the call that starts them.
    pub(super) prompt_sends: Vec<usize>,
    /// Counts the turns of the loop.
    pub(super) turn: u32,
    /// Slots and results of requests that have just ended, for [`Reactor::finished`](super::Reactor).
    pub(super) ended: Vec<(u32, i32)>,
    /// The ring's ways to exports, by their numbers. One that has no clients is kept for those that come back, for as
    /// long as the ring has room for others.
    pub(super) files: BTreeMap<u32, Way>,
    /// What other reactors, and this one, want to know of changes.
    pub(super) asks: Asks,
    /// Where records of TLS are decrypted, for all connections.
    pub(super) records: Vec<u8>,
    /// Memory that records are sent from, to be used again.
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

    /// The ring's way to an export, for one connection more.
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

    /// A connection that had an export is gone, and all its requests have ended.
    pub(super) fn leave(&mut self, id: u32) {
        if let Some(way) = self.files.get_mut(&id) {
            way.clients -= 1;
        }
    }

    /// Lets go of all exports that no connection has, for a ring has room for few devices; whether there were any.
    fn close_unused(&mut self) -> bool {
        let unused = self.files.iter().filter(|(_, way)| way.clients == 0);
        let unused: Vec<u32> = unused.map(|(id, _)| *id).collect();
        unused.iter().for_each(|id| self.close(*id));
        !unused.is_empty()
    }

    /// Lets go of an export, of which no request is under way.
    pub(super) fn close(&mut self, id: u32) {
        if let Some(Way { fd, .. }) = self.files.remove(&id) {
            debug_assert!(!self.ops.iter().flatten().any(|op| op.fd == fd), "a request outlives its client");
            // Only a descriptor that the ring does not have is refused.
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

    /// Gives unused memory back to the system, when no request is under way.
    pub(super) fn trim(&mut self) {
        debug_assert!(self.is_idle(), "S1: a write of zeroes may be in the ring");
        self.zeroes = None;
        (self.records, self.spare_records) = (Vec::new(), Vec::new());
        self.pool.trim();
    }

    /// Memory that records are sent from.
    pub(super) fn records_to_send(&mut self) -> Vec<u8> {
        self.spare_records.pop().unwrap_or_else(|| vec![0; OUT_BYTES])
    }

    /// Keeps memory that records were sent from, for the next.
    pub(super) fn keep_records(&mut self, memory: Vec<u8>) {
        if memory.len() == OUT_BYTES && self.spare_records.len() < MAX_SPARE_RECORDS {
            self.spare_records.push(memory);
        }
    }

    /// Grants a connection the memory that a request takes when it begins, or puts it in line for it. A read takes all
    /// that it needs. A write takes what comes with its header in any case, and more as its payload comes
    /// ([`Io::grow`]): who announces much and sends little holds little.
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

    /// Bytes of data for which a client has memory in any case (F2), as devices want them.
    pub(super) fn own_piece(&self, align: usize) -> u64 {
        Pool::fits(self.shares.own(), align)
    }

    /// Lets the payload of a write grow, when all that it has memory for has come; to [`GROWTH`] times its size, so
    /// that a long one is received in few pieces. Returns the bytes of data that there is memory for.
    pub(super) fn grow(&mut self, conn: usize, slot: u32) -> u64 {
        let Some(Some(op)) = self.ops.get_mut(slot as usize) else { return 0 };
        let Some(payload) = &mut op.payload else { return 0 };
        let (whole, counted) = (payload.cost(), payload.counted());
        if op.done == payload.room() && counted < whole {
            let mut now = (counted * (GROWTH - 1)).min(whole - counted);
            let least = now.min(self.shares.own());
            // Where there is no memory for all of it, a part is better than none: a slow client goes on to be received
            // from.
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

    /// Keeps a request, with the memory of this shape that was granted. `None`: the system has no memory.
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

    /// The payload of a write that is being received, and the bytes that it has.
    pub(super) fn gathering(&mut self, slot: u32) -> Option<(&mut Payload, &mut u64, &mut Ring)> {
        let op = self.ops.get_mut(slot as usize)?.as_mut()?;
        Some((op.payload.as_mut()?, &mut op.done, &mut self.ring))
    }

    /// A write has all its payload.
    pub(super) fn gathered(&mut self, slot: u32, locks: &Arc<BlockLocks>) {
        if let Some(Some(op)) = self.ops.get_mut(slot as usize) {
            op.done = 0;
        }
        self.begin_change(slot, locks);
    }

    /// Forgets a write whose payload will never be complete.
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

    /// Gives a request to the ring, or what is left of it.
    pub(super) fn start(&mut self, slot: u32) {
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

    /// Has a range be zeroed by writing zeroes, when it is started; false when there is no memory for them.
    pub(super) fn take_zeroes(&mut self, slot: u32) -> bool {
        if self.zeroes.is_none() {
            self.zeroes = Payload::zeroes(ZEROES_AT_ONCE as usize);
        }
        let (Some(Some(op)), true) = (self.ops.get_mut(slot as usize), self.zeroes.is_some()) else { return false };
        op.stage = Stage::Zeroes;
        true
    }

    /// Makes durable what was done, and nothing else.
    pub(super) fn start_sync(&mut self, slot: u32) {
        if let Some(Some(op)) = self.ops.get_mut(slot as usize) {
            op.stage = Stage::Sync;
        }
        self.start(slot);
    }

    /// The client of a connection is gone: of its requests nothing more begins. A request that zeroes an export of any
    /// size would otherwise go on for hours, for nobody, and the end of the server with it.
    pub(super) fn abandon(&mut self, conn: usize) {
        self.ops.iter_mut().flatten().filter(|op| op.conn == conn).for_each(|op| op.abandoned = true);
    }

    /// Whether requests wait to be submitted.
    pub(super) fn to_start(&self) -> bool {
        self.pushed || !self.waiting.is_empty() || self.was_asked() || !self.ended.is_empty()
    }

    /// Submits what was pushed; whether something was.
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
        // Busy: the rest stays in the queue, and is taken when something has ended.
        match self.ring.issue() {
            Ok(_) if self.ring.sq_space() == ENTRIES => true,
            _ => {
                self.pushed = true;
                false
            }
        }
    }

    /// A request has ended in the ring: goes on with it, or gives the answer.
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
                // A file that ends before its size has lost something.
                let errno = if res == 0 { SystemErrno::EIO } else { SystemErrno(-res) };
                failed = Some(Failed::of_file(errno));
            }
        } else if res < 0 {
            failed = Some(Failed::of_file(SystemErrno(-res)));
        }
        if failed.is_some_and(|failed| failed.errno == Errno::NotSup) && op.stage == Stage::Command && !op.abandoned {
            // A trim is a wish; zeroes are written where that is all that can be done, and may take long.
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
