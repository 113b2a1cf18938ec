//! One thread with one ring: accepts clients, receives, starts requests and sends replies.
//!
//! Each turn of the loop handles completions (of socket operations and of I/O), lets the connections that these have
//! touched proceed, and makes one system call, which submits everything that was prepared and waits for more.
//!
//! Owns the sessions and decides when they end. The kinds of session are in [`session`], the NBD connection in
//! [`conn`], the life of a request is in [`requests`], and everything that hands memory to the kernel is in [`raw`].

mod arrivals;
mod batch;
mod conn;
mod door;
mod held_back;
mod lookout;
mod ops;
mod places;
mod questions;
mod raw;
mod requests;
mod session;
pub(crate) mod suspend;
#[cfg(test)]
mod tests;
mod tls_stream;
mod turns;
mod unaligned;
pub(crate) mod vhost;

use std::collections::VecDeque;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use sheave_base::sync::Arc;
use sheave_blk::ctx::sockets::SocketEvent;
use sheave_iomap::io_stats::IoGroup;
use sheave_iomap::slow::FlightRecorder;
use sheave_uring::{IoWq, Ring, RingHandle};

use self::conn::Conn;
use self::door::Door;
use self::lookout::Lookout;
use self::questions::Moment;
use self::raw::{Kind, of_token, token};
use self::requests::{ENTRIES, Io, MAX_COST};
use self::session::Session;
use self::suspend::Suspension;
use crate::clients::Arrival;
use crate::error::ServeError;
use crate::limit::TICK;
use crate::shared::{Notice, Order, Shared, words};
use crate::shares::Shares;

const RECV_BUFFERS: u16 = 16;
const RECV_BYTES: u32 = 128 << 10;
/// Time after the last request until unused memory is given back to the system.
const KEEP: Duration = Duration::from_secs(1);
/// Retry delay after a failed accept, for example for want of a free descriptor.
const ACCEPT_AGAIN: Duration = Duration::from_millis(200);
/// Number of simultaneous handshakes that is always allowed. With many places the limit is half of them.
const MIN_HANDSHAKES: usize = 16;
/// Least time that a client gets to choose its export, even when handshakes take all the places that there are for
/// them.
const HANDSHAKE_PATIENCE: Duration = Duration::from_millis(500);

pub(crate) struct Reactor {
    /// Declared before the sessions, hence dropped first: its ring may still use their memory (S1).
    io: Io,
    sessions: Vec<Option<Session>>,
    free: Vec<usize>,
    /// Number of clients with a place.
    live: usize,
    /// Stack of the sessions that may have something to do.
    touched: Vec<usize>,
    /// Sessions that proceed in the next turn without waiting for an event.
    later: Vec<usize>,
    /// By listener: true while an accept is under way.
    accepting: Vec<bool>,
    accept_after: Option<Instant>,
    most: usize,
    /// Accepted clients that wait for a place while all are taken.
    door: Door,
    /// Clients that other reactors accepted for this one and for whose handshakes there is no room yet.
    arriving: VecDeque<Arrival>,
    /// Time of the next check for late handshakes.
    look_at: Option<Instant>,
    /// Time of the next check for clients that hold memory and make no progress.
    stalls_at: Option<Instant>,
    trim_at: Option<Instant>,
    /// Sessions whose request a limit holds back: the time at which the request may begin, and the number of the
    /// session. Each session is here at most once, and is removed when it ends.
    held_back: Vec<(Instant, usize)>,
    /// Time of the next check whether the clients of `held_back` have hung up.
    hang_ups_at: Option<Instant>,
    lookout: Lookout,
    /// Set while the reactor is suspended.
    suspension: Option<Suspension>,
    /// Deadline of the shutdown; `None` before the server ends.
    ends_at: Option<Instant>,
    events: Vec<SocketEvent>,
    /// Exports that are being closed and still have clients here, each with the channel that reports the end of the
    /// last one.
    closing: Vec<(u32, SyncSender<()>)>,
    number: usize,
    shared: Arc<Shared>,
}

