//! The requests of one ring: the connections that carry them, their ends, and sending them again.
//!
//! ```text
//!   Down -> Open -> Closing -> Pausing -> Down        Down until a request comes; Pausing with a back-off
//! ```
//!
//! Owns the requests with their cookies, and the ring's connections as a whole. When one connection is lost, all are
//! closed, because a request that is sent again must not overtake those on another connection. A further connection is
//! made when the present ones have much to do; if that fails, the ring goes on without it for a while.
//!
//! Invariants:
//! - Q1: an entry exists from the start of its request to its end. Its id is in `waiting`, or `conn` names its
//!   connection.
//! - Q2: a cookie stands for one entry and one sending. A request that is sent again has a new cookie, so a late answer
//!   to the first sending is not taken for its answer.
//! - Q3: data that a server sends lies within its read, and no byte of it comes twice (`covered`).
//! - Q4: only the first connection sends flushes. A connection that is made while the first has not answered for long
//!   may reach another server, if the address has moved, and nothing would show that the old server is gone.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use sheave::drivers::{OpEnd, OpToken, Open, Polled, PreciseTs, Request, RequestId, SafeQueue, Step, WaitsFor};
use sheave::{Op, Status};
use sheave_nbd::handshake::Mode;
use sheave_nbd::tls::Fed;

use crate::conn::{self, BUSY_BYTES, Conn, EARLY, Ended, Inbound, OVERDUE, Phase};
use crate::covered::Covered;
use crate::negotiation::{Agreed, Negotiation};
use crate::reply::{self, Item, What};
use crate::request::{Entry, Waiting};
use crate::shared::{FIRST_EPOCH, STALE, Shared};
use crate::socket;

/// Retry delay after a failure. It doubles with each further failure.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Retry delay after an additional connection could not be opened.
const ANOTHER_PAUSE: Duration = if cfg!(test) { Duration::from_secs(1) } else { Duration::from_secs(30) };
/// Result of a cancelled operation (ECANCELED).
const CANCELLED: i32 = -125;
/// ESHUTDOWN of the protocol.
const SHUTDOWN: u32 = 108;

const UNASKED: &str = "the server answered what nobody asked";

/// Returns the largest number of operations on the kernel ring that a queue with `connections` connections has at a
/// time. Each connection has three: to receive, to send or connect, and a timer. One more is the retry timer.
pub(crate) fn operations(connections: u16) -> u16 {
    3 * connections + 1
}

/// The state of the connections as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    /// There is no connection. One is made when a request comes.
    Down,
    /// The first connection is up, or being made.
    Open,
    /// All connections are being closed, and some operations on them have not ended.
    Closing,
    /// Waits for the retry timer.
    Pausing(OpToken),
}

#[derive(Debug)]
pub(crate) struct NbdQueue {
    shared: Arc<Shared>,
    /// Value of [`Shared`]'s `losses` for which a flush of this ring has already failed (S3).
    seen: u64,
    epoch: u64,
    link: Link,
    conns: Box<[Conn]>,
    /// Number of connections that the server is expected to accept.
    most: usize,
    /// Time at which `most` may rise again.
    another: PreciseTs,
    entries: Box<[Option<Entry>]>,
    covered: Box<[Covered]>,
    waiting: Waiting,
    cookies: u64,
    pause: Duration,
    overdue: bool,
    /// True if the server has another export than the one that the device was opened on (C4).
    gone: bool,
}

impl NbdQueue {
    pub(crate) fn new(open: &Open, shared: Arc<Shared>, seen: u64) -> NbdQueue {
        let most = if shared.is_multi() { usize::from(shared.target.connections) } else { 1 };
        NbdQueue {
            shared,
            seen,
            epoch: FIRST_EPOCH,
            link: Link::Down,
            conns: (0..most).map(|_| Conn::new()).collect(),
            most,
            another: PreciseTs::default(),
            entries: vec![None; open.depth()].into(),
            covered: vec![Covered::default(); open.depth()].into(),
            waiting: Waiting::new(open.depth()),
            cookies: 0,
            pause: FIRST_PAUSE,
            overdue: false,
            gone: false,
        }
    }

