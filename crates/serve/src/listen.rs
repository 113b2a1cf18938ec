//! Addresses, and the sockets that listen on them.
//!
//! A unix socket whose server has died is replaced; one whose server answers is not. The path is removed with the
//! listener, unless another socket has taken its place.

pub mod handover;

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use sheave_base::sync::atomic::AtomicBool;
use sheave_base::sync::{Arc, Mutex};

use crate::error::ServeError;
use crate::tls::{Expiry, Tls};

/// Time that another process may keep the directory of a socket locked, and the interval between attempts.
const LOCK_WAIT: Duration = Duration::from_secs(5);
const LOCK_AGAIN: Duration = Duration::from_millis(5);
/// Length of the queue of connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// An address that clients connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Path of a unix socket.
    Unix(PathBuf),
    /// Host and port. Port 0 takes a free one.
    Tcp(String),
}

impl FromStr for Address {
    type Err = ServeError;

    fn from_str(text: &str) -> Result<Address, ServeError> {
        let wrong = || ServeError::Address { text: text.into() };
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Ok(Address::Unix(path.into())),
            Some(("tcp", place)) => {
                let (host, port) = place.rsplit_once(':').ok_or_else(wrong)?;
                port.parse::<u16>().map_err(|_| wrong())?;
                if host.is_empty() { Err(wrong()) } else { Ok(Address::Tcp(place.into())) }
            }
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp(place) => write!(f, "tcp:{place}"),
        }
    }
}

/// Owner, group and mode of the path of a unix socket: decide who may connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketAccess {
    /// Mode of the path.
    pub mode: u32,
    /// Owner; `None`: the user of this process.
    pub owner: Option<u32>,
    /// Group; `None`: that of this process.
    pub group: Option<u32>,
}

impl SocketAccess {
    /// Access for the user of this process and root only.
    const OWNER: SocketAccess = SocketAccess { mode: 0o600, owner: None, group: None };
}

/// A listening socket.
#[derive(Debug)]
pub struct Listener {
    socket: Arc<Socket>,
    /// TLS for clients that connect from now on.
    tls: Mutex<Option<Tls>>,
}

/// The socket of a listener, as it can be handed over.
#[derive(Debug)]
struct Socket {
    fd: OwnedFd,
    /// The address with the port that was bound.
    address: Address,
    /// The address as configured.
    asked_for: Address,
    /// Device and inode of a unix socket, to recognize it before its path is removed.
    inode: Option<(u64, u64)>,
    /// Set when another process has the socket, and the path is to stay.
    leaves_path: AtomicBool,
}

impl Listener {
    fn of(fd: OwnedFd, address: Address, asked_for: Address, inode: Option<(u64, u64)>) -> Listener {
        let leaves_path = AtomicBool::new(false);
        let socket = Arc::new(Socket { fd, address, asked_for, inode, leaves_path });
        handover::add(&socket);
        Listener { socket, tls: Mutex::default() }
    }

    /// Listens on the address.
    ///
    /// # Errors
    ///
    /// Fails if the address cannot be listened on.
    pub fn bind(address: &Address) -> Result<Listener, ServeError> {
        if let Some(inherited) = handover::take(address) {
            return Ok(inherited);
        }
        match address {
            Address::Unix(path) => bind_unix(path, address, None),
            Address::Tcp(place) => {
                let failed = |source: io::Error| listen_error(address, source);
                let socket = TcpListener::bind(place).map_err(failed)?;
                let local = socket.local_addr().map_err(failed)?;
                Ok(Listener::of(socket.into(), Address::Tcp(local.to_string()), address.clone(), None))
            }
        }
    }

    /// Listens on the address. Only this user and root can connect to the path of a unix socket, whatever the umask is,
    /// until its mode is changed.
    ///
    /// # Errors
    ///
    /// Fails if the address cannot be listened on.
    pub fn bind_private(address: &Address) -> Result<Listener, ServeError> {
        Listener::bind_for(address, &SocketAccess::OWNER)
    }

    /// Listens on the address. From the first moment at which clients can connect to it, the path of a unix socket has
    /// the given owner, group and mode, whatever the umask is.
    ///
    /// # Errors
    ///
    /// Fails if the address cannot be listened on.
    pub fn bind_for(address: &Address, access: &SocketAccess) -> Result<Listener, ServeError> {
        if let Some(inherited) = handover::take(address) {
            return Ok(inherited);
        }
        match address {
            Address::Unix(path) => bind_unix(path, address, Some(access)),
            Address::Tcp(_) => Listener::bind(address),
        }
    }