impl Reactor {
    pub(crate) fn new(number: usize, shared: Arc<Shared>, io_wq: &IoWq) -> Result<Reactor, ServeError> {
        let ring = Ring::builder().entries(ENTRIES).cq_entries(4 * ENTRIES).io_wq(io_wq).spin(Duration::ZERO);
        let mut ring = ring.slow_limit(shared.options.slow_limit).build().map_err(ServeError::Ring)?;
        ring.sockets(|mut sockets| sockets.register_recv_buffers(RECV_BUFFERS, RECV_BYTES))
            .map_err(ServeError::Ring)?
            .map_err(|error| ServeError::OldKernel(error.to_string()))?;
        let options = &shared.options;
        let reactors = options.reactors.max(1);
        let most = (options.max_clients as usize).div_ceil(reactors).max(1);
        shared.is_there(number, ring.handle());
        let shares = Shares::new(options.server_bytes / reactors as u64, most, MAX_COST);
        Ok(Reactor {
            io: Io::new(ring, number, shared.clone(), shares),
            sessions: Vec::new(),
            free: Vec::new(),
            live: 0,
            touched: Vec::new(),
            later: Vec::new(),
            accepting: vec![false; shared.listeners.len()],
            accept_after: None,
            most,
            door: Door::default(),
            arriving: VecDeque::new(),
            look_at: None,
            stalls_at: None,
            trim_at: None,
            held_back: Vec::new(),
            hang_ups_at: None,
            lookout: Lookout::new(),
            suspension: None,
            ends_at: None,
            events: Vec::new(),
            closing: Vec::new(),
            number,
            shared,
        })
    }

    pub(crate) fn handle(&self) -> RingHandle {
        self.io.ring.handle()
    }

    /// Returns the recorder of the ring's slow I/Os.
    pub(crate) fn recorder(&self) -> Option<Arc<FlightRecorder>> {
        self.io.ring.flight_recorder()
    }

    /// Returns the I/O counters of the ring.
    pub(crate) fn queue(&self) -> Option<Arc<IoGroup>> {
        self.io.ring.io_group()
    }

    /// Serves until the server ends.
    ///
    /// # Errors
    ///
    /// Fails when the kernel ring is broken. The clients of this reactor are dropped.
    pub(crate) fn run(mut self) -> Result<(), ServeError> {
        while let Some((wanted, timeout)) = self.before_wait() {
            self.wait(wanted, timeout);
            self.io.ring.kernel_failure().map_err(ServeError::Ring)?;
            self.after_wait(timeout);
        }
        Ok(())
    }

    /// Does all work that needs no waiting. Returns the number of events to wait for and the timeout, or `None` when
    /// the server has ended.
    fn before_wait(&mut self) -> Option<(u32, Option<Duration>)> {
        self.go_on();
        self.answer_questions();
        self.let_go();
        // After `let_go`: connections that ended have made room.
        self.accept_more();
        // Last: a queue that takes requests afterwards would sleep without a kick to wake it.
        while self.finds_requests() {
            self.go_on();
        }
        self.tell_when_quiet();
        // An accept that is under way may still return a client, and its socket would stay open.
        // A device of another reactor may send orders as long as it is there.
        let is_empty = self.free.len() == self.sessions.len() && !self.shared.has_devices();
        if self.ends_at.is_some() && is_empty && !self.accepting.contains(&true) {
            return None;
        }
        let timeout = self.timeout();
        Some((self.wanted(), timeout))
    }

    /// Submits everything that was prepared, and waits.
    fn wait(&mut self, wanted: u32, timeout: Option<Duration>) {
        self.io.ring.wait_any(wanted, timeout);
        // The kernel now has the replies of the open slice, which ends the slice.
        self.io.questions.sent(Moment::now);
    }

    /// Answers BLOCK_STATUS requests for one slice of time, if a slice is due.
    fn answer_questions(&mut self) {
        if !self.io.questions.begin(Moment::now) {
            return;
        }
        while let Some(number) = self.io.questions.next() {
            if let Some(conn) = conn_of(&mut self.sessions, number) {
                while conn.answer_question(&self.io) && self.io.questions.has_time(Instant::now()) {}
            }
            self.touched.push(number);
            if !self.io.questions.has_time(Instant::now()) {
                break;
            }
        }
        self.go_on();
    }

