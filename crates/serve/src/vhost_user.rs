//! Exports that virtual machines attach by vhost-user: the socket of an export, and the reports about its device.

use sheave_base::sync::atomic::{AtomicU32, Ordering};
use sheave_base::sync::{Arc, Mutex, MutexGuard};

use crate::listen::{Address, Listener};

/// Most queues of a device.
pub const MAX_QUEUES: u16 = 64;

/// A socket where the front-end of a virtual machine attaches an export as a virtio block device.
#[derive(Debug)]
pub struct VhostUser {
    /// The unix socket. One front-end is served at a time; a second one is refused.
    pub listener: Listener,
    /// Number of queues that the device offers; `None`: the number of reactors.
    pub queues: Option<u16>,
    /// True if the device offers `VIRTIO_F_IN_ORDER`. Requests are then completed in the order in which the guest made
    /// them available.
    pub in_order: bool,
}

/// State of a vhost-user device, for reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VhostUserStatus {
    /// The address of its socket.
    pub address: Address,
    /// Number of queues that it offers.
    pub queues: u16,
    /// Number of the client that has attached it ([`Client::id`](crate::Client::id)); `None` without a front-end.
    pub client: Option<u64>,
    /// The queues that the front-end has set up.
    pub running: Vec<VhostQueueStatus>,
}

/// State of a queue of a vhost-user device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VhostQueueStatus {
    /// Index of the queue.
    pub index: u16,
    /// Number of the reactor that serves it.
    pub reactor: usize,
    /// Number of descriptors.
    pub size: u16,
    /// Number of requests in flight.
    pub in_flight: u32,
}

/// State of a device that its reactors keep current, for reports.
#[derive(Debug, Default)]
pub(crate) struct Board(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    offered: u16,
    client: Option<u64>,
    /// The queues that run, each with the number of its requests under way, which its reactor writes.
    running: Vec<(VhostQueueStatus, Arc<AtomicU32>)>,
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("invariant: nothing panics under this lock")
    }

    pub(crate) fn offers(&self, queues: u16) {
        self.lock().offered = queues;
    }

    pub(crate) fn attached(&self, client: u64) {
        self.lock().client = Some(client);
    }

    pub(crate) fn detached(&self) {
        self.lock().client = None;
    }

    /// Called when a queue begins. Returns the counter of its requests under way.
    pub(crate) fn runs(&self, index: u16, reactor: usize, size: u16) -> Arc<AtomicU32> {
        let in_flight = Arc::new(AtomicU32::new(0));
        let status = VhostQueueStatus { index, reactor, size, in_flight: 0 };
        let mut state = self.lock();
        state.running.push((status, in_flight.clone()));
        state.running.sort_by_key(|(status, _)| status.index);
        in_flight
    }

    pub(crate) fn stopped(&self, index: u16) {
        self.lock().running.retain(|(status, _)| status.index != index);
    }

    /// Returns the status of the device at this address.
    pub(crate) fn status(&self, address: &Address) -> VhostUserStatus {
        let state = self.lock();
        // Relaxed: a number for reports.
        let now = |(status, in_flight): &(VhostQueueStatus, Arc<AtomicU32>)| VhostQueueStatus {
            in_flight: in_flight.load(Ordering::Relaxed),
            ..*status
        };
        let running = state.running.iter().map(now).collect();
        VhostUserStatus { address: address.clone(), queues: state.offered, client: state.client, running }
    }
}
