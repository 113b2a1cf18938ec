//! The connected clients: for reports, and for disconnecting one of them.
//!
//! Each connection has a row from its accept to its end. The number of connections, which is bounded, bounds the rows:
//! that of NBD clients by the places, that of vhost-user front-ends by the exports, which have one each at a time.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::time::SystemTime;

use sheave_base::peer::Peer as Process;
use sheave_base::sync::{Arc, Mutex, MutexGuard};

use crate::counts::{IoCounts, Tally};
use crate::listen::Address;
use crate::shares::Peer;

/// Origin of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A process of this machine, by a unix socket, as of the time when it connected.
    Process {
        /// Its process id; `None` if it is in a container.
        pid: Option<u32>,
        /// Its user id.
        uid: u32,
        /// Its primary group id.
        gid: u32,
    },
    /// A TCP address.
    Address(SocketAddr),
    /// Not known to the kernel.
    Unknown,
}

/// Identity of a client: decides which exports it may open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    /// Its origin.
    pub origin: Origin,
    /// The common names of its certificate, once TLS has begun and the certificate was verified.
    pub certificate: Vec<String>,
    /// The address of the server that it connected to: as configured, and as bound.
    pub at: Vec<Address>,
}

/// A connected client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// Its number, which is never used again for another client.
    pub id: u64,
    /// Its identity.
    pub who: Who,
    /// The number of the reactor that serves it.
    pub reactor: usize,
    /// Its origin in words: a TCP address, or the process and user at the other end of a unix socket; and its use of
    /// TLS.
    pub peer: String,
    /// The export that it has chosen.
    pub export: Option<String>,
    /// When it connected.
    pub since: SystemTime,
    /// Counts of its requests.
    pub counts: IoCounts,
}

/// All connected clients.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    rows: Mutex<Rows>,
}

#[derive(Debug, Default)]
struct Rows {
    next: u64,
    all: BTreeMap<u64, Row>,
    /// Number of clients that each reactor has.
    by_reactor: Vec<usize>,
    /// Number of front-ends, which take no place.
    front_ends: usize,
}

/// A client that was accepted and has a place.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) fd: OwnedFd,
    pub(crate) listener: usize,
    pub(crate) id: u64,
    /// The party with which it shares memory and places.
    pub(crate) peer: Peer,
    pub(crate) who: Who,
    pub(crate) tally: Arc<Tally>,
}

/// A client that another process has served until now, as it is known to this one.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) id: u64,
    pub(crate) peer: Peer,
    pub(crate) who: Who,
    pub(crate) tally: Arc<Tally>,
}

#[derive(Debug)]
struct Row {
    /// Everything but `counts`, which are in the tally.
    client: Client,
    tally: Arc<Tally>,
    /// True for a vhost-user front-end, false for an NBD client.
    is_front_end: bool,
}

impl Row {
    fn client(&self) -> Client {
        Client { counts: self.tally.read(), ..self.client.clone() }
    }
}

impl Rows {
    /// Adds a row. `queues` is the number of queues of a front-end, and `None` for an NBD client.
    fn add(
        &mut self,
        (fd, origin): (OwnedFd, Origin),
        listener: usize,
        at: Vec<Address>,
        reactor: usize,
        queues: Option<usize>,
    ) -> Arrival {
        let who = Who { origin, certificate: Vec::new(), at };
        let (counts, tally) = (IoCounts::default(), Arc::new(Tally::new(queues.unwrap_or(1))));
        self.next += 1;
        let id = self.next;
        let (peer, since, known) = (origin.to_string(), SystemTime::now(), who.clone());
        let client = Client { id, who: known, reactor, peer, export: None, since, counts };
        self.all.insert(id, Row { client, tally: tally.clone(), is_front_end: queues.is_some() });
        Arrival { fd, listener, id, peer: origin.peer(), who, tally }
    }
}

impl Clients {
    fn lock(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().expect("invariant: nothing panics under this lock")
    }

    /// Makes the list for `reactors` reactors.
    pub(crate) fn new(reactors: usize) -> Clients {
        Clients { rows: Mutex::new(Rows { by_reactor: vec![0; reactors], ..Rows::default() }) }
    }

    /// Adds a client that reactor `accepted_by` accepted at a listener with the addresses `at`. Returns the reactor
    /// that is to serve it: the one with the fewest clients, and among equals the one that accepted it.
    pub(crate) fn came(&self, accepted_by: usize, fd: OwnedFd, listener: usize, at: Vec<Address>) -> (usize, Arrival) {
        // Before the lock: it asks the kernel.
        let origin = origin(&fd);
        let mut rows = self.lock();
        let fewest = (0..rows.by_reactor.len()).min_by_key(|at| (rows.by_reactor[*at], *at != accepted_by));
        let reactor = fewest.unwrap_or(accepted_by);
        rows.by_reactor.get_mut(reactor).into_iter().for_each(|has| *has += 1);
        (reactor, rows.add((fd, origin), listener, at, reactor, None))
    }

