//! The driver against QEMU's storage daemon, a back-end that nobody of this project wrote.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sheave_vhost_front::features::{self, protocol};
use sheave_vhost_front::{
    DEFAULT_REGION, Driver, Error, FrontEnd, Operation, Options, Piece, RegionSpec, STATUS_IOERR, STATUS_OK,
    STATUS_UNSUPP, Segment,
};

const PATIENCE: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

/// A back-end that ends with its test.
struct BackEnd {
    child: Child,
    dir: tempfile::TempDir,
}

impl Drop for BackEnd {
    fn drop(&mut self) {
        self.kill();
    }
}

impl BackEnd {
    /// Starts the daemon with a file of 16 MiB, or skips the test.
    fn start(export: &str) -> Option<Self> {
        let dir = tempfile::tempdir().expect("a directory");
        let file = std::fs::File::create(dir.path().join("image")).expect("a file");
        file.set_len(16 * MIB).expect("a size");
        let child = spawn(dir.path(), export)?;
        Some(BackEnd { child, dir })
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    fn kill(&mut self) {
        let _ = self.child.kill(); // fails if the test has ended it
        let _ = self.child.wait();
    }

    fn start_again(&mut self, export: &str) {
        self.kill();
        let _ = std::fs::remove_file(self.socket());
        self.child = spawn(self.dir.path(), export).expect("it was there before");
    }
}

fn spawn(dir: &Path, export: &str) -> Option<Child> {
    let program = sheave_testkit::require("qemu-storage-daemon")?;
    let (socket, image) = (dir.join("s"), dir.join("image"));
    let node = format!("file,node-name=x,filename={},discard=unmap,detect-zeroes=unmap", image.display());
    let export = format!("vhost-user-blk,id=e,node-name=x,addr.type=unix,addr.path={},{export}", socket.display());
    let mut command = Command::new(program);
    command.args(["--blockdev", &node, "--export", &export]).stdin(Stdio::null());
    let mut child = command.spawn().expect("it starts");
    let begun = Instant::now();
    // The file of the socket exists before the daemon listens; a connection would disturb the one of the test.
    while !socket.exists() || !is_listening(&socket) {
        assert!(child.try_wait().expect("asked").is_none() && begun.elapsed() < PATIENCE, "the daemon does not listen");
        std::thread::sleep(Duration::from_millis(10));
    }
    Some(child)
}

/// Returns true if the kernel's list of sockets has a listening one at this path.
fn is_listening(socket: &Path) -> bool {
    let sockets = std::fs::read_to_string("/proc/net/unix").expect("the list");
    let listens = |line: &str| line.split_whitespace().nth(3) == Some("00010000");
    sockets.lines().any(|line| line.ends_with(&socket.display().to_string()) && listens(line))
}

/// Returns bytes that differ from place to place and from seed to seed.
fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|at| ((at ^ seed << 32).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as u8).collect()
}

/// Writes, flushes and reads on each queue, alone and in batches.
fn exercise(device: &mut Driver) {
    let memory = device.memory().clone();
    let data = memory.alloc(256 << 10, 4096).expect("room");
    for number in 0..device.queues().len() as u16 {
        let queue = device.queue(number);
        let bytes = pattern(12288, u64::from(number));
        memory.write(data, &bytes);
        let token = queue.write(8 * u64::from(number), data, 12288).expect("submitted");
        queue.finish(token, PATIENCE).expect("written");
        let token = queue.flush().expect("submitted");
        queue.finish(token, PATIENCE).expect("flushed");
        memory.fill(data, 12288, 0);
        // Pieces of odd places and lengths, in an order that is not that of memory.
        let pieces = [(8192, 512), (100, 1024), (20480, 10752)];
        let pieces = pieces.map(|(at, len)| Segment { address: data + at, len });
        let token = queue.submit(Operation::Read, 8 * u64::from(number), &pieces).expect("submitted");
        let completion = queue.finish(token, PATIENCE).expect("read");
        assert_eq!(completion.len, 12289, "data and status");
        let read = pieces.map(|piece| memory.read(piece.address, piece.len as usize)).concat();
        assert!(read == bytes, "queue {number} read other bytes than it wrote");

        // More batches than the ring has entries, so that all indexes wrap.
        for round in 0..40u64 {
            let tokens: Vec<_> =
                (0..32u64).map(|at| queue.write(64 * at, data + 4096 * at, 4096).expect("submitted")).collect();
            let completions = queue.complete_all(PATIENCE).expect("completed");
            assert!(completions.iter().all(|completion| completion.status == STATUS_OK), "round {round}");
            assert_eq!((tokens.len(), completions.len()), (32, 32));
        }
    }
}

