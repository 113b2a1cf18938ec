//! A driver or a file that panics, in any of its calls: the requests that it had fail, and the ring stays usable.
//!
//! A driver is unsafe to write, so this module has unsafe code, unlike the others: [`Panics`] is a driver.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sheave::{Device, DeviceError, Fd, Ring, Waited, op, open_device};
use sheave_base::status::Status;
use sheave_blk::driver::{Capabilities, Driver, HctxOpen, HwEnv, HwQueue, NextEvent, RemoteRq, TimedOut};
use sheave_blk::limits::Limits;
use sheave_blk::request::{DoneList, Rq, RqList, RqTable};
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::grace::Grace;
use sheave_iomap::mapping::{Intent, MapFlags, Mapping, MappingKind};
use sheave_iomap::{FallocateMode, File, PlainRanges, SummedDone, WriteDone};
use sheave_uring::IoWq;

use crate::buf;

const EIO: i32 = -5;
const SIZE: u64 = 1 << 20;
/// A time longer than any step here takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time after which the ring calls a driver about an overdue request.
const SHORT: Duration = Duration::from_millis(20);

/// Panics without a message.
fn panics() -> ! {
    std::panic::resume_unwind(Box::new("as the test wants it"))
}

/// The call of a driver that panics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    /// The panic comes with all requests still in the list.
    QueueFirst,
    /// The panic comes with one request taken, and its token dropped.
    QueueMiddle,
    /// The panic comes with one request ended, one held and one dropped.
    QueueMixed,
    Poll,
    PollHalf,
    NextEvent,
    TimedOut,
    Remote,
    Shutdown,
    /// The queue is dropped.
    Drop,
}

const CALLS: [Call; 9] = [
    Call::QueueFirst,
    Call::QueueMiddle,
    Call::QueueMixed,
    Call::Poll,
    Call::PollHalf,
    Call::NextEvent,
    Call::TimedOut,
    Call::Remote,
    Call::Shutdown,
];

/// The behaviour of a test's driver.
#[derive(Debug)]
struct Plan {
    panics: Vec<Call>,
    /// True if every call panics, and not only the first.
    always: bool,
    has_panicked: AtomicBool,
    /// Number of calls that succeed before the first that panics.
    good: AtomicU32,
    /// Requests that another thread has, for [`Call::Remote`].
    out: Mutex<Vec<RemoteRq>>,
}

impl Plan {
    fn panics_in(&self, call: Call) -> bool {
        let less = |good: u32| good.checked_sub(1);
        self.panics.contains(&call)
            && self.good.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_err()
            && (self.always || !self.has_panicked.swap(true, Ordering::Relaxed))
    }

    fn call(&self, call: Call) {
        if self.panics_in(call) {
            panics();
        }
    }
}

/// A driver that panics.
#[derive(Debug)]
struct Panics(Arc<Plan>);

#[allow(unsafe_code)] // Whoever makes a driver vouches for the memory of its requests.
// SAFETY: D7: no memory is touched.
unsafe impl Driver for Panics {
    fn limits(&self) -> Limits {
        Limits::default().queue_depth(8)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default().polled(true).volatile_cache(true)
    }

    fn size_bytes(&self) -> u64 {
        SIZE
    }

    fn open_hctx(&self, open: &mut HctxOpen<'_>) -> Result<Box<dyn HwQueue>, DeviceError> {
        Ok(Box::new(PanicsQueue { plan: self.0.clone(), held: Vec::new(), remote: open.remote.clone() }))
    }
}

#[derive(Debug)]
struct PanicsQueue {
    plan: Arc<Plan>,
    held: Vec<Rq>,
    remote: sheave_blk::driver::Remote,
}

#[allow(unsafe_code)] // Whoever makes a driver vouches for the memory of its requests.
// SAFETY: D1 to D3, D6: no memory is touched, and each token is ended once, dropped, or sent to a thread that gets no
// memory.
unsafe impl HwQueue for PanicsQueue {
    fn queue_rqs(&mut self, list: &mut RqList, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, done: &mut DoneList) {
        self.plan.call(Call::QueueFirst);
        if self.plan.panics_in(Call::QueueMiddle) {
            let _lost = list.pop();
            panics();
        }
        if self.plan.panics_in(Call::QueueMixed) {
            if let Some(rq) = list.pop() {
                done.push(rq, Status::Ok);
            }
            self.held.extend(list.pop());
            let _lost = list.pop();
            panics();
        }
        while let Some(rq) = list.pop() {
            if self.plan.panics.contains(&Call::Remote) {
                self.plan.out.lock().expect("no panic").push(self.remote.send_out(rq));
            } else {
                self.held.push(rq);
            }
        }
    }

