//! Values as long, large, deep or late as safe code can make them, and drivers and files that panic outside of I/O:
//! when they are opened, queried, or dropped.
#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use sheave::drivers::{Open, Request, SafeDriver, SafeQueue, Step, device, stacked};
use sheave::files::{Intent, Mapping, MappingKind, MayBlock, WriteDone};
use sheave::{Buf, Capabilities, Device, DeviceError, File, Limits, Ring, Status, Waited, op, open_device};

use crate::{buf, ring, run};

/// A time longer than any step here takes.
const PATIENCE: Duration = Duration::from_secs(60);
const SIZE: u64 = 1 << 20;

fn ram() -> Device {
    open_device("ram:size=1M").expect("a device")
}

#[test]
fn times_without_end_are_waited_for() {
    let mut ring = Ring::builder().spin(Duration::MAX).stamp_age(Duration::MAX).build().expect("a ring");
    ring.push(op::nop()).expect("room");
    ring.submit().expect("submitted");
    assert_eq!(ring.wait(1, Some(Duration::MAX)), Waited::Ready(1));
    assert_eq!(ring.completions().count(), 1);
    let mut ring = self::ring();
    for _ in 0..2 {
        let handle = ring.handle();
        let other = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            handle.wake();
        });
        assert_eq!(ring.wait(1, Some(Duration::MAX)), Waited::Woken);
        other.join().expect("no panic");
        ring.push(op::timeout(Duration::MAX).user_data(1)).expect("room");
        ring.submit().expect("submitted");
        assert_eq!(ring.wait(1, Some(Duration::from_millis(20))), Waited::TimedOut);
        let handle = ring.handle();
        let other = thread::spawn(move || handle.wake());
        assert_eq!(ring.wait(1, None), Waited::Woken);
        other.join().expect("no panic");
        assert_eq!(ring.cancel(op::Cancel::everything().all()), Ok(1));
        assert_eq!(ring.completions().map(|done| done.res).collect::<Vec<_>>(), [-125]);
    }
    let far = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(i64::MAX as u64));
    for far in far.into_iter().chain(SystemTime::UNIX_EPOCH.checked_sub(PATIENCE)) {
        ring.push(op::timeout(far).user_data(2)).expect("room");
        ring.push(op::timeout_update(2, Duration::MAX)).expect("room");
        ring.submit().expect("submitted");
        let _ = ring.wait(2, Some(Duration::from_millis(5)));
        let _ = ring.cancel(op::Cancel::everything().all());
        ring.completions().for_each(drop);
    }
    let fd = ring.attach(&open_device("null:size=1M,latency=60s").expect("a device")).expect("attached");
    ring.push_chain([op::read(fd, buf(0)).user_data(1).into(), op::link_timeout(Duration::MAX).into()]).expect("room");
    ring.submit().expect("submitted");
    assert_eq!(ring.wait(1, Some(Duration::from_millis(5))), Waited::TimedOut);
    let start = Instant::now();
    drop(ring);
    assert!(start.elapsed() < PATIENCE / 2);
}

#[test]
fn a_device_without_end_of_latency_or_time_is_refused_or_left_alone() {
    for spec in [
        "null:size=1M,latency=584y",
        "null:size=1M,latency=18446744073709551615s",
        "null:size=1M,latency=18446744073709551615us",
        "null:size=1M,latency=100000000s",
        "fault:delay=1,delay_time=18446744073709551615s,over=ram:size=1M",
        "fault:delay=1,delay_time=1000000000s,over=ram:size=1M",
    ] {
        let Ok(device) = open_device(spec) else { continue };
        let mut ring = ring();
        let fd = ring.attach(&device).expect("attached");
        ring.push(op::read(fd, buf(0))).expect("room");
        ring.submit().expect("submitted");
        assert_eq!(ring.wait(1, Some(Duration::from_millis(5))), Waited::TimedOut, "{spec}");
        drop(ring);
    }
}

