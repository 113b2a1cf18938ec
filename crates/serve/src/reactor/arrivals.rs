//! Assigns accepted clients that have a place to reactors.
//!
//! Whichever reactor accepts a client, the reactor with the fewest clients serves it and gets it by an order
//! ([`Order::Come`]), so that clients are spread evenly. From then on the client counts with its reactor
//! (`Clients::came`), also while it waits there for room for its handshake.

use std::os::fd::OwnedFd;
use std::time::Instant;

use super::Reactor;
use super::conn::Conn;
use super::session::Session;
use crate::clients::Arrival;
use crate::shared::Order;

impl Reactor {
    /// Gives a client to the reactor with the fewest clients. Returns its number if that is this reactor. Takes a lock
    /// that only connects and disconnects take, no I/O.
    pub(super) fn take_in(&mut self, fd: OwnedFd, listener: usize) -> Option<usize> {
        let at = self.shared.listeners[listener].names();
        match self.shared.clients.came(self.number, fd, listener, at) {
            // An accept that was under way when the reactor was suspended: the handshake begins when it resumes, or in
            // the other process.
            (reactor, arrival) if reactor == self.number && self.suspension.is_some() => {
                self.arriving.push_back(arrival);
                None
            }
            (reactor, arrival) if reactor == self.number => Some(self.seat(arrival)),
            (reactor, arrival) => {
                self.shared.order(reactor, Order::Come(arrival));
                None
            }
        }
    }

    /// Begins the handshakes of clients that other reactors have accepted.
    pub(super) fn seat_arrivals(&mut self) {
        while !self.arriving.is_empty() && self.has_room_for_handshake() {
            let Some(arrival) = self.arriving.pop_front() else { return };
            let number = self.seat(arrival);
            self.later.push(number);
        }
    }

    /// Drops the clients in `arriving` for which `is` returns true.
    pub(super) fn turn_away(&mut self, is: impl Fn(&Arrival) -> bool) {
        let clients = &self.shared.clients;
        self.arriving.retain(|arrival| {
            let goes = is(arrival);
            if goes {
                clients.left(arrival.id);
            }
            !goes
        });
    }

    /// Makes a connection for a client. Returns its number.
    fn seat(&mut self, arrival: Arrival) -> usize {
        let number = self.free_number();
        let until = Instant::now() + self.shared.options.handshake;
        self.look_at.get_or_insert(until);
        let tls = self.shared.listeners[arrival.listener].tls();
        self.sessions[number] = Some(Session::Nbd(Box::new(Conn::new(arrival, number, until, tls))));
        self.live += 1;
        number
    }

    /// Returns a number that no session has. The caller puts a session there.
    pub(super) fn free_number(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.sessions.push(None);
            self.sessions.len() - 1
        })
    }
}
