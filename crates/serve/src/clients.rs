//! Who is connected: for reports, and to find a client that is to be disconnected.
//!
//! Each connection has a row from its accept to its end. The rows are as many as connections, which are bounded.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::SystemTime;

use sheave_base::peer::Peer as Process;
use sheave_base::sync::{Arc, Mutex, MutexGuard};

use crate::counts::{IoCounts, Tally};
use crate::shares::Peer;

/// A connected client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// Its number, which is never used again.
    pub id: u64,
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
}

#[derive(Debug)]
struct Row {
    /// The number of the reactor that has it.
    reactor: usize,
    /// All but its numbers, which are in the tally.
    client: Client,
    tally: Arc<Tally>,
}

impl Clients {
    fn lock(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().expect("invariant: nothing panics under this lock")
    }

    /// A client was accepted by this reactor, which counts in this tally; its number, and with whom it shares.
    pub(crate) fn came(&self, reactor: usize, fd: &OwnedFd, tally: Arc<Tally>) -> (u64, Peer) {
        let (with, peer) = peer(fd);
        let mut rows = self.lock();
        rows.next += 1;
        let id = rows.next;
        let client = Client { id, peer, export: None, since: SystemTime::now(), counts: IoCounts::default() };
        rows.all.insert(id, Row { reactor, client, tally });
        (id, with)
    }

    pub(crate) fn chose(&self, id: u64, export: &str) {
        if let Some(row) = self.lock().all.get_mut(&id) {
            row.client.export = Some(export.into());
        }
    }

    /// It uses TLS, with a certificate of these common names, or without one.
    pub(crate) fn uses_tls(&self, id: u64, names: &[String]) {
        if let Some(row) = self.lock().all.get_mut(&id) {
            row.client.peer += if names.is_empty() { ", TLS" } else { ", TLS as " };
            // Who has a certificate has chosen the name: it is told in quotes, without what a terminal would obey.
            names.first().into_iter().for_each(|name| row.client.peer += &format!("{name:?}"));
        }
    }

    pub(crate) fn left(&self, id: u64) {
        self.lock().all.remove(&id);
    }

    pub(crate) fn reactor_of(&self, id: u64) -> Option<usize> {
        self.lock().all.get(&id).map(|row| row.reactor)
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.lock().all.len()
    }

    pub(crate) fn list(&self) -> Vec<Client> {
        let of = |row: &Row| Client { counts: row.tally.read(), ..row.client.clone() };
        self.lock().all.values().map(of).collect()
    }
}

/// The other end, for shares, and in words.
pub(crate) fn peer(fd: &OwnedFd) -> (Peer, String) {
    if let Ok(Some(address)) = rustix::net::getpeername(fd)
        && let Ok(address) = std::net::SocketAddr::try_from(address)
    {
        return (Peer::at(address.ip()), format!("tcp:{address}"));
    }
    match sheave_base::peer::peer(fd) {
        Ok(Process { pid: Some(pid), uid, .. }) => (Peer::User(uid), format!("process {pid} of user {uid}")),
        Ok(Process { pid: None, uid, .. }) => (Peer::User(uid), format!("a container, user {uid}")),
        Err(_) => (Peer::Unknown, "unknown".into()),
    }
}
