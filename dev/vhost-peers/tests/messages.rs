//! The messages of `sheave-vhost-front`, as the crate `vhost` reads them: those that qemu-storage-daemon does not know
//! (in-flight regions, resets), and the fields of all others.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use sheave_vhost_front::features::{self, protocol};
use sheave_vhost_front::{
    Channel, DEFAULT_REGION, Error as FrontError, FrontEnd, GuestMemory, Inflight, InflightDesc, Options, RegionSpec,
    VringAddr,
};
use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::*;
use vhost::vhost_user::{BackendReqHandler, Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};

const PATIENCE: Duration = Duration::from_secs(20);
const OFFERED: u64 = features::VERSION_1 | features::PROTOCOL_FEATURES | features::EVENT_IDX | features::IN_ORDER;
/// Length of the in-flight region, which is not a multiple of a page.
const INFLIGHT_LEN: u64 = 4160;

/// A back-end that writes down what it is told.
#[derive(Default)]
struct Recorder {
    told: Vec<String>,
    /// The file of the in-flight region that it has given away.
    inflight: Option<File>,
}

impl Recorder {
    fn tell(&mut self, what: String) -> Result<()> {
        self.told.push(what);
        Ok(())
    }
}

fn region(region: &VhostUserMemoryRegion) -> String {
    let VhostUserMemoryRegion { guest_phys_addr, memory_size, mmap_offset, .. } = *region;
    format!("{guest_phys_addr:#x}+{memory_size:#x} from {mmap_offset:#x}")
}

impl VhostUserBackendReqHandlerMut for Recorder {
    fn set_owner(&mut self) -> Result<()> {
        self.tell("owner".into())
    }

    fn reset_owner(&mut self) -> Result<()> {
        Err(Error::InvalidOperation("deprecated"))
    }

    fn reset_device(&mut self) -> Result<()> {
        self.tell("reset".into())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(OFFERED)
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        self.tell(format!("features {features:#x}"))
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        let regions: Vec<String> = regions.iter().map(region).collect();
        self.tell(format!("table {} with {} files", regions.join(", "), files.len()))?;
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        self.tell(format!("num {index}: {num}"))
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        flags: VhostUserVringAddrFlags,
        desc: u64,
        used: u64,
        avail: u64,
        log: u64,
    ) -> Result<()> {
        self.tell(format!("addr {index}: {:#x} {desc:#x} {used:#x} {avail:#x} {log:#x}", flags.bits()))
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        self.tell(format!("base {index}: {base}"))
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        Ok(VhostUserVringState::new(index, 1000 + index))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        self.tell(format!("kick {index}: {}", fd.is_some()))
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        self.tell(format!("call {index}: {}", fd.is_some()))
    }

    fn set_vring_err(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        self.tell(format!("err {index}: {}", fd.is_some()))
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::all())
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        self.tell(format!("protocol {features:#x}"))
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(7)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.tell(format!("enable {index}: {enable}"))
    }

    fn get_config(&mut self, offset: u32, size: u32, _: VhostUserConfigFlags) -> Result<Vec<u8>> {
        Ok((offset..offset + size).map(|at| at as u8).collect())
    }

    fn set_config(&mut self, offset: u32, buf: &[u8], flags: VhostUserConfigFlags) -> Result<()> {
        self.tell(format!("config {offset}: {buf:?}, flags {}", flags.bits()))?;
        if offset == 0 { Err(Error::InvalidParam) } else { Ok(()) }
    }

    fn set_gpu_socket(&mut self, _: GpuBackend) -> Result<()> {
        Err(Error::InvalidParam)
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        Err(Error::InvalidParam)
    }

    fn get_inflight_fd(&mut self, wanted: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let VhostUserInflight { num_queues, queue_size, .. } = *wanted;
        self.tell(format!("a new region for {num_queues} queues of {queue_size}"))?;
        let file = tempfile::tempfile().and_then(|file| file.set_len(4096 + INFLIGHT_LEN).map(|()| file));
        let file = file.map_err(Error::ReqHandlerError)?;
        self.inflight = file.try_clone().ok();
        Ok((VhostUserInflight::new(INFLIGHT_LEN, 4096, num_queues, queue_size), file))
    }

    fn set_inflight_fd(&mut self, inflight: &VhostUserInflight, file: File) -> Result<()> {
        let VhostUserInflight { mmap_size, mmap_offset, num_queues, queue_size } = *inflight;
        let len = file.metadata().map_err(Error::ReqHandlerError)?.len();
        self.tell(format!("region {mmap_size} at {mmap_offset} of {len}, {num_queues} queues of {queue_size}"))
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(509)
    }

    fn add_mem_region(
        &mut self,
        added: &VhostUserSingleMemoryRegion,
        _: File,
        _: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        self.tell(format!("add {}", region(added)))?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, removed: &VhostUserSingleMemoryRegion) -> Result<()> {
        self.tell(format!("remove {}", region(removed)))
    }

    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Result<Option<File>> {
        Err(Error::InvalidParam)
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(Error::InvalidParam)
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(Error::InvalidParam)
    }

    fn set_log_base(&mut self, _: &VhostUserLog, _: File) -> Result<()> {
        Err(Error::InvalidParam)
    }
}

/// A connection to a recorder, and its thread, which ends with the connection.
struct Peer {
    recorder: Arc<Mutex<Recorder>>,
    thread: JoinHandle<()>,
}