#[test]
fn sizes_that_nothing_has_are_refused() {
    for size in ["0", "1", "16E", "17E", "18446744073709551615", "18446744073709551616", "8E", "9223372036854775808"] {
        for kind in ["ram", "null"] {
            if let Ok(device) = open_device(&format!("{kind}:size={size}")) {
                let (mut ring, last) = (ring(), device.size_bytes().saturating_sub(4096));
                let fd = ring.attach(&device).expect("attached");
                assert_eq!(run(&mut ring, op::write(fd, buf(1)).offset(last)), 4096, "{kind} {size}");
                assert!(run(&mut ring, op::write(fd, buf(1)).offset(u64::MAX - 4095)) < 0, "{kind} {size}");
                assert!(run(&mut ring, op::zero_range(fd, last, u64::MAX)) < 0, "{kind} {size}");
            }
        }
    }
    for n in [0, 1, 3, u32::MAX / 2 + 1, u32::MAX] {
        let builders = [Ring::builder().entries(n), Ring::builder().cq_entries(n), Ring::builder().in_flight(n)];
        for builder in builders {
            if let Ok(mut ring) = builder.build() {
                assert_eq!(run(&mut ring, op::nop()), 0);
            }
        }
    }
    assert!(Buf::zeroed(usize::MAX, 4096).is_err() && Buf::zeroed(1, 0).is_err() && Buf::zeroed(1, 3).is_err());
    assert!(Buf::zeroed(1, 1 << 63).is_err() || Buf::zeroed(1, 1 << 63).is_ok());
    let empty = Buf::zeroed(0, 4096);
    let mut ring = ring();
    let fd = ring.attach(&ram()).expect("attached");
    if let Ok(empty) = empty {
        assert!(run(&mut ring, op::read(fd, empty)) <= 0);
    }
    assert!(run(&mut ring, op::read(fd, Vec::new())) <= 0);
    assert!(run(&mut ring, op::readv(fd, Vec::new())) <= 0);
    assert!(run(&mut ring, op::readv(fd, (0..3000).map(|_| buf(0)).collect())) < 0);
    for (start, end) in [(0, usize::MAX), (usize::MAX, 0), (1, 0), (usize::MAX - 1, usize::MAX), (8192, 8193)] {
        let range = start..end;
        let told = catch_unwind(AssertUnwindSafe(|| run(&mut ring, op::read(fd, vec![0; 4096]).part(range.clone()))));
        assert!(told.is_err() || told.is_ok_and(|res| res <= 0), "{range:?}");
        ring.drain();
        ring.completions().for_each(drop);
    }
}

#[test]
fn a_spec_of_any_depth_opens_or_is_refused() {
    for depth in [3, 30, 300, 3_000, 100_000] {
        for layer in ["fault:over=", "fault:error=0,over=", "fault:delay=0,delay_time=1us,over="] {
            let spec = format!("{}ram:size=1M", layer.repeat(depth));
            let opened = open_device(&spec);
            println!("{depth} {layer}: {:?}", opened.as_ref().map(|_| ()).map_err(|error| error.to_string().len()));
            if let Ok(device) = opened {
                let mut ring = ring();
                if let Ok(fd) = ring.attach(&device) {
                    assert_eq!(run(&mut ring, op::read(fd, buf(0))), 4096);
                }
            }
        }
    }
}

thread_local! {
    static KEPT: RefCell<Vec<Ring>> = const { RefCell::new(Vec::new()) };
}

#[test]
fn a_ring_that_a_thread_keeps_until_its_end_goes_with_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = format!("file:{},size=1M", dir.path().join("image").display());
    for spec in ["ram:size=1M", "null:size=1M,latency=1ms,complete=thread", file.as_str()] {
        let device = open_device(spec).expect("a device");
        let shared = device.clone();
        thread::spawn(move || {
            KEPT.with_borrow_mut(|kept| assert!(kept.is_empty())); // It goes after what the ring begins to use.
            let mut ring = ring();
            let fd = ring.attach(&shared).expect("attached");
            ring.register_buffers(vec![buf(1)]).expect("registered");
            for n in 0..8 {
                ring.push(op::write(fd, buf(1)).offset(n * 8192)).expect("room");
                ring.push(op::write_fixed(fd, 0, 0..4096).offset(n * 8192).run_async()).expect("room");
            }
            ring.push(op::timeout(PATIENCE)).expect("room");
            ring.submit().expect("submitted");
            KEPT.with_borrow_mut(|kept| kept.push(ring));
        })
        .join()
        .expect("no panic");
        assert_eq!(device.in_flight().reads + device.in_flight().writes, 0, "{spec}");
    }
}

/// A query to a driver, or an event of its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Limits,
    Capabilities,
    Size,
    Open,
    Claim,
    Extents,
    Notices,
    Kernel,
    DropQueue,
    DropDriver,
}

const ASKED: [Asked; 10] = [
    Asked::Limits,
    Asked::Capabilities,
    Asked::Size,
    Asked::Open,
    Asked::Claim,
    Asked::Extents,
    Asked::Notices,
    Asked::Kernel,
    Asked::DropQueue,
    Asked::DropDriver,
];

