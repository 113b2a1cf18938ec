//! Bringing a reactor to a stop without ending its clients, so that another process can go on with them.
//!
//! A suspended reactor accepts no client and begins no request. When all its sessions are quiet, it reports that. Then
//! it either resumes, as if nothing had happened, or gives its sessions away and serves nothing any more.

use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use super::Reactor;
use super::conn::Conn;
use super::session::Session;
use crate::clients::{Arrival, Known};
use crate::handover::{Moved, MovedStage, StageState};
use crate::shared::Notice;

/// Time between two looks at clients that end, and whether they take their replies.
const LOOK: Duration = Duration::from_millis(20);

/// A reactor that is coming to a stop, or has.
#[derive(Debug, Default)]
pub(super) struct Suspension {
    /// Channel on which the reactor reports that it is quiet; `None` once it has.
    done: Option<SyncSender<()>>,
    /// Time from which on clients that do not take their replies keep them as unsent bytes; `None` once it has passed.
    cut_at: Option<Instant>,
}

impl Suspension {
    pub(super) fn cut_at(&self) -> Option<Instant> {
        self.cut_at
    }
}

/// A client that a reactor begins to serve in the place of another process.
#[derive(Debug)]
pub(crate) struct Coming {
    pub(crate) fd: std::os::fd::OwnedFd,
    pub(crate) known: Known,
    /// Index of the listener that it connected to.
    pub(crate) listener: Option<usize>,
    pub(crate) unread: Vec<u8>,
    pub(crate) unsent: Vec<u8>,
    pub(crate) stage: StageState,
}

impl Reactor {
    /// Accepts no client until it is told to resume.
    pub(crate) fn begin_suspended(&mut self) {
        self.suspension = Some(Suspension::default());
    }

    /// Accepts no more clients, and begins no more requests.
    pub(super) fn suspend(&mut self, done: SyncSender<()>, cut_at: Instant) {
        self.suspension = Some(Suspension { done: Some(done), cut_at: Some(cut_at) });
        self.cancel_accepts();
        for (number, session) in self.sessions.iter_mut().enumerate() {
            let Some(session) = session else { continue };
            session.suspend();
            self.touched.push(number);
        }
    }

    /// Goes on as before. Returns what kept the reactor from being quiet.
    pub(super) fn resume(&mut self) -> Vec<String> {
        let busy = self.sessions.iter().flatten().filter(|session| !session.is_quiet());
        let busy = busy.filter_map(Session::what_is_under_way).collect();
        self.suspension = None;
        for (number, session) in self.sessions.iter_mut().enumerate() {
            let Some(session) = session else { continue };
            session.resume(&self.io, &self.shared);
            self.touched.push(number);
        }
        busy
    }

    /// Reports that the reactor is quiet, once it is.
    pub(super) fn tell_when_quiet(&mut self) {
        let Some(suspension) = &mut self.suspension else { return };
        if suspension.done.is_none() {
            return;
        }
        if self.accepting.contains(&true) {
            return self.cancel_accepts();
        }
        if self.sessions.iter().flatten().all(Session::is_quiet)
            && let Some(done) = suspension.done.take()
        {
            // Fails if the receiver gave up waiting.
            let _ = done.try_send(());
        }
    }

    /// Sends no more replies to clients that have not taken theirs in time.
    pub(super) fn cut_off_replies(&mut self, now: Instant) {
        let Some(suspension) = &mut self.suspension else { return };
        if suspension.cut_at.take_if(|at| *at <= now).is_none() {
            return;
        }
        let mut again = false;
        for (number, session) in self.sessions.iter_mut().enumerate() {
            if let Some(Session::Nbd(conn)) = session {
                again |= conn.cut();
                self.touched.push(number);
            }
        }
        suspension.cut_at = again.then(|| now + LOOK);
    }

    /// Takes all clients out of the reactor. Leaves those that are not quiet, whose memory the kernel may use (S1).
    pub(super) fn take_out(&mut self) -> Vec<Moved> {
        let mut moved = Vec::new();
        for number in 0..self.sessions.len() {
            if !self.sessions[number].as_ref().is_some_and(Session::is_quiet) {
                continue;
            }
            match self.sessions[number].take() {
                Some(Session::Nbd(conn)) => {
                    moved.push(conn.take_out(&mut self.io, &self.shared));
                    self.io.shares.leave(number);
                    self.live -= 1;
                    self.free.push(number);
                }
                Some(Session::Device(mut device)) => {
                    moved.extend(device.take_out(&self.shared));
                    self.sessions[number] = Some(Session::Device(device));
                    self.touched.push(number);
                }
                other => self.sessions[number] = other,
            }
        }
        // Clients without a place, and those whose handshake has not begun, are new to the other process.
        let new = |id: u64, fd, at: Vec<crate::Address>| Moved {
            id,
            fd,
            listener: at.first().map(ToString::to_string).unwrap_or_default(),
            unread: Vec::new(),
            unsent: Vec::new(),
            stage: MovedStage::Nbd(StageState::New),
        };
        moved.extend(self.arriving.drain(..).map(|Arrival { id, fd, who, .. }| new(id, fd, who.at)));
        let names = |listener: usize| self.shared.listeners[listener].names();
        moved.extend(self.door.waiting.drain(..).map(|waiting| new(0, waiting.fd, names(waiting.listener))));
        self.held_back.clear();
        moved
    }

    /// Begins to serve a client that another process has served until now.
    pub(super) fn go_on_with_client(&mut self, coming: Coming) {
        let Coming { fd, known, listener, unread, unsent, stage } = coming;
        let (id, number) = (known.id, self.free_number());
        let offer = listener.and_then(|listener| self.shared.listeners[listener].tls());
        let parts = ((fd, known, listener.unwrap_or(0)), (unread, unsent, &stage));
        match Conn::restored(parts.0, parts.1, number, offer, (&mut self.io, &self.shared)) {
            Ok(conn) => {
                self.look_at = self.look_at.or(conn.handshake_until());
                self.sessions[number] = Some(Session::Nbd(Box::new(conn)));
                self.live += 1;
                self.touched.push(number);
            }
            Err(why) => {
                self.free.push(number);
                if let Some(client) = self.shared.clients.get(id) {
                    (self.shared.notices)(&Notice::Dropped { client: &client, why: &why });
                }
                self.shared.clients.left(id);
            }
        }
    }
}
