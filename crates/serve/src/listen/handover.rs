//! Listening sockets that one process hands over to the next, so that no client is refused meanwhile.
//!
//! Owns the list of the sockets that this process listens on, and those that it got from its predecessor:
//! [`Listener::bind`] uses one of these in the place of a new socket. A connection that nobody has accepted yet waits
//! in the socket.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use sheave_base::sync::Arc;
use sheave_base::sync::atomic::Ordering;

use super::{Address, BACKLOG, Listener, Socket, inode};

/// Sockets of this process.
static OPEN: Mutex<Vec<Weak<Socket>>> = Mutex::new(Vec::new());
/// Sockets of the predecessor that this process has not used yet.
static INHERITED: Mutex<Vec<HandedOver>> = Mutex::new(Vec::new());

/// A listening socket that is handed over.
#[derive(Debug)]
pub struct HandedOver {
    /// The socket.
    pub fd: OwnedFd,
    /// The address as configured.
    pub asked_for: Address,
    /// The address with the port that was bound.
    pub address: Address,
    /// True if the path of the socket is removed with the listener.
    pub owns_path: bool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic of another holder leaves a list of complete entries.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds a socket to those of this process.
pub(super) fn add(socket: &Arc<Socket>) {
    let mut open = locked(&OPEN);
    open.retain(|socket| socket.strong_count() > 0);
    open.push(Arc::downgrade(socket));
}

/// Duplicates all sockets that this process listens on.
///
/// # Errors
///
/// Fails if there is no free descriptor.
pub fn open_now() -> io::Result<Vec<HandedOver>> {
    let open: Vec<_> = locked(&OPEN).iter().filter_map(Weak::upgrade).collect();
    let copy = |socket: &Arc<Socket>| {
        Ok(HandedOver {
            fd: socket.fd.try_clone()?,
            asked_for: socket.asked_for.clone(),
            address: socket.address.clone(),
            owns_path: socket.inode.is_some(),
        })
    };
    open.iter().map(copy).collect()
}

/// Leaves the paths of all sockets that are open now in place when their listeners are dropped, because another process
/// may have them; or has them removed then, as usual.
pub fn leave_paths(leave: bool) {
    for socket in locked(&OPEN).iter().filter_map(Weak::upgrade) {
        // Relaxed: the thread that drops the listener has got it by other means, which order the two.
        socket.leaves_path.store(leave, Ordering::Relaxed);
    }
}

/// Inherits those of the sockets on which this process does not listen any more.
pub fn inherit_closed(all: Vec<HandedOver>) {
    let open: Vec<_> = locked(&OPEN).iter().filter_map(Weak::upgrade).collect();
    let is_closed = |one: &HandedOver| !open.iter().any(|socket| socket.asked_for == one.asked_for);
    inherit(all.into_iter().filter(is_closed).collect());
}

/// Returns true if an inherited socket has this address.
pub fn has(asked_for: &Address) -> bool {
    locked(&INHERITED).iter().any(|one| one.asked_for == *asked_for)
}

/// Makes these the inherited sockets of this process, each of which the next [`Listener::bind`] of its address uses.
pub fn inherit(all: Vec<HandedOver>) {
    *locked(&INHERITED) = all;
}

/// Closes the inherited sockets that were not used, and removes their paths. Returns their addresses. From now on the
/// paths of all sockets are removed with their listeners: until then they may belong to the predecessor still.
pub fn end_inheritance() -> Vec<Address> {
    let rest = std::mem::take(&mut *locked(&INHERITED));
    let rest: Vec<_> = rest.into_iter().map(Listener::handed_over).collect();
    leave_paths(false);
    rest.iter().map(|listener| listener.address().clone()).collect()
}

/// Returns the inherited socket with this address, once.
pub(super) fn take(asked_for: &Address) -> Option<Listener> {
    let mut inherited = locked(&INHERITED);
    let at = inherited.iter().position(|one| one.asked_for == *asked_for)?;
    Some(Listener::handed_over(inherited.remove(at)))
}

impl Listener {
    fn handed_over(socket: HandedOver) -> Listener {
        let HandedOver { fd, asked_for, address, owns_path } = socket;
        // A connection reports the process that has called `listen` last. Fails for a socket that is broken, which the
        // first accept reports.
        let _ = rustix::net::listen(&fd, BACKLOG);
        let inode = match &address {
            Address::Unix(path) if owns_path => inode(path),
            _ => None,
        };
        let listener = Listener::of(fd, address, asked_for, inode);
        listener.socket.leaves_path.store(true, Ordering::Relaxed); // As in `leave_paths`.
        listener
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Held by each test: what they say concerns all sockets of the process.
    static ALONE: Mutex<()> = Mutex::new(());

    #[test]
    fn a_client_that_came_meanwhile_is_served_by_the_next_listener() {
        let _alone = locked(&ALONE);
        let dir = tempfile::tempdir().expect("a directory");
        let address = Address::Unix(dir.path().join("s"));
        let Address::Unix(path) = &address else { panic!("a path") };
        let first = Listener::bind(&address).expect("it listens");
        let mut all = open_now().expect("duplicated");
        all.retain(|one| one.asked_for == address);
        assert!(Listener::bind(&address).is_err(), "another server has it");
        leave_paths(true);
        drop(first);
        let _client = UnixStream::connect(path).expect("the duplicate listens");
        let kept = all.iter().map(|one| HandedOver {
            fd: one.fd.try_clone().expect("duplicated"),
            asked_for: one.asked_for.clone(),
            address: one.address.clone(),
            owns_path: one.owns_path,
        });
        let kept = kept.collect();
        inherit(all);
        let second = Listener::bind(&address).expect("inherited");
        assert!(second.accept().is_ok(), "the client had waited");
        assert!(path.exists() && Listener::bind(&address).is_err(), "each is used once");
        drop(second);
        assert!(path.exists(), "it may be that of the predecessor");
        inherit(kept);
        let third = Listener::bind(&address).expect("inherited");
        assert!(end_inheritance().is_empty());
        drop(third);
        assert!(!path.exists(), "the path is that of the third");
    }

    #[test]
    fn a_socket_that_nobody_wants_is_removed() {
        let _alone = locked(&ALONE);
        let dir = tempfile::tempdir().expect("a directory");
        let address = Address::Unix(dir.path().join("s"));
        let first = Listener::bind(&address).expect("it listens");
        let mut all = open_now().expect("duplicated");
        all.retain(|one| one.asked_for == address);
        leave_paths(true);
        drop(first);
        inherit(all);
        assert_eq!(end_inheritance(), std::slice::from_ref(&address));
        drop(Listener::bind(&address).expect("the path is free"));
    }
}
