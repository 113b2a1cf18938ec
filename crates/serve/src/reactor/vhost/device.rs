//! The session of a device: its listening socket, the front-end that has attached it, and the orders to its queues.
//!
//! One front-end is served at a time. A second one is refused, and told by a notice, unless the first has hung up: then
//! the second waits until the first has ended with all that it had under way.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use sheave_base::sync::Arc;
use sheave_nbd::session::{Command, Request};
use sheave_vhost::session::Session;
use sheave_vhost::{Answer as Due, Offer, Todo};

use super::socket::{self, Inbox, Read};
use super::{Begin, DeviceAt, QueueOrder, Told, Watch, config_of};
use crate::clients::Arrival;
use crate::counts::Tally;
use crate::export::{Export, Served};
use crate::limit::Bucket;
use crate::reactor::door::has_hung_up;
use crate::reactor::raw::{self, Kind};
use crate::reactor::requests::{Answer, Io};
use crate::shared::{Notice, Order, Shared};
use crate::shares::Peer;
use crate::vhost_user::MAX_QUEUES;

/// Most messages of a front-end, and most connections, that are looked at in a turn of the loop.
const BATCH: u32 = 16;
/// Least time between two notices about refused front-ends, of which a process can make any number.
const REFUSALS: Duration = Duration::from_secs(1);

/// A device, with or without a front-end.
#[derive(Debug)]
pub(in crate::reactor) struct Device {
    pub(super) number: usize,
    pub(super) export_id: u32,
    pub(super) export: Arc<Served>,
    pub(super) queues: u16,
    pub(super) listening: Watch,
    /// True if the listening socket may have a connection.
    pub(super) calls: bool,
    pub(super) front: Option<Box<Front>>,
    /// A front-end that waits for the end of the first one.
    pub(super) next: Option<OwnedFd>,
    /// When the last notice about a refused front-end was given.
    refused_at: Option<Instant>,
    /// True if the device takes no front-end any more.
    pub(super) ends: bool,
    /// True while the device is to be taken out, for another process.
    pub(super) suspended: bool,
    had_its_turn: Option<u32>,
}

/// The state of a queue, as its device knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Nowhere,
    /// The order to begin was sent to this reactor.
    Begins(usize),
    Runs {
        reactor: usize,
        session: usize,
    },
    /// The order to end was sent.
    Ends,
}

/// The front-end of a device.
#[derive(Debug)]
pub(super) struct Front {
    pub(super) socket: OwnedFd,
    pub(super) watch: Watch,
    pub(super) client: u64,
    peer: Peer,
    pub(super) tally: Arc<Tally>,
    bucket: Arc<Bucket>,
    pub(super) session: Protocol,
    pub(super) inbox: Inbox,
    /// True if the socket may have bytes.
    readable: bool,
    /// Deadline for its first message, until that has come.
    pub(super) silent_until: Option<Instant>,
    pub(super) queues: Vec<Place>,
    /// The answer that is sent when no order is under way (G2).
    pub(super) due: Option<Due>,
    /// Number of orders that queues have not carried out.
    pub(super) orders: u32,
    /// Index at which the last queue has ended.
    last_avail: Option<u16>,
    /// True if a flush is to follow the orders.
    pub(super) flushes: bool,
    pub(super) flushing: bool,
    pub(super) resized: Option<Resize>,
    /// True if the front-end has gone, or is dropped.
    pub(super) leaves: bool,
    complaint: Option<String>,
}

/// A change of the size that the front-end has not been told. The queues learn of it first, because the guest may use
/// the new size at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resize {
    Found,
    /// The queues have been told.
    ByQueues,
}

/// The negotiation, which has no `Debug`.
pub(super) struct Protocol(pub(super) Session);

impl std::fmt::Debug for Protocol {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Session")
    }
}

impl Device {
    pub(super) fn new(number: usize, export_id: u32, export: Arc<Served>, shared: &Shared) -> Device {
        let queues = offered(&export, shared);
        Device {
            number,
            export_id,
            export,
            queues,
            listening: Watch::No,
            calls: true,
            front: None,
            next: None,
            refused_at: None,
            ends: false,
            suspended: false,
            had_its_turn: None,
        }
    }

    pub(in crate::reactor) fn export(&self) -> u32 {
        self.export_id
    }

    /// Returns the number of the front-end in reports.
    pub(in crate::reactor) fn client(&self) -> Option<u64> {
        self.front.as_ref().map(|front| front.client)
    }