/// A hook that panics when the driver gets the query `asked`, once it is armed.
#[derive(Clone, Debug)]
struct Mood {
    asked: Asked,
    armed: Arc<AtomicBool>,
}

impl Mood {
    fn call(&self, asked: Asked) {
        if self.asked == asked && self.armed.load(Ordering::Relaxed) && !thread::panicking() {
            std::panic::resume_unwind(Box::new("as the test wants it"));
        }
    }
}

/// A driver that keeps no data and completes at once.
#[derive(Debug)]
struct Moody(Mood);

impl Moody {
    fn call(&self, asked: Asked) {
        self.0.call(asked);
    }
}

impl Drop for Moody {
    fn drop(&mut self) {
        self.call(Asked::DropDriver);
    }
}

impl SafeDriver for Moody {
    fn limits(&self) -> Limits {
        self.call(Asked::Limits);
        Limits::default()
    }

    fn capabilities(&self) -> Capabilities {
        self.call(Asked::Capabilities);
        Capabilities::default().polled(true)
    }

    fn size_bytes(&self) -> u64 {
        self.call(Asked::Size);
        SIZE
    }

    fn open_queue(&self, _: &Open) -> Result<Box<dyn SafeQueue>, DeviceError> {
        self.call(Asked::Open);
        Ok(Box::new(MoodyQueue(self.0.clone())))
    }

    fn kernel(&self) -> Option<sheave::drivers::KernelUse> {
        self.call(Asked::Kernel);
        None
    }

    fn extents(&self, _: u64) -> Result<Vec<sheave::Extent>, DeviceError> {
        self.call(Asked::Extents);
        Ok(Vec::new())
    }

    fn notices(&self) -> Vec<String> {
        self.call(Asked::Notices);
        Vec::new()
    }
}

#[derive(Debug)]
struct MoodyQueue(Mood);

impl Drop for MoodyQueue {
    fn drop(&mut self) {
        self.0.call(Asked::DropQueue);
    }
}

impl SafeQueue for MoodyQueue {
    fn start(&mut self, _: &mut Request<'_>) -> Step {
        Step::End(Status::Ok)
    }
}

#[test]
fn a_driver_that_panics_when_it_is_opened_asked_or_dropped_leaves_the_ring_as_it_was() {
    let dir = tempfile::tempdir().expect("a directory");
    let slow = open_device(&format!("file:{},size=16M", dir.path().join("image").display())).expect("a device");
    for asked in ASKED {
        for how in 0..3 {
            let armed = Arc::new(AtomicBool::new(false));
            let mut ring = ring();
            let other = ring.attach(&slow).expect("attached");
            let moody = || device("moody", Moody(Mood { asked, armed: Arc::clone(&armed) }));
            // Armed from the start, the driver may even fail to be made.
            let device = match how {
                0 => {
                    armed.store(true, Ordering::Relaxed);
                    catch_unwind(AssertUnwindSafe(moody)).ok()
                }
                _ => Some(moody()),
            };
            armed.store(true, Ordering::Relaxed);
            let fd = device.as_ref().and_then(|device| {
                let _ =
                    catch_unwind(AssertUnwindSafe(|| (device.notices(), device.extents(0).is_ok(), device.stats())));
                catch_unwind(AssertUnwindSafe(|| ring.attach(device))).ok()?.ok()
            });
            // I/O of the other device is in flight whenever a call panics; its memory must live until that I/O ends.
            for n in 0..16 {
                ring.push(op::write(other, buf(n as u8)).offset(n * 8192).user_data(n)).expect("room");
            }
            if let Some(fd) = fd {
                ring.push(op::read(fd, buf(0)).user_data(99)).expect("room");
            }
            ring.submit().expect("submitted");
            drop(device);
            if how == 1
                && let Some(fd) = fd
            {
                ring.detach(fd).expect("attached");
            }
            if how < 2 {
                let wanted = 16 + u32::from(fd.is_some());
                assert_eq!(ring.wait(wanted, Some(PATIENCE)), Waited::Ready(wanted), "{asked:?} {how}");
                let ended = ring.completions().filter(|done| done.user_data < 16 && done.res == 4096).count();
                assert_eq!((ended, ring.in_flight()), (16, 0), "{asked:?} {how}");
                assert_eq!(run(&mut ring, op::read(other, buf(0)).offset(8192)), 4096, "{asked:?} {how}");
            }
            drop(ring);
            assert_eq!(slow.in_flight().writes, 0, "{asked:?} {how}: a ring that goes leaves nothing behind");
        }
    }
}

/// A driver that queries its own device, and uses it through a ring of its own, in the middle of a call.
#[derive(Debug)]
struct Mirror(Arc<Mutex<Option<Device>>>);