    fn go_on(&mut self, rqs: &mut Polled<'_>) {
        if std::mem::take(&mut self.overdue) {
            self.lose(OVERDUE, rqs);
        }
        match self.link {
            Link::Down if !self.waiting.is_empty() => self.open(rqs),
            Link::Open => self.dispatch(rqs),
            _ => {}
        }
    }

    /// Makes the first connection, or takes the spare one.
    fn open(&mut self, rqs: &mut Polled<'_>) {
        (self.link, self.most) = (Link::Open, self.conns.len());
        if let Some((epoch, first)) = self.shared.take_spare() {
            self.epoch = epoch;
            return match self.conns[0].adopt(first).and_then(|()| self.conns[0].receive(rqs)) {
                Ok(()) => self.dispatch(rqs),
                Err(why) => self.lose(why, rqs),
            };
        }
        self.epoch = self.shared.epoch();
        self.connect(0, rqs);
    }

    fn connect(&mut self, at: usize, rqs: &mut Polled<'_>) {
        let target = &self.shared.target;
        match socket::new(&target.place, target.timeout) {
            Ok(fd) => {
                let (address, within) = (target.place.address(), target.connect);
                if let Err(why) = self.conns[at].connect((fd, &address), within, rqs) {
                    self.failed(at, why, rqs);
                }
            }
            Err(error) => self.failed(at, &error.to_string(), rqs),
        }
    }

    /// Handles a connection that could not be made. The first connection is retried; without an additional one the ring
    /// goes on.
    fn failed(&mut self, at: usize, why: &str, rqs: &mut Polled<'_>) {
        let words = self.shared.target.words();
        if at > 0 {
            self.shared.notice(format!("{words}: goes with {at} connections, as one more could not be made: {why}"));
            (self.most, self.another) = (at, rqs.now().after(ANOTHER_PAUSE));
            return self.conns[at].close(rqs);
        }
        self.shared
            .notice(format!("{words}: no connection could be made: {why}; it is tried again while requests wait"));
        self.give_up(rqs);
    }

    /// Handles a lost connection: unanswered requests are queued again, and flushes fail if writes may be lost (C2).
    fn lose(&mut self, why: &str, rqs: &mut Polled<'_>) {
        if self.link != Link::Open {
            return;
        }
        self.shared.lost(self.epoch, why);
        let mut again: Vec<(u64, Op, RequestId)> = Vec::new();
        for entry in self.entries.iter_mut().flatten() {
            if entry.conn.take().is_some() {
                again.push((entry.cookie, entry.op, entry.id));
                (entry.failed, entry.covers) = (None, None);
                self.covered[entry.id.slot()].clear();
            }
        }
        // Cookies rise with each sending, so this keeps the order in which the requests were sent.
        again.sort_unstable_by_key(|&(cookie, ..)| cookie);
        again.into_iter().rev().for_each(|(_, op, id)| self.waiting.push_front(op, id));
        let is_flush = |entry: &&Entry| entry.op == Op::Flush;
        if self.entries.iter().flatten().any(|entry| is_flush(&entry)) && self.shared.must_fail(&mut self.seen) {
            let flushes: Vec<RequestId> =
                self.entries.iter().flatten().filter(is_flush).map(|entry| entry.id).collect();
            flushes.into_iter().for_each(|id| self.end(id, Status::IoErr, rqs));
        }
        self.give_up(rqs);
    }

    fn give_up(&mut self, rqs: &mut Polled<'_>) {
        self.link = Link::Closing;
        self.conns.iter_mut().for_each(|conn| conn.close(rqs));
        self.settle(rqs);
    }