impl Peer {
    fn start() -> (Self, Channel) {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let recorder = Arc::new(Mutex::new(Recorder::default()));
        let mut handler = BackendReqHandler::from_stream(theirs, recorder.clone());
        let thread = std::thread::spawn(move || while handler.handle_request().is_ok() {});
        (Peer { recorder, thread }, Channel::new(ours).expect("a channel"))
    }

    /// Returns what the back-end was told since the last call.
    fn told(&self) -> Vec<String> {
        std::mem::take(&mut self.recorder.lock().expect("no panic").told)
    }
}

#[test]
fn a_device_starts_with_the_messages_of_the_specification() {
    let (peer, channel) = Peer::start();
    let second = RegionSpec { guest_address: 0x1_0000_0000, len: 1 << 20, file_offset: 8192 };
    let options = Options {
        // STATUS is a part of the word that the crate knows, while it handles no message of it.
        protocol: features::KNOWN_PROTOCOL & !protocol::STATUS,
        queues: 2,
        queue_size: 64,
        regions: vec![DEFAULT_REGION, second],
        ..Options::default()
    };
    let mut device = options.connect_on(channel).expect("started");
    assert_eq!(device.features(), features::VERSION_1 | features::PROTOCOL_FEATURES | features::EVENT_IDX);
    let addr = |queue: &VringAddr| format!("0x0 {:#x} {:#x} {:#x} 0x0", queue.desc, queue.used, queue.avail);
    let addrs: Vec<String> = device.queues().iter().map(|queue| addr(&queue.ring().addr())).collect();
    let expected = [
        "protocol 0xb229",
        "owner",
        "a new region for 2 queues of 64",
        "features 0x160000000",
        "region 4160 at 4096 of 8256, 2 queues of 64",
        "add 0x40000000+0x4000000 from 0x0",
        "add 0x100000000+0x100000 from 0x2000",
        "num 0: 64",
        "base 0: 0",
        &format!("addr 0: {}", addrs[0]),
        "kick 0: true",
        "call 0: true",
        "err 0: true",
        "num 1: 64",
        "base 1: 0",
        &format!("addr 1: {}", addrs[1]),
        "kick 1: true",
        "call 1: true",
        "err 1: true",
        "enable 0: true",
        "enable 1: true",
    ];
    assert_eq!(peer.told(), expected);
    assert_eq!(device.stop().expect("stopped"), [1000, 1001]);

    // A reboot takes a new in-flight region, and tells no region of memory again.
    device.reboot().expect("started again");
    let told = peer.told();
    assert_eq!(told[..2], ["reset", "a new region for 2 queues of 64"]);
    assert!(told.iter().all(|message| !message.starts_with("add ")), "{told:?}");
    let region = device.memory().regions()[1].clone();
    device.remove_region(&region).expect("removed");
    assert_eq!(peer.told(), ["remove 0x100000000+0x100000 from 0x2000"]);
    drop(device);
    peer.thread.join().expect("no panic");
}

#[test]
fn single_messages_are_read_as_they_are_meant() {
    let (peer, channel) = Peer::start();
    let mut front = FrontEnd::negotiate(channel, features::KNOWN_PROTOCOL).expect("negotiated");
    // The crate refuses to enable queues as long as the bit for protocol features is not set.
    front.set_features(OFFERED).expect("set");
    peer.told();
    assert_eq!((front.queue_num().expect("told"), front.max_mem_slots().expect("told")), (7, 509));
    assert_eq!(front.get_config(3, 5).expect("told"), [3, 4, 5, 6, 7]);
    front.set_write_cache(true).expect("set");
    front.set_vring_kick(3, None).expect("set");
    front.set_vring_err(4, Some(front.channel().socket().as_fd())).expect("set");
    front.set_vring_enable(5, false).expect("set");
    let memory = GuestMemory::new(&[RegionSpec::new(0, 4096), RegionSpec::new(8192, 4096)]).expect("made");
    let regions = memory.regions();
    front.set_mem_table(&[&regions[0], &regions[1]]).expect("set");
    let expected = [
        "config 32: [1], flags 0",
        "kick 3: false",
        "err 4: true",
        "enable 5: false",
        "table 0x0+0x1000 from 0x0, 0x2000+0x1000 from 0x0 with 2 files",
    ];
    assert_eq!(peer.told(), expected);
    // The crate acknowledges with a code, and then closes the connection.
    assert!(matches!(front.set_config(0, &[1, 2]), Err(FrontError::Refused { request: "SET_CONFIG", .. })));
    assert!(front.channel().is_closed(PATIENCE).expect("asked"));
}

#[test]
fn the_in_flight_region_of_both_ends_is_one() {
    let (peer, channel) = Peer::start();
    let front = FrontEnd::negotiate(channel, features::KNOWN_PROTOCOL).expect("negotiated");
    let inflight = front.get_inflight(2, 8).expect("told");
    inflight.set_desc(1, 2, InflightDesc { inflight: 1, next: 0x0403, counter: 5 });
    let file = peer.recorder.lock().expect("no panic").inflight.take().expect("it has the file");
    let mut bytes = [0; 16];
    let at = 4096 + INFLIGHT_LEN / 2 + 16 + 2 * 16;
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, at).expect("read");
    assert_eq!(bytes, [1, 0, 0, 0, 0, 0, 3, 4, 5, 0, 0, 0, 0, 0, 0, 0]);
    peer.told();
    front.set_inflight(&Inflight::create(8192, 3, 16).expect("made")).expect("set");
    assert_eq!(peer.told(), ["region 8192 at 0 of 8192, 3 queues of 16"]);
}