    fn poll(&mut self, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, done: &mut DoneList) {
        self.plan.call(Call::Poll);
        if self.plan.panics.contains(&Call::TimedOut) || self.plan.panics.contains(&Call::NextEvent) {
            return;
        }
        if self.plan.panics.contains(&Call::Remote) {
            for rq in self.plan.out.lock().expect("no panic").drain(..) {
                rq.complete(Status::Ok);
            }
        }
        for (at, rq) in self.held.drain(..).enumerate() {
            if at == 1 {
                self.plan.call(Call::PollHalf);
            }
            done.push(rq, Status::Ok);
        }
    }

    fn ended_remotely(&mut self, _: u16, status: Status, _: &mut RqTable<'_>) -> Status {
        self.plan.call(Call::Remote);
        status
    }

    fn next_event(&self) -> NextEvent {
        self.plan.call(Call::NextEvent);
        if self.held.is_empty() { NextEvent::Idle } else { NextEvent::Stuck }
    }

    fn timed_out(&mut self, _: u16, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) -> TimedOut {
        self.plan.call(Call::TimedOut);
        TimedOut::Waiting
    }

    fn shutdown(&mut self, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, done: &mut DoneList) {
        self.plan.call(Call::Shutdown);
        for rq in self.held.drain(..) {
            done.push(rq, Status::IoErr);
        }
    }
}

impl Drop for PanicsQueue {
    fn drop(&mut self) {
        self.plan.call(Call::Drop);
    }
}

fn device(panics: &[Call], always: bool) -> Device {
    device_good_for(0, panics, always)
}

fn device_good_for(good: u32, panics: &[Call], always: bool) -> Device {
    let plan = Plan {
        panics: panics.to_vec(),
        always,
        has_panicked: AtomicBool::new(false),
        good: AtomicU32::new(good),
        out: Mutex::new(Vec::new()),
    };
    Device::with_timeout("panics", Box::new(Panics(Arc::new(plan))), SHORT)
}

/// Reads `many` blocks, into registered or owned buffers. Returns the results in order of the blocks.
fn read(ring: &mut Ring, fd: Fd, many: u64, fixed: bool) -> Vec<i32> {
    for n in 0..many {
        // With gaps, so that no two are merged.
        if fixed {
            ring.push(op::read_fixed(fd, 0, 0..4096).offset(n * 8192).user_data(n)).expect("room");
        } else {
            ring.push(op::read(fd, buf(0)).offset(n * 8192).user_data(n)).expect("room");
        }
    }
    // A panic in the call for a single I/O propagates to the caller.
    let _ = catch_unwind(AssertUnwindSafe(|| ring.submit().expect("submitted")));
    assert_eq!(ring.wait(many as u32, Some(PATIENCE)), Waited::Ready(many as u32), "{ring:?}");
    let mut ended: Vec<_> = ring.completions().map(|done| (done.user_data, done.res)).collect();
    ended.sort_unstable();
    assert_eq!(ended.iter().map(|(n, _)| *n).collect::<Vec<_>>(), (0..many).collect::<Vec<_>>(), "each once");
    ended.into_iter().map(|(_, res)| res).collect()
}