    /// Returns the deadline for the first message of the front-end, until that has come.
    pub(in crate::reactor) fn handshake_until(&self) -> Option<Instant> {
        self.front.as_ref().filter(|front| !front.leaves)?.silent_until
    }

    /// Returns the reason why the front-end was dropped, once.
    pub(in crate::reactor) fn take_complaint(&mut self) -> Option<String> {
        self.front.as_mut()?.complaint.take()
    }

    /// Drops the front-end. `why` goes into a notice.
    pub(in crate::reactor) fn drop_client(&mut self, why: &str) {
        self.front.iter_mut().for_each(|front| front.drop_it(why));
    }

    /// Ends the device: it listens no more, and its front-end is dropped. Requests under way are finished.
    pub(in crate::reactor) fn end(&mut self) {
        self.ends = true;
        self.next = None;
        self.front.iter_mut().for_each(|front| front.hang_up());
    }

    pub(in crate::reactor) fn is_gone(&self) -> bool {
        self.ends && self.front.is_none() && self.listening == Watch::No
    }

    /// Returns true if the device has work left and has used up its part of this turn.
    pub(in crate::reactor) fn yields(&self, io: &Io) -> bool {
        let ends = |front: &Front| front.leaves || self.suspended && front.orders == 0;
        let unsent = (self.ends || self.suspended) && self.listening == Watch::Armed
            || self.front.as_ref().is_some_and(|front| ends(front) && front.watch == Watch::Armed);
        unsent || self.had_its_turn == Some(io.turn)
    }

    /// Called when one of the sockets has an event.
    pub(in crate::reactor) fn event(&mut self, kind: Kind, goes_on: bool) {
        if kind == Kind::Watch {
            self.calls = true;
            if !goes_on {
                self.listening = Watch::No;
            }
        } else if let Some(front) = &mut self.front {
            front.readable = true;
            if !goes_on {
                front.watch = Watch::No;
            }
        }
    }

    /// Called when the flush of the device has ended.
    pub(in crate::reactor) fn answer(&mut self, io: &mut Io, answer: &Answer) {
        io.leave(self.export_id);
        let Some(front) = &mut self.front else { return };
        front.flushing = false;
        if answer.failed.is_some() {
            front.drop_it("the device cannot flush, so its write cache cannot be switched off");
        }
    }

    /// Called when a queue tells that it has carried out an order, or that its guest has broken the rules.
    pub(super) fn told(&mut self, io: &mut Io, queue: u16, told: Told) {
        let Some(front) = &mut self.front else { return };
        let Some(place) = front.queues.get_mut(usize::from(queue)) else { return };
        // Each of the others answers an order.
        if !matches!(told, Told::Broken(_)) {
            front.orders = front.orders.saturating_sub(1);
        }
        match (told, *place) {
            (Told::Begun { session }, Place::Begins(reactor)) => *place = Place::Runs { reactor, session },
            (Told::NotBegun(why), _) => {
                *place = Place::Nowhere;
                front.drop_it(&why);
            }
            (Told::Done, _) => {}
            (Told::Ended { last_avail }, _) => {
                *place = Place::Nowhere;
                if matches!(front.due, Some(Due::Base { queue: asked }) if asked == queue) {
                    front.last_avail = Some(last_avail);
                } else {
                    // Does nothing for a queue that was reset.
                    front.session.0.stopped_at(queue, last_avail);
                    // The device was suspended, and has resumed before the queue had ended.
                    if !self.suspended && !front.leaves {
                        let (at, shared) = (DeviceAt { reactor: io.number, session: self.number }, io.shared.clone());
                        front.begin_if_started(io, &shared, &self.export, (at, self.export_id), queue);
                    }
                }
            }
            (Told::Broken(why), _) => front.drop_it(&why),
            (Told::Begun { .. }, _) => debug_assert!(false, "G1: a queue begins once"),
        }
        if front.leaves {
            front.end_queues(io);
        }
    }

    /// Called when the size of the export has changed.
    pub(super) fn resized(&mut self) {
        self.front.iter_mut().for_each(|front| front.resized = Some(Resize::Found));
    }

    /// Does everything that can be done now: takes a front-end, reads its messages, answers them, ends.
    pub(in crate::reactor) fn go_on(&mut self, io: &mut Io, shared: &Shared) {
        self.listen(io, shared);
        let begun = (DeviceAt { reactor: io.number, session: self.number }, self.export_id);
        let suspended = self.suspended;
        if let Some(front) = &mut self.front
            && front.go_on(io, shared, &self.export, begun, suspended)
        {
            self.had_its_turn = Some(io.turn);
        }
        if self.front.as_ref().is_some_and(|front| front.is_gone())
            && let Some(front) = self.front.take()
        {
            self.export.board().detached();
            shared.exports.left(self.export_id, &front.tally);
            shared.clients.left(front.client);
            if let Some(next) = self.next.take().filter(|_| !self.ends) {
                self.attach(io, shared, next);
                self.had_its_turn = Some(io.turn);
            }
        }
    }