    /// Starts the retry delay when all operations on lost connections have ended.
    fn settle(&mut self, rqs: &mut Polled<'_>) {
        let mut all = true;
        // Not `all()`, which would stop at the first busy connection: each of them must settle.
        self.conns.iter_mut().for_each(|conn| all &= conn.settle());
        if self.link != Link::Closing || !all {
            return;
        }
        self.link = rqs.timer(self.pause).map_or(Link::Down, Link::Pausing);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    fn end(&mut self, id: RequestId, status: Status, rqs: &mut Polled<'_>) {
        if self.entries[id.slot()].take_if(|entry| entry.id == id).is_some() {
            rqs.end(id, status);
        }
    }

    /// Takes the device offline: the server has another export than the one that the device was opened on (C4).
    fn be_gone(&mut self, why: &str, rqs: &mut Polled<'_>) {
        let words = self.shared.target.words();
        self.shared.notice(format!(
            "{words}: the server has another export than before: {why}. Nothing more is read or written; start the \
             right server and open the device again"
        ));
        // The former server may have lost acknowledged writes, so flushes of other rings must fail too.
        self.shared.lost(self.epoch, "the server has another export");
        self.gone = true;
        self.waiting.clear();
        for slot in 0..self.entries.len() {
            if let Some(entry) = self.entries[slot] {
                self.end(entry.id, Status::Offline, rqs);
            }
        }
        self.give_up(rqs);
    }

    /// Sends the waiting requests in as few operations as possible.
    fn dispatch(&mut self, rqs: &mut Polled<'_>) {
        while self.waiting.has_flush() && self.conns[0].is_ready() {
            // Q4
            if let Err(why) = self.send_batch(0, rqs) {
                return self.lose(&why, rqs);
            }
        }
        if !self.waiting.has_others() {
            return;
        }
        while self.waiting.has_others() {
            let Some(at) = conn::choose(&self.conns) else { break };
            if let Err(why) = self.send_batch(at, rqs) {
                return self.lose(&why, rqs);
            }
        }
        let up = self.conns.iter().filter(|conn| conn.is_up()).count();
        let busy = up > 0 && self.conns.iter().all(|conn| !conn.is_up() || conn.load >= BUSY_BYTES);
        if busy && self.most < self.conns.len() && rqs.now() >= self.another {
            self.most = self.conns.len();
        }
        let next = self.conns.iter().position(|conn| matches!(conn.phase, Phase::Empty));
        if let (true, Some(next)) = (busy && !self.conns.iter().any(Conn::is_opening), next)
            && next < self.most
        {
            self.connect(next, rqs);
        }
    }

    fn send_batch(&mut self, at: usize, rqs: &mut Polled<'_>) -> Result<(), String> {
        let alone = self.most == 1;
        let conn = &mut self.conns[at];
        let mut first = true;
        while (first || alone || conn.load < BUSY_BYTES)
            && conn.has_room()
            && let Some(id) = self.waiting.pop_for(at)
        {
            let Some(entry) = &mut self.entries[id.slot()] else { continue };
            if entry.id != id {
                continue; // The request timed out, and its slot may have a new one.
            }
            first = false;
            self.cookies += 1;
            entry.cookie = self.cookies << 16 | id.slot() as u64; // Q2; the low bits find the entry again.
            entry.conn = Some(at);
            if entry.op == Op::Flush {
                entry.covers = Some(self.shared.flush_begins());
            }
            let (head, len) = entry.head(conn.mode);
            if entry.op == Op::Write {
                if !conn.push_write(&head[..len], (id, entry.len), rqs)? {
                    entry.conn = None; // The request has ended; the slot is stale.
                    continue;
                }
            } else {
                conn.push_head(&head[..len])?;
            }
            (conn.load, conn.big) = (conn.load + entry.load(), conn.big + entry.big());
        }
        conn.send(rqs)
    }

    /// Handles the end of a receive: processes the bytes, and receives more.
    fn came(&mut self, at: usize, res: i32, rqs: &mut Polled<'_>) -> Result<(), String> {
        let many = match usize::try_from(res) {
            Ok(0) => return Err("the server closed it".into()),
            Ok(many) => many,
            Err(_) => return Err(std::io::Error::from_raw_os_error(-res).to_string()),
        };
        if self.conns[at].secure().is_some() {
            self.records_came(at, many, rqs)?;
        } else {
            self.conns[at].received(many);
            self.bytes_came(at, rqs)?;
        }
        let conn = &mut self.conns[at];
        conn.compact();
        Ok(conn.receive(rqs)?)
    }

    fn bytes_came(&mut self, at: usize, rqs: &mut Polled<'_>) -> Result<(), String> {
        match self.conns[at].phase {
            Phase::Shaking(_) => self.shake(at, rqs),
            _ => Ok(self.take_replies(at, rqs)?),
        }
    }

    /// Processes received records, and sends the records that rustls itself has produced.
    fn records_came(&mut self, at: usize, many: usize, rqs: &mut Polled<'_>) -> Result<(), String> {
        let Some(mut secure) = self.conns[at].secure().take() else { return Ok(()) };
        let is_up = self.conns[at].is_up();
        let was_established = secure.is_established();
        let mut took: Result<(), &'static str> = Ok(());
        let fed = secure.received(many, |said| {
            if took.is_ok() {
                took = self.conns[at].said(said, rqs);
            }
            if is_up && took.is_ok() {
                took = self.take_replies(at, rqs);
            }
        });
        let established = secure.is_established();
        *self.conns[at].secure() = Some(secure);
        took?;
        if fed? == Fed::Closed {
            return Err("the server closed it".into());
        }
        let conn = &mut self.conns[at];
        if let (Phase::Shaking(negotiation), true) = (&mut conn.phase, established && !was_established) {
            let mut out = Vec::new();
            negotiation.secured(&mut out);
            conn.push_head(&out)?;
        }
        if !is_up && was_established {
            self.shake(at, rqs)?;
        }
        self.conns[at].send(rqs)
    }

    /// Advances the handshake. Returns an error if the server refuses.
    fn shake(&mut self, at: usize, rqs: &mut Polled<'_>) -> Result<(), String> {
        let mut out = Vec::new();
        loop {
            let conn = &mut self.conns[at];
            let Phase::Shaking(mut negotiation) = std::mem::replace(&mut conn.phase, Phase::Connecting) else {
                return Ok(());
            };
            let stepped = negotiation.step(conn.staged(), &mut out);
            conn.phase = Phase::Shaking(negotiation);
            let (used, agreed) = stepped?;
            conn.consume(used);
            match agreed {
                None if used > 0 => {}
                None => break,
                Some(Agreed::Tls) => {
                    let tls = self.shared.target.tls.as_ref().ok_or("it was not asked for TLS")?;
                    conn.compact();
                    conn.begin_tls(tls)?;
                    return conn.send(rqs);
                }
                Some(Agreed::Export(export)) => {
                    if let Some(why) = self.shared.differs(&export) {
                        self.be_gone(&why, rqs);
                        return Ok(());
                    }
                    let Some(fd) = self.conns[at].fd() else { return Ok(()) };
                    if let Err(why) = self.shared.come_up(self.epoch, fd) {
                        self.lose(why, rqs);
                        return Ok(());
                    }
                    self.conns[at].go_up(export.mode, rqs);
                    self.dispatch(rqs);
                    return Ok(());
                }
            }
        }
        let conn = &mut self.conns[at];
        if !out.is_empty() {
            conn.push_head(&out)?;
            conn.send(rqs)?;
        }
        Ok(())
    }

    /// Decodes all replies in the staging buffer.
    fn take_replies(&mut self, at: usize, rqs: &mut Polled<'_>) -> Result<(), &'static str> {
        let mut marked = false;
        loop {
            let conn = &mut self.conns[at];
            if let Some(inbound) = conn.inbound {
                if !conn.fill(rqs)? {
                    return Ok(());
                }
                conn.inbound = None;
                if inbound.done {
                    self.answered(inbound.slot, &mut marked, rqs)?;
                }
                continue;
            }
            let Some((used, item)) = reply::next(conn.mode, conn.staged())? else { return Ok(()) };
            conn.consume(used);
            self.pause = FIRST_PAUSE;
            self.take_item(at, item, &mut marked, rqs)?;
        }
    }

    fn take_item(
        &mut self,
        at: usize,
        item: Item,
        marked: &mut bool,
        rqs: &mut Polled<'_>,
    ) -> Result<(), &'static str> {
        let slot = (item.cookie & 0xffff) as usize;
        let (conn, covered) = (&mut self.conns[at], self.covered.get_mut(slot));
        let entry = self.entries.get_mut(slot).and_then(Option::as_mut);
        let (Some(entry), Some(covered)) = (entry, covered) else { return Err(UNASKED) };
        if entry.cookie != item.cookie || entry.conn != Some(at) {
            return Err(UNASKED);
        }
        let data = match item.what {
            What::Failed(SHUTDOWN) => return Err("the server is about to end"),
            What::Failed(errno) => {
                entry.failed = entry.failed.or(Some(reply::status_of(errno)));
                None
            }
            What::Simple if entry.op == Op::Read && conn.mode == Mode::Simple => Some((entry.at, entry.len)),
            What::Simple if entry.op == Op::Read => return Err("the server answered a read without its data"),
            What::Simple | What::Nothing => None,
            What::Data(offset, len) => Some((offset, len)),
            What::Zeroes(offset, len) => Some((offset, len)),
        };
        if let Some((offset, len)) = data {
            let range = entry.within(offset, len).ok_or("the server sent data that lies outside of its read")?;
            covered.add(range.0, range.1)?; // Q3
            let (from, to) = (range.0 as usize, range.1 as usize);
            if !matches!(item.what, What::Zeroes(..)) {
                conn.inbound = Some(Inbound { slot, id: entry.id, from, to, done: item.done });
                return Ok(());
            }
            conn.zero(entry.id, from..to, rqs)?;
        }
        if item.done { self.answered(slot, marked, rqs) } else { Ok(()) }
    }

    /// Ends a request whose answer is complete. `marked` is true if `acked` has already been increased for a write of
    /// this batch of replies.
    fn answered(&mut self, slot: usize, marked: &mut bool, rqs: &mut Polled<'_>) -> Result<(), &'static str> {
        let Some(entry) = self.entries[slot] else { return Err(UNASKED) };
        let mut status = entry.failed.unwrap_or_default();
        match entry.op {
            Op::Read if status.is_ok() && !self.covered[slot].is_whole(entry.len) => {
                let words = self.shared.target.words();
                self.shared.notice(format!("{words}: the server answered a read with a part of its data"));
                status = Status::IoErr;
            }
            Op::Flush if status.is_ok() => {
                let Some(covers) = entry.covers else { return Err(UNASKED) };
                if !self.shared.flush_ended(covers, self.epoch) {
                    return Err(STALE);
                }
                if self.shared.must_fail(&mut self.seen) {
                    status = Status::IoErr; // C2
                }
            }
            // A failed write may have overwritten durable data in part, so it counts as well.
            Op::Write | Op::Discard | Op::WriteZeroes if !(*marked || entry.fua && status.is_ok()) => {
                *marked = true;
                if !self.shared.acked(self.epoch) {
                    return Err(STALE);
                }
            }
            _ => {}
        }
        if let Some(conn) = entry.conn.and_then(|at| self.conns.get_mut(at)) {
            (conn.load, conn.big) = (conn.load - entry.load(), conn.big - entry.big());
        }
        self.covered[slot].clear();
        self.end(entry.id, status, rqs);
        Ok(())
    }

    /// Handles the end of an operation of a connection.
    fn conn_op(&mut self, at: usize, ended: Ended, res: i32, rqs: &mut Polled<'_>) {
        let conn = &mut self.conns[at];
        let was_opening = conn.is_opening();
        let came: Result<(), String> = match (ended, &conn.phase) {
            (_, Phase::Closing | Phase::Empty) => return self.settle(rqs),
            (Ended::Timer, _) if !was_opening => return,
            (Ended::Timer, _) => Err("the server did not answer in time in the handshake".into()),
            (Ended::Connect, _) if res == 0 => {
                conn.phase =
                    Phase::Shaking(Box::new(Negotiation::new(&self.shared.target.export, self.shared.wish(), false)));
                conn.receive(rqs).map_err(Into::into)
            }
            (Ended::Send, _) if res >= 0 => {
                let all = conn.sent(res as usize);
                // With TLS, rustls may have produced records meanwhile.
                if all && conn.secure().is_none() { Ok(()) } else { conn.send(rqs) }
            }
            (Ended::Receive, _) => self.came(at, res, rqs),
            // The driver layer cancelled it, not this queue: a write that has its answer would wait for the send for
            // ever.
            (Ended::Send, _) if res == CANCELLED => Err(EARLY.into()),
            (Ended::Connect | Ended::Send, _) => Err(std::io::Error::from_raw_os_error(-res).to_string()),
        };
        match came {
            Err(why) if was_opening => self.failed(at, &why, rqs),
            Err(why) => self.lose(&why, rqs),
            Ok(()) if self.link == Link::Open => self.dispatch(rqs),
            Ok(()) => {}
        }
    }
}

impl SafeQueue for NbdQueue {
    fn start(&mut self, rq: &mut Request<'_>) -> Step {
        let op = rq.op();
        if self.gone {
            return Step::End(Status::Offline);
        }
        if !matches!(op, Op::Read | Op::Write | Op::Flush | Op::Discard | Op::WriteZeroes) {
            return Step::End(Status::NotSupp);
        }
        if op == Op::Flush
            && let Some(status) = self.shared.flush_here(&mut self.seen)
        {
            return Step::End(status); // C2
        }
        let (id, at) = (rq.id(), rq.sector() * 512);
        let (len, fua) = (rq.bytes(), rq.fua());
        let entry = Entry { id, cookie: 0, op, fua, at, len, conn: None, failed: None, covers: None };
        self.entries[id.slot()] = Some(entry);
        self.covered[id.slot()].clear();
        self.waiting.push_back(op, id);
        Step::Wait
    }

    fn commit(&mut self, rqs: &mut Polled<'_>) {
        self.go_on(rqs);
    }

    fn poll(&mut self, rqs: &mut Polled<'_>) {
        self.go_on(rqs);
    }

    fn op_ended(&mut self, rqs: &mut Polled<'_>, end: OpEnd<'_>) {
        if self.link == Link::Pausing(end.token) {
            self.link = Link::Down;
            return self.go_on(rqs);
        }
        let found = self.conns.iter_mut().enumerate().find_map(|(at, conn)| Some((at, conn.ended(end.token)?)));
        if let Some((at, ended)) = found {
            self.conn_op(at, ended, end.res, rqs);
        }
    }

    fn waits_for(&self) -> WaitsFor {
        if self.overdue { WaitsFor::Now } else { WaitsFor::Nothing }
    }

    /// Ends an overdue request. If it was sent, its late answer would have no owner, so the connections are closed.
    /// They are also closed if a connection is stuck in a send, because the request may have waited behind that send.
    fn timed_out(&mut self, rq: &mut Request<'_>) -> Step {
        let id = rq.id();
        if let Some(entry) = self.entries[id.slot()].take_if(|entry| entry.id == id) {
            self.overdue |= entry.conn.is_some() || self.conns.iter().any(Conn::is_stuck);
        }
        self.waiting.remove(id);
        Step::End(Status::Timeout)
    }
}

impl Drop for NbdQueue {
    fn drop(&mut self) {
        let ours = |fd: &Arc<OwnedFd>| self.conns.iter().filter_map(Conn::fd).any(|our| Arc::ptr_eq(our, fd));
        if self.shared.must_leave_one(self.epoch, ours) {
            match self.conns.iter_mut().filter(|_| !self.overdue).find_map(Conn::leave) {
                Some(spare) => self.shared.keep(self.epoch, spare),
                None => self.shared.lost(self.epoch, "a ring has gone that had requests under way"),
            }
        }
        self.conns.iter_mut().for_each(Conn::farewell);
        self.shared.leave();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use sheave::{Fd, Ring, op};
    use sheave_nbd::handshake::Mode;

    use super::ANOTHER_PAUSE;
    use crate::conn::MOST_PIECES;
    use crate::rig::{MIB, Server, filled, results, ring};

    #[test]
    fn a_batch_that_is_sent_in_parts_goes_on_when_some_of_it_was_answered() {
        for pieces in [1, 2, 3, 8, 50] {
            MOST_PIECES.set(pieces);
            let server = Server::start(16 * MIB, Mode::Structured);
            let device = server.open(",connections=1").expect("opened");
            let Some((mut ring, fd)) = ring(&device) else { return };
            for round in 1..=4u8 {
                // Two adjacent writes merge into a request of two pieces.
                for number in 0..64 {
                    let at = number / 2 * 262_144 + number % 2 * 65_536;
                    ring.push(op::write(fd, filled(65_536, round)).offset(at)).expect("room");
                }
                assert!(results(&mut ring, 64).iter().all(|&(_, res)| res == 65_536), "{pieces}");
            }
            ring.push(op::fsync(fd)).expect("room");
            assert_eq!(results(&mut ring, 1), [(0, 0)], "{pieces}: {:?}", device.notices());
            assert_eq!(
                (server.state().connections, device.notices().len()),
                (1, 0),
                "{pieces}: {:?}",
                device.notices()
            );
            let state = server.state();
            assert!((0..32).all(|pair| state.stable[pair * 262_144..][..131_072].iter().all(|byte| *byte == 4)));
        }
    }

    /// Sends enough to keep several connections busy. Returns the number of connections that the server accepted
    /// meanwhile.
    fn load(server: &Server, ring: &mut Ring, fd: Fd) -> u64 {
        let before = server.state().connections;
        for number in 0..16 {
            ring.push(op::write(fd, filled(MIB, 1)).offset(number * MIB as u64)).expect("room");
        }
        assert!(results(ring, 16).iter().all(|&(_, res)| res == MIB as i32));
        server.state().connections - before
    }

    #[test]
    fn a_connection_that_could_not_be_made_is_tried_again() {
        let server = Server::start(16 * MIB, Mode::Structured);
        let device = server.open("").expect("opened");
        let Some((mut ring, fd)) = ring(&device) else { return };
        for lost in [false, true] {
            server.state().hang_up();
            server.state().away = false;
            ring.push(op::read(fd, filled(4096, 0xee))).expect("room");
            assert_eq!(results(&mut ring, 1), [(0, 4096)], "by the first connection");
            server.state().away = true;
            let before = Instant::now();
            assert!(load(&server, &mut ring, fd) >= 1, "the second is refused");
            assert!(device.notices().iter().any(|text| text.contains("goes with 1 connections")));
            server.state().away = false;
            let refused = server.state().connections;
            if lost {
                server.state().hang_up();
                assert!(load(&server, &mut ring, fd) >= 2, "when the first is made again");
            } else {
                let at_once = load(&server, &mut ring, fd);
                // On a machine that is busy enough, this load ends when another try is due, and makes the connection.
                assert!(at_once == 0 || before.elapsed() >= ANOTHER_PAUSE, "not at once: {at_once}");
                std::thread::sleep(ANOTHER_PAUSE);
                load(&server, &mut ring, fd);
                assert!(server.state().connections > refused, "after a while");
            }
        }
    }
}