    /// Adds a vhost-user front-end, which has connected to the socket of an export that a device of `reactor` serves
    /// with so many queues.
    pub(crate) fn attached(&self, reactor: usize, fd: OwnedFd, at: Vec<Address>, queues: usize) -> Arrival {
        // Before the lock: it asks the kernel.
        let origin = origin(&fd);
        let mut rows = self.lock();
        rows.front_ends += 1;
        rows.add((fd, origin), 0, at, reactor, Some(queues))
    }

    /// Adds a client that another process has served until now and that `reactor` is to serve, with its number, its
    /// counts, and `queues` as in [`Clients::attached`]; `None` for an NBD client.
    pub(crate) fn restored(
        &self,
        (id, since, counts): (u64, SystemTime, &IoCounts),
        origin: Origin,
        at: Vec<Address>,
        reactor: usize,
        queues: Option<usize>,
    ) -> Known {
        let mut rows = self.lock();
        match queues {
            Some(_) => rows.front_ends += 1,
            None => rows.by_reactor.get_mut(reactor).into_iter().for_each(|has| *has += 1),
        }
        let who = Who { origin, certificate: Vec::new(), at };
        let tally = Arc::new(Tally::from(queues.unwrap_or(1), counts));
        let (peer, known, counts) = (origin.to_string(), who.clone(), IoCounts::default());
        let client = Client { id, who: known, reactor, peer, export: None, since, counts };
        rows.all.insert(id, Row { client, tally: tally.clone(), is_front_end: queues.is_some() });
        rows.next = rows.next.max(id);
        Known { id, peer: origin.peer(), who, tally }
    }

    /// Returns the number of the last client.
    pub(crate) fn last(&self) -> u64 {
        self.lock().next
    }

    /// Counts clients from the one after `last` on.
    pub(crate) fn go_on_after(&self, last: u64) {
        let mut rows = self.lock();
        // Half of the numbers are left, whatever the other process says.
        rows.next = rows.next.max(last.min(u64::MAX / 2));
    }

    pub(crate) fn chose(&self, id: u64, export: &str) {
        if let Some(row) = self.lock().all.get_mut(&id) {
            row.client.export = Some(export.into());
        }
    }

    /// Records that the client uses TLS. `names` are the common names of its certificate, if it has one.
    pub(crate) fn uses_tls(&self, id: u64, names: &[String]) {
        if let Some(row) = self.lock().all.get_mut(&id) {
            row.client.who.certificate = names.to_vec();
            row.client.peer += if names.is_empty() { ", TLS" } else { ", TLS as " };
            // The holder of a certificate has chosen the name: it is quoted and escaped, so that it cannot control a
            // terminal.
            names.first().into_iter().for_each(|name| row.client.peer += &format!("{name:?}"));
        }
    }

    pub(crate) fn left(&self, id: u64) {
        let mut rows = self.lock();
        match rows.all.remove(&id) {
            Some(row) if row.is_front_end => rows.front_ends -= 1,
            Some(row) => rows.by_reactor.get_mut(row.client.reactor).into_iter().for_each(|has| *has -= 1),
            None => {}
        }
    }

    pub(crate) fn reactor_of(&self, id: u64) -> Option<usize> {
        self.lock().all.get(&id).map(|row| row.client.reactor)
    }

    pub(crate) fn get(&self, id: u64) -> Option<Client> {
        self.lock().all.get(&id).map(Row::client)
    }

    /// Returns the number of clients that take a place.
    pub(crate) fn count(&self) -> usize {
        let rows = self.lock();
        rows.all.len() - rows.front_ends
    }

    pub(crate) fn list(&self) -> Vec<Client> {
        self.lock().all.values().map(Row::client).collect()
    }
}

impl Origin {
    /// Returns the party with which the client shares memory and places.
    pub(crate) fn peer(self) -> Peer {
        match self {
            Origin::Process { uid, .. } => Peer::User(uid),
            Origin::Address(address) => Peer::at(address.ip()),
            Origin::Unknown => Peer::Unknown,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Process { pid: Some(pid), uid, .. } => write!(f, "process {pid} of user {uid}"),
            Origin::Process { pid: None, uid, .. } => write!(f, "a container, user {uid}"),
            Origin::Address(address) => write!(f, "tcp:{address}"),
            Origin::Unknown => f.write_str("unknown"),
        }
    }
}

/// Returns the origin of the other end of a socket.
pub(crate) fn origin(fd: &OwnedFd) -> Origin {
    if let Ok(Some(address)) = rustix::net::getpeername(fd)
        && let Ok(address) = SocketAddr::try_from(address)
    {
        return Origin::Address(address);
    }
    match sheave_base::peer::peer(fd) {
        Ok(Process { pid, uid, gid }) => Origin::Process { pid: pid.map(NonZero::get), uid, gid },
        Err(_) => Origin::Unknown,
    }
}
