//! A device as a driver sees it: connection, memory, queues, and the calls that start, stop and reconnect them.
//!
//! Owns the order of the messages, which is QEMU's: features, in-flight region, memory, then for each queue its size,
//! its base, its addresses and its eventfds, and last the enabling of all queues.
//!
//! - D1: memory, rings and the in-flight region outlive the connection, so that [`Driver::reconnect`] can go on with
//!   requests that were in flight when a back-end died.

use std::path::Path;
use std::sync::Arc;

use crate::config::BlkConfig;
use crate::error::Result;
use crate::features::{self, protocol};
use crate::front_end::FrontEnd;
use crate::inflight::Inflight;
use crate::memory::{GuestMemory, Region, RegionSpec};
use crate::message::Channel;
use crate::queue::DriverQueue;

/// Status of virtio: the driver has found the device, knows it, has negotiated features, and drives it.
const STATUS_STEPS: [u8; 4] = [1, 1 | 2, 1 | 2 | 8, 1 | 2 | 8 | 4];

/// The region of a driver, unless its options have others.
pub const DEFAULT_REGION: RegionSpec = RegionSpec::new(0x4000_0000, 64 << 20);

/// The options of a driver.
#[derive(Debug, Clone)]
pub struct Options {
    /// Features to negotiate if the back-end offers them.
    pub features: u64,
    /// Protocol features to negotiate if the back-end offers them.
    pub protocol: u64,
    /// Number of queues.
    pub queues: u16,
    /// Number of descriptors of each queue, a power of two.
    pub queue_size: u16,
    /// Regions of guest memory.
    pub regions: Vec<RegionSpec>,
    /// Largest number of pieces of an indirect request, its header and its status included.
    pub most_pieces: usize,
    /// True if the whole table of memory is sent at once, also where regions can be added one by one.
    pub whole_table: bool,
}

impl Default for Options {
    /// One queue of 128 descriptors, 64 MiB of memory, everything negotiated except IN_ORDER.
    fn default() -> Self {
        Options {
            features: features::KNOWN,
            protocol: features::KNOWN_PROTOCOL,
            queues: 1,
            queue_size: 128,
            regions: vec![DEFAULT_REGION],
            most_pieces: 128,
            whole_table: false,
        }
    }
}

impl Options {
    /// Connects to a back-end and starts the device.
    pub fn connect(&self, path: impl AsRef<Path>) -> Result<Driver> {
        self.start(FrontEnd::connect_with(path, self.protocol)?)
    }

    /// Starts the device on a connected channel.
    pub fn connect_on(&self, channel: Channel) -> Result<Driver> {
        self.start(FrontEnd::negotiate(channel, self.protocol)?)
    }

    fn start(&self, front: FrontEnd) -> Result<Driver> {
        let memory = GuestMemory::new(&self.regions)?;
        let negotiated = front.offered() & self.features;
        let new = |number| DriverQueue::new(number, self.queue_size, self.most_pieces, negotiated, &memory);
        let queues = (0..self.queues).map(new).collect::<Result<_>>()?;
        let config = if front.has(protocol::CONFIG) { Some(front.config()?) } else { None };
        let (inflight, sent) = (None, Vec::new());
        let mut driver = Driver { front, memory, queues, inflight, config, sent, options: self.clone() };
        if driver.front.has(protocol::INFLIGHT_SHMFD) {
            driver.inflight = Some(driver.front.get_inflight(self.queues, self.queue_size)?);
        }
        driver.start(&vec![0; usize::from(self.queues)])?;
        Ok(driver)
    }
}

/// A virtio-blk device that is driven in user space.
#[derive(Debug)]
pub struct Driver {
    front: FrontEnd,
    memory: GuestMemory,
    queues: Vec<DriverQueue>,
    inflight: Option<Inflight>,
    config: Option<BlkConfig>,
    /// Regions that this connection has, where regions are added one by one. They survive a reset, so they are not sent
    /// again.
    sent: Vec<Arc<Region>>,
    options: Options,
}

impl Driver {
    /// Connects with the default options.
    pub fn connect(path: impl AsRef<Path>) -> Result<Self> {
        Options::default().connect(path)
    }

    /// Returns the connection.
    pub fn front(&self) -> &FrontEnd {
        &self.front
    }

    /// Returns the connection, for calls that change what is negotiated.
    pub fn front_mut(&mut self) -> &mut FrontEnd {
        &mut self.front
    }

    /// Returns guest memory.
    pub fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// Returns the in-flight region, if the back-end has one.
    pub fn inflight(&self) -> Option<&Inflight> {
        self.inflight.as_ref()
    }

    /// Replaces the in-flight region that the next start or reconnection sends. `None` sends none.
    pub fn set_inflight(&mut self, inflight: Option<Inflight>) {
        self.inflight = inflight;
    }

    /// Returns the configuration at the time of the connection, if the back-end tells it.
    pub fn config(&self) -> Option<&BlkConfig> {
        self.config.as_ref()
    }

    /// Returns the negotiated features.
    pub fn features(&self) -> u64 {
        self.front.features()
    }

    /// Returns a queue.
    ///
    /// # Panics
    ///
    /// Panics if the driver has no such queue.
    pub fn queue(&mut self, number: u16) -> &mut DriverQueue {
        &mut self.queues[usize::from(number)]
    }

    /// Returns all queues.
    pub fn queues(&mut self) -> &mut [DriverQueue] {
        &mut self.queues
    }

