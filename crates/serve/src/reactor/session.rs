//! Sessions: everything that a reactor serves. All kinds have the same calls: an event has come, a request has ended,
//! do what can be done now, end.
//!
//! The reactor owns the sessions and their order. A session owns its descriptors and its state, and starts requests in
//! [`Io`]. It is removed when [`Session::is_gone`]: nothing of it is under way any more.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use sheave_blk::ctx::sockets::SocketEvent;

use super::conn::Conn;
use super::held_back::Charge;
use super::raw::Kind;
use super::requests::{Answer, Io};
use super::vhost::{Device, Queue};
use crate::shared::Shared;

/// A session of a reactor.
#[derive(Debug)]
pub(super) enum Session {
    /// The connection of an NBD client.
    Nbd(Box<Conn>),
    /// The sockets of a vhost-user device, with or without a front-end.
    Device(Box<Device>),
    /// A queue of a vhost-user device.
    Queue(Box<Queue>),
}

impl Session {
    /// Returns the connection, if the session is one of an NBD client.
    pub(super) fn conn(&self) -> Option<&Conn> {
        match self {
            Session::Nbd(conn) => Some(conn),
            Session::Device(_) | Session::Queue(_) => None,
        }
    }

    pub(super) fn conn_mut(&mut self) -> Option<&mut Conn> {
        match self {
            Session::Nbd(conn) => Some(conn),
            Session::Device(_) | Session::Queue(_) => None,
        }
    }

    /// Returns the number of its client in reports; `None` without a client.
    pub(super) fn client(&self) -> Option<u64> {
        match self {
            Session::Nbd(conn) => Some(conn.id()),
            Session::Device(device) => device.client(),
            Session::Queue(_) => None,
        }
    }

    /// Returns the number of the export that it uses or serves.
    pub(super) fn export(&self) -> Option<u32> {
        match self {
            Session::Nbd(conn) => conn.export(),
            Session::Device(device) => Some(device.export()),
            Session::Queue(queue) => Some(queue.export()),
        }
    }

    /// Called when an operation on one of its descriptors has an event.
    pub(super) fn event(&mut self, io: &mut Io, kind: Kind, event: &SocketEvent) {
        match (self, kind) {
            (Session::Nbd(conn), Kind::Recv) => {
                conn.received(io, event);
                if !conn.has_question() {
                    io.questions.others_have_work();
                }
            }
            (Session::Nbd(conn), _) => conn.sent(io, event.res),
            (Session::Device(device), kind) => device.event(kind, event.goes_on()),
            (Session::Queue(queue), _) => queue.kicked(io, event.goes_on()),
        }
    }

    /// Called when a request has ended.
    #[inline(always)]
    pub(super) fn answer(&mut self, io: &mut Io, answer: Answer) {
        match self {
            Session::Nbd(conn) => conn.answer(io, answer),
            Session::Device(device) => device.answer(io, &answer),
            Session::Queue(queue) => queue.answer(io, answer),
        }
    }

    /// Does everything that can be done now: reads, starts requests, replies, ends.
    pub(super) fn go_on(&mut self, io: &mut Io, shared: &Shared) {
        match self {
            Session::Nbd(conn) => conn.go_on(io, shared),
            Session::Device(device) => device.go_on(io, shared),
            Session::Queue(queue) => queue.go_on(io),
        }
    }

    /// Returns true if the session has work left and has used up its part of this turn of the loop.
    pub(super) fn yields(&self, io: &Io) -> bool {
        match self {
            Session::Nbd(conn) => conn.yields(io),
            Session::Device(device) => device.yields(io),
            Session::Queue(queue) => queue.yields(io),
        }
    }

    /// Returns the charge for its request that waits for the export's rate limit, while requests may still begin.
    pub(super) fn charge(&mut self) -> Option<&mut Charge> {
        match self {
            Session::Nbd(conn) => conn.charge(),
            Session::Device(_) => None,
            Session::Queue(queue) => queue.charge(),
        }
    }

    /// Counts the time for which the limit has held a request back.
    pub(super) fn throttled(&self, time: Duration) {
        match self {
            Session::Nbd(conn) => conn.counts().throttled(time),
            Session::Device(_) => {}
            Session::Queue(queue) => queue.throttled(time),
        }
    }

