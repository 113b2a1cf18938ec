//! Handing a vhost-user device over to another process, and going on with one.
//!
//! A device that is suspended reads no more messages and ends its queues, which finish what they have taken. The state
//! of their rings is in the memory of the guest then, and the index at which each goes on is in the state of the
//! device. The queues count as started all the time: the front-end and the guest notice nothing but the pause.

use std::os::fd::OwnedFd;

use sheave_base::sync::Arc;
use sheave_vhost::Offer;
use sheave_vhost::session::{Life, Session};
use sheave_vhost::wire::feature;

use super::device::{Device, Front, Place, Resize};
use super::socket::Inbox;
use super::{DeviceAt, Watch, config_of};
use crate::clients::Known;
use crate::handover::{Moved, MovedStage};
use crate::reactor::raw::{self, Kind};
use crate::reactor::requests::Io;
use crate::shared::{Notice, Shared};
use crate::vhost_user::MAX_QUEUES;

/// A front-end that another process has served until now.
pub(crate) struct Restored {
    pub(crate) socket: OwnedFd,
    pub(crate) known: Known,
    pub(crate) life: Box<Life>,
    /// Bytes of a message that has arrived in part, and the descriptors that came with them.
    pub(crate) unread: (Vec<u8>, Vec<OwnedFd>),
    pub(crate) resized: bool,
    pub(crate) spoke: bool,
}

impl Device {
    /// Reads no more messages, takes no front-end, and ends the queues.
    pub(in crate::reactor) fn suspend(&mut self) {
        self.suspended = true;
    }

    /// Goes on as before: the queues that were started begin again.
    pub(in crate::reactor) fn resume(&mut self, io: &Io, shared: &Shared) {
        self.suspended = false;
        self.calls = true;
        let at = (DeviceAt { reactor: io.number, session: self.number }, self.export_id);
        self.front.iter_mut().for_each(|front| front.begin_started(io, shared, &self.export, at));
    }

    /// Returns true if the device can be taken out: it is suspended, and nothing of it is under way.
    pub(in crate::reactor) fn is_quiet(&self) -> bool {
        self.suspended
            && self.listening == Watch::No
            && self.next.is_none()
            && self.front.as_ref().is_none_or(|front| front.is_quiet())
    }

    /// Names what keeps the device from being taken out.
    pub(in crate::reactor) fn what_is_under_way(&self) -> String {
        let client = self.client().map_or_else(String::new, |client| format!("client {client}: "));
        format!("{client}requests of the guest that has attached '{}'", self.export.name)
    }

    /// Takes the front-end out. The device is quiet, and ends.
    pub(in crate::reactor) fn take_out(&mut self, shared: &Shared) -> Option<Moved> {
        self.ends = true;
        let front = *self.front.take()?;
        let (unread, fds) = front.inbox.into_parts();
        let export = self.export.name.clone();
        shared.exports.moved(self.export_id, &front.tally);
        let listener = self.export.vhost_user.as_ref().map(|vhost_user| vhost_user.listener.asked_for().to_string());
        Some(Moved {
            id: front.client,
            fd: front.socket,
            listener: listener.unwrap_or_default(),
            unread,
            unsent: Vec::new(),
            stage: MovedStage::FrontEnd {
                export,
                life: Box::new(front.session.0.life().clone()),
                fds,
                resized: front.resized.is_some(),
                spoke: front.silent_until.is_none(),
            },
        })
    }

    /// Goes on with a front-end that another process has served until now. Drops it, with a notice, if its data makes
    /// no sense.
    pub(in crate::reactor) fn restore(&mut self, io: &mut Io, shared: &Shared, restored: Restored) {
        let Restored { socket, known, life, unread: (unread, fds), resized, spoke } = restored;
        let id = known.id;
        if let Err(why) = self.put_front(io, shared, (socket, known, life), (unread, fds), (resized, spoke)) {
            if let Some(client) = shared.clients.get(id) {
                (shared.notices)(&Notice::Dropped { client: &client, why: &why });
            }
            shared.clients.left(id);
        }
    }

    fn put_front(
        &mut self,
        io: &mut Io,
        shared: &Shared,
        (socket, known, life): (OwnedFd, Known, Box<Life>),
        (unread, fds): (Vec<u8>, Vec<OwnedFd>),
        (resized, spoke): (bool, bool),
    ) -> Result<(), String> {
        let gone = || String::from("its device is gone");
        let offered = self.export.vhost_user.as_ref().ok_or_else(gone)?.in_order;
        // The front-end keeps the queues and the order that it has negotiated, whatever the device offers here.
        let queues = life.queues.len().clamp(1, MAX_QUEUES.into()) as u16;
        let in_order = offered || life.features & feature::IN_ORDER != 0;
        let offer = Offer { queues, in_order, config: config_of(&self.export) };
        let session = Session::restored(offer, *life).map_err(|broken| broken.to_string())?;
        let inbox = Inbox::from_parts(unread, fds)?;
        if self.front.is_some() {
            return Err("another front-end has attached the device".into());
        }
        let (_, _, bucket) = shared.exports.keeps(&self.export.name, &known.tally).ok_or_else(gone)?;
        if !raw::watch(&mut io.ring, &socket, Kind::Recv, self.number) {
            shared.exports.left(self.export_id, &known.tally);
            return Err("the kernel does not watch its socket".into());
        }
        shared.clients.chose(known.id, &self.export.name);
        self.queues = queues;
        self.export.board().offers(queues);
        self.export.board().attached(known.id);
        let mut front = Front::new((socket, known.id, known.peer, known.tally, bucket), queues, session, shared);
        front.inbox = inbox;
        front.resized = resized.then_some(Resize::Found);
        if spoke {
            front.silent_until = None;
        }
        let at = (DeviceAt { reactor: io.number, session: self.number }, self.export_id);
        front.begin_started(io, shared, &self.export, at);
        self.front = Some(Box::new(front));
        Ok(())
    }

    /// Ends the watch of the listening socket, if the device is suspended. Returns true if it is.
    pub(super) fn listens_no_more(&mut self, io: &mut Io) -> bool {
        if self.suspended {
            self.listening.end(io, Kind::Watch, self.number);
        }
        self.suspended
    }
}

impl Front {
    fn is_quiet(&self) -> bool {
        let idle = !self.leaves && self.orders == 0 && self.due.is_none() && !self.flushing && !self.flushes;
        idle && self.watch == Watch::No && self.queues.iter().all(|place| *place == Place::Nowhere)
    }

    /// Begins the queues that are started and do not run.
    fn begin_started(&mut self, io: &Io, shared: &Shared, export: &Arc<crate::export::Served>, at: (DeviceAt, u32)) {
        (0..self.queues.len() as u16).for_each(|index| self.begin_if_started(io, shared, export, at, index));
    }

    /// Begins a queue that is started and does not run.
    pub(super) fn begin_if_started(
        &mut self,
        io: &Io,
        shared: &Shared,
        export: &Arc<crate::export::Served>,
        at: (DeviceAt, u32),
        index: u16,
    ) {
        let started = self.session.0.queue(index).is_some_and(|setup| setup.started);
        if started && self.queues[usize::from(index)] == Place::Nowhere {
            self.begin(io, shared, export, at, index);
        }
    }

    /// Ends what a suspended device has under way: its queues, and then the watch of its socket.
    pub(super) fn settle(&mut self, io: &mut Io, session: usize) {
        self.end_queues(io);
        if self.orders == 0 {
            self.watch.end(io, Kind::Recv, session);
        }
    }
}