fn a_ring_survives(panics: &[Call], always: bool, many: u64, fixed: bool) {
    let said = format!("{panics:?}, {always}, {many}, {fixed}");
    let mut ring = crate::ring();
    ring.register_buffers(vec![buf(0)]).expect("registered");
    let other = ring.attach(&open_device("ram:size=1M").expect("a device")).expect("attached");
    let fd = ring.attach(&device(panics, always)).expect("attached");
    let results = read(&mut ring, fd, many, fixed);
    assert!(results.iter().all(|&res| res == EIO || res == 4096), "{said}: {results:?}");
    let only = |call| panics.iter().all(|&panics| panics == call);
    if !(only(Call::Shutdown) || many == 1 && only(Call::PollHalf)) {
        // Requests that ended before the panic keep their results.
        let all_done = many == 1 && only(Call::QueueMixed);
        assert!(all_done || results.iter().any(|&res| res != 4096), "{said}: what it had was not done");
        // The device fails all later I/O, and the ring's other device does not.
        assert_eq!(read(&mut ring, fd, many, fixed), vec![EIO; many as usize], "{said}");
    }
    assert_eq!(read(&mut ring, other, many, fixed), vec![4096; many as usize], "{said}");
    assert_eq!(ring.in_flight(), 0, "{said}");
    ring.detach(fd).expect("attached");
    ring.reap();
    // A queue that is opened anew works, if its driver does.
    let fd = ring.attach(&device(&[], false)).expect("attached");
    assert_eq!(read(&mut ring, fd, many, fixed), vec![4096; many as usize], "{said}");
    // A ring can also be dropped with all of this in flight.
    let fd = ring.attach(&device(panics, true)).expect("attached");
    for n in 0..many {
        ring.push(op::read(fd, buf(0)).offset(n * 8192)).expect("room");
    }
    ring.submit().expect("submitted");
    drop(ring);
}

#[test]
fn a_driver_that_panics_fails_what_it_has_and_the_ring_answers() {
    for call in CALLS {
        for many in [1, 3, 20] {
            for fixed in [false, true] {
                a_ring_survives(&[call], false, many, fixed);
            }
        }
    }
}

#[test]
fn the_panic_of_a_driver_that_gets_one_io_alone_passes_through_and_the_ring_answers() {
    for (call, good) in
        [Call::QueueFirst, Call::QueueMiddle].into_iter().flat_map(|call| (0..8).map(move |n| (call, n)))
    {
        let mut ring = crate::ring();
        ring.register_buffers(vec![buf(0)]).expect("registered");
        let fd = ring.attach(&device_good_for(good, &[call], false)).expect("attached");
        for n in 0..12 {
            ring.push(op::read_fixed(fd, 0, 0..4096).offset(n * 8192).user_data(n)).expect("room");
            let passed = catch_unwind(AssertUnwindSafe(|| ring.submit_and_wait(1).expect("submitted"))).is_err();
            // The first I/O of a kind does not take the path of a single I/O.
            assert_eq!(passed, n > 0 && n == u64::from(good), "{call:?} {good} {n}");
            assert_eq!(ring.wait(1, Some(PATIENCE)), Waited::Ready(1), "{ring:?}");
            let wanted = if n < u64::from(good) { 4096 } else { EIO };
            assert_eq!(ring.completions().map(|done| (done.user_data, done.res)).collect::<Vec<_>>(), [(n, wanted)]);
        }
        assert_eq!(ring.in_flight(), 0);
    }
}

#[test]
fn a_driver_that_always_panics_does_not_stall_the_ring() {
    for call in CALLS {
        a_ring_survives(&[call, Call::Shutdown], true, 5, false);
    }
    a_ring_survives(&CALLS, true, 5, true);
}

#[test]
fn a_queue_that_panics_when_it_is_dropped_takes_nothing_with_it() {
    let mut ring = crate::ring();
    let fds = [0, 1].map(|_| ring.attach(&device(&[Call::Drop], true)).expect("attached"));
    for fd in fds {
        assert_eq!(read(&mut ring, fd, 3, false), vec![4096; 3]);
    }
    fds.into_iter().for_each(|fd| ring.detach(fd).expect("attached"));
    ring.reap();
    let other = ring.attach(&open_device("ram:size=1M").expect("a device")).expect("attached");
    assert_eq!(read(&mut ring, other, 3, false), vec![4096; 3]);
}