impl Mirror {
    fn looks(&self, deep: bool) {
        let device = self.0.lock().expect("no panic").clone();
        let Some(device) = device else { return };
        let _ = (device.stats(), device.in_flight(), device.accounted(), device.notices(), format!("{device:?}"));
        if deep {
            *self.0.lock().expect("no panic") = None;
            let mut ring = ring();
            let fd = ring.attach(&device).expect("attached");
            assert_eq!(run(&mut ring, op::read(fd, buf(0))), 4096);
            drop(ring);
            *self.0.lock().expect("no panic") = Some(device);
        }
    }
}

impl SafeDriver for Mirror {
    fn limits(&self) -> Limits {
        self.looks(false);
        Limits::default()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default().polled(true)
    }

    fn size_bytes(&self) -> u64 {
        SIZE
    }

    fn open_queue(&self, _: &Open) -> Result<Box<dyn SafeQueue>, DeviceError> {
        self.looks(true);
        Ok(Box::new(Mirror(Arc::clone(&self.0))))
    }
}

impl SafeQueue for Mirror {
    fn start(&mut self, _: &mut Request<'_>) -> Step {
        self.looks(true);
        Step::End(Status::Ok)
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        self.looks(false);
    }
}

#[test]
fn a_driver_may_use_its_own_device_in_the_middle_of_a_call() {
    let own = Arc::new(Mutex::new(None));
    let device = stacked("mirror", Mirror(Arc::clone(&own)), vec![ram()]);
    *own.lock().expect("no panic") = Some(device.clone());
    let mut ring = ring();
    let fd = ring.attach(&device).expect("attached");
    assert_eq!(run(&mut ring, op::read(fd, buf(0))), 4096);
    assert_eq!(run(&mut ring, op::write(fd, buf(0)).run_async()), 4096);
    ring.detach(fd).expect("attached");
    drop(ring);
    *own.lock().expect("no panic") = None;
}

/// A file that panics when it is dropped, and maps each byte to the same place on its device.
#[derive(Debug)]
struct Brittle {
    device: Device,
    blocks: bool,
    calls: AtomicU32,
}

impl Drop for Brittle {
    fn drop(&mut self) {
        if !thread::panicking() {
            std::panic::resume_unwind(Box::new("as the test wants it"));
        }
    }
}

impl File for Brittle {
    fn device(&self) -> &Device {
        &self.device
    }

    fn size_bytes(&self) -> u64 {
        SIZE
    }

    fn map(&self, pos: u64, len: u64, intent: Intent) -> Result<Mapping, Status> {
        if self.blocks && self.calls.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
            return Err(Status::Again);
        }
        let kind = if intent == Intent::Write { MappingKind::Unwritten } else { MappingKind::Mapped };
        Ok(Mapping::new(kind, pos, len, pos))
    }

    fn map_blocking(&self, pos: u64, len: u64, intent: Intent, _: &MayBlock<'_>) -> Result<Mapping, Status> {
        let kind = if intent == Intent::Write { MappingKind::Unwritten } else { MappingKind::Mapped };
        Ok(Mapping::new(kind, pos, len, pos))
    }

    fn end_write(&self, done: WriteDone<'_>, _: &MayBlock<'_>) -> Result<(), Status> {
        if done.status.is_ok() { Ok(()) } else { Err(done.status) }
    }
}

#[test]
fn a_file_that_panics_when_it_is_dropped_takes_nothing_with_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let slow = open_device(&format!("file:{},size=16M", dir.path().join("image").display())).expect("a device");
    for (blocks, how) in (0..10).map(|n| (n % 2 == 1, n / 2)) {
        let mut ring = ring();
        let other = ring.attach(&slow).expect("attached");
        let fd = ring
            .attach_file(Arc::new(Brittle { device: slow.clone(), blocks, calls: AtomicU32::new(0) }))
            .expect("attached");
        let asynchronous = how == 4;
        for n in 0..16 {
            ring.push(op::write(other, buf(n as u8)).offset(n * 8192).user_data(n)).expect("room");
            let write = op::write(fd, buf(n as u8)).offset(n * 8192 + 4096).user_data(n + 16);
            ring.push(if asynchronous { write.run_async() } else { write }).expect("room");
        }
        ring.submit().expect("submitted");
        if how == 0 {
            assert_eq!(ring.wait(32, Some(PATIENCE)), Waited::Ready(32));
        }
        if how == 2 || how == 4 || how == 0 {
            ring.detach(fd).expect("attached");
        }
        if how != 3 {
            assert_eq!(ring.wait(32, Some(PATIENCE)), Waited::Ready(32), "{blocks} {how}");
            let ended = ring.completions().filter(|done| done.res == 4096).count();
            assert_eq!((ended, ring.in_flight()), (32, 0), "{blocks} {how}");
            assert_eq!(run(&mut ring, op::read(other, buf(0)).offset(8192)), 4096);
        }
        drop(ring);
        assert_eq!(slow.in_flight().writes, 0, "{blocks} {how}");
    }
}