    /// Handles the events that the wait has returned.
    fn after_wait(&mut self, timeout: Option<Duration>) {
        self.io.turn = self.io.turn.wrapping_add(1);
        self.touched.append(&mut self.later);
        self.io.start_later();
        self.socket_events();
        self.finished();
        self.obey();
        // Every deadline is part of the timeout: without one nothing can be due, and the clock need not be read.
        if timeout.is_some() || self.shared.is_ending() {
            self.look_at_the_clock();
        }
    }

    /// Carries out the orders of other threads.
    fn obey(&mut self) {
        for order in self.shared.take_orders(self.number) {
            match order {
                // The server is ending: no client gets a place any more.
                Order::Come(arrival) if self.ends_at.is_some() => self.shared.clients.left(arrival.id),
                Order::Serve { export, front } => self.serve_device(export, front.map(|front| *front)),
                Order::Recall { slow } => {
                    if let Some(recorder) = self.recorder() {
                        slow.iter().for_each(|(io, age, file)| recorder.recall(io, *age, *file));
                    }
                }
                Order::GoOn(coming) if self.ends_at.is_some() => self.shared.clients.left(coming.known.id),
                Order::GoOn(coming) => self.go_on_with_client(*coming),
                Order::Suspend { done, cut_at } => self.suspend(done, cut_at),
                // Fails if the receiver gave up waiting.
                Order::Resume { busy } => _ = busy.try_send(self.resume()),
                Order::TakeOut { moved } => _ = moved.try_send(self.take_out()),
                Order::Resized { export } => self.resized(export),
                Order::BeginQueue(begin) => self.begin_queue(*begin),
                Order::Queue { session, order } => self.order_queue(session, order),
                Order::Device { session, queue, told } => self.device_told(session, queue, told),
                Order::Come(arrival) => self.arriving.push_back(arrival),
                Order::Disconnect { client } => {
                    self.turn_away(|arrival| arrival.id == client);
                    self.drop_where(
                        |session| session.client() == Some(client),
                        |_| "somebody has disconnected it",
                        |_| None,
                    );
                }
                Order::Limits => self.begin_all_held_back(),
                // Fails if the receiver gave up waiting.
                Order::Ping { done } => _ = done.try_send(()),
                Order::Ask(ask) => self.io.asked(ask),
                Order::Turn { slot } => self.io.turn_came(slot),
                Order::Status { conn, found } => {
                    // The connection is still the same one: it cannot end while its question is open.
                    if let Some(asked) = self.conn(conn) {
                        asked.status(found);
                        self.touched.push(conn);
                    }
                }
                Order::Trace { to, done } => {
                    drop(self.io.ring.trace_to(to));
                    let _ = done.try_send(());
                }
                Order::Close { export, done } => {
                    for (number, session) in self.sessions.iter_mut().enumerate() {
                        if let Some(session) = session.as_mut().filter(|session| session.export() == Some(export)) {
                            session.close();
                            self.touched.push(number);
                        }
                    }
                    self.closing.push((export, done));
                }
            }
        }
    }

    /// Detaches the files of exports that are closing and have no clients here any more.
    fn let_go(&mut self) {
        let (sessions, io) = (&self.sessions, &mut self.io);
        self.closing.retain(|(export, done)| {
            if sessions.iter().flatten().any(|session| session.export() == Some(*export)) {
                return true;
            }
            io.close(*export);
            // Fails if the receiver gave up waiting.
            let _ = done.try_send(());
            false
        });
    }

    /// Passes the completions of socket operations to their connections.
    fn socket_events(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        self.io.ring.take_socket_events(&mut events);
        for event in events.drain(..) {
            let (kind, number) = of_token(event.token);
            match kind {
                Kind::Accept => self.accepted(number, event.res),
                kind => {
                    let Some(Some(session)) = self.sessions.get_mut(number) else { continue };
                    session.event(&mut self.io, kind, &event);
                    if matches!(session, Session::Queue(_)) {
                        self.lookout.kicked();
                    }
                    self.touched.push(number);
                }
            }
        }
        self.events = events;
    }