    fn listen(&mut self, io: &mut Io, shared: &Shared) {
        if self.listens_no_more(io) {
            return;
        }
        let Some(vhost_user) = &self.export.vhost_user else { return };
        if self.ends {
            return self.listening.end(io, Kind::Watch, self.number);
        }
        if self.listening == Watch::No {
            if !raw::watch(&mut io.ring, vhost_user.listener.as_fd(), Kind::Watch, self.number) {
                return;
            }
            self.listening = Watch::Armed;
        }
        for _ in 0..BATCH {
            if !self.calls {
                return;
            }
            let accepted = self.export.vhost_user.as_ref().map(|vhost_user| vhost_user.listener.accept());
            match accepted {
                Some(Ok(socket)) => self.came(io, shared, socket),
                Some(Err(Errno::AGAIN)) | None => self.calls = false,
                Some(Err(Errno::CONNABORTED | Errno::INTR)) => {}
                Some(Err(errno)) => {
                    self.calls = false;
                    let what = format!("cannot take a front-end of '{}': {errno}", self.export.name);
                    (shared.notices)(&Notice::Server(&what));
                }
            }
        }
        self.had_its_turn = Some(io.turn);
    }

    /// Called with the connection of a front-end.
    fn came(&mut self, io: &mut Io, shared: &Shared, socket: OwnedFd) {
        match &self.front {
            None => self.attach(io, shared, socket),
            Some(front) if self.next.is_none() && (front.leaves || has_hung_up(&front.socket)) => {
                self.next = Some(socket)
            }
            Some(_) if self.refused_at.is_some_and(|at| at.elapsed() < REFUSALS) => {}
            Some(front) => {
                self.refused_at = Some(Instant::now());
                let Some(client) = shared.clients.get(front.client) else { return };
                let (first, second, name) = (&client.peer, crate::clients::origin(&socket), &self.export.name);
                let what = format!("a second front-end of '{name}' was refused ({second}): {first} has attached it");
                (shared.notices)(&Notice::Denied { client: &client, what: &what });
            }
        }
    }

    fn attach(&mut self, io: &mut Io, shared: &Shared, socket: OwnedFd) {
        let Some(vhost_user) = &self.export.vhost_user else { return };
        // The last front-end may have come from another process, with another number of queues.
        self.queues = offered(&self.export, shared);
        let at = vhost_user.listener.names();
        let Arrival { fd: socket, id, peer, who, tally, .. } =
            shared.clients.attached(io.number, socket, at, self.queues.into());
        let Some((_, bucket)) = shared.exports.choose(self.export_id, &who, &tally) else {
            shared.exports.was_refused(&self.export.name);
            if let Some(client) = shared.clients.get(id) {
                (shared.notices)(&Notice::Refused { client: &client, export: &self.export.name });
            }
            return shared.clients.left(id);
        };
        if !raw::watch(&mut io.ring, &socket, Kind::Recv, self.number) {
            shared.exports.left(self.export_id, &tally);
            if let Some(client) = shared.clients.get(id) {
                let why = "the kernel does not watch its socket";
                (shared.notices)(&Notice::Dropped { client: &client, why });
            }
            return shared.clients.left(id);
        }
        shared.clients.chose(id, &self.export.name);
        self.export.board().attached(id);
        let offer = Offer { queues: self.queues, in_order: vhost_user.in_order, config: config_of(&self.export) };
        let front = Front::new((socket, id, peer, tally, bucket), self.queues, Session::new(offer), shared);
        self.front = Some(Box::new(front));
    }
}

/// Returns the number of queues that the device of an export offers to a front-end that attaches it now.
fn offered(export: &Served, shared: &Shared) -> u16 {
    let reactors = shared.options.reactors.clamp(1, MAX_QUEUES.into()) as u16;
    let asked = export.vhost_user.as_ref().and_then(|vhost_user| vhost_user.queues);
    let queues = asked.unwrap_or(reactors).clamp(1, MAX_QUEUES);
    export.board().offers(queues);
    queues
}

