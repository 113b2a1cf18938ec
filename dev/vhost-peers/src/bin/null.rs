//! A vhost-user-blk back-end on the crate `vhost-user-backend` that answers each request at once, without touching its
//! data: the cost of that crate and of `virtio-queue` alone. Written like the examples of those crates.
//!
//! ```text
//! null SOCKET [--size BYTES]
//! ```

use std::error::Error;
use std::io;
use std::ops::Deref;

use vhost::vhost_user::Listener;
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vhost_user_backend::{VhostUserBackendMut, VhostUserDaemon, VringRwLock, VringState, VringT};
use virtio_bindings::virtio_blk::{VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_SEG_MAX};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use virtio_queue::{DescriptorChain, QueueOwnedT};
use vm_memory::{Address, Bytes, GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::{EventConsumer, EventFlag, EventNotifier, new_event_consumer_and_notifier};

/// Bit of vhost-user for protocol features, which `virtio-bindings` does not have.
const PROTOCOL_FEATURES: u64 = 1 << 30;
const QUEUES: usize = 4;
const QUEUE_SIZE: usize = 1024;
const SEG_MAX: u32 = 126;

type Memory = GuestMemoryAtomic<GuestMemoryMmap>;

struct Null {
    memory: Memory,
    event_idx: bool,
    config: Vec<u8>,
}

impl Null {
    fn new(memory: Memory, size: u64) -> Self {
        let mut config = vec![0; 60];
        config[..8].copy_from_slice(&(size / 512).to_le_bytes());
        config[12..16].copy_from_slice(&SEG_MAX.to_le_bytes());
        Null { memory, event_idx: false, config }
    }

    /// Answers all requests in the ring.
    fn process(&self, vring: &mut VringState) -> Result<(), Box<dyn Error>> {
        let memory = self.memory.memory();
        let chains: Vec<_> = vring.get_queue_mut().iter(memory.clone())?.collect();
        if chains.is_empty() {
            return Ok(());
        }
        for chain in chains {
            let head = chain.head_index();
            let written = answer(chain, memory.deref())?;
            vring.add_used(head, written)?;
        }
        if vring.needs_notification()? {
            vring.signal_used_queue()?;
        }
        Ok(())
    }
}

/// Reads the header and writes the status. Returns the number of bytes that a device with data would have written.
fn answer<M>(mut chain: DescriptorChain<M>, memory: &GuestMemoryMmap) -> Result<u32, Box<dyn Error>>
where
    M: Deref<Target = GuestMemoryMmap> + Clone,
{
    let header = chain.next().ok_or("no header")?;
    let _sector: u64 = memory.read_obj(header.addr().checked_add(8).ok_or("an address that wraps")?)?;
    let mut last = chain.next().ok_or("no status")?;
    let mut written = 1;
    for next in chain {
        written += if last.is_write_only() { last.len() } else { 0 };
        last = next;
    }
    memory.write_obj(0u8, last.addr())?;
    Ok(written)
}

impl VhostUserBackendMut for Null {
    type Bitmap = ();
    type Vring = VringRwLock;

    fn num_queues(&self) -> usize {
        QUEUES
    }

    fn max_queue_size(&self) -> usize {
        QUEUE_SIZE
    }

    fn features(&self) -> u64 {
        let bits = [
            VIRTIO_F_VERSION_1,
            VIRTIO_RING_F_EVENT_IDX,
            VIRTIO_RING_F_INDIRECT_DESC,
            VIRTIO_BLK_F_SEG_MAX,
            VIRTIO_BLK_F_FLUSH,
        ];
        bits.iter().fold(PROTOCOL_FEATURES, |all, bit| all | 1 << bit)
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
    }

    fn set_event_idx(&mut self, enabled: bool) {
        self.event_idx = enabled;
    }

    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        let range = offset as usize..(offset as usize).saturating_add(size as usize);
        self.config.get(range).map(<[u8]>::to_vec).unwrap_or_default()
    }

    fn update_memory(&mut self, memory: Memory) -> io::Result<()> {
        self.memory = memory;
        Ok(())
    }

    fn exit_event(&self, _thread: usize) -> Option<(EventConsumer, EventNotifier)> {
        new_event_consumer_and_notifier(EventFlag::empty()).ok()
    }

    fn handle_event(&mut self, device: u16, _: EventSet, vrings: &[VringRwLock], _: usize) -> io::Result<()> {
        let vring = vrings.get(usize::from(device)).ok_or_else(|| io::Error::other("an unknown event"))?;
        let mut vring = vring.get_mut();
        let failed = |error: Box<dyn Error>| io::Error::other(error.to_string());
        if !self.event_idx {
            return self.process(&mut vring).map_err(failed);
        }
        // A kick can come between the last look at the ring and the wish for the next kick.
        loop {
            vring.disable_notification().map_err(io::Error::other)?;
            self.process(&mut vring).map_err(failed)?;
            if !vring.enable_notification().map_err(io::Error::other)? {
                return Ok(());
            }
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let socket = args.next().ok_or("usage: null SOCKET [--size BYTES]")?;
    let size = match (args.next().as_deref(), args.next()) {
        (None, _) => 256 << 20,
        (Some("--size"), Some(bytes)) => bytes.parse()?,
        _ => return Err("usage: null SOCKET [--size BYTES]".into()),
    };
    let mut listener = Listener::new(&socket, true)?;
    loop {
        let memory = GuestMemoryAtomic::new(GuestMemoryMmap::new());
        let backend = std::sync::Arc::new(std::sync::Mutex::new(Null::new(memory.clone(), size)));
        let mut daemon = VhostUserDaemon::new("null".into(), backend, memory).map_err(|error| error.to_string())?;
        daemon.start(&mut listener).map_err(|error| error.to_string())?;
        let _ = daemon.wait(); // an error says that the front-end has left
        for handler in daemon.get_epoll_handlers() {
            handler.send_exit_event();
        }
    }
}
