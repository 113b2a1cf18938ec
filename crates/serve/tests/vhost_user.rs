//! Devices of vhost-user, attached by a front-end and a virtio driver in user space.

mod rig;

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rig::{Device, options};
use sheave_base::status::Status;
use sheave_drivers::fault::{self, FaultKind, FaultOps, FaultPlan};
use sheave_iomap::mapping::{Intent, Mapping};
use sheave_iomap::{File, RawFile};
use sheave_serve::{
    Address, Allow, Export, Exports, Listener, Notice, Server, ServerOptions, VhostUser, VhostUserStatus,
};
use sheave_vhost_front::features::{self, protocol};
use sheave_vhost_front::{
    BackendRequest, Descriptor, Driver, Operation, Options, RegionSpec, STATUS_IOERR, STATUS_OK, STATUS_UNSUPP, Segment,
};

const PATIENCE: Duration = Duration::from_secs(20);
const SIZE: u64 = 64 << 20;

/// A server of a device at a socket for front-ends, and nothing else.
struct Rig {
    server: Option<Server>,
    socket: PathBuf,
    notices: Arc<Mutex<Vec<String>>>,
    dir: tempfile::TempDir,
}

/// An export of a file, with a socket for front-ends.
fn export(name: &str, path: PathBuf, file: Arc<dyn File>) -> Export {
    let listener = Listener::bind(&Address::Unix(path)).expect("it listens");
    Export {
        name: name.into(),
        description: String::new(),
        read_only: false,
        allow: Allow::All,
        backend: Box::new(Device(file)),
        vhost_user: Some(VhostUser { listener, queues: None, in_order: false }),
    }
}

fn file(spec: &str) -> Arc<dyn File> {
    Arc::new(RawFile::new(sheave_drivers::open_device(spec).expect("a device")))
}

impl Rig {
    fn of(spec: &str) -> Option<Rig> {
        Rig::with(|path| export("disk", path, file(spec)), options())
    }