impl Front {
    /// Makes the front-end of a device with so many queues. Its socket is watched.
    pub(super) fn new(
        (socket, client, peer, tally, bucket): (OwnedFd, u64, Peer, Arc<Tally>, Arc<Bucket>),
        queues: u16,
        session: Session,
        shared: &Shared,
    ) -> Front {
        Front {
            socket,
            watch: Watch::Armed,
            client,
            peer,
            tally,
            bucket,
            session: Protocol(session),
            inbox: Inbox::default(),
            readable: true,
            silent_until: Some(Instant::now() + shared.options.handshake),
            queues: vec![Place::Nowhere; queues.into()],
            due: None,
            orders: 0,
            last_avail: None,
            flushes: false,
            flushing: false,
            resized: None,
            leaves: false,
            complaint: None,
        }
    }

    fn drop_it(&mut self, why: &str) {
        if !self.leaves {
            self.complaint = Some(why.into());
            self.hang_up();
        }
    }

    fn hang_up(&mut self) {
        self.leaves = true;
        // Tells the front-end at once, although requests are still to be finished. If the shutdown fails, the
        // connection is broken already.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    fn is_gone(&self) -> bool {
        let has_queues = self.queues.iter().any(|place| *place != Place::Nowhere);
        self.leaves && !has_queues && !self.flushing && self.watch == Watch::No
    }

    /// Reads messages and answers them. Returns true if there may be more, for the next turn.
    fn go_on(
        &mut self,
        io: &mut Io,
        shared: &Shared,
        export: &Arc<Served>,
        at: (DeviceAt, u32),
        suspended: bool,
    ) -> bool {
        for _ in 0..BATCH {
            if self.leaves {
                self.end_queues(io);
                self.watch.end(io, Kind::Recv, at.0.session);
                return false;
            }
            self.flush(io, export, at);
            if self.orders > 0 || self.flushing {
                return false;
            }
            if let Some(due) = self.due.take() {
                self.answer(due);
                continue;
            }
            if suspended {
                self.settle(io, at.0.session);
                return false;
            }
            if let Some(resize) = self.resized.take() {
                self.resize(io, export, resize);
                continue;
            }
            if self.watch == Watch::No {
                // The kernel ends a watch when it has no room for an event.
                match raw::watch(&mut io.ring, &self.socket, Kind::Recv, at.0.session) {
                    true => self.watch = Watch::Armed,
                    false => self.drop_it("the kernel does not watch its socket"),
                }
                self.readable = true;
                continue;
            }
            if !self.readable {
                return false;
            }
            match self.inbox.read(self.socket.as_fd()) {
                Read::Message(message) => {
                    self.silent_until = None;
                    let step = self.session.0.message(&message.header, &message.body, message.fds);
                    match step {
                        Ok(step) => {
                            if let (Some(why), Some(client)) = (&step.refused, shared.clients.get(self.client)) {
                                let what = format!("a message of the front-end was refused: {why}");
                                (shared.notices)(&Notice::Denied { client: &client, what: &what });
                            }
                            self.due = Some(step.answer);
                            self.carry_out(io, shared, export, at, step.todo);
                        }
                        Err(broken) => self.drop_it(&broken.to_string()),
                    }
                }
                Read::Later => self.readable = false,
                Read::Closed => self.hang_up(),
                Read::Broken(why) => self.drop_it(&why),
            }
        }
        true
    }

    /// Sends the answer to a message whose orders were carried out.
    fn answer(&mut self, due: Due) {
        let reply = match due {
            Due::None => return,
            Due::Reply(reply) => reply,
            Due::Base { queue } => {
                let base = self.session.0.queue(queue).map_or(0, |setup| setup.base);
                let last_avail = self.last_avail.take().unwrap_or(base);
                self.session.0.base(queue, last_avail)
            }
        };
        if let Err(why) = socket::send(self.socket.as_fd(), &reply) {
            self.drop_it(&why);
        }
    }

    /// Tells the queues, and then the front-end, that the size of the export has changed.
    fn resize(&mut self, io: &Io, export: &Export, resize: Resize) {
        if resize == Resize::Found {
            let config = config_of(export);
            self.session.0.set_config(config);
            self.order_all(io, || QueueOrder::Config(config));
            return self.resized = Some(Resize::ByQueues);
        }
        if let (Some(bytes), Some(socket)) = (self.session.0.config_changed(), self.session.0.backend_channel())
            && let Err(why) = socket::send_bytes(socket, &bytes, None)
        {
            self.drop_it(&format!("the new size could not be told: {why}"));
        }
    }