/// A file that claims to be its device from end to end, and returns two devices in turn.
#[derive(Debug)]
struct TwoFaced {
    devices: [Device; 2],
    asked: AtomicU32,
    turns: [bool; 4],
}

impl TwoFaced {
    fn turn(&self, which: usize) -> usize {
        if self.turns[which] { self.asked.fetch_add(1, Ordering::Relaxed) as usize % 2 } else { 0 }
    }
}

impl File for TwoFaced {
    fn device(&self) -> &Device {
        &self.devices[self.turn(0)]
    }

    fn size_bytes(&self) -> u64 {
        u64::MAX
    }

    fn is_identity(&self) -> bool {
        self.turn(1) == 0
    }

    fn is_read_only(&self) -> bool {
        self.turn(2) == 1
    }

    fn block_bytes(&self) -> u32 {
        [1, 4096][self.turn(3)]
    }

    fn map(&self, pos: u64, len: u64, _: Intent) -> Result<Mapping, Status> {
        Ok(Mapping::new(MappingKind::Mapped, pos, len, pos))
    }
}

#[test]
fn a_file_that_names_one_device_after_the_other_stays_on_one_and_within_it() {
    let spec = |small| if small { "ram:size=1M" } else { "ram:size=64M" };
    for bits in 0..32 {
        let is_set = |bit: u32| bits >> bit & 1 == 1;
        let devices = [is_set(4), !is_set(4)].map(|small| open_device(spec(small)).expect("a device"));
        let sizes: Vec<u64> = devices.iter().map(Device::size_bytes).collect();
        let turns = std::array::from_fn(|at| is_set(at as u32));
        let file = TwoFaced { devices: devices.clone(), asked: AtomicU32::new(0), turns };
        let mut ring = ring();
        let fd = ring.attach_file(Arc::new(file)).expect("attached");
        for at in [0, 4096, SIZE - 4096, SIZE, 32 << 20, (64 << 20) - 4096, 64 << 20, 1 << 40] {
            for asynchronous in [false, true] {
                let writes: [op::Entry; 2] =
                    [op::write(fd, buf(1)).offset(at).into(), op::write(fd, vec![1; 4096]).offset(at).into()];
                for write in writes {
                    let res = run(&mut ring, if asynchronous { write.run_async() } else { write });
                    assert!(at + 4096 <= sizes[0].max(sizes[1]) || res <= 0, "{bits} {at}: {res}");
                }
                let _ = run(&mut ring, op::punch_hole(fd, at, 4096));
                let _ = run(&mut ring, op::fsync(fd));
            }
        }
        let used = devices.iter().filter(|device| device.stats().ios() > 0).count();
        assert!(used <= 1, "{bits}: it is on one of them");
    }
}

#[test]
fn a_driver_that_panics_when_a_worker_opens_it_fails_its_io_and_no_other() {
    for asked in [Asked::Open, Asked::Kernel, Asked::Capabilities, Asked::Limits, Asked::Size, Asked::DropQueue] {
        let armed = Arc::new(AtomicBool::new(false));
        let device = device("moody", Moody(Mood { asked, armed: Arc::clone(&armed) }));
        let mut ring = ring();
        let fd = ring.attach(&device).expect("attached");
        let other = ring.attach(&ram()).expect("attached");
        armed.store(true, Ordering::Relaxed);
        for n in 0..4 {
            ring.push(op::write(fd, buf(1)).offset(n * 65536).run_async().user_data(1)).expect("room");
            ring.push(op::write(other, buf(1)).offset(n * 65536).run_async()).expect("room");
        }
        ring.submit().expect("submitted");
        assert_eq!(ring.wait(8, Some(PATIENCE)), Waited::Ready(8), "{asked:?}");
        let good = ring.completions().filter(|done| done.user_data == 0 && done.res == 4096).count();
        assert_eq!(good, 4, "{asked:?}");
        armed.store(false, Ordering::Relaxed);
        assert_eq!(run(&mut ring, op::read(fd, buf(1)).run_async()), 4096, "{asked:?}");
    }
}