/// By then its queue is gone, and each of its requests has failed.
#[test]
fn a_remote_completion_after_a_driver_panic_completes_nothing_twice() {
    let plan = Arc::new(Plan {
        // The driver passes its requests to another thread, and panics when it is asked about them.
        panics: vec![Call::Remote, Call::Poll, Call::Shutdown],
        always: true,
        has_panicked: AtomicBool::new(false),
        good: AtomicU32::new(0),
        out: Mutex::new(Vec::new()),
    });
    for dropped in [false, true] {
        let mut ring = crate::ring();
        let fd = ring.attach(&Device::with_timeout("panics", Box::new(Panics(plan.clone())), SHORT)).expect("attached");
        assert_eq!(read(&mut ring, fd, 3, false), vec![EIO; 3]);
        let late = std::mem::take(&mut *plan.out.lock().expect("no panic"));
        assert_eq!(late.len(), 3);
        late.into_iter().for_each(|rq| rq.complete(Status::Ok));
        if !dropped {
            ring.detach(fd).expect("attached");
            ring.reap();
            let other = ring.attach(&open_device("ram:size=1M").expect("a device")).expect("attached");
            assert_eq!(read(&mut ring, other, 3, false), vec![4096; 3]);
        }
        drop(ring);
    }
}

#[test]
fn a_flush_and_a_write_behind_it_fail_once() {
    for call in [Call::QueueFirst, Call::QueueMiddle, Call::Poll] {
        let mut ring = crate::ring();
        let fd = ring.attach(&device(&[call], false)).expect("attached");
        ring.push(op::fsync(fd).user_data(1)).expect("room");
        ring.push(op::write(fd, buf(1)).dsync().user_data(2)).expect("room");
        ring.submit().expect("submitted");
        assert_eq!(ring.wait(2, Some(PATIENCE)), Waited::Ready(2), "{call:?}");
        let mut ended: Vec<_> = ring.completions().map(|done| (done.user_data, done.res)).collect();
        ended.sort_unstable();
        assert_eq!(ended, [(1, EIO), (2, EIO)], "{call:?}");
    }
}

/// The call of a file that panics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Size,
    MaxBytes,
    Map,
    MapPlain,
    MapBlocking,
    BeginWrite,
    EndSummed,
    EndSummedBlocking,
    EndWrite,
    NeedsSync,
    Sync,
    Fallocate,
}

const ASKED: [Asked; 12] = [
    Asked::Size,
    Asked::MaxBytes,
    Asked::Map,
    Asked::MapPlain,
    Asked::MapBlocking,
    Asked::BeginWrite,
    Asked::EndSummed,
    Asked::EndSummedBlocking,
    Asked::EndWrite,
    Asked::NeedsSync,
    Asked::Sync,
    Asked::Fallocate,
];

/// A file that panics at this call. It maps each byte to the same place on its device, and every I/O makes all calls
/// there are.
#[derive(Debug)]
struct Moody {
    device: Device,
    panics: Mutex<Option<Asked>>,
    grace: Arc<Grace>,
    mapped: AtomicBool,
}

impl Moody {
    fn new() -> Arc<Moody> {
        let device = open_device("ram:size=1M").expect("a device");
        Arc::new(Moody {
            device,
            panics: Mutex::new(None),
            grace: Arc::new(Grace::new()),
            mapped: AtomicBool::new(false),
        })
    }

    fn arm(&self, asked: Option<Asked>) {
        *self.panics.lock().expect("nobody panics with it") = asked;
    }

    fn call(&self, asked: Asked) {
        let armed = *self.panics.lock().expect("nobody panics with it");
        if armed == Some(asked) {
            panics();
        }
    }
}

impl File for Moody {
    fn device(&self) -> &Device {
        &self.device
    }

    fn size_bytes(&self) -> u64 {
        self.call(Asked::Size);
        SIZE
    }

    fn max_bytes(&self) -> Option<u64> {
        self.call(Asked::MaxBytes);
        Some(SIZE)
    }

    fn grace(&self) -> Option<&Arc<Grace>> {
        Some(&self.grace)
    }

    fn map(&self, pos: u64, len: u64, intent: Intent) -> Result<Mapping, Status> {
        self.call(Asked::Map);
        if self.mapped.swap(false, Ordering::Relaxed) {
            let kind = if intent == Intent::Write { MappingKind::Unwritten } else { MappingKind::Mapped };
            Ok(Mapping::new(kind, pos, len, pos).flags(MapFlags::SUMMED))
        } else {
            Err(Status::Again)
        }
    }

    fn map_plain(&self, _: &mut [u64], _: &PlainRanges) -> usize {
        self.call(Asked::MapPlain);
        0
    }

