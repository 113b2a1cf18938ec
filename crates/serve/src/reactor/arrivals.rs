//! Clients that were accepted and have a place: on which reactor they are served.
//!
//! Whichever reactor accepts a client, the one with fewest clients gets it, by an order ([`Order::Come`]), so that
//! those who come one after another are spread evenly. It counts with its reactor from then on (`Clients::came`), also
//! while it waits there for room for its handshake.

use std::os::fd::OwnedFd;
use std::time::Instant;

use super::Reactor;
use super::conn::Conn;
use crate::clients::Arrival;
use crate::shared::Order;

impl Reactor {
    /// A client has a place: on the reactor that has fewest clients. Its number, if that is this one. The lock that
    /// this takes is of connections that come and go; no I/O takes it.
    pub(super) fn take_in(&mut self, fd: OwnedFd, listener: usize) -> Option<usize> {
        let at = self.shared.listeners[listener].names();
        match self.shared.clients.came(self.number, fd, listener, at) {
            (reactor, arrival) if reactor == self.number => Some(self.seat(arrival)),
            (reactor, arrival) => {
                self.shared.order(reactor, Order::Come(arrival));
                None
            }
        }
    }

    /// Begins with clients that others have accepted.
    pub(super) fn seat_arrivals(&mut self) {
        while !self.arriving.is_empty() && self.has_room_for_handshake() {
            let Some(arrival) = self.arriving.pop_front() else { return };
            let number = self.seat(arrival);
            self.later.push(number);
        }
    }

    /// Lets go of clients that have not begun and of which this is true.
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

    /// Begins with a client: its number.
    fn seat(&mut self, arrival: Arrival) -> usize {
        let number = self.free.pop().unwrap_or_else(|| {
            self.conns.push(None);
            self.conns.len() - 1
        });
        let until = Instant::now() + self.shared.options.handshake;
        self.look_at.get_or_insert(until);
        let tls = self.shared.listeners[arrival.listener].tls();
        self.conns[number] = Some(Box::new(Conn::new(arrival, number, until, tls)));
        self.live += 1;
        number
    }
}