/// Returns the options of the name, and what the daemon is expected to negotiate.
fn with(features: u64, protocol: u64) -> Options {
    Options { features, protocol, queues: 2, ..Options::default() }
}

#[test]
fn data_goes_through_rings_of_every_form() {
    let forms = [
        ("all", with(features::KNOWN, features::KNOWN_PROTOCOL)),
        ("direct", with(features::KNOWN & !features::INDIRECT_DESC, features::KNOWN_PROTOCOL)),
        ("no event index", with(features::KNOWN & !features::EVENT_IDX, features::KNOWN_PROTOCOL)),
        ("no acknowledgements", with(features::KNOWN, features::KNOWN_PROTOCOL & !protocol::REPLY_ACK)),
        ("a table of memory", with(features::KNOWN, features::KNOWN_PROTOCOL & !protocol::CONFIGURE_MEM_SLOTS)),
        ("nothing of it", with(features::VERSION_1 | features::PROTOCOL_FEATURES, protocol::CONFIG)),
    ];
    let Some(mut daemon) = BackEnd::start("writable=on,num-queues=2") else { return };
    for (name, options) in forms {
        eprintln!("{name}");
        let mut device = options.connect(daemon.socket()).expect(name);
        assert_eq!(device.features() & !options.features, 0, "{name}");
        exercise(&mut device);
        drop(device);
        daemon.start_again("writable=on,num-queues=2");
    }
}

#[test]
fn the_configuration_is_read_and_the_write_cache_switched() {
    let Some(daemon) = BackEnd::start("writable=on,num-queues=3,logical-block-size=4096") else { return };
    let mut device = Driver::connect(daemon.socket()).expect("connected");
    let config = *device.config().expect("it tells");
    assert_eq!((config.len_bytes(), config.blk_size, config.num_queues), (16 * MIB, 4096, 3));
    assert!(config.max_discard_sectors > 0 && config.max_write_zeroes_sectors > 0, "{config:?}");
    assert_eq!(device.front().queue_num().expect("asked"), 3);
    assert!(device.front().max_mem_slots().expect("asked") >= 8);
    for on in [false, true] {
        device.front().set_write_cache(on).expect("switched");
        assert_eq!(device.read_config().expect("read").writeback, u8::from(on));
    }
}

#[test]
fn commands_without_data_do_what_they_say() {
    let Some(daemon) = BackEnd::start("writable=on") else { return };
    let mut device = Driver::connect(daemon.socket()).expect("connected");
    let memory = device.memory().clone();
    let data = memory.alloc(16384, 4096).expect("room");
    let queue = device.queue(0);
    for zeroes in [false, true] {
        memory.fill(data, 16384, 0xAB);
        let token = queue.write(0, data, 16384).expect("submitted");
        queue.finish(token, PATIENCE).expect("written");
        let token = if zeroes { queue.write_zeroes(8, 8, true) } else { queue.discard(8, 8) };
        queue.finish(token.expect("submitted"), PATIENCE).expect("done");
        let token = queue.read(0, data, 16384).expect("submitted");
        queue.finish(token, PATIENCE).expect("read");
        let read = memory.read(data, 16384);
        assert!(read[..4096].iter().chain(&read[8192..]).all(|byte| *byte == 0xAB), "outside of the range");
        assert!(read[4096..8192].iter().all(|byte| *byte == 0), "in the range");
    }
    let token = queue.get_id().expect("submitted");
    queue.finish(token, PATIENCE).expect("told");
    assert_eq!(queue.id(token), "vhost_user_blk");
    let token = queue.submit(Operation::Other(77, false), 0, &[]).expect("submitted");
    assert_eq!(queue.complete(token, PATIENCE).expect("answered").status, STATUS_UNSUPP);
    let token = queue.read(1 << 40, data, 512).expect("submitted");
    assert_eq!(queue.complete(token, PATIENCE).expect("answered").status, STATUS_IOERR);
}

