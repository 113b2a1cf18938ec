//! vhost-user devices: exports that virtual machines attach.
//!
//! A device is one session for its sockets ([`Device`]) and one for each queue that the guest uses ([`Queue`]), each on
//! a reactor of its own. The device owns the negotiation, the memory of the guest, and the state that another process
//! would need to take it over. A queue owns its ring while it runs. Both talk by orders alone, so that no thread waits
//! for another: the device sends a [`QueueOrder`], and the queue answers with a [`Told`].
//!
//! Invariants:
//! - G1. A queue session ends only by the order of its device. Until the device is told [`Told::Ended`], it keeps the
//!   number of the session, and the memory of the guest stays mapped.
//! - G2. An answer to the front-end is sent when all queues that it concerns have carried out their orders. Meanwhile
//!   no further message is read.
//! - G3. Whatever a front-end or a guest does wrong ends its device with one notice, and nothing else.

mod device;
mod handover;
mod queue;
mod socket;

use std::os::fd::OwnedFd;
use std::time::Instant;

use sheave_base::sync::Arc;
use sheave_vhost::block::{Config, Limits};
use sheave_vhost::{GuestMemory, block};

pub(super) use self::device::Device;
pub(crate) use self::handover::Restored;
use self::queue::Kicks;
pub(super) use self::queue::Queue;
use super::Reactor;
use super::raw::{self, Kind};
use super::requests::Io;
use super::session::Session;
use crate::counts::Tally;
use crate::export::{Export, Served};
use crate::limit::Bucket;
use crate::shared::Order;
use crate::shares::Peer;

/// Bytes of a sector, the unit of virtio block requests.
const SECTOR: u64 = 512;
/// Longest discard, and longest write of zeroes, in sectors.
const MOST_SECTORS: u32 = 1 << 21;
/// Most bytes of a serial number.
const SERIAL: usize = 20;

/// The watch of a socket, or of a kick eventfd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Watch {
    No,
    Armed,
    /// Its end was requested, and its last event has not come.
    Ending,
}

impl Watch {
    /// Ends the watch. If the kernel does not take that, a later call tries again.
    fn end(&mut self, io: &mut Io, kind: Kind, number: usize) {
        if *self == Watch::Armed && raw::unwatch(&mut io.ring, kind, number) {
            *self = Watch::Ending;
        }
    }
}

/// A device, as the sender of orders and the receiver of what its queues tell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceAt {
    pub(crate) reactor: usize,
    pub(crate) session: usize,
}

/// Everything that a queue needs to run.
pub(crate) struct Begin {
    pub(crate) device: DeviceAt,
    /// Index of the queue in its device.
    pub(crate) index: u16,
    pub(crate) ring: sheave_vhost::Queue,
    pub(crate) size: u16,
    pub(crate) config: Config,
    pub(crate) writes_back: bool,
    pub(crate) is_enabled: bool,
    pub(crate) kick: Arc<OwnedFd>,
    pub(crate) call: Option<Arc<OwnedFd>>,
    pub(crate) export_id: u32,
    pub(crate) export: Arc<Served>,
    pub(crate) bucket: Arc<Bucket>,
    pub(crate) tally: Arc<Tally>,
    pub(crate) peer: Peer,
}

/// An order of a device to one of its queues. The queue answers each when it is carried out.
pub(crate) enum QueueOrder {
    /// Go on with this memory. With `drain`, requests that use the earlier memory end first.
    Memory { memory: Arc<GuestMemory>, drain: bool },
    /// Wait for kicks by this eventfd from now on, and look at the ring once.
    Kick(Arc<OwnedFd>),
    /// Interrupt the guest by this eventfd from now on, and once at once: an interrupt may have been lost.
    Call(Option<Arc<OwnedFd>>),
    /// Take requests, or take none.
    Enable(bool),
    /// Writes that end from now on may stay in a cache, or are durable when they end.
    WriteBack(bool),
    /// The size of the device has changed.
    Config(Config),
    /// Take no more requests, finish those under way, and end.
    End,
}

/// A message of a queue to its device.
#[derive(Debug)]
pub(crate) enum Told {
    /// The queue runs as this session of its reactor.
    Begun { session: usize },
    /// The queue could not begin.
    NotBegun(String),
    /// The last order was carried out.
    Done,
    /// The queue has ended. Its next request is this entry of the available ring.
    Ended { last_avail: u16 },
    /// The guest has broken the rules of the ring; the queue takes no more requests.
    Broken(String),
}

/// Returns the configuration of an export as a virtio device.
fn config_of(export: &Export) -> Config {
    let file = export.backend.file();
    let limits = file.device().limits();
    let block = u64::from(file.block_bytes()).max(SECTOR);
    let range = Limits { max_sectors: MOST_SECTORS, alignment: (block / SECTOR) as u32, may_unmap: true };
    let changes = (!export.is_read_only()).then_some(range);
    block::Config {
        size: file.size_bytes() / block * block,
        block_bytes: block as u32,
        physical_bytes: limits.physical_block.max(block as u32).next_power_of_two(),
        optimal_bytes: 0,
        read_only: export.is_read_only(),
        writeback: true,
        discard: changes,
        write_zeroes: changes,
    }
}