    /// Sends the orders that a message causes.
    fn carry_out(&mut self, io: &Io, shared: &Shared, export: &Arc<Served>, at: (DeviceAt, u32), todo: Todo) {
        match todo {
            Todo::Nothing => {}
            Todo::Memory { removes } => {
                let memory = self.session.0.memory().clone();
                self.order_all(io, || QueueOrder::Memory { memory: memory.clone(), drain: removes });
            }
            Todo::Start { queue } => self.begin(io, shared, export, at, queue),
            Todo::Stop { queue, .. } => {
                // Requests are finished even where the front-end would not wait for them: they cannot be cancelled, and
                // would write to its memory later.
                self.last_avail = None;
                self.end_queue(io, queue.into());
            }
            Todo::Enable { queue } => {
                let is_enabled = self.session.0.queue(queue).is_some_and(|setup| setup.enabled);
                self.order(io, queue, QueueOrder::Enable(is_enabled));
            }
            Todo::Call { queue } => {
                let call = self.session.0.queue(queue).and_then(|setup| setup.call.clone());
                self.order(io, queue, QueueOrder::Call(call));
            }
            Todo::Kick { queue } => {
                if let Some(kick) = self.session.0.queue(queue).and_then(|setup| setup.kick.clone()) {
                    self.order(io, queue, QueueOrder::Kick(kick));
                }
            }
            Todo::WriteCache => {
                let writes_back = self.session.0.writes_back();
                self.order_all(io, || QueueOrder::WriteBack(writes_back));
                self.flushes = !writes_back;
            }
            Todo::Reset => self.end_queues(io),
        }
    }

    /// Sends an order to a queue that runs.
    fn order(&mut self, io: &Io, queue: u16, order: QueueOrder) {
        if let Some(Place::Runs { reactor, session }) = self.queues.get(usize::from(queue)).copied() {
            io.shared.order(reactor, Order::Queue { session, order });
            self.orders += 1;
        }
    }

    fn order_all(&mut self, io: &Io, order: impl Fn() -> QueueOrder) {
        (0..self.queues.len() as u16).for_each(|queue| self.order(io, queue, order()));
    }

    /// Sends a queue that runs the order to end. The order is carried out when the queue tells [`Told::Ended`].
    fn end_queue(&mut self, io: &Io, queue: usize) {
        if let Some(Place::Runs { .. }) = self.queues.get(queue) {
            self.order(io, queue as u16, QueueOrder::End);
            self.queues[queue] = Place::Ends;
        }
    }

    pub(super) fn end_queues(&mut self, io: &Io) {
        (0..self.queues.len()).for_each(|queue| self.end_queue(io, queue));
    }

    /// Begins to serve a queue, on the reactors in turn.
    pub(super) fn begin(
        &mut self,
        io: &Io,
        shared: &Shared,
        export: &Arc<Served>,
        (device, export_id): (DeviceAt, u32),
        index: u16,
    ) {
        let session = &self.session.0;
        let Some(setup) = session.queue(index) else { return };
        let Some(kick) = setup.kick.clone() else { return };
        let slots = session.inflight(index);
        let ring = match sheave_vhost::Queue::new(setup, session.memory().clone(), session.features(), slots) {
            Ok(ring) => ring,
            Err(broken) => return self.drop_it(&format!("queue {index}: {broken}")),
        };
        let reactor = shared.reactor_for(export_id, index);
        let begin = Begin {
            device,
            index,
            ring,
            size: setup.size,
            config: config_of(export),
            writes_back: session.writes_back(),
            is_enabled: setup.enabled,
            kick,
            call: setup.call.clone(),
            export_id,
            export: export.clone(),
            bucket: self.bucket.clone(),
            tally: self.tally.clone(),
            peer: self.peer,
        };
        self.queues[usize::from(index)] = Place::Begins(reactor);
        self.orders += 1;
        io.shared.order(reactor, Order::BeginQueue(Box::new(begin)));
    }

    /// Flushes once all queues make their writes durable themselves, if a message has asked for that.
    fn flush(&mut self, io: &mut Io, export: &Arc<Served>, (device, export_id): (DeviceAt, u32)) {
        if self.flushes && self.orders == 0 {
            self.flushes = false;
            match io.open(export_id, export) {
                Ok(fd) => {
                    self.flushing = true;
                    let request =
                        Request { command: Command::Flush, flags: 0, cookie: 0, offset: 0, len: 0, contexts: 0 };
                    let slot = io.begin_with(device.session, fd, request, None);
                    io.start(slot);
                }
                Err(why) => self.drop_it(&format!("its write cache cannot be switched off: {why}")),
            }
        }
    }
}
