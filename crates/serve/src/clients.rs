//! Who is connected: for reports, and to find a client that is to be disconnected.
//!
//! Each connection has a row from its accept to its end. The rows are as many as connections, which are bounded.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::SystemTime;

use sheave_base::peer::Peer;
use sheave_base::sync::{Mutex, MutexGuard};

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
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    rows: Mutex<Rows>,
}

#[derive(Debug, Default)]
struct Rows {
    next: u64,
    /// With the number of the reactor that has it.
    all: BTreeMap<u64, (usize, Client)>,
}

impl Clients {
    fn lock(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().expect("invariant: nothing panics under this lock")
    }

    /// A client was accepted by this reactor; its number.
    pub(crate) fn came(&self, reactor: usize, fd: &OwnedFd) -> u64 {
        let peer = peer(fd);
        let mut rows = self.lock();
        rows.next += 1;
        let id = rows.next;
        rows.all.insert(id, (reactor, Client { id, peer, export: None, since: SystemTime::now() }));
        id
    }

    pub(crate) fn chose(&self, id: u64, export: &str) {
        if let Some((_, client)) = self.lock().all.get_mut(&id) {
            client.export = Some(export.into());
        }
    }

    pub(crate) fn left(&self, id: u64) {
        self.lock().all.remove(&id);
    }

    pub(crate) fn reactor_of(&self, id: u64) -> Option<usize> {
        self.lock().all.get(&id).map(|(reactor, _)| *reactor)
    }

    pub(crate) fn list(&self) -> Vec<Client> {
        self.lock().all.values().map(|(_, client)| client.clone()).collect()
    }
}

/// The other end, in words.
fn peer(fd: &OwnedFd) -> String {
    if let Ok(Some(address)) = rustix::net::getpeername(fd)
        && let Ok(address) = std::net::SocketAddr::try_from(address)
    {
        return format!("tcp:{address}");
    }
    match sheave_base::peer::peer(fd) {
        Ok(Peer { pid: Some(pid), uid, .. }) => format!("process {pid} of user {uid}"),
        Ok(Peer { pid: None, uid, .. }) => format!("a container, user {uid}"),
        Err(_) => "unknown".into(),
    }
}