    /// Submits started requests and handles those that have ended, until none is left that ends at once.
    fn finished(&mut self) {
        loop {
            let started = self.io.issue();
            let mut ended = std::mem::take(&mut self.io.ended);
            self.io.ring.for_each_ready(|cqe| ended.push((cqe.user_data as u32, cqe.res)));
            for &(slot, res) in &ended {
                let Some(answer) = self.io.op_ended(slot, res) else { continue };
                let number = answer.conn;
                self.io.questions.others_have_work();
                match self.sessions.get_mut(number).and_then(Option::as_mut) {
                    Some(session) => session.answer(&mut self.io, answer),
                    // Cannot happen, as a session outlives its requests. The memory is given back anyway.
                    None => answer.payload.into_iter().for_each(|payload| self.io.give_back(number, payload)),
                }
                // Answers of one session mostly come in a row.
                if self.touched.last() != Some(&number) {
                    self.touched.push(number);
                }
            }
            let more = !ended.is_empty();
            ended.clear();
            // Requests of departed clients, which end instead of starting when their turn comes.
            ended.append(&mut self.io.ended);
            self.io.ended = ended;
            if !more && !started {
                return;
            }
        }
    }

    /// Lets the touched sessions proceed: each reads, starts requests, and replies. Repeats until nothing more can
    /// start.
    fn go_on(&mut self) {
        loop {
            while let Some(number) = self.touched.pop() {
                self.go_on_with(number);
            }
            if self.io.to_start() {
                self.finished();
            }
            // `touched` is a stack: reversed, the first in line proceeds first.
            self.touched.extend(self.io.shares.take_hopeful().into_iter().rev());
            if self.touched.is_empty() && !self.held_back.is_empty() {
                self.begin_held_back(Instant::now());
            }
            if self.touched.is_empty() {
                break;
            }
        }
        match (self.io.shares.has_line(), self.stalls_at) {
            (true, None) => self.stalls_at = Some(Instant::now() + self.shared.options.stall),
            (false, Some(_)) => self.stalls_at = None,
            _ => {}
        }
    }

    fn go_on_with(&mut self, number: usize) {
        let Some(Some(session)) = self.sessions.get_mut(number) else { return };
        session.go_on(&mut self.io, &self.shared);
        if let Session::Device(device) = session
            && let Some(until) = device.handshake_until()
        {
            self.look_at.get_or_insert(until);
        }
        if let Some(why) = session.take_complaint()
            && let Some(client) = session.client().and_then(|client| self.shared.clients.get(client))
        {
            (self.shared.notices)(&Notice::Dropped { client: &client, why: &why });
        }
        if session.is_gone() {
            self.remove(number);
        } else if session.yields(&self.io) {
            self.later.push(number);
        } else {
            self.note_held_back(number);
        }
    }

    fn remove(&mut self, number: usize) {
        if let Some(mut session) = self.sessions[number].take() {
            // Before the account is closed: a client that leaves it must hold nothing.
            session.leave(&mut self.io, &self.shared);
            self.io.shares.leave(number);
            self.door.forget(number);
            self.held_back.retain(|(_, other)| *other != number);
            self.free.push(number);
            self.live -= usize::from(session.conn().is_some());
            if self.free.len() == self.sessions.len() {
                self.trim_at = Some(Instant::now() + KEEP);
            }
        }
    }

    fn conn(&mut self, number: usize) -> Option<&mut Conn> {
        conn_of(&mut self.sessions, number)
    }

    /// Starts an accept on each listener. While all places of this reactor are taken, other reactors accept; while all
    /// places of all reactors are taken, new clients are accepted and wait at the door.
    fn accept_more(&mut self) {
        let is_full = self.live >= self.most;
        self.watch_the_door(is_full);
        if self.ends_at.is_some() || self.accept_after.is_some() || self.suspension.is_some() {
            return;
        }
        self.seat_arrivals();
        self.let_in();
        if self.accept_after.is_some() || !self.arriving.is_empty() || self.accepting.iter().all(|accepting| *accepting)
        {
            return;
        }
        let takes = if self.live >= self.most { self.is_full() } else { self.has_room_for_handshake() };
        if !takes {
            return;
        }
        for (number, listener) in self.shared.listeners.iter().enumerate() {
            if self.accepting[number] {
                continue;
            }
            let fd = listener.raw();
            let token = token(Kind::Accept, number);
            let prepared = self.io.ring.sockets(|mut sockets| sockets.accept(fd, token).is_ok());
            self.accepting[number] = prepared.unwrap_or(false);
        }
    }