/// Returns the serial number of an export: its name, or as much of it as fits and a checksum of all of it.
fn serial_of(export: &Export) -> Vec<u8> {
    let name = export.name.as_bytes();
    if name.len() <= SERIAL {
        return name.to_vec();
    }
    let sum = name
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    let tail = format!("-{:08x}", sum as u32);
    [&name[..SERIAL - tail.len()], tail.as_bytes()].concat()
}

impl Reactor {
    /// Serves the vhost-user device of an export, with the front-end that another process has served until now.
    pub(super) fn serve_device(&mut self, export_id: u32, restored: Option<Restored>) {
        let Some(export) = self.shared.exports.by_id(export_id).filter(|_| self.ends_at.is_none()) else {
            restored.into_iter().for_each(|Restored { known, .. }| self.shared.clients.left(known.id));
            return self.shared.device_left();
        };
        let number = self.free_number();
        let mut device = Box::new(Device::new(number, export_id, export, &self.shared));
        device.suspended = self.suspension.is_some();
        restored.into_iter().for_each(|restored| device.restore(&mut self.io, &self.shared, restored));
        self.sessions[number] = Some(Session::Device(device));
        self.touched.push(number);
    }

    /// Begins to serve a queue.
    pub(super) fn begin_queue(&mut self, begin: Begin) {
        let (device, index) = (begin.device, begin.index);
        let number = self.free_number();
        let told = match Queue::new(number, begin, &mut self.io) {
            Ok(queue) => {
                self.sessions[number] = Some(Session::Queue(Box::new(queue)));
                self.touched.push(number);
                Told::Begun { session: number }
            }
            Err(why) => {
                self.free.push(number);
                Told::NotBegun(why)
            }
        };
        self.shared.order(device.reactor, Order::Device { session: device.session, queue: index, told });
    }

    /// Passes an order to a queue.
    pub(super) fn order_queue(&mut self, session: usize, order: QueueOrder) {
        if let Some(Some(Session::Queue(queue))) = self.sessions.get_mut(session) {
            queue.ordered(&mut self.io, order);
            self.touched.push(session);
        }
    }

    /// Passes what a queue tells to its device.
    pub(super) fn device_told(&mut self, session: usize, queue: u16, told: Told) {
        if let Some(Some(Session::Device(device))) = self.sessions.get_mut(session) {
            device.told(&mut self.io, queue, told);
            self.touched.push(session);
        }
    }

    /// Tells the device of an export that the size of the export has changed.
    pub(super) fn resized(&mut self, export: u32) {
        for (number, session) in self.sessions.iter_mut().enumerate() {
            if let Some(Session::Device(device)) = session
                && device.export() == export
            {
                device.resized();
                self.touched.push(number);
            }
        }
    }

    /// Looks for requests of guests before the reactor sleeps, and then asks the guests for kicks. Returns true if
    /// there is something to do.
    pub(super) fn finds_requests(&mut self) -> bool {
        if self.io.awake.is_empty() {
            return false;
        }
        // With other work at hand, the reactor does not sleep, and looks again soon.
        if self.later.is_empty() {
            // The guests are told of their results before the reactor asks for kicks. One on this processor runs in
            // place of this thread then, and has its next requests ready when the call returns.
            if self.lookout.tells_first() && self.io.ring.send() {
                let found = self.look();
                self.lookout.told_first(found);
                if found {
                    return true;
                }
            }
            if self.looks_for_a_while() {
                return true;
            }
        }
        if self.want_kicks() {
            return true;
        }
        self.lookout.sleeps(Instant::now());
        false
    }

    /// Looks at the rings of queues for the time that guests usually take, if that has been worth its cost. Returns
    /// true if one has a request.
    fn looks_for_a_while(&mut self) -> bool {
        let Some(time) = self.lookout.looks_for() else { return false };
        self.io.ring.send();
        let begun = Instant::now();
        let (mut found, mut now) = (self.look(), begun);
        while !found && now - begun < time && !self.io.ring.has_events() {
            std::hint::spin_loop();
            found = self.look();
            now = Instant::now();
        }
        self.lookout.looked(found.then(|| now - begun));
        found
    }

    /// Looks at the rings of queues. Returns true if one has a request.
    fn look(&mut self) -> bool {
        let mut found = false;
        for &number in &self.io.awake {
            if let Some(Some(Session::Queue(queue))) = self.sessions.get_mut(number)
                && queue.has_requests(&self.io)
            {
                self.touched.push(number);
                found = true;
            }
        }
        found
    }

    /// Asks the guests of queues for kicks, since nobody looks at their rings while the reactor sleeps. Returns true if
    /// one has work already.
    fn want_kicks(&mut self) -> bool {
        let mut has_work = false;
        // By index: a queue that has used up its part of this turn stays in the list, which is kept in any case.
        let mut kept = 0;
        for at in 0..self.io.awake.len() {
            let number = self.io.awake[at];
            let Some(Some(Session::Queue(queue))) = self.sessions.get_mut(number) else { continue };
            match queue.want_kicks(&mut self.io) {
                Kicks::Armed => {}
                Kicks::HasWork => {
                    self.touched.push(number);
                    has_work = true;
                }
                Kicks::Later => {
                    self.io.awake[kept] = number;
                    kept += 1;
                }
            }
        }
        self.io.awake.truncate(kept);
        has_work
    }
}
