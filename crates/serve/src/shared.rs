//! State that the reactors of a server share: exports, listeners, limits, orders to reactors, and the flag that ends
//! them.

use std::fmt;
use std::io;
use std::sync::OnceLock;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use sheave_base::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use sheave_base::sync::{Arc, Mutex};
use sheave_base::trace::writer::TraceWriter;

use sheave_iomap::slow::DEFAULT_SLOW_LIMIT;
use sheave_nbd::Extent;
use sheave_uring::RingHandle;

use crate::block_locks::Ask;
use crate::clients::{Arrival, Client, Clients};
use crate::export::{Exports, NoStatus};
use crate::handover::Moved;
use crate::listen::Listener;
use crate::reactor::suspend::Coming;
use crate::reactor::vhost::{Begin, QueueOrder, Restored, Told};

/// An event that an operator would act on, or look for later. `Display` gives its words.
#[derive(Clone, Copy, Debug)]
pub enum Notice<'a> {
    /// The server cannot do something.
    Server(&'a str),
    /// A client was dropped.
    Dropped {
        /// The client.
        client: &'a Client,
        /// The reason.
        why: &'a str,
    },
    /// A message of a front-end, or a second front-end, was refused, and the client goes on.
    Denied {
        /// The client that has the device.
        client: &'a Client,
        /// Text that names the refused message or front-end, and the reason.
        what: &'a str,
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
            Notice::Denied { what, .. } => f.write_str(what),
            Notice::Refused { client, export } => {
                write!(f, "a client was refused the export '{export}', which {} may not open", client.peer)
            }
        }
    }
}