    /// Duplicates the descriptor of the socket.
    ///
    /// # Errors
    ///
    /// Fails if there is no free descriptor.
    pub fn try_clone(&self) -> io::Result<OwnedFd> {
        self.socket.fd.try_clone()
    }

    /// Sets the TLS of clients that connect from now on; with `None` they cannot use it. Connected clients are not
    /// affected.
    pub fn set_tls(&self, tls: Option<Tls>) {
        *self.tls.lock().expect("invariant: nothing panics under this lock") = tls;
    }

    /// Returns the expiry dates of the certificates that its TLS needs.
    pub fn expiries(&self) -> Vec<Expiry> {
        self.tls().map_or_else(Vec::new, |tls| tls.expiries)
    }

    pub(crate) fn tls(&self) -> Option<Tls> {
        self.tls.lock().expect("invariant: nothing panics under this lock").clone()
    }

    /// Returns true if every client must show a certificate of an authority that the server accepts.
    #[must_use]
    pub fn asks_for_certificates(&self) -> bool {
        self.tls().is_some_and(|tls| tls.required && tls.asks_for_certificates)
    }

    /// Returns the address with the port that was bound.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.socket.address
    }

    /// Returns the address as configured: its host may be a name, and its port 0.
    #[must_use]
    pub fn asked_for(&self) -> &Address {
        &self.socket.asked_for
    }

    /// Returns both addresses, or one if they are equal: a rule may name either.
    pub(crate) fn names(&self) -> Vec<Address> {
        let Socket { asked_for, address, .. } = &*self.socket;
        let mut names = vec![asked_for.clone()];
        names.extend((address != asked_for).then(|| address.clone()));
        names
    }

    /// Returns the URI of an export, as the command lines of clients take it.
    #[must_use]
    pub fn uri(&self, export: &str) -> String {
        // If TLS is optional, the URI is that of a connection without TLS.
        let tls = if self.tls().is_some_and(|tls| tls.required) { "s" } else { "" };
        match self.address() {
            Address::Unix(path) => {
                let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                format!("nbd{tls}+unix:///{}?socket={}", escaped(export), escaped(&path.to_string_lossy()))
            }
            Address::Tcp(place) => {
                // No client can connect to a wildcard address, so the URI names the loopback address.
                let place = place.replace("0.0.0.0:", "127.0.0.1:").replace("[::]:", "[::1]:");
                format!("nbd{tls}://{place}/{}", escaped(export))
            }
        }
    }

    /// Returns the descriptor, for accepts.
    pub(crate) fn raw(&self) -> RawFd {
        self.socket.fd.as_raw_fd()
    }

    /// Takes the next connection, without waiting for one.
    pub(crate) fn accept(&self) -> Result<OwnedFd, Errno> {
        // A connection that has gone meanwhile would otherwise be waited for.
        rustix::io::ioctl_fionbio(&self.socket.fd, true)?;
        rustix::net::accept_with(
            &self.socket.fd,
            rustix::net::SocketFlags::CLOEXEC | rustix::net::SocketFlags::NONBLOCK,
        )
    }

    /// Makes a listener of a socket that another process, such as systemd, has bound and listens on. Its path is not
    /// removed with the listener.
    ///
    /// # Errors
    ///
    /// Fails if the descriptor is no listening socket.
    pub fn inherited(fd: OwnedFd) -> Result<Listener, ServeError> {
        let failed = |source: io::Error| ServeError::Listen {
            address: "the inherited socket".into(),
            fix: "Give a stream socket that listens, as a socket unit of systemd does".into(),
            source,
        };
        let listens = rustix::net::sockopt::socket_acceptconn(&fd).map_err(|error| failed(error.into()))?;
        if !listens {
            return Err(failed(io::Error::other("it does not listen")));
        }
        let name = rustix::net::getsockname(&fd).map_err(|error| failed(error.into()))?;
        let address = match std::net::SocketAddr::try_from(name.clone()) {
            Ok(local) => Address::Tcp(local.to_string()),
            Err(_) => match rustix::net::SocketAddrUnix::try_from(name) {
                Ok(local) => {
                    let path = local.path_bytes().unwrap_or_default();
                    Address::Unix(PathBuf::from(std::ffi::OsStr::from_bytes(path)))
                }
                Err(error) => return Err(failed(error.into())),
            },
        };
        Ok(Listener::of(fd, address.clone(), address, None))
    }

    pub(crate) fn is_tcp(&self) -> bool {
        matches!(self.socket.address, Address::Tcp(_))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.fd.as_fd()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Address::Unix(path) = &self.address
            && self.inode.is_some()
            && !*self.leaves_path.get_mut()
            && inode(path) == self.inode
        {
            // Fails if the path was removed already.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Percent-encodes all bytes except those that are allowed in every part of a URI.
fn escaped(text: &str) -> String {
    use fmt::Write;
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => out.push(byte.into()),
            // Writing to a string never fails.
            _ => _ = write!(out, "%{byte:02X}"),
        }
    }
    out
}