    /// Returns the socket that is polled for a hang-up while a request is held back.
    pub(super) fn socket(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Session::Nbd(conn) => Some(conn.socket()),
            // The socket of a device is watched all the time.
            Session::Device(_) | Session::Queue(_) => None,
        }
    }

    /// Returns the deadline for choosing an export, until one is chosen, or for the first message of a front-end.
    pub(super) fn handshake_until(&self) -> Option<Instant> {
        match self {
            Session::Nbd(conn) => conn.handshake_until(),
            Session::Device(device) => device.handshake_until(),
            Session::Queue(_) => None,
        }
    }

    /// Returns the reason for dropping a client that has let that deadline pass.
    pub(super) fn late_because(&self) -> &'static str {
        match self {
            Session::Device(_) => "it did not send a message in time",
            Session::Nbd(_) | Session::Queue(_) => "it did not choose an export in time",
        }
    }

    /// Returns the reason why the client was dropped, once.
    pub(super) fn take_complaint(&mut self) -> Option<String> {
        match self {
            Session::Nbd(conn) => conn.take_complaint(),
            Session::Device(device) => device.take_complaint(),
            Session::Queue(_) => None,
        }
    }

    /// Drops the client. `why` goes into a notice. A device goes on to listen, and ends its queues itself.
    pub(super) fn drop_client(&mut self, why: &str) {
        match self {
            Session::Nbd(conn) => conn.drop_client(why),
            Session::Device(device) => device.drop_client(why),
            Session::Queue(_) => {}
        }
    }

    /// Ends the session, because its client has gone.
    pub(super) fn hang_up(&mut self) {
        match self {
            Session::Nbd(conn) => conn.hang_up(),
            Session::Device(_) | Session::Queue(_) => {}
        }
    }

    /// Accepts no more requests, and ends when those under way are answered.
    pub(super) fn end_after_replies(&mut self) {
        match self {
            Session::Nbd(conn) => conn.end_after_replies(),
            Session::Device(device) => device.end(),
            Session::Queue(_) => {}
        }
    }

    /// Begins no more requests, so that another process can go on with the session.
    pub(super) fn suspend(&mut self) {
        match self {
            Session::Nbd(conn) => conn.suspend(),
            Session::Device(device) => device.suspend(),
            // Its device ends it.
            Session::Queue(_) => {}
        }
    }

    /// Goes on as before.
    pub(super) fn resume(&mut self, io: &Io, shared: &Shared) {
        match self {
            Session::Nbd(conn) => conn.resume(),
            Session::Device(device) => device.resume(io, shared),
            Session::Queue(_) => {}
        }
    }

    /// Returns true if the session is suspended and nothing of it is under way.
    pub(super) fn is_quiet(&self) -> bool {
        match self {
            Session::Nbd(conn) => conn.is_quiet(),
            Session::Device(device) => device.is_quiet(),
            Session::Queue(_) => false,
        }
    }

    /// Names what keeps the session from being quiet. Its device speaks for a queue.
    pub(super) fn what_is_under_way(&self) -> Option<String> {
        match self {
            Session::Nbd(conn) => Some(conn.what_is_under_way()),
            Session::Device(device) => Some(device.what_is_under_way()),
            Session::Queue(_) => None,
        }
    }

    /// Returns true if the session ends now and nothing of it is under way: the reactor may drop it.
    pub(super) fn is_gone(&self) -> bool {
        match self {
            Session::Nbd(conn) => conn.is_gone(),
            Session::Device(device) => device.is_gone(),
            Session::Queue(queue) => queue.is_gone(),
        }
    }

    /// Called when the session is gone. Gives its memory back to the pool, and lets others know that it has left.
    pub(super) fn leave(&mut self, io: &mut Io, shared: &Shared) {
        match self {
            Session::Nbd(conn) => {
                conn.give_back(io);
                if let Some(export) = conn.export() {
                    io.leave(export);
                    shared.exports.left(export, conn.tally());
                }
                shared.clients.left(conn.id());
            }
            Session::Device(_) => shared.device_left(),
            Session::Queue(queue) => queue.leave(io),
        }
    }

    /// Ends the session, because its export is taken out.
    pub(super) fn close(&mut self) {
        match self {
            Session::Nbd(conn) => conn.drop_client("its export was taken out"),
            Session::Device(device) => {
                device.drop_client("its export was taken out");
                device.end();
            }
            Session::Queue(_) => {}
        }
    }
}
