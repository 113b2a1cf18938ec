//! A server: one thread that accepts connections, and one for each of the few clients.
//!
//! A client's thread reads a call, passes it to the service and sends the replies, until the client disconnects or
//! exceeds a limit (V1, V2). [`Limits`] has the limits, [`Roles`] the permissions.

use std::collections::BTreeMap;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use serde_json::{Value, json};
use sheave_base::peer::Peer;
use sheave_base::sync::atomic::{AtomicBool, Ordering};
use sheave_base::sync::{Arc, Mutex, MutexGuard};

use crate::call::{Call, CallError, Failed, Request, Role};
use crate::channel::{Channel, Received};

/// The interface that every service implements.
pub const SERVICE: &str = "org.varlink.service";
/// Definition of [`SERVICE`].
pub const SERVICE_IDL: &str = include_str!("org.varlink.service.varlink");
/// Pause after accepting failed, for example for lack of descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(200);
/// Time that the shutdown waits for calls in progress.
const END_WAIT: Duration = Duration::from_secs(10);

/// The methods of a server.
pub trait Service: Send + Sync {
    /// Returns product, version and URL of the documentation.
    fn about(&self) -> [&str; 3];

    /// Returns names and definitions of the interfaces, without [`SERVICE`].
    fn interfaces(&self) -> &[(&str, &str)];

    /// Handles a call of a method.
    ///
    /// # Errors
    ///
    /// Returns the error reply, or the fact that the caller has disconnected.
    fn call(&self, call: &mut Call<'_>) -> Result<Value, CallError>;

    /// Called with a message for the operator.
    fn notice(&self, text: &str);
}

/// Limits of clients.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Maximum length of a call.
    pub message_bytes: usize,
    /// Maximum number of clients.
    pub clients: usize,
    /// Maximum number of clients without the right to change anything (V3).
    pub readers: usize,
    /// Maximum time between the calls of a client.
    pub idle: Duration,
    /// Time limit for receiving a message that has begun, and for sending one.
    pub message: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            message_bytes: 64 << 10,
            clients: 64,
            readers: 32,
            idle: Duration::from_secs(300),
            message: Duration::from_secs(10),
        }
    }
}

/// Peers that may change something. The mode of the socket decides who can connect at all.
#[derive(Clone, Debug, Default)]
pub struct Roles {
    /// Users, in addition to root and the user of this process.
    pub admin_uids: Vec<u32>,
    /// Groups. Only the primary group of a peer counts.
    pub admin_gids: Vec<u32>,
}

impl Roles {
    /// Returns the role of a peer, and its identity.
    fn of(&self, stream: &UnixStream) -> io::Result<(Role, Peer)> {
        let peer = sheave_base::peer::peer(stream)?;
        let own = rustix::process::geteuid().as_raw();
        let is_admin = peer.uid == 0
            || peer.uid == own
            || self.admin_uids.contains(&peer.uid)
            || self.admin_gids.contains(&peer.gid);
        Ok((if is_admin { Role::Admin } else { Role::ReadOnly }, peer))
    }
}

/// A running server; stopped on drop.
pub struct Server {
    shared: Arc<Shared>,
    accepts: Option<JoinHandle<()>>,
    /// Socket whose closing wakes the accepting thread.
    wakes: Option<UnixStream>,
}

struct Shared {
    service: Arc<dyn Service>,
    limits: Limits,
    roles: Roles,
    ends: AtomicBool,
    clients: Mutex<Clients>,
}

/// The connected clients.
#[derive(Default)]
struct Clients {
    next: u64,
    all: BTreeMap<u64, (Role, UnixStream)>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Starts serving on a listening socket.
    ///
    /// # Errors
    ///
    /// Returns an error if a thread or socket cannot be created.
    pub fn start(
        listener: UnixListener,
        service: Arc<dyn Service>,
        limits: Limits,
        roles: Roles,
    ) -> io::Result<Server> {
        listener.set_nonblocking(true)?;
        let (wakes, woken) = UnixStream::pair()?;
        let (ends, clients) = (AtomicBool::new(false), Mutex::default());
        let shared = Arc::new(Shared { service, limits, roles, ends, clients });
        let accepting = shared.clone();
        let builder = std::thread::Builder::new().name("sheave-control".into());
        let accepts = builder.spawn(move || accept_all(&accepting, &listener, &woken))?;
        Ok(Server { shared, accepts: Some(accepts), wakes: Some(wakes) })
    }

    /// Stops the server: disconnects all clients and waits for calls in progress. The wait ends after some seconds if a
    /// call does not end, such as a write to a pipe that nobody reads.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        // Release: pairs with the load in `accept_all`.
        self.shared.ends.store(true, Ordering::Release);
        drop(self.wakes.take());
        // A panic of the thread was already reported, and does not stop the shutdown.
        let _ = self.accepts.take().map(JoinHandle::join);
        let mut clients = self.shared.lock();
        for (_, stream) in clients.all.values() {
            // Fails if the client has disconnected already.
            let _ = stream.shutdown(Shutdown::Both);
        }
        let threads = std::mem::take(&mut clients.threads);
        drop(clients);
        let until = Instant::now() + END_WAIT;
        while !threads.iter().all(JoinHandle::is_finished) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock().expect("invariant: nothing panics under this lock")
    }
}