    /// Returns true if one more client may begin its handshake. When handshakes take all the places that there are for
    /// them, drops the oldest, or stops accepting until the oldest has had `HANDSHAKE_PATIENCE`. Thus silent
    /// connections keep no client out, and a burst of clients is only delayed.
    fn has_room_for_handshake(&mut self) -> bool {
        let untils = self
            .sessions
            .iter()
            .enumerate()
            .filter_map(|(number, session)| Some((session.as_ref()?.conn()?.handshake_until()?, number)));
        let most = (self.most / 2).max(MIN_HANDSHAKES);
        if untils.clone().count() < most {
            return true;
        }
        let Some((until, number)) = untils.min() else { return true };
        let now = Instant::now();
        let had = self.shared.options.handshake.saturating_sub(until.saturating_duration_since(now));
        let left = HANDSHAKE_PATIENCE.saturating_sub(had);
        if !left.is_zero() {
            self.accept_after = Some(now + left);
            return false;
        }
        if let Some(conn) = self.conn(number) {
            conn.drop_client("others wait for its place, and it has not chosen an export");
            self.later.push(number);
        }
        true
    }

    fn accepted(&mut self, listener: usize, res: i32) {
        self.accepting[listener] = false;
        if res < 0 {
            // The client gave up, or the end of the server canceled the accept.
            if !matches!(-res, libc_errno::ECONNABORTED | libc_errno::ECANCELED | libc_errno::EINTR) {
                (self.shared.notices)(&Notice::Server(&format!("cannot take a client: {}", words(-res))));
                self.accept_after = Some(Instant::now() + ACCEPT_AGAIN);
            }
            return;
        }
        let fd = crate::listen::prepare(raw::owned(res), self.shared.listeners[listener].is_tcp());
        if self.ends_at.is_some() {
            return;
        }
        if self.is_full() {
            return self.waits_at_the_door(fd, listener);
        }
        let number = self.take_in(fd, listener);
        self.touched.extend(number);
    }

    /// Returns the timeout of the wait: the time until the first deadline.
    fn timeout(&mut self) -> Option<Duration> {
        if !self.later.is_empty() || !self.io.later.is_empty() {
            return Some(Duration::ZERO);
        }
        let (idle, now) = (self.io.is_idle(), Instant::now());
        if idle && self.trim_at.is_none() && self.io.keeps_memory() {
            self.trim_at = Some(now + KEEP);
        } else if !idle {
            self.trim_at = None;
        }
        let looks = [self.look_at, self.hang_ups_at, self.stalls_at, self.door.look_at];
        let cut_at = self.suspension.as_ref().and_then(Suspension::cut_at);
        let all = looks.into_iter().chain([self.trim_at, self.ends_at, self.accept_after, cut_at]);
        let first = all.flatten().min().map(|first| first.saturating_duration_since(now));
        let held_back = self.held_back.iter().map(|(until, _)| until.saturating_duration_since(now).max(TICK)).min();
        let question = self.io.questions.due_in(|| now);
        first.into_iter().chain(held_back).chain(question).min()
    }

    /// Returns the number of events to wait for. A send that should end within the call that starts it is waited for
    /// along with the next event, which saves a call, unless something depends on its end. If such a send takes longer
    /// because its client stopped reading, the ring returns other events after some milliseconds.
    fn wanted(&mut self) -> u32 {
        let (sessions, io) = (&self.sessions, &self.io);
        let conn = |number: usize| sessions[number].as_ref().and_then(Session::conn);
        let has_time = |&&number: &&usize| conn(number).is_some_and(|conn| conn.has_time(io));
        let prompt = io.prompt_sends.iter().filter(has_time).count() as u32;
        self.io.prompt_sends.clear();
        // The memory that a send gives back may be what others wait for.
        if prompt == 0 || !self.later.is_empty() || self.io.shares.has_line() {
            return 1;
        }
        1 + prompt
    }

