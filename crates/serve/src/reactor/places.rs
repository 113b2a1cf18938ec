//! Places for clients: which client waits for one, and which gives way, when all are taken.
//!
//! A client that arrives then is accepted, but gets no greeting until it has a place ([`door`](super::door)): the
//! server knows the peer of a client only after accepting it. Places that become free go to the peers that have the
//! fewest.
//!
//! Invariants:
//! - D1. A waiting client gets the place of the newest client of the peer that has most places, whatever that client is
//!   doing. The peer must then still have at least as many places as the peer of the waiting client. Thus no client
//!   gives way to one of its own peer, two peers do not displace each other in turn, and one peer may have all places
//!   while no other asks for any.
//! - D2. A client that has chosen its export and has had nothing to do for
//!   [`ServerOptions::idle`](crate::ServerOptions::idle) while others wait gives way to any client. If there are
//!   several, one of the peer that has most places does.
//! - D3. At most 128 clients wait, and at most an eighth of the number of places. Beyond that, the newest of the peer
//!   with the most places and waiting clients together is turned away.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use super::Reactor;
use super::conn::Conn;
use super::door::{Idle, Places, Waiting};
use super::session::Session;
use crate::shares::Peer;

/// Interval between checks for idle clients while others wait and all places are taken, and the shorter interval once a
/// client has given way.
const DOOR: Duration = Duration::from_secs(1);
const DOOR_AGAIN: Duration = Duration::from_millis(20);
/// Time without accepts after a client was turned away, so that reconnecting at once brings no advantage.
const TURNED_AWAY: Duration = Duration::from_millis(1);

impl Reactor {
    /// Returns true if a new client has to wait: this reactor has all the clients that it may, and all others have too.
    pub(super) fn is_full(&self) -> bool {
        let reactors = self.shared.options.reactors.max(1);
        self.live >= self.most && self.shared.clients.count() >= self.most * reactors
    }

    /// Puts a client that arrived while all places are taken in line (D3).
    pub(super) fn waits_at_the_door(&mut self, fd: OwnedFd, listener: usize) {
        let peer = crate::clients::origin(&fd).peer();
        self.door.waiting.push(Waiting { fd, listener, peer });
        self.make_room();
        let reactors = self.shared.options.reactors.max(1);
        if self.door.turn_away(self.places(), self.most, reactors) {
            self.accept_after = Some(Instant::now() + TURNED_AWAY);
        }
    }

    /// Gives free places to waiting clients.
    pub(super) fn let_in(&mut self) {
        while !self.door.waiting.is_empty() && !self.is_full() && self.has_room_for_handshake() {
            let Some(first) = self.door.first(&self.places()) else { return };
            let Waiting { fd, listener, .. } = self.door.waiting.remove(first);
            let number = self.take_in(fd, listener);
            self.later.extend(number);
        }
    }

    fn conns(&self) -> impl Iterator<Item = &Conn> {
        self.sessions.iter().flatten().filter_map(Session::conn)
    }

    /// Returns the number of places of each peer, without clients that are about to end.
    fn places(&self) -> Places {
        let mut places = Places::new();
        let stay = self.conns().filter(|conn| !conn.is_ending_now());
        stay.for_each(|conn| *places.entry(conn.peer()).or_default() += 1);
        places
    }

    /// Drops clients so that waiting clients of other peers get their places (D1).
    fn make_room(&mut self) {
        let mut places = self.places();
        let ending = self.conns().filter(|conn| conn.is_ending_now()).count();
        // Clients that are about to end make room, too.
        let mut free = ending + self.most.saturating_sub(self.live);
        self.door.forget_gone();
        let mut peers: Vec<Peer> = self.door.waiting.iter().map(|waiting| waiting.peer).collect();
        while let Some(at) = (0..peers.len()).min_by_key(|at| places.get(&peers[*at]).copied().unwrap_or(0)) {
            let has = places.entry(peers.remove(at)).or_default();
            *has += 1;
            let has = *has;
            if free > 0 {
                free -= 1;
                continue;
            }
            let Some((most, count)) =
                places.iter().map(|(peer, count)| (*peer, *count)).max_by_key(|(_, count)| *count)
            else {
                return;
            };
            // D1: that peer would then have fewer places than the peer of the waiting client.
            if count <= has {
                return;
            }
            let of = conns_of(&mut self.sessions).filter(|conn| conn.peer() == most && !conn.is_ending_now());
            let Some(newest) = of.max_by_key(|conn| conn.id()) else { return };
            newest.drop_client("others wait for its place, and its address or user has most of them");
            self.later.push(newest.number());
            *places.entry(most).or_default() -= 1;
        }
    }

    /// Schedules the check for idle clients while all places are taken.
    pub(super) fn watch_the_door(&mut self, is_full: bool) {
        if !is_full || self.ends_at.is_some() {
            self.door.look_at = None;
        } else if self.door.look_at.is_none() {
            // Not at once: the idle time of a client counts from now, when others begin to wait.
            let period = DOOR.min(self.shared.options.idle / 2).max(DOOR_AGAIN);
            self.door.look_at = Some(Instant::now() + period);
        }
    }

    /// Drops one idle client if another waits for its place (D2).
    pub(super) fn look_at_the_door(&mut self, now: Instant) {
        self.door.look_at = None;
        if self.door.waiting.is_empty() {
            self.door.idle.clear();
            return;
        }
        self.make_room();
        let places = self.places();
        self.door.idle.resize_with(self.sessions.len(), Idle::default);
        let mut first = None;
        for (session, idle) in self.sessions.iter().zip(&mut self.door.idle) {
            let Some(conn) = session.as_ref().and_then(Session::conn) else {
                *idle = Idle::default();
                continue;
            };
            let since = idle.look(conn.mark(), now);
            let Some(since) = since.filter(|since| *since + self.shared.options.idle <= now) else { continue };
            // Most places first, then the longest idle.
            let order = (usize::MAX - places[&conn.peer()], since, conn.number());
            first = Some(first.map_or(order, |first| order.min(first)));
        }
        if let Some((_, _, number)) = first
            && let Some(conn) = self.conn(number)
        {
            conn.drop_client("others wait for its place, and it has nothing to do");
            self.door.forget(number);
            self.later.push(number);
        }
    }
}

fn conns_of(sessions: &mut [Option<Session>]) -> impl Iterator<Item = &mut Conn> {
    sessions.iter_mut().flatten().filter_map(Session::conn_mut)
}