    fn map_blocking(&self, pos: u64, len: u64, _: Intent, _: &MayBlock) -> Result<Mapping, Status> {
        self.call(Asked::MapBlocking);
        self.mapped.store(true, Ordering::Relaxed);
        Ok(Mapping::new(MappingKind::Unwritten, pos, len, pos).flags(MapFlags::SUMMED))
    }

    fn begin_write(&self, _: &Mapping) {
        self.call(Asked::BeginWrite);
    }

    fn end_summed(&self, _: &SummedDone<'_>) -> Result<(), Status> {
        self.call(Asked::EndSummed);
        Err(Status::Again)
    }

    fn end_summed_blocking(&self, _: &SummedDone<'_>, _: &MayBlock) -> Result<(), Status> {
        self.call(Asked::EndSummedBlocking);
        Ok(())
    }

    fn end_write(&self, done: WriteDone<'_>, _: &MayBlock) -> Result<(), Status> {
        self.call(Asked::EndWrite);
        if done.status.is_ok() { Ok(()) } else { Err(done.status) }
    }

    fn needs_sync(&self) -> bool {
        self.call(Asked::NeedsSync);
        true
    }

    fn sync(&self, _: &MayBlock) -> Option<Result<(), Status>> {
        self.call(Asked::Sync);
        None
    }

    fn fallocate(&self, _: FallocateMode, _: u64, _: u64, _: &MayBlock) -> Result<(), Status> {
        self.call(Asked::Fallocate);
        Ok(())
    }
}

/// Runs one of each operation, one after the other. Returns their results.
fn one_of_each(ring: &mut Ring, fd: Fd) -> Vec<i32> {
    let operations: [op::Entry; 5] = [
        op::write(fd, buf(1)).into(),
        op::write(fd, buf(2)).dsync().into(),
        op::read(fd, buf(0)).into(),
        op::fsync(fd).into(),
        op::punch_hole(fd, 0, 4096).into(),
    ];
    let one = |operation| {
        ring.push(operation).expect("room");
        ring.submit().expect("submitted");
        assert_eq!(ring.wait(1, Some(PATIENCE)), Waited::Ready(1), "{ring:?}");
        ring.completions().next().expect("it ended").res
    };
    operations.into_iter().map(one).collect()
}

#[test]
fn a_file_that_panics_fails_the_io_that_asked_and_the_ring_answers() {
    for stepped in [false, true] {
        for asked in ASKED {
            let io_wq = IoWq::builder().stepped(stepped).build().expect("a pool");
            let mut ring = Ring::builder().entries(64).io_wq(&io_wq).build().expect("a ring");
            let file = Moody::new();
            let fd = ring.attach_file(file.clone()).expect("attached");
            file.arm(Some(asked));
            let results = one_of_each(&mut ring, fd);
            let wanted = match asked {
                Asked::Size | Asked::MaxBytes | Asked::MapPlain | Asked::BeginWrite | Asked::NeedsSync => {
                    // The other results are not affected by the panicking call.
                    results.iter().map(|&res| if res == EIO { EIO } else { res.max(0) }).collect()
                }
                Asked::Map | Asked::MapBlocking | Asked::EndSummed | Asked::EndSummedBlocking => {
                    vec![EIO, EIO, EIO, 0, 0]
                }
                Asked::EndWrite => vec![EIO, EIO, 4096, 0, 0],
                Asked::Sync => vec![4096, EIO, 4096, EIO, 0],
                Asked::Fallocate => vec![4096, 4096, 4096, 0, EIO],
            };
            assert_eq!(results, wanted, "{asked:?}");
            file.arm(None);
            assert_eq!(one_of_each(&mut ring, fd), [4096, 4096, 4096, 0, 0], "{asked:?}, once it does not");
            // No I/O is counted any more and no section is open, or a waiter of this grace would wait for ever.
            assert!(file.grace.is_over(file.grace.start()), "{asked:?}");
            assert_eq!(ring.in_flight(), 0, "{asked:?}");
            // A ring can also be dropped with all of this in flight.
            file.arm(Some(asked));
            ring.push(op::write(fd, buf(1)).dsync()).expect("room");
            ring.push(op::read(fd, buf(1))).expect("room");
            ring.submit().expect("submitted");
        }
    }
}