fn inode(path: &Path) -> Option<(u64, u64)> {
    let found = std::fs::symlink_metadata(path).ok().filter(|found| found.file_type().is_socket())?;
    Some((found.dev(), found.ino()))
}

fn bind_unix(path: &Path, address: &Address, access: Option<&SocketAccess>) -> Result<Listener, ServeError> {
    let failed = |source: io::Error| listen_error(address, source);
    let _alone = lock_directory(path).map_err(failed)?;
    let bind = || match access {
        Some(access) => bind_as(path, access),
        None => UnixListener::bind(path).map(OwnedFd::from),
    };
    let fd = match bind() {
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            remove_stale(path, address)?;
            bind().map_err(failed)?
        }
        bound => bound.map_err(failed)?,
    };
    Ok(Listener::of(fd, address.clone(), address.clone(), inode(path)))
}

/// Binds a socket whose path has the mode 0600 from the first moment on: on Linux the path gets the mode of the socket,
/// less the umask. Then sets owner, group and mode, and only then listens.
fn bind_as(path: &Path, access: &SocketAccess) -> io::Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let address = SocketAddrUnix::new(path)?;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::fs::fchmod(&fd, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
    rustix::net::bind(&fd, &address)?;
    if let Err(error) = give(path, access) {
        // No client can have connected yet.
        let _ = std::fs::remove_file(path);
        return Err(error);
    }
    rustix::net::listen(&fd, BACKLOG)?;
    Ok(fd)
}

/// Sets owner, group and mode of the path of a socket that was just bound. Works on a descriptor of the path: a user
/// who may write to the directory could replace the path in between.
fn give(path: &Path, access: &SocketAccess) -> io::Result<()> {
    use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid};
    let place = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    if FileType::from_raw_mode(rustix::fs::fstat(&place)?.st_mode) != FileType::Socket {
        return Err(io::Error::other("somebody has put something else in its place"));
    }
    if access.owner.or(access.group).is_some() {
        let (owner, group) = (access.owner.map(Uid::from_raw), access.group.map(Gid::from_raw));
        rustix::fs::chownat(&place, "", owner, group, AtFlags::EMPTY_PATH)?;
    }
    // An `O_PATH` descriptor has no `fchmod`: its mode is changed by its name in /proc.
    let own = format!("/proc/self/fd/{}", place.as_raw_fd());
    rustix::fs::chmod(own, Mode::from_raw_mode(access.mode))?;
    Ok(())
}

/// Locks the directory of a socket until the result is dropped. Without the lock, two servers that want one path could
/// both find a stale socket there, and the slower one would remove the socket of the faster; and a socket that is bound
/// but does not listen yet looks as if its server were gone.
fn lock_directory(path: &Path) -> io::Result<OwnedFd> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let directory = OwnedFd::from(std::fs::File::open(parent)?);
    let until = Instant::now() + LOCK_WAIT;
    loop {
        match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(directory),
            // A server holds the lock for an instant; another process may hold it for ever.
            Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < until => std::thread::sleep(LOCK_AGAIN),
            Err(Errno::WOULDBLOCK) => {
                let why = format!("another process keeps the directory {} locked (flock)", parent.display());
                return Err(io::Error::other(why));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Removes a socket whose server is gone.
fn remove_stale(path: &Path, address: &Address) -> Result<(), ServeError> {
    if inode(path).is_none() {
        return Err(ServeError::NotASocket { path: path.display().to_string() });
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(|source| listen_error(address, source))
        }
        // After a server was killed, its kernel ring keeps the socket listening for an instant.
        Ok(stream) if is_dead(&stream) => std::fs::remove_file(path).map_err(|source| listen_error(address, source)),
        // The server lives: it answers, or its backlog is full, or this user may not connect.
        _ => Err(ServeError::InUse { address: address.to_string() }),
    }
}

/// Returns true if the process that listened is gone, or has ended and its parent does not know that yet.
fn is_dead(stream: &UnixStream) -> bool {
    let pid = sheave_base::peer::peer(stream).ok().and_then(|peer| peer.pid);
    let pid = pid.and_then(|pid| rustix::process::Pid::from_raw(pid.get().try_into().ok()?));
    let Some(pid) = pid else { return false };
    match rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) {
        Ok(process) => {
            let mut polled = [PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN)];
            poll(&mut polled, Some(&Timespec::default())).is_ok_and(|many| many > 0)
        }
        Err(errno) => errno == Errno::SRCH,
    }
}