    /// Takes the queues out of the driver, so that threads can have one each. The connection must stay open.
    pub fn take_queues(&mut self) -> Vec<DriverQueue> {
        std::mem::take(&mut self.queues)
    }

    /// Puts queues back, in the order of their numbers.
    pub fn put_queues(&mut self, queues: Vec<DriverQueue>) {
        self.queues = queues;
    }

    /// Sends everything that starts the device. `bases` has for each queue the index at which the back-end begins.
    pub fn start(&mut self, bases: &[u16]) -> Result<()> {
        let negotiated = self.front.offered() & self.options.features;
        let has_status = self.front.has(protocol::STATUS);
        if has_status {
            self.front.set_status(STATUS_STEPS[0])?;
            self.front.set_status(STATUS_STEPS[1])?;
        }
        self.front.set_features(negotiated)?;
        if has_status {
            self.front.set_status(STATUS_STEPS[2])?;
        }
        if let Some(inflight) = &self.inflight {
            self.front.set_inflight(inflight)?;
        }
        self.send_memory()?;
        for (queue, base) in self.queues.iter().zip(bases) {
            let (number, ring) = (queue.number(), queue.ring());
            self.front.set_vring_num(number, u32::from(ring.size()))?;
            self.front.set_vring_base(number, u32::from(*base))?;
            self.front.set_vring_addr(number, ring.addr())?;
            self.front.set_vring_kick(number, Some(queue.kick_fd()))?;
            self.front.set_vring_call(number, Some(queue.call_fd()))?;
            self.front.set_vring_err(number, Some(queue.err_fd()))?;
        }
        // Without protocol features, queues are enabled from the start.
        if negotiated & features::PROTOCOL_FEATURES != 0 {
            for queue in &self.queues {
                self.front.set_vring_enable(queue.number(), true)?;
            }
        }
        if has_status {
            self.front.set_status(STATUS_STEPS[3])?;
        }
        // A kick starts the queue. It also shows requests that were published while no back-end was there.
        self.queues.iter().try_for_each(DriverQueue::kick_always)
    }

    /// Tells the back-end which regions it has now: the difference where regions are added one by one, else the table.
    fn send_memory(&mut self) -> Result<()> {
        let regions = self.memory.regions();
        if !self.front.has(protocol::CONFIGURE_MEM_SLOTS) || self.options.whole_table {
            let regions: Vec<&Region> = regions.iter().map(|region| &**region).collect();
            return self.front.set_mem_table(&regions);
        }
        let is_in = |list: &[Arc<Region>], region| list.iter().any(|have| Arc::ptr_eq(have, region));
        for gone in self.sent.iter().filter(|region| !is_in(&regions, region)) {
            self.front.rem_mem_reg(gone)?;
        }
        for new in regions.iter().filter(|region| !is_in(&self.sent, region)) {
            self.front.add_mem_reg(new)?;
        }
        self.sent = regions;
        Ok(())
    }

    /// Stops all queues. Returns for each queue the index at which a back-end goes on.
    pub fn stop(&self) -> Result<Vec<u16>> {
        self.queues.iter().map(|queue| Ok(self.front.get_vring_base(queue.number())? as u16)).collect()
    }

    /// Connects again, after the back-end has died or the connection was closed. Memory, rings and the in-flight region
    /// stay as they are, so the back-end finds the requests that were in flight. Each queue begins at its used
    /// index, like those of QEMU, which cannot ask a dead back-end.
    pub fn reconnect(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let bases: Vec<u16> = self.queues.iter().map(|queue| queue.ring().used_index()).collect();
        self.reconnect_at(path, &bases)
    }

    /// Connects again, with the index at which each queue begins.
    pub fn reconnect_at(&mut self, path: impl AsRef<Path>, bases: &[u16]) -> Result<()> {
        self.front.hang_up();
        self.front = FrontEnd::connect_with(path, self.options.protocol)?;
        self.sent.clear();
        if !self.front.has(protocol::INFLIGHT_SHMFD) {
            self.inflight = None;
        }
        self.start(bases)
    }

    /// Starts the device again as a guest that reboots does: all requests are forgotten, and the rings are empty. Uses
    /// RESET_DEVICE where that is negotiated, and else stops the queues.
    pub fn reboot(&mut self) -> Result<()> {
        if self.front.has(protocol::RESET_DEVICE) {
            self.front.reset_device()?;
        } else {
            self.stop()?;
        }
        if self.front.has(protocol::STATUS) {
            self.front.set_status(0)?;
        }
        let negotiated = self.front.offered() & self.options.features;
        self.queues.iter_mut().for_each(|queue| queue.restart(negotiated));
        if self.inflight.is_some() {
            self.inflight = Some(self.front.get_inflight(self.options.queues, self.options.queue_size)?);
        }
        self.start(&vec![0; self.queues.len()])
    }

    /// Adds a region while the device runs. Sends the whole table where regions cannot be added one by one.
    pub fn add_region(&mut self, spec: RegionSpec) -> Result<Arc<Region>> {
        let region = self.memory.add(spec)?;
        self.send_memory()?;
        Ok(region)
    }

    /// Removes a region while the device runs.
    pub fn remove_region(&mut self, region: &Arc<Region>) -> Result<()> {
        self.memory.remove(region);
        self.send_memory()
    }

    /// Reads the configuration again.
    pub fn read_config(&mut self) -> Result<BlkConfig> {
        let config = self.front.config()?;
        self.config = Some(config);
        Ok(config)
    }
}