fn accept_all(shared: &Arc<Shared>, listener: &UnixListener, woken: &UnixStream) {
    loop {
        let mut polled = [PollFd::new(listener, PollFlags::IN), PollFd::new(woken, PollFlags::IN)];
        // On failure the accept below has nothing to do, or reports the problem.
        let _ = rustix::event::poll(&mut polled, None);
        // Acquire: pairs with the store in `Server::end`.
        if shared.ends.load(Ordering::Acquire) {
            return;
        }
        match listener.accept() {
            Ok((stream, _)) => come(shared, stream),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                shared.service.notice(&format!("cannot take a client of the control socket: {error}"));
                std::thread::sleep(ACCEPT_AGAIN);
            }
        }
    }
}

/// Starts a thread for a client, or disconnects it if there are too many.
fn come(shared: &Arc<Shared>, stream: UnixStream) {
    let Ok((role, peer)) = shared.roles.of(&stream) else { return };
    let Ok(other) = stream.try_clone() else { return };
    let mut clients = shared.lock();
    clients.threads.retain(|thread| !thread.is_finished());
    let readers = clients.all.values().filter(|(role, _)| *role == Role::ReadOnly).count();
    let full =
        clients.all.len() >= shared.limits.clients || (role == Role::ReadOnly && readers >= shared.limits.readers);
    if full {
        return;
    }
    clients.next += 1;
    let id = clients.next;
    clients.all.insert(id, (role, other));
    let (place, serving) = (Place { shared: shared.clone(), id }, shared.clone());
    let run = move || {
        // Dropped last, also on panic.
        let _place = place;
        serve(&serving, stream, role, peer);
    };
    // If no thread can be started, the closure is dropped and with it its `Place`, whose drop takes the lock; so it is
    // released before.
    let spawned = std::thread::Builder::new().name("sheave-control-c".into());
    drop(clients);
    if let Ok(thread) = spawned.spawn(run) {
        shared.lock().threads.push(thread);
    }
}

/// The slot of a client, which is freed on drop.
struct Place {
    shared: Arc<Shared>,
    id: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.lock().all.remove(&self.id);
    }
}

/// Handles the calls of a client until it disconnects.
fn serve(shared: &Shared, stream: UnixStream, role: Role, peer: Peer) {
    let limits = &shared.limits;
    let Ok(mut channel) = Channel::new(stream, limits.message_bytes) else { return };
    // Any error ends the connection; a peer that exceeds a limit sees it closed.
    while let Ok(Some(received)) = channel.receive(Some(limits.idle), limits.message) {
        if handle(shared, &channel, role, peer, received).is_err() {
            return;
        }
    }
}

/// Handles one call.
fn handle(shared: &Shared, channel: &Channel, role: Role, peer: Peer, received: Received) -> Result<(), CallError> {
    let request: Request = serde_json::from_slice(&received.bytes).map_err(|error| CallError::Gone(error.into()))?;
    let Request { method, parameters, more, oneway, upgrade } = request;
    let parameters = parameters.unwrap_or_default();
    let send = shared.limits.message;
    let mut call = Call { channel, parameters, fds: received.fds, more, oneway, send, role, peer, method };
    let outcome = if upgrade { Err(Failed::parameter("upgrade").into()) } else { answer(shared, &mut call) };
    match outcome {
        Ok(parameters) => call.finish(Ok(parameters)),
        Err(CallError::Failed(failed)) => call.finish(Err(failed)),
        Err(gone) => Err(gone),
    }
}

fn answer(shared: &Shared, call: &mut Call<'_>) -> Result<Value, CallError> {
    let interfaces = shared.service.interfaces();
    let Some((interface, name)) = call.method.rsplit_once('.') else {
        return Err(
            Failed::Service { error: "InterfaceNotFound", parameter: Some(("interface", String::new())) }.into()
        );
    };
    let unknown = |name: &str| -> CallError {
        Failed::Service { error: "InterfaceNotFound", parameter: Some(("interface", name.into())) }.into()
    };
    if interfaces.iter().any(|(known, _)| *known == interface) {
        return shared.service.call(call);
    }
    match (interface, name) {
        (SERVICE, "GetInfo") => {
            let [product, version, url] = shared.service.about();
            let names: Vec<&str> = [SERVICE].into_iter().chain(interfaces.iter().map(|(name, _)| *name)).collect();
            let vendor = "The Sheave authors";
            Ok(json!({
                "vendor": vendor, "product": product, "version": version, "url": url, "interfaces": names
            }))
        }
        (SERVICE, "GetInterfaceDescription") => {
            let Some(Value::String(asked)) = call.parameters.get("interface") else {
                return Err(Failed::parameter("interface").into());
            };
            let own = std::iter::once(&(SERVICE, SERVICE_IDL));
            let found = own.chain(interfaces).find(|(name, _)| name == asked);
            found.map(|(_, idl)| json!({ "description": idl })).ok_or_else(|| unknown(asked))
        }
        (SERVICE, _) => Err(Failed::no_method(&call.method).into()),
        _ => Err(unknown(interface)),
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("clients", &self.shared.lock().all.len()).finish_non_exhaustive()
    }
}