#[test]
fn a_read_only_export_refuses_writes() {
    let Some(daemon) = BackEnd::start("writable=off") else { return };
    let mut device = Driver::connect(daemon.socket()).expect("connected");
    assert_ne!(device.features() & features::RO, 0);
    let data = device.memory().alloc(4096, 4096).expect("room");
    let queue = device.queue(0);
    let token = queue.write(0, data, 4096).expect("submitted");
    assert!(matches!(queue.finish(token, PATIENCE), Err(Error::Status(STATUS_IOERR))));
}

#[test]
fn memory_is_added_and_removed_while_the_device_runs() {
    let Some(daemon) = BackEnd::start("writable=on") else { return };
    let regions = vec![RegionSpec { file_offset: 8192, ..DEFAULT_REGION }, RegionSpec::new(0x1_0000_0000, MIB)];
    let mut device = Options { regions, ..Options::default() }.connect(daemon.socket()).expect("connected");
    let added = device.add_region(RegionSpec::new(0x2_0000_0000, MIB)).expect("added");
    let memory = device.memory().clone();
    let bytes = pattern(8192, 5);
    memory.write(0x1_0000_1000, &bytes);
    let queue = device.queue(0);
    let token = queue.write(0, 0x1_0000_1000, 8192).expect("submitted");
    queue.finish(token, PATIENCE).expect("written");
    let token = queue.read(0, 0x2_0000_0000, 8192).expect("submitted");
    queue.finish(token, PATIENCE).expect("read");
    assert!(memory.read(0x2_0000_0000, 8192) == bytes);
    device.remove_region(&added).expect("removed");
    exercise(&mut device);
}

#[test]
fn queues_stop_and_go_on_where_they_were() {
    let Some(daemon) = BackEnd::start("writable=on,num-queues=2") else { return };
    let mut device = Options { queues: 2, ..Options::default() }.connect(daemon.socket()).expect("connected");
    exercise(&mut device);
    let bases = device.stop().expect("stopped");
    let expected: Vec<u16> = device.queues().iter().map(|queue| queue.ring().avail_index()).collect();
    assert_eq!(bases, expected, "nothing was in flight");
    device.start(&bases).expect("started");
    exercise(&mut device);
    device.reboot().expect("rebooted");
    assert_eq!(device.queue(1).ring().used_index(), 0);
    exercise(&mut device);
}

#[test]
fn requests_that_were_published_survive_a_back_end_that_is_killed() {
    let Some(mut daemon) = BackEnd::start("writable=on") else { return };
    let mut device = Driver::connect(daemon.socket()).expect("connected");
    let (memory, data) = (device.memory().clone(), device.memory().alloc(64 << 10, 4096).expect("room"));
    exercise(&mut device);
    daemon.kill();
    let bytes = pattern(64 << 10, 9);
    memory.write(data, &bytes);
    for at in 0..16 {
        device.queue(0).write(8 * at, data + 4096 * at, 4096).expect("submitted");
    }
    device.queue(0).publish();
    daemon.start_again("writable=on");
    device.reconnect(daemon.socket()).expect("connected again");
    // The start of the device has kicked.
    let deadline = Instant::now() + PATIENCE;
    let mut completed = 0;
    while completed < 16 {
        assert!(device.queue(0).wait_until(deadline).expect("waited"), "the requests do not complete");
        completed += device.queue(0).reap(|completion| assert_eq!(completion.status, STATUS_OK)).expect("fine");
    }
    memory.fill(data, 64 << 10, 0);
    let token = device.queue(0).read(0, data, 64 << 10).expect("submitted");
    device.queue(0).finish(token, PATIENCE).expect("read");
    assert!(memory.read(data, 64 << 10) == bytes);
}

