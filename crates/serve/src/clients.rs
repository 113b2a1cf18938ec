//! Who is connected: for reports, and to find a client that is to be disconnected.
//!
//! Each connection has a row from its accept to its end. The rows are as many as connections, which are bounded.

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

/// Where a client comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A process of this machine, by a unix socket: as it was when it connected.
    Process {
        /// Its number; `None` of one in a container.
        pid: Option<u32>,
        /// Its user.
        uid: u32,
        /// Its primary group.
        gid: u32,
    },
    /// An address of TCP.
    Address(SocketAddr),
    /// The kernel does not tell.
    Unknown,
}

/// By what a client is known that opens an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    /// Where it comes from.
    pub origin: Origin,
    /// The common names of its certificate, when TLS has begun and the certificate was checked.
    pub certificate: Vec<String>,
    /// The address of the server at which it came: as it was asked for, and as it is.
    pub at: Vec<Address>,
}

/// A connected client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// Its number, which is never used again.
    pub id: u64,
    /// By what it is known.
    pub who: Who,
    /// The number of the reactor that has it.
    pub reactor: usize,
    /// Where it comes from: a TCP address, or the process and user at the other end of a unix socket.
    pub peer: String,
    /// The export that it has chosen.
    pub export: Option<String>,
    /// When it connected.
    pub since: SystemTime,
    /// What was done for it.
    pub counts: IoCounts,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    rows: Mutex<Rows>,
}

#[derive(Debug, Default)]
struct Rows {
    next: u64,
    all: BTreeMap<u64, Row>,
    /// How many each reactor has.
    by_reactor: Vec<usize>,
}

/// A client that was accepted and has a place.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) fd: OwnedFd,
    pub(crate) listener: usize,
    pub(crate) id: u64,
    /// With whom it shares.
    pub(crate) peer: Peer,
    pub(crate) who: Who,
    pub(crate) tally: Arc<Tally>,
}

#[derive(Debug)]
struct Row {
    /// All but its numbers, which are in the tally.
    client: Client,
    tally: Arc<Tally>,
}

impl Row {
    fn client(&self) -> Client {
        Client { counts: self.tally.read(), ..self.client.clone() }
    }
}

impl Clients {
    fn lock(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().expect("invariant: nothing panics under this lock")
    }

    /// For so many reactors.
    pub(crate) fn new(reactors: usize) -> Clients {
        Clients { rows: Mutex::new(Rows { by_reactor: vec![0; reactors], ..Rows::default() }) }
    }

    /// A client was accepted at a listener with these addresses by this reactor: the one that gets the client, which is
    /// that with fewest, and of equals the one that accepted it.
    pub(crate) fn came(&self, accepted_by: usize, fd: OwnedFd, listener: usize, at: Vec<Address>) -> (usize, Arrival) {
        let origin = origin(&fd);
        let who = Who { origin, certificate: Vec::new(), at };
        let (counts, tally) = (IoCounts::default(), Arc::new(Tally::default()));
        let mut rows = self.lock();
        let fewest = (0..rows.by_reactor.len()).min_by_key(|at| (rows.by_reactor[*at], *at != accepted_by));
        let reactor = fewest.unwrap_or(accepted_by);
        rows.by_reactor.get_mut(reactor).into_iter().for_each(|has| *has += 1);
        rows.next += 1;
        let id = rows.next;
        let (peer, since, known) = (origin.to_string(), SystemTime::now(), who.clone());
        let client = Client { id, who: known, reactor, peer, export: None, since, counts };
        rows.all.insert(id, Row { client, tally: tally.clone() });
        (reactor, Arrival { fd, listener, id, peer: origin.peer(), who, tally })
    }

    pub(crate) fn chose(&self, id: u64, export: &str) {
        if let Some(row) = self.lock().all.get_mut(&id) {
            row.client.export = Some(export.into());
        }
    }

    /// It uses TLS, with a certificate of these common names, or without one.
    pub(crate) fn uses_tls(&self, id: u64, names: &[String]) {
        if let Some(row) = self.lock().all.get_mut(&id) {
            row.client.who.certificate = names.to_vec();
            row.client.peer += if names.is_empty() { ", TLS" } else { ", TLS as " };
            // Who has a certificate has chosen the name: it is told in quotes, without what a terminal would obey.
            names.first().into_iter().for_each(|name| row.client.peer += &format!("{name:?}"));
        }
    }

    pub(crate) fn left(&self, id: u64) {
        let mut rows = self.lock();
        if let Some(row) = rows.all.remove(&id)
            && let Some(has) = rows.by_reactor.get_mut(row.client.reactor)
        {
            *has -= 1;
        }
    }

    pub(crate) fn reactor_of(&self, id: u64) -> Option<usize> {
        self.lock().all.get(&id).map(|row| row.client.reactor)
    }

    pub(crate) fn get(&self, id: u64) -> Option<Client> {
        self.lock().all.get(&id).map(Row::client)
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.lock().all.len()
    }

    pub(crate) fn list(&self) -> Vec<Client> {
        self.lock().all.values().map(Row::client).collect()
    }
}

impl Origin {
    /// With whom it shares.
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

/// The other end.
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