/// Receiver of notices. Called from any thread.
pub type Notices = Box<dyn Fn(&Notice<'_>) + Send + Sync>;

/// Limits of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Number of reactor threads.
    pub reactors: usize,
    /// Most clients at a time. Some further clients are accepted, and get no greeting until there is a place; the
    /// others wait in the backlogs of the listening sockets.
    pub max_clients: u32,
    /// Most bytes in flight of one client. A request may exceed it when it is the client's only one.
    pub client_bytes: u64,
    /// Most bytes in flight of all clients.
    pub server_bytes: u64,
    /// Time that a client has to choose its export.
    pub handshake: Duration,
    /// Time after which a client is dropped that holds memory for which others wait, and of whose writes and replies no
    /// byte has moved.
    pub stall: Duration,
    /// Time after which an idle client gives way, while all places are taken and others wait for one.
    pub idle: Duration,
    /// Time that the end of the server waits for requests under way.
    pub drain: Duration,
    /// Latency above which an I/O is recorded as slow, even if such latencies are usual.
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

/// An order to a reactor from another thread.
pub(crate) enum Order {
    /// Serve the vhost-user device of this export, with the front-end that another process has served until now.
    Serve { export: u32, front: Option<Box<Restored>> },
    /// Serve this client, which another process has served until now.
    GoOn(Box<Coming>),
    /// Record these slow I/Os of another process: each with its age and the group of its file.
    Recall { slow: Vec<(Vec<u64>, Duration, u64)> },
    /// Begin no more requests, and report on `done` that none is under way. From `cut_at` on, clients that do not take
    /// their replies keep them.
    Suspend { done: SyncSender<()>, cut_at: Instant },
    /// Go on as before, and report on `busy` what was under way.
    Resume { busy: SyncSender<Vec<String>> },
    /// Send all clients to `moved`, and serve none any more.
    TakeOut { moved: SyncSender<Vec<Moved>> },
    /// The size of this export has changed.
    Resized { export: u32 },
    /// Serve this queue of a vhost-user device.
    BeginQueue(Box<Begin>),
    /// Pass an order to a queue.
    Queue { session: usize, order: QueueOrder },
    /// Pass what a queue tells to its device.
    Device { session: usize, queue: u16, told: Told },
    /// Drop the clients of this export, detach its file, and report that on `done`.
    Close { export: u32, done: SyncSender<()> },
    /// Serve this client, which another reactor has accepted.
    Come(Arrival),
    /// Drop this client.
    Disconnect { client: u64 },
    /// The limit of an export has changed: held-back requests begin now.
    Limits,
    /// Write requests that end from now on to this trace, or to none, and report that on `done`.
    Trace { to: Option<TraceWriter>, done: SyncSender<()> },
    /// Report on `done` that the reactor is alive.
    Ping { done: SyncSender<()> },
    /// Answer when no changes without an entry are under way on blocks that are to be rewritten.
    Ask(Ask),
    /// Start a request whose turn has come.
    Turn { slot: u32 },
    /// Send a client the status of the range that it asked for.
    Status { conn: usize, found: Result<Vec<Extent>, NoStatus> },
}

/// Orders for one reactor. A thread that has an answer for a client holds only these, and none of the exports.
#[derive(Default)]
pub(crate) struct Orders {
    some: AtomicBool,
    list: Mutex<Vec<Order>>,
    /// Handle to wake the reactor.
    handle: OnceLock<RingHandle>,
}

impl Orders {
    /// Adds an order, and wakes the reactor.
    pub(crate) fn put(&self, order: Order) {
        self.list.lock().expect("invariant: nothing panics under this lock").push(order);
        // Release: pairs with the swap in `Shared::take_orders`.
        self.some.store(true, Ordering::Release);
        self.handle.get().into_iter().for_each(RingHandle::wake);
    }
}

/// The state that all reactors share.
pub(crate) struct Shared {
    pub(crate) exports: Exports,
    pub(crate) listeners: Vec<Listener>,
    pub(crate) options: ServerOptions,
    pub(crate) notices: Notices,
    pub(crate) clients: Clients,
    stop: AtomicBool,
    orders: Vec<Arc<Orders>>,
    /// Number of vhost-user devices, on all reactors.
    devices: AtomicUsize,
}

impl Shared {
    pub(crate) fn new(exports: Exports, listeners: Vec<Listener>, options: ServerOptions, notices: Notices) -> Shared {
        let orders = (0..options.reactors.max(1)).map(|_| Arc::default()).collect();
        let (clients, stop) = (Clients::new(options.reactors.max(1)), AtomicBool::new(false));
        let devices = AtomicUsize::new(0);
        Shared { exports, listeners, options, notices, clients, stop, orders, devices }
    }

    /// Sets the flag that ends the reactors. The caller has to wake them.
    pub(crate) fn end(&self) {
        // Release: pairs with the load in `Shared::is_ending`.
        self.stop.store(true, Ordering::Release);
    }

    /// Returns the reactor that serves a queue of an export's vhost-user device. The reactor of queue 0 also serves the
    /// sockets of the device.
    pub(crate) fn reactor_for(&self, export: u32, queue: u16) -> usize {
        (export as usize + usize::from(queue)) % self.orders.len()
    }

    /// Lets a reactor serve the device of an export. It counts from now on: until its reactor has it, the others have
    /// to stay for its queues.
    pub(crate) fn serve_device(&self, export: u32, front: Option<Box<Restored>>) {
        self.device_came();
        self.order(self.reactor_for(export, 0), Order::Serve { export, front });
    }

    fn device_came(&self) {
        // Relaxed: only the end of the last device has to be seen, see `device_left`.
        self.devices.fetch_add(1, Ordering::Relaxed);
    }

    /// Called when a device has ended. After the last one, wakes the reactors that wait for that before they end.
    pub(crate) fn device_left(&self) {
        // AcqRel: a reactor that reads 0 sees what the devices did.
        if self.devices.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.orders.iter().filter_map(|orders| orders.handle.get()).for_each(RingHandle::wake);
        }
    }

    pub(crate) fn has_devices(&self) -> bool {
        // Acquire: pairs with `device_left`.
        self.devices.load(Ordering::Acquire) > 0
    }

    /// Registers the handle that wakes a reactor.
    pub(crate) fn is_there(&self, reactor: usize, handle: RingHandle) {
        let first = self.orders[reactor].handle.set(handle);
        debug_assert!(first.is_ok(), "a reactor is made once");
    }

    /// Gives a reactor an order, and wakes it.
    pub(crate) fn order(&self, reactor: usize, order: Order) {
        if let Some(orders) = self.orders.get(reactor) {
            orders.put(order);
        }
    }

    /// Returns the orders of a reactor, for a thread that may outlive the server by a moment.
    pub(crate) fn orders_of(&self, reactor: usize) -> Arc<Orders> {
        Arc::clone(&self.orders[reactor])
    }

    /// Takes the orders of a reactor since the last call.
    pub(crate) fn take_orders(&self, reactor: usize) -> Vec<Order> {
        let orders = &self.orders[reactor];
        // Acquire: pairs with the store in `Orders::put`; the list is read under its lock anyway. The load before the
        // swap keeps the turns of a busy reactor from writing to the cache line.
        if !orders.some.load(Ordering::Acquire) || !orders.some.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        std::mem::take(&mut *orders.list.lock().expect("invariant: nothing panics under this lock"))
    }

    pub(crate) fn is_ending(&self) -> bool {
        // Acquire: pairs with the store in `Shared::end`; a thread that sees the flag sees what came before it.
        self.stop.load(Ordering::Acquire)
    }
}

/// Returns the system error with this number, whose text goes into a notice.
pub(crate) fn words(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}