#[test]
fn a_resized_image_is_told_on_the_back_end_channel() {
    let Some(mut daemon) = BackEnd::start("writable=on") else { return };
    daemon.kill();
    let monitor = daemon.dir.path().join("monitor");
    // The daemon resizes by its monitor only, so it is started with one.
    let program = sheave_testkit::require("qemu-storage-daemon").expect("it was there before");
    let _ = std::fs::remove_file(daemon.socket());
    let (socket, image) = (daemon.socket(), daemon.dir.path().join("image"));
    let mut command = Command::new(program);
    command
        .args(["--chardev", &format!("socket,id=m,server=on,wait=off,path={}", monitor.display())])
        .args(["--monitor", "chardev=m"])
        .args(["--blockdev", &format!("file,node-name=x,filename={}", image.display())])
        .args(["--export", &format!("vhost-user-blk,id=e,node-name=x,addr.type=unix,addr.path={}", socket.display())]);
    daemon.child = command.stdin(Stdio::null()).spawn().expect("it starts");
    let begun = Instant::now();
    while !is_listening(&socket) {
        assert!(begun.elapsed() < PATIENCE, "the daemon does not listen");
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut device = Driver::connect(&socket).expect("connected");
    device.front().sync().expect("in step");
    let mut control = std::os::unix::net::UnixStream::connect(monitor).expect("connected");
    let resize =
        r#"{"execute":"qmp_capabilities"}{"execute":"block_resize","arguments":{"node-name":"x","size":33554432}}"#;
    std::io::Write::write_all(&mut control, resize.as_bytes()).expect("sent");
    let told = device.front().backend_request(PATIENCE).expect("a channel");
    assert_eq!(told, Some(sheave_vhost_front::BackendRequest::ConfigChange));
    assert_eq!(device.read_config().expect("read").len_bytes(), 32 * MIB);
}

#[test]
fn a_message_of_any_content_can_be_sent() {
    let Some(daemon) = BackEnd::start("writable=on") else { return };
    let front = FrontEnd::connect(daemon.socket()).expect("connected");
    front.send(sheave_vhost_front::message::request::GET_FEATURES, 1, &[], &[]).expect("sent");
    assert_eq!(front.receive().expect("answered").u64_at(0), Some(front.offered()));
    // The daemon closes the connection on a number that no message has.
    front.send(999, 1, &[1, 2, 3], &[]).expect("sent");
    assert!(front.channel().is_closed(PATIENCE).expect("asked"));
}

#[test]
fn a_chain_of_any_form_can_be_submitted() {
    let Some(daemon) = BackEnd::start("writable=on") else { return };
    let mut device = Driver::connect(daemon.socket()).expect("connected");
    let data = device.memory().alloc(4096, 4096).expect("room");
    let queue = device.queue(0);
    queue.set_indirect(false);
    let header = queue.next_header_address();
    device.memory().write(header, &[0; 16]);
    // The header in two pieces, and data and status in one: virtio 1.0 leaves the framing to the driver.
    let pieces = [
        Piece { address: header, len: 4, writable: false },
        Piece { address: header + 4, len: 12, writable: false },
        Piece { address: data, len: 513, writable: true },
    ];
    let queue = device.queue(0);
    let token = queue.submit_chain(&pieces).expect("submitted");
    let completion = queue.complete(token, PATIENCE).expect("answered");
    assert_eq!(completion.len, 513);
    assert_eq!(device.memory().read(data + 512, 1), [STATUS_OK]);
}

#[test]
fn fields_of_a_ring_can_be_broken() {
    let Some(daemon) = BackEnd::start("writable=on") else { return };
    let mut device = Driver::connect(daemon.socket()).expect("connected");
    let queue = device.queue(0);
    // A head that the table does not have. The daemon then closes the connection, and does not use the eventfd for
    // errors.
    queue.ring().set_avail_entry(0, 999);
    queue.ring().set_avail_index(1);
    queue.kick_always().expect("kicked");
    assert!(device.front().channel().is_closed(PATIENCE).expect("asked"));
}
