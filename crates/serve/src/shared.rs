//! What the reactors of a server share: what is served, where, within which limits, and whether it ends.

use std::fmt;
use std::io;
use std::sync::OnceLock;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use sheave_base::sync::atomic::{AtomicBool, Ordering};
use sheave_base::sync::{Arc, Mutex};
use sheave_base::trace::writer::TraceWriter;

use sheave_iomap::slow::DEFAULT_SLOW_LIMIT;
use sheave_nbd::Extent;
use sheave_uring::RingHandle;

use crate::block_locks::Ask;
use crate::clients::{Arrival, Client, Clients};
use crate::export::{Exports, NoStatus};
use crate::listen::Listener;

/// What an operator would act on, or looks for later. Its words are its `Display`.
#[derive(Clone, Copy, Debug)]
pub enum Notice<'a> {
    /// The server lacks something.
    Server(&'a str),
    /// A client was dropped.
    Dropped {
        /// The client.
        client: &'a Client,
        /// Why.
        why: &'a str,
    },
    /// A client has asked for an export that it may not open.
    Refused {
        /// The client.
        client: &'a Client,
        /// The export.
        export: &'a str,
    },
}

impl fmt::Display for Notice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Server(what) => f.write_str(what),
            Notice::Dropped { why, .. } => write!(f, "a client was dropped: {why}"),
            Notice::Refused { client, export } => {
                write!(f, "a client was refused the export '{export}', which {} may not open", client.peer)
            }
        }
    }
}

/// Who hears notices, from any thread.
pub type Notices = Box<dyn Fn(&Notice<'_>) + Send + Sync>;

/// Limits of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Threads.
    pub reactors: usize,
    /// Most clients at a time. Of further ones some are accepted and told nothing until there is a place; the others
    /// wait in the queues of the listening sockets.
    pub max_clients: u32,
    /// Bytes in flight of one client. A request may exceed it when it is the client's only one.
    pub client_bytes: u64,
    /// Bytes in flight of all clients.
    pub server_bytes: u64,
    /// How long a client may take to choose its export.
    pub handshake: Duration,
    /// How long a client may hold memory without sending or taking any of what it holds it for while others wait for
    /// some.
    pub stall: Duration,
    /// How long a client may have nothing to do while all places are taken and others wait for one.
    pub idle: Duration,
    /// How long the end waits for requests under way.
    pub drain: Duration,
    /// I/O that takes longer is kept as slow, whatever is usual.
    pub slow_limit: Duration,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            reactors: std::thread::available_parallelism().map_or(1, usize::from),
            max_clients: 1024,
            client_bytes: 64 << 20,
            server_bytes: 512 << 20,
            handshake: Duration::from_secs(10),
            stall: Duration::from_secs(10),
            idle: Duration::from_secs(60),
            drain: Duration::from_secs(10),
            slow_limit: DEFAULT_SLOW_LIMIT,
        }
    }
}

/// What a reactor is given to do from outside.
pub(crate) enum Order {
    /// Drop the clients of the export with this number, let go of its file, and tell when that is so.
    Close { export: u32, done: SyncSender<()> },
    /// Serve this client, which another reactor has accepted.
    Come(Arrival),
    /// Drop this client.
    Disconnect { client: u64 },
    /// An export has another limit: requests that were held back begin now.
    Limits,
    /// Write what ends to this trace from now on, or to none, and tell when that is so.
    Trace { to: Option<TraceWriter>, done: SyncSender<()> },
    /// Answer.
    Ping { done: SyncSender<()> },
    /// Say when no changes without an entry are under way of blocks that are to be rewritten.
    Ask(Ask),
    /// Start a request that waited for others.
    Turn { slot: u32 },
    /// Tell a client the status of the range that it asked for.
    Status { conn: usize, found: Result<Vec<Extent>, NoStatus> },
}

/// Orders for one reactor. A thread that has something to tell a client holds these alone, and none of the exports.
#[derive(Default)]
pub(crate) struct Orders {
    some: AtomicBool,
    list: Mutex<Vec<Order>>,
    /// Wakes the reactor.
    handle: OnceLock<RingHandle>,
}

impl Orders {
    /// Gives the reactor something to do, and wakes it.
    pub(crate) fn put(&self, order: Order) {
        self.list.lock().expect("invariant: nothing panics under this lock").push(order);
        // Release: pairs with the swap in `Shared::take_orders`.
        self.some.store(true, Ordering::Release);
        self.handle.get().into_iter().for_each(RingHandle::wake);
    }
}

/// What all reactors share.
pub(crate) struct Shared {
    pub(crate) exports: Exports,
    pub(crate) listeners: Vec<Listener>,
    pub(crate) options: ServerOptions,
    pub(crate) notices: Notices,
    pub(crate) clients: Clients,
    stop: AtomicBool,
    orders: Vec<Arc<Orders>>,
}

impl Shared {
    pub(crate) fn new(exports: Exports, listeners: Vec<Listener>, options: ServerOptions, notices: Notices) -> Shared {
        let orders = (0..options.reactors.max(1)).map(|_| Arc::default()).collect();
        let (clients, stop) = (Clients::new(options.reactors.max(1)), AtomicBool::new(false));
        Shared { exports, listeners, options, notices, clients, stop, orders }
    }

    /// Tells the reactors to end; they must be woken.
    pub(crate) fn end(&self) {
        // Release: pairs with the load in `Shared::is_ending`.
        self.stop.store(true, Ordering::Release);
    }

    /// A reactor is there, and is woken by this.
    pub(crate) fn is_there(&self, reactor: usize, handle: RingHandle) {
        let first = self.orders[reactor].handle.set(handle);
        debug_assert!(first.is_ok(), "a reactor is made once");
    }

    /// Gives a reactor something to do, and wakes it.
    pub(crate) fn order(&self, reactor: usize, order: Order) {
        if let Some(orders) = self.orders.get(reactor) {
            orders.put(order);
        }
    }

    /// Returns the orders of a reactor, for a thread that outlives the server by a moment.
    pub(crate) fn orders_of(&self, reactor: usize) -> Arc<Orders> {
        Arc::clone(&self.orders[reactor])
    }

    /// What a reactor was given to do since it asked last.
    pub(crate) fn take_orders(&self, reactor: usize) -> Vec<Order> {
        let orders = &self.orders[reactor];
        // Acquire: pairs with the store in `Orders::put`; the list is read under its lock anyway. The load alone
        // keeps the turns of a busy reactor from writing to the line.
        if !orders.some.load(Ordering::Acquire) || !orders.some.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        std::mem::take(&mut *orders.list.lock().expect("invariant: nothing panics under this lock"))
    }

    pub(crate) fn is_ending(&self) -> bool {
        // Acquire: pairs with the store in `Shared::end`; whoever sees it sees what came before.
        self.stop.load(Ordering::Acquire)
    }
}

/// An error of the system in words, for a notice.
pub(crate) fn words(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}