    /// Does everything whose time has come.
    fn look_at_the_clock(&mut self) {
        let now = Instant::now();
        if self.shared.is_ending() && self.ends_at.is_none() {
            self.begin_end(now);
        }
        self.cut_off_replies(now);
        if self.accept_after.is_some_and(|at| at <= now) {
            self.accept_after = None;
        }
        if self.look_at.is_some_and(|at| at <= now) {
            self.look_at = self.drop_where(
                |session| session.handshake_until().is_some_and(|until| until <= now),
                Session::late_because,
                |session| session.handshake_until(),
            );
        }
        if self.hang_ups_at.is_some_and(|at| at <= now) {
            self.look_for_hang_ups(now);
        }
        if self.stalls_at.is_some_and(|at| at <= now) {
            self.look_for_stalls();
            self.stalls_at = None;
        }
        if self.door.look_at.is_some_and(|at| at <= now) {
            self.look_at_the_door(now);
        }
        if self.trim_at.is_some_and(|at| at <= now) {
            self.trim_at = None;
            if self.io.is_idle() {
                self.io.trim();
            }
        }
        if self.ends_at.is_some_and(|at| at <= now) {
            self.drop_where(|_| true, |_| "the server ends, and it did not take its replies", |_| None);
            self.ends_at = Some(now + self.shared.options.drain);
            self.cancel_accepts();
        }
    }

    /// Drops the clients of the sessions for which `is` returns true. Returns the earliest time that `next` returns for
    /// the others.
    fn drop_where(
        &mut self,
        mut is: impl FnMut(&Session) -> bool,
        why: impl Fn(&Session) -> &'static str,
        next: impl Fn(&Session) -> Option<Instant>,
    ) -> Option<Instant> {
        let mut earliest = None;
        for (number, session) in self.sessions.iter_mut().enumerate() {
            let Some(session) = session else { continue };
            if is(session) {
                session.drop_client(why(session));
                self.touched.push(number);
            } else if let Some(at) = next(session) {
                earliest = Some(earliest.map_or(at, |earliest: Instant| earliest.min(at)));
            }
        }
        earliest
    }

    /// Drops the clients that hold memory which others need, and have made no progress since the last check.
    fn look_for_stalls(&mut self) {
        for (number, session) in self.sessions.iter_mut().enumerate() {
            let Some(conn) = session.as_mut().and_then(Session::conn_mut) else { continue };
            if self.io.shares.holds_what_others_need(number)
                && let Some(why) = conn.look_at_progress(&mut self.io)
            {
                conn.drop_client(why);
                self.touched.push(number);
            }
        }
    }

    fn cancel_accepts(&mut self) {
        for (number, _) in self.accepting.iter().enumerate().filter(|(_, accepting)| **accepting) {
            // If the ring is full, the next deadline tries again.
            let _ = self.io.ring.sockets(|mut sockets| sockets.cancel(token(Kind::Accept, number)));
        }
    }

    /// Begins the shutdown: no more clients and no more requests are accepted.
    fn begin_end(&mut self, now: Instant) {
        self.ends_at = Some(now + self.shared.options.drain);
        self.cancel_accepts();
        self.door.close();
        self.turn_away(|_| true);
        for (number, session) in self.sessions.iter_mut().enumerate() {
            let Some(session) = session else { continue };
            session.end_after_replies();
            self.touched.push(number);
        }
    }
}

/// Returns the NBD connection with this number.
fn conn_of(sessions: &mut [Option<Session>], number: usize) -> Option<&mut Conn> {
    sessions.get_mut(number)?.as_mut()?.conn_mut()
}

/// Errnos that are handled here.
mod libc_errno {
    pub(super) const EINTR: i32 = 4;
    pub(super) const ECONNABORTED: i32 = 103;
    pub(super) const ECANCELED: i32 = 125;
}