    fn with(export: impl FnOnce(PathBuf) -> Export, options: ServerOptions) -> Option<Rig> {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("v");
        let notices = Arc::new(Mutex::new(Vec::new()));
        let heard = notices.clone();
        let hear = Box::new(move |notice: &Notice<'_>| heard.lock().expect("nobody panics").push(notice.to_string()));
        let exports = Exports::new(vec![export(socket.clone())]);
        match Server::start(exports, Vec::new(), options, hear) {
            Ok(server) => Some(Rig { server: Some(server), socket, notices, dir }),
            Err(error) => {
                sheave_testkit::skip(&error.to_string());
                None
            }
        }
    }

    fn server(&self) -> &Server {
        self.server.as_ref().expect("it runs")
    }

    fn attach(&self, options: Options) -> Driver {
        options.connect(&self.socket).expect("attached")
    }

    fn status(&self) -> VhostUserStatus {
        self.server().exports()[0].vhost_user.clone().expect("it has a device")
    }

    /// Waits until `is` returns true.
    fn until(&self, what: &str, mut is: impl FnMut() -> bool) {
        let until = Instant::now() + PATIENCE;
        while !is() {
            assert!(Instant::now() < until, "{what}: {:?}", self.notices.lock().expect("nobody panics"));
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn hears(&self, words: &str) {
        let heard = || self.notices.lock().expect("nobody panics").iter().any(|notice| notice.contains(words));
        self.until(words, heard);
    }

    /// Asserts that a front-end that connects now is served.
    fn serves(&self) {
        let mut driver = self.attach(Options::default());
        let data = driver.memory().alloc(4096, 4096).expect("room");
        driver.memory().write(data, &[7; 4096]);
        let token = driver.queue(0).write(8, data, 4096).expect("submitted");
        driver.queue(0).finish(token, PATIENCE).expect("written");
    }
}

/// Writes and reads back on each queue, several times around its ring.
fn exercise(driver: &mut Driver) {
    let memory = driver.memory().clone();
    let data = memory.alloc(64 << 10, 4096).expect("room");
    for number in 0..driver.queues().len() as u16 {
        let queue = driver.queue(number);
        for round in 0..20u64 {
            for at in 0..16u64 {
                memory.write(data + 4096 * at, &[(round * 16 + at) as u8; 4096]);
                queue.write(8 * (at + 16 * u64::from(number)), data + 4096 * at, 4096).expect("submitted");
            }
            let written = queue.complete_all(PATIENCE).expect("written");
            assert!(written.iter().all(|completion| completion.status == STATUS_OK), "{written:?}");
            memory.fill(data, 64 << 10, 0);
            // In pieces, of which none is a page.
            let segments = |at: u64| {
                [(0, 1024), (1024, 512), (1536, 2560)]
                    .map(|(from, len)| Segment { address: data + 4096 * at + from, len })
            };
            for at in 0..16u64 {
                queue.submit(Operation::Read, 8 * (at + 16 * u64::from(number)), &segments(at)).expect("submitted");
            }
            let read = queue.complete_all(PATIENCE).expect("read");
            assert!(read.iter().all(|completion| completion.status == STATUS_OK && completion.len == 4097), "{read:?}");
            for at in 0..16u64 {
                let bytes = memory.read(data + 4096 * at, 4096);
                assert!(
                    bytes.iter().all(|byte| *byte == (round * 16 + at) as u8),
                    "queue {number} round {round} at {at}"
                );
            }
        }
    }
}

#[test]
fn what_is_written_is_read_back_by_rings_of_every_form() {
    let without = |feature: u64| Options { features: features::KNOWN & !feature, queues: 2, ..Options::default() };
    let forms = [
        ("everything", Options { queues: 2, ..Options::default() }),
        ("direct descriptors", without(features::INDIRECT_DESC)),
        ("no event index", without(features::EVENT_IDX)),
        ("the smallest ring", Options { queue_size: 32, ..Options::default() }),
        ("the largest ring", Options { queue_size: 1024, ..Options::default() }),
        ("a table of memory", Options { whole_table: true, ..Options::default() }),
        ("no protocol features", Options { protocol: protocol::CONFIG, ..Options::default() }),
    ];
    let Some(rig) = Rig::of("ram:size=64M") else { return };
    for (name, options) in forms {
        eprintln!("{name}");
        let mut driver = rig.attach(options);
        exercise(&mut driver);
        drop(driver);
    }
    rig.until("the last front-end is gone", || rig.status().client.is_none());
    assert!(rig.server().exports()[0].counts.writes >= 7 * 320);
}

#[test]
fn data_at_odd_places_reaches_a_device_that_wants_whole_blocks() {
    let Some(rig) = Rig::of("ram:size=64M") else { return };
    let image = rig.dir.path().join("image");
    std::fs::File::create(&image).expect("made").set_len(SIZE).expect("sized");
    let path = rig.dir.path().join("w");
    rig.server().add_export(export("file", path.clone(), file(&format!("file:{}", image.display())))).expect("added");
    let mut driver = Options::default().connect(&path).expect("attached");
    let memory = driver.memory().clone();
    let data = memory.alloc(64 << 10, 4096).expect("room");
    let bytes: Vec<u8> = (0..4096u32).map(|at| (at * 7 % 251) as u8).collect();
    for (from, pieces) in [(1, vec![4096]), (3, vec![1000, 3096]), (512, vec![512, 3584])] {
        memory.write(data + from, &bytes);
        let mut at = data + from;
        let segments: Vec<_> = pieces
            .into_iter()
            .map(|len| {
                at += u64::from(len);
                Segment { address: at - u64::from(len), len }
            })
            .collect();
        let token = driver.queue(0).submit(Operation::Write, 16, &segments).expect("submitted");
        driver.queue(0).finish(token, PATIENCE).expect("written");
        memory.fill(data, 8192, 0);
        let token = driver.queue(0).submit(Operation::Read, 16, &segments).expect("submitted");
        driver.queue(0).finish(token, PATIENCE).expect("read");
        assert!(memory.read(data + from, 4096) == bytes, "{from}");
    }
    drop(driver);
    assert!(std::fs::read(&image).expect("read")[8192..8192 + 4096] == bytes);
}

#[test]
fn requests_besides_reads_and_writes_do_what_they_say() {
    let Some(rig) = Rig::of("ram:size=64M") else { return };
    let mut driver = rig.attach(Options::default());
    let memory = driver.memory().clone();
    let data = memory.alloc(64 << 10, 4096).expect("room");
    memory.write(data, &[9; 32768]);
    let queue = driver.queue(0);
    let done =
        |queue: &mut sheave_vhost_front::DriverQueue, token| queue.complete(token, PATIENCE).expect("completed").status;
    let token = queue.write(0, data, 32768).expect("submitted");
    assert_eq!(done(queue, token), STATUS_OK);
    let token = queue.flush().expect("submitted");
    assert_eq!(done(queue, token), STATUS_OK);
    for (unmap, sector) in [(false, 0), (true, 8)] {
        let token = queue.write_zeroes(sector, 8, unmap).expect("submitted");
        assert_eq!(done(queue, token), STATUS_OK, "{unmap}");
    }
    let token = queue.discard(16, 8).expect("submitted");
    assert_eq!(done(queue, token), STATUS_OK);
    let token = queue.read(0, data, 32768).expect("submitted");
    assert_eq!(done(queue, token), STATUS_OK);
    assert!(memory.read(data, 8192).iter().all(|byte| *byte == 0), "zeroed");
    assert!(memory.read(data + 12288, 20480).iter().all(|byte| *byte == 9), "the rest is left alone");
    let token = queue.get_id().expect("submitted");
    assert_eq!(done(queue, token), STATUS_OK);
    assert_eq!(queue.id(token), "disk");
    let beyond = queue.read(SIZE / 512 - 7, data, 4096).expect("submitted");
    assert_eq!(done(queue, beyond), STATUS_IOERR, "it ends behind the end of the device");
    let unknown =
        queue.submit(Operation::Other(99, true), 0, &[Segment { address: data, len: 512 }]).expect("submitted");
    assert_eq!(done(queue, unknown), STATUS_UNSUPP);
    let counts = rig.server().exports()[0].counts;
    let seen = (counts.reads, counts.writes, counts.flushes, counts.trims, counts.zeroes, counts.errors);
    assert_eq!(seen, (1, 1, 1, 1, 2, 2));
}

#[test]
fn a_snapshot_refuses_writes() {
    let read_only = |path| Export { read_only: true, ..export("disk", path, file("ram:size=64M")) };
    let Some(rig) = Rig::with(read_only, options()) else { return };
    let mut driver = rig.attach(Options::default());
    assert_ne!(driver.features() & features::RO, 0);
    let data = driver.memory().alloc(4096, 4096).expect("room");
    for (operation, expected) in [(Operation::Read, STATUS_OK), (Operation::Write, STATUS_IOERR)] {
        let token = driver.queue(0).submit(operation, 0, &[Segment { address: data, len: 4096 }]).expect("submitted");
        assert_eq!(driver.queue(0).complete(token, PATIENCE).expect("completed").status, expected, "{operation:?}");
    }
}

#[test]
fn a_second_front_end_is_refused_and_the_first_one_named() {
    let Some(rig) = Rig::of("ram:size=64M") else { return };
    let mut first = rig.attach(Options::default());
    assert!(Options::default().connect(&rig.socket).is_err(), "it is refused");
    rig.hears(&format!("process {}", std::process::id()));
    rig.hears("a second front-end of 'disk' was refused");
    exercise(&mut first);
    assert_eq!(rig.server().clients().len(), 1);
}

#[test]
fn a_front_end_that_is_disconnected_comes_back() {
    let Some(rig) = Rig::of("ram:size=64M") else { return };
    for _ in 0..3 {
        let mut driver = rig.attach(Options::default());
        exercise(&mut driver);
        let clients = rig.server().clients();
        assert_eq!((clients.len(), clients[0].export.as_deref()), (1, Some("disk")));
        assert_eq!(rig.status().client, Some(clients[0].id));
        assert_eq!(rig.status().running.len(), 1);
        rig.server().disconnect(clients[0].id).expect("it is there");
        rig.until("it is gone", || rig.status().client.is_none());
        rig.hears("somebody has disconnected it");
        assert!(driver.front().sync().is_err());
    }
}

/// An export of a device in memory that takes this time for each request.
fn slow(path: PathBuf, time: Duration) -> Export {
    let disk = sheave_drivers::open_device("ram:size=64M").expect("a device");
    let plan = FaultPlan { ops: FaultOps::All, delay_time: time, ..FaultPlan::new(1).with(FaultKind::Delay, 1.0) };
    let (device, _) = fault::over("slow", &disk, &plan).expect("a device");
    export("disk", path, Arc::new(RawFile::new(device)))
}

#[test]
fn requests_under_way_take_effect_once_when_their_front_end_leaves() {
    let Some(rig) = Rig::with(|path| slow(path, Duration::from_millis(100)), options()) else { return };
    let mut driver = rig.attach(Options::default());
    let memory = driver.memory().clone();
    let data = memory.alloc(64 << 10, 4096).expect("room");
    for round in 0..3u8 {
        for at in 0..8u64 {
            memory.write(data + 4096 * at, &[round + 1; 4096]);
            driver.queue(0).write(8 * at, data + 4096 * at, 4096).expect("submitted");
        }
        driver.queue(0).kick().expect("kicked");
        rig.until("it begins", || {
            rig.server().exports()[0].counts.writes > u64::from(round) * 8
                || rig.status().running.iter().any(|queue| queue.in_flight > 0)
        });
        driver.reconnect(&rig.socket).expect("it comes back");
        let ended = driver.queue(0).complete_all(PATIENCE).expect("all end");
        assert!(ended.iter().all(|completion| completion.status == STATUS_OK), "{ended:?}");
    }
    assert_eq!(rig.server().exports()[0].counts.writes, 24, "each took effect, and none twice");
}

#[test]
fn stopping_a_queue_finishes_its_requests() {
    let Some(rig) = Rig::with(|path| slow(path, Duration::from_millis(50)), options()) else { return };
    let mut driver = rig.attach(Options::default());
    let data = driver.memory().alloc(64 << 10, 4096).expect("room");
    for at in 0..8u64 {
        driver.queue(0).write(8 * at, data, 4096).expect("submitted");
    }
    driver.queue(0).kick().expect("kicked");
    rig.until("it begins", || {
        rig.status().running.iter().any(|queue| queue.in_flight > 0) || rig.server().exports()[0].counts.writes > 0
    });
    let bases = driver.stop().expect("stopped");
    let mut ended = 0;
    driver.queue(0).reap(|completion| ended += u64::from(completion.status == STATUS_OK)).expect("reaped");
    assert_eq!((ended, rig.server().exports()[0].counts.writes), (u64::from(bases[0]), u64::from(bases[0])));
    assert!(rig.status().running.is_empty());
    driver.start(&bases).expect("started");
    driver.queue(0).kick_always().expect("kicked");
    driver.queue(0).complete_all(PATIENCE).expect("the rest ends");
    driver.reboot().expect("rebooted");
    exercise(&mut driver);
}

#[test]
fn memory_comes_and_goes_while_requests_run() {
    let Some(rig) = Rig::with(|path| slow(path, Duration::from_millis(1)), options()) else { return };
    let mut driver = rig.attach(Options::default());
    let data = driver.memory().alloc(64 << 10, 4096).expect("room");
    for round in 0..10u64 {
        let added = driver.add_region(RegionSpec::new(0x2_0000_0000, 16 << 20)).expect("added");
        driver.memory().write(0x2_0000_0000, &[round as u8; 4096]);
        let token = driver.queue(0).write(800, 0x2_0000_0000, 4096).expect("submitted");
        driver.queue(0).finish(token, PATIENCE).expect("written from there");
        for at in 0..16 {
            driver.queue(0).write(8 * at, data + 4096 * at, 4096).expect("submitted");
        }
        driver.queue(0).kick().expect("kicked");
        driver.remove_region(&added).expect("removed");
        let ended = driver.queue(0).complete_all(PATIENCE).expect("all end");
        assert!(ended.iter().all(|completion| completion.status == STATUS_OK), "{ended:?}");
        let token = driver.queue(0).read(800, data, 4096).expect("submitted");
        driver.queue(0).finish(token, PATIENCE).expect("read");
        assert!(driver.memory().read(data, 4096).iter().all(|byte| *byte == round as u8));
    }
    let token = driver.queue(0).write(0, 0x2_0000_0000, 4096).expect("submitted");
    assert!(driver.queue(0).complete(token, Duration::from_secs(2)).is_err(), "that memory is gone");
    rig.hears("a client was dropped: queue 0");
}

/// A file whose size a test sets.
#[derive(Debug)]
struct Sized {
    all: Arc<dyn File>,
    bytes: AtomicU64,
}

impl File for Sized {
    fn device(&self) -> &sheave_blk::Device {
        self.all.device()
    }

    fn size_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn map(&self, pos: u64, len: u64, intent: Intent) -> Result<Mapping, Status> {
        self.all.map(pos, len, intent)
    }
}

#[test]
fn a_guest_sees_the_new_size_of_its_device() {
    let sized = Arc::new(Sized { all: file("ram:size=64M"), bytes: (8 << 20).into() });
    let served = sized.clone();
    let Some(rig) = Rig::with(|path| export("disk", path, served), options()) else { return };
    let mut driver = rig.attach(Options { queues: 2, ..Options::default() });
    let data = driver.memory().alloc(4096, 4096).expect("room");
    for (size, is_there) in [(16u64, true), (32, true), (8, false)] {
        sized.bytes.store(size << 20, Ordering::Relaxed);
        rig.server().size_changed("disk");
        let told = driver.front_mut().backend_request(PATIENCE).expect("the channel is open");
        assert_eq!(told, Some(BackendRequest::ConfigChange));
        assert_eq!(driver.read_config().expect("read").capacity, (size << 20) / 512);
        for queue in 0..2 {
            let token = driver.queue(queue).write((12 << 20) / 512, data, 4096).expect("submitted");
            let status = driver.queue(queue).complete(token, PATIENCE).expect("completed").status;
            assert_eq!(status == STATUS_OK, is_there, "{size} MiB");
        }
    }
}

#[test]
fn a_guest_that_breaks_its_ring_ends_its_device_and_nothing_else() {
    let Some(rig) = Rig::of("ram:size=64M") else { return };
    let path = rig.dir.path().join("w");
    rig.server().add_export(export("other", path.clone(), file("ram:size=64M"))).expect("added");
    let mut other = Options::default().connect(&path).expect("attached");
    type Lie = fn(&mut Driver);
    let lies: [(&str, Lie); 4] = [
        ("a loop", |driver| {
            let ring = driver.queue(0).ring();
            for at in 0..2 {
                ring.set_descriptor(at, Descriptor { address: 0x4000_0000, len: 16, flags: 1, next: 1 - at });
            }
            ring.set_avail_entry(0, 0);
            ring.set_avail_index(1);
        }),
        ("a descriptor nowhere", |driver| {
            let ring = driver.queue(0).ring();
            ring.set_descriptor(0, Descriptor { address: u64::MAX - 8, len: 64, flags: 0, next: 0 });
            ring.set_avail_entry(0, 0);
            ring.set_avail_index(1);
        }),
        ("more requests than the ring has", |driver| driver.queue(0).ring().set_avail_index(5000)),
        ("a head beyond the table", |driver| {
            driver.queue(0).ring().set_avail_entry(0, 9999);
            driver.queue(0).ring().set_avail_index(1);
        }),
    ];
    for (number, (name, lie)) in lies.into_iter().enumerate() {
        let mut driver = rig.attach(Options::default());
        lie(&mut driver);
        driver.queue(0).kick_always().expect("kicked");
        let dropped = || {
            let notices = rig.notices.lock().expect("nobody panics");
            notices.iter().filter(|notice| notice.contains("a client was dropped: queue 0")).count()
        };
        rig.until(name, || dropped() == number + 1);
        rig.until("it is gone", || rig.status().client.is_none());
    }
    exercise(&mut other);
    rig.serves();
}

#[test]
fn memory_that_is_cut_off_ends_its_device_and_nothing_else() {
    let Some(rig) = Rig::of("ram:size=64M") else { return };
    let mut driver = rig.attach(Options::default());
    exercise(&mut driver);
    for region in driver.memory().regions() {
        // A sealed file cannot be cut, so that there is nothing to test.
        if rustix::fs::ftruncate(region.file().as_fd(), 0).is_err() {
            return sheave_testkit::skip("the memory of the driver is sealed");
        }
    }
    driver.queue(0).kick_always().expect("kicked");
    rig.until("it is gone", || rig.status().client.is_none());
    rig.serves();
}

#[test]
fn a_limit_holds_a_guest_back() {
    let Some(rig) = Rig::of("ram:size=64M") else { return };
    rig.server().set_limit("disk", Some("iops=200,burst=10ms".parse().expect("a limit"))).expect("set");
    let mut driver = rig.attach(Options::default());
    let data = driver.memory().alloc(64 << 10, 4096).expect("room");
    let begun = Instant::now();
    for at in 0..60u64 {
        driver.queue(0).read(8 * at, data, 4096).expect("submitted");
        if at % 16 == 15 {
            driver.queue(0).complete_all(PATIENCE).expect("read");
        }
    }
    driver.queue(0).complete_all(PATIENCE).expect("read");
    assert!(begun.elapsed() > Duration::from_millis(200), "60 requests at 200 a second");
    let counts = rig.server().exports()[0].counts;
    assert!(counts.reads == 60 && counts.throttled > Duration::from_millis(100), "{counts:?}");
}

#[test]
fn a_request_that_a_limit_holds_back_stays_in_the_ring_of_a_queue_that_stops() {
    let Some(rig) = Rig::of("ram:size=64M") else { return };
    rig.server().set_limit("disk", Some("iops=20,burst=10ms".parse().expect("a limit"))).expect("set");
    let mut driver = rig.attach(Options::default());
    let data = driver.memory().alloc(64 << 10, 4096).expect("room");
    let begun = Instant::now();
    (0..8u64).for_each(|at| _ = driver.queue(0).write(8 * at, data, 4096).expect("submitted"));
    driver.queue(0).kick().expect("kicked");
    rig.until("it begins", || rig.server().exports()[0].counts.writes > 0);
    let (mut bases, mut ended) = (Vec::new(), 0);
    // Whoever stops and starts again gets no more than the limit.
    for _ in 0..50 {
        bases = driver.stop().expect("stopped");
        driver.queue(0).reap(|completion| ended += u16::from(completion.status == STATUS_OK)).expect("reaped");
        assert_eq!(ended, bases[0], "what was taken is finished");
        driver.start(&bases).expect("started");
        driver.queue(0).kick_always().expect("kicked");
    }
    let most = 2.0 + begun.elapsed().as_secs_f64() * 20.0;
    assert!(f64::from(ended) <= most, "{ended} requests of at most {most}");
    driver.queue(0).complete_all(PATIENCE).expect("the rest ends");
    assert_eq!((rig.server().exports()[0].counts.writes, bases[0] <= 8), (8, true), "each once");

    // Two requests from memory that goes while the second is held back. The second is in the ring, and the memory that
    // it names is gone when it is taken.
    let added = driver.add_region(RegionSpec::new(0x2_0000_0000, 16 << 20)).expect("added");
    driver.memory().write(0x2_0000_0000, &[7; 8192]);
    (0..2u64)
        .for_each(|at| _ = driver.queue(0).write(80 + 8 * at, 0x2_0000_0000 + 4096 * at, 4096).expect("submitted"));
    driver.queue(0).kick().expect("kicked");
    rig.until("the first ends", || rig.server().exports()[0].counts.writes == 9);
    let removed = driver.remove_region(&added);
    assert!(removed.is_err(), "the device ends first");
    rig.until("it is dropped", || rig.status().client.is_none());
    rig.serves();
}

#[test]
fn a_front_end_that_says_nothing_does_not_keep_the_device() {
    let options = ServerOptions { handshake: Duration::from_millis(300), ..options() };
    let Some(rig) = Rig::with(|path| export("disk", path, file("ram:size=64M")), options) else { return };
    let _silent = std::os::unix::net::UnixStream::connect(&rig.socket).expect("connected");
    rig.hears("it did not send a message in time");
    rig.until("it is gone", || rig.status().client.is_none());
    let mut driver = rig.attach(Options::default());
    std::thread::sleep(Duration::from_millis(600));
    exercise(&mut driver);
}

#[test]
fn more_devices_than_a_ring_has_room_for_are_served_in_turn() {
    let dir = tempfile::tempdir().expect("a directory");
    let paths: Vec<_> = (0..70).map(|number| dir.path().join(number.to_string())).collect();
    let exports = paths.iter().enumerate().map(|(number, path)| {
        let spec = format!("ram:size={}M", number + 1);
        export(&number.to_string(), path.clone(), file(&spec))
    });
    let hear = Box::new(|notice: &Notice<'_>| panic!("{notice}"));
    let options = ServerOptions { reactors: 1, ..options() };
    let server = match Server::start(Exports::new(exports.collect()), Vec::new(), options, hear) {
        Ok(server) => server,
        Err(error) => return sheave_testkit::skip(&error.to_string()),
    };
    let mut drivers: Vec<_> = paths.iter().map(|path| Options::default().connect(path).expect("attached")).collect();
    for round in 0..3u8 {
        for (number, driver) in drivers.iter_mut().enumerate() {
            driver.queue(0).write_bytes(8, &[round ^ number as u8; 4096], PATIENCE).expect("written");
        }
        for (number, driver) in drivers.iter_mut().enumerate() {
            let read = driver.queue(0).read_bytes(8, 4096, PATIENCE).expect("read");
            assert!(read.iter().all(|byte| *byte == round ^ number as u8), "device {number}");
        }
    }
    // All at once: requests of some wait until a place is free.
    for driver in &mut drivers {
        let data = driver.memory().alloc(4096, 4096).expect("room");
        (0..8u64).for_each(|at| _ = driver.queue(0).read(8 * at, data, 4096).expect("submitted"));
        driver.queue(0).kick().expect("kicked");
    }
    drivers.iter_mut().for_each(|driver| drop(driver.queue(0).complete_all(PATIENCE).expect("read")));
    server.stop().expect("it ends");
}

#[test]
fn zeroes_of_a_gibibyte_let_others_have_their_turn() {
    let Some(rig) = Rig::of("ram:size=1G") else { return };
    let mut driver = rig.attach(Options { queues: 1, ..Options::default() });
    let memory = driver.memory().clone();
    let data = memory.alloc(4096, 4096).expect("room");
    driver.queue(0).write_bytes(2_097_144, &[7; 4096], PATIENCE).expect("written");
    let before = rig.server().exports()[0].counts;
    for unmap in [false, true] {
        driver.queue(0).write_bytes(1_000_000, &[7; 4096], PATIENCE).expect("written");
        // Both are in the ring before the device looks at it: on a busy machine, the read could otherwise come late.
        let zeroes = driver.queue(0).write_zeroes(0, 2_097_144, unmap).expect("submitted");
        let read = driver.queue(0).read(2_097_144, data, 4096).expect("submitted");
        driver.queue(0).kick().expect("kicked");
        let first = driver.queue(0).complete_all(PATIENCE).expect("both end")[0].token;
        assert_eq!(first, read, "a read does not wait for {zeroes:?}");
        assert_eq!(driver.queue(0).read_bytes(1_000_000, 4096, PATIENCE).expect("read"), [0; 4096]);
        assert_eq!(memory.read(data, 4096), [7; 4096], "the last block is left alone");
    }
    let counts = rig.server().exports()[0].counts;
    assert_eq!((counts.zeroes - before.zeroes, counts.errors), (2, 0));
}

#[test]
fn requests_of_any_sectors_and_pieces_reach_devices_of_any_blocks() {
    for spec in ["ram:size=1M", "ram:size=1M,bs=4096"] {
        let Some(rig) = Rig::of(spec) else { return };
        let mut driver = rig.attach(Options::default());
        let memory = driver.memory().clone();
        let (data, back) = (memory.alloc(64 << 10, 4096).expect("room"), memory.alloc(1 << 20, 4096).expect("room"));
        let mut model = vec![0u8; 1 << 20];
        let mut random = 0x9e37_79b9_u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (random >> 33) % below
        };
        for round in 0..400u64 {
            let (sector, sectors) = (next(2000), 1 + next(40));
            let (from, len) = (512 * sector as usize, 512 * sectors as usize);
            let queue = driver.queue(0);
            let token = match round % 5 {
                0 => {
                    model[from..from + len].fill(0);
                    queue.write_zeroes(sector, sectors as u32, next(2) == 0).expect("submitted")
                }
                1 => queue.discard(sector, sectors as u32).expect("submitted"),
                _ => {
                    // Two to four pieces of any length that do not touch each other.
                    let bytes: Vec<u8> = (0..len).map(|at| (round as usize * 7 + at) as u8).collect();
                    model[from..from + len].copy_from_slice(&bytes);
                    let (mut rest, mut at, mut segments) = (&bytes[..], data, Vec::new());
                    while !rest.is_empty() {
                        let part = match segments.len() {
                            3 => rest.len(),
                            _ => 1 + next(rest.len() as u64) as usize,
                        };
                        memory.write(at, &rest[..part]);
                        segments.push(Segment { address: at, len: part as u32 });
                        (rest, at) = (&rest[part..], at + part as u64 + 1 + next(64));
                    }
                    queue.submit(Operation::Write, sector, &segments).expect("submitted")
                }
            };
            queue.finish(token, PATIENCE).unwrap_or_else(|error| panic!("{spec}, round {round}: {error}"));
            if round % 5 == 1 {
                // A discard may leave any data in its range: the model takes over the data that is read there.
                let token = queue.read(sector, back, len as u32).expect("submitted");
                queue.finish(token, PATIENCE).expect("read");
                model[from..from + len].copy_from_slice(&memory.read(back, len));
            }
        }
        let pieces =
            [Segment { address: back + 1, len: 100 << 10 }, Segment { address: back + (200 << 10), len: 924 << 10 }];
        for segments in [&[Segment { address: back, len: 1 << 20 }][..], &pieces] {
            memory.fill(back, 1 << 20, 0xff);
            let token = driver.queue(0).submit(Operation::Read, 0, segments).expect("submitted");
            driver.queue(0).finish(token, PATIENCE).expect("read");
            let read = segments.iter().map(|segment| memory.read(segment.address, segment.len as usize));
            assert!(read.collect::<Vec<_>>().concat() == model, "{spec}");
        }
    }
}

#[test]
fn a_request_beyond_the_limits_of_segments_is_refused() {
    let Some(rig) = Rig::of("ram:size=64M") else { return };
    let mut driver = rig.attach(Options::default());
    let data = driver.memory().alloc(1 << 20, 4096).expect("room");
    for (segments, expected) in [(60, STATUS_OK), (120, STATUS_IOERR)] {
        // All of the same memory, which is no fault.
        let segments = vec![Segment { address: data, len: 384 << 10 }; segments];
        let token = driver.queue(0).submit(Operation::Write, 0, &segments).expect("submitted");
        assert_eq!(driver.queue(0).complete(token, PATIENCE).expect("completed").status, expected);
    }
}

#[test]
fn an_export_is_taken_out_and_a_server_ends_while_a_guest_has_them() {
    let Some(mut rig) = Rig::with(|path| slow(path, Duration::from_millis(20)), options()) else { return };
    let mut driver = rig.attach(Options { queues: 2, ..Options::default() });
    let data = driver.memory().alloc(64 << 10, 4096).expect("room");
    for queue in 0..2 {
        (0..8u64).for_each(|at| _ = driver.queue(queue).write(8 * at, data, 4096).expect("submitted"));
        driver.queue(queue).kick().expect("kicked");
    }
    assert!(rig.server().take_export("disk", false).is_err(), "it is in use");
    rig.server().take_export("disk", true).expect("taken out");
    assert!(!rig.socket.exists() && Options::default().connect(&rig.socket).is_err(), "nobody listens");
    rig.server().put_export(slow(rig.socket.clone(), Duration::from_millis(20)));
    let mut driver = rig.attach(Options { queues: 2, ..Options::default() });
    exercise(&mut driver);
    rig.server.take().expect("it runs").stop().expect("it ends");
    assert!(driver.front().sync().is_err());
}

/// Returns the CPU time of this process's reactors, in nanoseconds.
fn reactors_ns() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("the threads");
    let of = |task: std::fs::DirEntry| {
        let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
        let time = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        let time = time.split_whitespace().next()?.parse::<u64>().ok()?;
        Some(if name.starts_with("sheave-serve") { time } else { 0 })
    };
    tasks.filter_map(|task| of(task.ok()?)).sum()
}

#[test]
fn a_hundred_devices_that_do_nothing_use_no_time() {
    let Some(rig) = Rig::of("ram:size=64M") else { return };
    let drivers: Vec<_> = (0..100)
        .map(|number| {
            let path = rig.dir.path().join(format!("n{number}"));
            rig.server().add_export(export(&format!("n{number}"), path.clone(), file("ram:size=1M"))).expect("added");
            Options { regions: vec![RegionSpec::new(0x4000_0000, 4 << 20)], ..Options::default() }
                .connect(path)
                .expect("attached")
        })
        .collect();
    assert_eq!(rig.server().clients().len(), drivers.len());
    // The reactors have nothing to do any more when their time stands still.
    let mut before = reactors_ns();
    rig.until("they come to rest", || {
        std::thread::sleep(Duration::from_millis(200));
        before == std::mem::replace(&mut before, reactors_ns())
    });
}