fn listen_error(address: &Address, source: io::Error) -> ServeError {
    if source.kind() == ErrorKind::AddrInUse {
        return ServeError::InUse { address: address.to_string() };
    }
    let fix = match (address, source.kind()) {
        (Address::Unix(_), ErrorKind::NotFound) => "Make the directory first",
        (Address::Unix(_), ErrorKind::InvalidInput) => "Choose a shorter path: a socket's has at most 107 bytes",
        (Address::Unix(_), _) => "Choose a path that this user may write to",
        (Address::Tcp(_), ErrorKind::PermissionDenied) => "Choose a port from 1024 on",
        (Address::Tcp(_), _) => "Choose an address that this machine has, such as tcp:127.0.0.1:10809",
    };
    ServeError::Listen { address: address.to_string(), fix: fix.into(), source }
}

/// Sets the options of an accepted socket: large buffers for a unix socket, no delay and keepalive for TCP.
pub(crate) fn prepare(fd: OwnedFd, is_tcp: bool) -> OwnedFd {
    /// Size that is requested, so that a batch of replies fits into one send. The system may grant less.
    const BUFFER: usize = 4 << 20;
    // All of these are optional: a socket that refuses one works without it.
    if !is_tcp {
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&fd, BUFFER);
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&fd, BUFFER);
        return fd;
    }
    let stream = TcpStream::from(fd);
    let _ = stream.set_nodelay(true);
    let fd = OwnedFd::from(stream);
    let _ = rustix::net::sockopt::set_socket_keepalive(&fd, true);
    fd
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_wrong_ones_named() {
        assert_eq!("unix:/a b".parse::<Address>().ok(), Some(Address::Unix("/a b".into())));
        assert_eq!("tcp:[::1]:10809".parse::<Address>().ok(), Some(Address::Tcp("[::1]:10809".into())));
        for wrong in ["", "unix:", "tcp:", "tcp:host", "tcp::1", "tcp:h:70000", "tcp:h:x", "/path", "udp:h:1"] {
            assert!(wrong.parse::<Address>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn uris_are_what_clients_take() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a b");
        let listener = Listener::bind(&Address::Unix(path.clone())).expect("it listens");
        assert_eq!(listener.uri("x#y"), format!("nbd+unix:///x%23y?socket={}/a%20b", dir.path().display()));
        let tcp = Listener::bind(&Address::Tcp("127.0.0.1:0".into())).expect("it listens");
        let Address::Tcp(place) = tcp.address() else { panic!("{tcp:?}") };
        assert!(!place.ends_with(":0"));
        assert_eq!(tcp.uri(""), format!("nbd://{place}/"));
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("s");
        let address = Address::Unix(path.clone());
        // Left behind: bound, and closed without removing the path.
        drop(UnixListener::bind(&path).expect("it listens"));
        let first = Listener::bind(&address).expect("a stale socket is replaced");
        assert!(matches!(Listener::bind(&address), Err(ServeError::InUse { .. })));
        assert!(path.exists(), "a live socket stays");
        drop(first);
        assert!(!path.exists(), "the socket is removed with its listener");
        std::fs::write(&path, "data").expect("a file");
        assert!(matches!(Listener::bind(&address), Err(ServeError::NotASocket { .. })));
        assert_eq!(std::fs::read(&path).expect("it stays"), b"data");
    }

    #[test]
    fn a_socket_that_another_server_has_put_there_is_left_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("s");
        let first = Listener::bind(&Address::Unix(path.clone())).expect("it listens");
        std::fs::remove_file(&path).expect("it is there");
        let second = Listener::bind(&Address::Unix(path.clone())).expect("the path is free");
        drop(first);
        assert!(path.exists());
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn of_concurrent_servers_on_one_path_exactly_one_binds() {
        let dir = tempfile::tempdir().expect("a directory");
        for round in 0..100 {
            let path = dir.path().join(format!("s{round}"));
            drop(UnixListener::bind(&path).expect("a stale socket"));
            let address = Address::Unix(path.clone());
            let start = std::sync::Barrier::new(4);
            let bind = || {
                start.wait();
                Listener::bind(&address).ok()
            };
            let all: Vec<_> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(bind)).collect();
                threads.into_iter().filter_map(|thread| thread.join().expect("no panic")).collect()
            });
            assert_eq!(all.len(), 1, "round {round}");
            assert_eq!(inode(&path), all[0].socket.inode, "round {round}: the path is that of the one that listens");
        }
    }

    #[test]
    fn a_socket_is_made_when_nobody_else_is_at_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("s");
        let lock = lock_directory(&path).expect("nobody has it");
        std::thread::scope(|scope| {
            let bound = scope.spawn(|| Listener::bind(&Address::Unix(path.clone())).is_ok());
            std::thread::sleep(Duration::from_millis(100));
            assert!(!bound.is_finished(), "another server is at it");
            drop(lock);
            assert!(bound.join().expect("no panic"));
        });
    }

    /// A killed server: a ring of a process that no longer exists still listens on its socket.
    #[test]
    fn a_socket_whose_process_is_gone_is_replaced_though_it_answers() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("s");
        // The child listens and exits; this process keeps the socket alive by its own descriptor. A shell cannot send
        // descriptors, so it goes the other way: the socket is made here, and the child inherits it and listens.
        let fd = rustix::net::socket_with(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::STREAM,
            rustix::net::SocketFlags::empty(),
            None,
        )
        .expect("a socket");
        rustix::net::bind(&fd, &rustix::net::SocketAddrUnix::new(&path).expect("short")).expect("bound");
        let script = format!("import socket; socket.socket(fileno={}).listen(5)", fd.as_raw_fd());
        let Ok(mut child) = std::process::Command::new("python3").args(["-c", &script]).spawn() else {
            return sheave_testkit::skip("python3 is missing, which listens in another process");
        };
        // Waits for the end of the child, which stays a zombie: its parent, this process, does not take its status.
        let pid = rustix::process::Pid::from_child(&child);
        let ended = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).expect("it is a child");
        poll(&mut [PollFd::from_borrowed_fd(ended.as_fd(), PollFlags::IN)], None).expect("waited");
        drop(UnixStream::connect(&path).expect("somebody listens"));
        let listener = Listener::bind(&Address::Unix(path.clone())).expect("its process is gone");
        assert!(child.wait().expect("its status").success());
        drop(UnixStream::connect(&path).expect("the new one listens"));
        let again = Listener::bind(&Address::Unix(path));
        assert!(matches!(again, Err(ServeError::InUse { .. })), "this process lives");
        drop(listener);
    }

    /// No client can connect before the socket has its owner and mode: until then it does not listen.
    #[test]
    fn a_socket_has_its_mode_and_group_whatever_the_umask_is() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("s");
        let address = Address::Unix(path.clone());
        let group = rustix::process::getegid().as_raw();
        for mode in [0o600, 0o660, 0o606, 0o777] {
            let access = SocketAccess { mode, owner: None, group: Some(group) };
            let listener = Listener::bind_for(&address, &access).expect("it listens");
            let found = std::fs::symlink_metadata(&path).expect("it is there");
            assert_eq!((found.mode() & 0o777, found.gid()), (mode, group));
            UnixStream::connect(&path).expect("it listens");
            drop(listener);
            assert!(!path.exists());
        }
        // A socket that cannot be given to its group is removed.
        if !rustix::process::geteuid().is_root() {
            let access = SocketAccess { mode: 0o660, owner: Some(0), group: None };
            assert!(Listener::bind_for(&address, &access).is_err() && !path.exists());
        }
    }

    /// While owner and mode of the path are being changed, the socket does not listen, and only its owner has access.
    #[test]
    fn a_path_that_was_replaced_meanwhile_is_not_given_away() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, target) = (dir.path().join("s"), dir.path().join("target"));
        let access = SocketAccess { mode: 0o666, owner: None, group: None };
        // A link to a socket of another server, and a file.
        let _other = Listener::bind_private(&Address::Unix(target.clone())).expect("it listens");
        std::os::unix::fs::symlink(&target, &path).expect("a link");
        assert!(give(&path, &access).is_err());
        assert_eq!(std::fs::metadata(&target).expect("it is there").mode() & 0o777, 0o600);
        let file = dir.path().join("file");
        std::fs::write(&file, "data").expect("a file");
        let before = std::fs::metadata(&file).expect("it is there").mode();
        assert!(give(&file, &access).is_err());
        assert_eq!(std::fs::metadata(&file).expect("it is there").mode(), before);
    }
}
