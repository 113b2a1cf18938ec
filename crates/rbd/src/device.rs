//! The device, and its queues.
//!
//! Each request has a *slot*, whose index is its tag. librbd gets the slot's address, and passes it to [`ended`] on a
//! thread of its own. From the submission until then the slot belongs to librbd's threads, afterwards to the ring
//! again.
//!
//! Invariants:
//! - D1: a slot belongs to the ring while its tag is free or the ring starts its request, and to librbd from `submit`
//!   until `ended` has completed the request. Completing it is the last thing that `ended` does with the slot.
//! - D2: `under_way` is the number of slots that librbd has. It is increased before `submit`, and decreased after
//!   `ended` has finished with the slot. The queue frees its slots when it is 0.
#![allow(unsafe_code)] // Is a driver, and gives the memory of requests to librbd.

use std::ffi::c_void;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sheave::drivers::{Claim, Sharing};
use sheave::{Capabilities, Device, DeviceError, Errno, Limits, Op, Status};
use sheave_base::panics::discard;
use sheave_base::sync::atomic::{AtomicU32, Ordering};
use sheave_blk::driver::{Driver, HctxOpen, HwEnv, HwQueue, NextEvent, Remote, RemoteRq, TimedOut};
use sheave_blk::request::{DoneList, Rq, RqList, RqTable};

use crate::desk::Desk;
use crate::librbd::{Image, take_result};
use crate::shared::Shared;

/// Length of the longest read or write: an object of the default size.
const MAX_BYTES: u32 = 4 << 20;
/// Length of the longest discard or write-zeroes. librbd makes a request for each object in the range.
const MAX_ZEROES_BYTES: u32 = 256 << 20;
const MAX_PIECES: u16 = 256;
const DEPTH: u16 = 256;
/// Longest sleep between two checks for requests that librbd still has.
const LONGEST_LOOK: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(crate) struct Rbd(Arc<Shared>);

impl Rbd {
    pub(crate) fn new(shared: Arc<Shared>) -> Rbd {
        Rbd(shared)
    }
}

/// Returns the device. Its requests time out after `warn=`, which only makes the queue report the silence.
pub(crate) fn device(rbd: Rbd) -> Device {
    let (spec, warn) = (rbd.0.target.spec.clone(), rbd.0.target.warn);
    Device::with_timeout(&spec, Box::new(rbd), warn)
}

fn sectors(bytes: u32) -> u32 {
    bytes / 512
}

// SAFETY: D7: librbd takes requests of any length and of up to 1,024 pieces; what it refuses ends with an error.
unsafe impl Driver for Rbd {
    fn limits(&self) -> Limits {
        Limits::default()
            .max_sectors(sectors(MAX_BYTES))
            .max_segments(MAX_PIECES)
            .max_discard_sectors(sectors(MAX_ZEROES_BYTES))
            .max_write_zeroes_sectors(if self.0.zeroes { sectors(MAX_ZEROES_BYTES) } else { 0 })
            .queue_depth(DEPTH)
    }

    fn capabilities(&self) -> Capabilities {
        let writes = !self.0.target.is_read_only();
        // `rbd cache` in Ceph's configuration may give librbd a volatile cache.
        let all = Capabilities::default().volatile_cache(writes).discard(true).write_zeroes(self.0.zeroes);
        all.asynchronous(true).read_only(!writes).fences(writes && self.0.lockable)
    }

    fn size_bytes(&self) -> u64 {
        self.0.size
    }

    fn open_hctx(&self, open: &mut HctxOpen<'_>) -> Result<Box<dyn HwQueue>, DeviceError> {
        let Some(image) = self.0.image() else {
            return Err(DeviceError::Driver(format!("{}: it is closed", self.0.target.words()).into()));
        };
        self.0.desk.has_capacity(open.capacity);
        let flight = Arc::new(Flight { under_way: AtomicU32::new(0), desk: self.0.desk.clone() });
        let slot = |_| {
            let slot = Slot { rq: None, pieces: Vec::new(), op: Op::Flush, len: 0, flight: flight.clone() };
            NonNull::from(Box::leak(Box::new(slot)))
        };
        // One more than the depth, because the flush request has the tag `depth`.
        let slots = (0..=open.depth).map(slot).collect();
        Ok(Box::new(RbdQueue {
            image,
            slots,
            flight: flight.clone(),
            remote: open.remote.clone(),
            shared: self.0.clone(),
        }))
    }

    fn claim(&self, _: Sharing) -> Result<Claim, DeviceError> {
        self.0.claim()
    }

    fn still_owns(&self) -> Result<(), Status> {
        self.0.still_owns()
    }

    fn notices(&self) -> Vec<String> {
        self.0.desk.notices()
    }
}

/// The state that a queue shares with librbd's threads.
#[derive(Debug)]
struct Flight {
    under_way: AtomicU32,
    desk: Arc<Desk>,
}

/// A request that librbd has given back. It counts as under way until this value is dropped, even by a panic.
struct Ending(Arc<Flight>);

impl Drop for Ending {
    fn drop(&mut self) {
        // Release: pairs with the load in `wait_for_all` (D2).
        self.0.under_way.fetch_sub(1, Ordering::Release);
    }
}

/// The part of a request that librbd's callback uses.
struct Slot {
    rq: Option<RemoteRq>,
    /// The memory of the request. librbd reads this list until the request ends.
    pieces: Vec<libc::iovec>,
    op: Op,
    len: u32,
    flight: Arc<Flight>,
}

/// One ring's queue. Field order: `image` is dropped before `shared`, which closes the device (R3).
struct RbdQueue {
    image: Arc<Image>,
    /// The slots, indexed by tag (D1).
    slots: Box<[NonNull<Slot>]>,
    flight: Arc<Flight>,
    remote: Remote,
    shared: Arc<Shared>,
}

impl fmt::Debug for RbdQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RbdQueue({})", self.shared.target.name())
    }
}

impl RbdQueue {
    #[inline]
    fn start(&mut self, rq: Rq, rqs: &RqTable<'_>) {
        let tag = rq.tag();
        let request = rqs.get(&rq);
        let (op, at, len) = (request.op, request.sector * 512, request.bytes);
        let slot = self.slots[usize::from(tag)];
        // SAFETY: the ring has the request, so the slot is the ring's (D1).
        let slot_now = unsafe { &mut *slot.as_ptr() };
        slot_now.pieces.clear();
        if op.has_data() {
            slot_now.pieces.extend(rqs.segments(tag).map(|segment| libc::iovec {
                iov_base: std::ptr::with_exposed_provenance_mut(segment.base()),
                iov_len: segment.len(),
            }));
        }
        (slot_now.op, slot_now.len) = (op, len);
        slot_now.rq = Some(self.remote.send_out(rq));
        // Relaxed: read by this thread, after those that `ended` has counted down.
        self.flight.under_way.fetch_add(1, Ordering::Relaxed);
        let (pieces, arg) = (slot_now.pieces.as_ptr(), slot.as_ptr().cast::<c_void>());
        let many = slot_now.pieces.len();
        // SAFETY: the list is the slot's, which nobody changes until `ended` has completed the request (D1).
        let pieces = unsafe { std::slice::from_raw_parts(pieces, many) };
        // SAFETY: the list and the memory are the request's, which does not end before `ended` completes it; `arg` is
        // its slot, which stays until then (D1, D2).
        let started = unsafe { self.image.submit((op, at, len as usize), pieces, ended, arg) };
        if let Err(errno) = started {
            // SAFETY: librbd has refused it, so the slot is the ring's.
            let rq = unsafe { (*slot.as_ptr()).rq.take() };
            self.flight.under_way.fetch_sub(1, Ordering::Relaxed); // As above.
            if let Some(rq) = rq {
                rq.complete(Status::from_errno(Errno(errno)));
            }
            self.flight.desk.failed(op, errno);
        }
    }

    /// Waits until librbd has given back every request of this queue (R1).
    fn wait_for_all(&self) {
        let (from, mut pause, mut told) = (Instant::now(), Duration::from_micros(50), false);
        // Acquire: pairs with the count in `Ending`, so that all accesses of `ended` to the slots come before the next
        // ones here.
        while self.flight.under_way.load(Ordering::Acquire) > 0 {
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_LOOK);
            if !told && from.elapsed() > self.shared.target.warn {
                told = true;
                self.shared.desk.is_silent();
            }
        }
    }
}

// SAFETY: D1 to D6: librbd calls `ended` once for each request that it takes, also when the request is given up, and
// touches the memory until then at most; a queue that shuts down waits for that.
unsafe impl HwQueue for RbdQueue {
    fn queue_rqs(&mut self, list: &mut RqList, rqs: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) {
        while let Some(rq) = list.pop() {
            self.start(rq, rqs);
        }
    }

    fn poll(&mut self, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) {}

    fn next_event(&self) -> NextEvent {
        NextEvent::Remote
    }

    /// Leaves the request to librbd, because librbd cannot give a request back; librados ends it after `timeout=`.
    fn timed_out(&mut self, _: u16, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) -> TimedOut {
        self.shared.desk.is_silent();
        TimedOut::Waiting
    }

    fn shutdown(&mut self, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) {
        self.wait_for_all();
    }
}

impl Drop for RbdQueue {
    fn drop(&mut self) {
        self.wait_for_all();
        for slot in &self.slots {
            // SAFETY: made by `Box::leak`, and librbd has none of them (D2).
            drop(unsafe { Box::from_raw(slot.as_ptr()) });
        }
    }
}

/// The callback of librbd for I/O that has ended, on a thread of librbd's.
unsafe extern "C" fn ended(completion: *mut c_void, arg: *mut c_void) {
    let end = || {
        // SAFETY: librbd gives the completion to this call alone.
        let result = unsafe { take_result(completion) };
        // SAFETY: `arg` is the slot of the request, and this thread's until the request is completed (D1).
        let slot = unsafe { &mut *arg.cast::<Slot>() };
        let ending = Ending(slot.flight.clone());
        // Declared after `ending`, so that a panic below drops `rq` first: the request then ends with an error.
        let (rq, what) = (slot.rq.take(), (slot.op, slot.len));
        let status = status_of(&ending.0.desk, what, result);
        if let Some(rq) = rq {
            rq.complete(status); // The slot is the ring's again.
        }
    };
    // R4.
    if let Err(payload) = catch_unwind(AssertUnwindSafe(end)) {
        discard(payload);
    }
}

/// Returns the status of a request for librbd's result.
#[inline]
fn status_of(desk: &Desk, (op, len): (Op, u32), result: isize) -> Status {
    if result >= 0 {
        desk.answers();
        if op == Op::Read && result != len as isize {
            desk.was_short();
            return Status::IoErr;
        }
        return Status::Ok;
    }
    let errno = i32::try_from(-result).unwrap_or(libc::EIO);
    desk.failed(op, errno);
    match errno {
        // Another client has the exclusive lock, and keeps it.
        libc::EROFS => Status::Conflict,
        errno => Status::from_errno(Errno(errno)),
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::null_mut;
    use std::thread::JoinHandle;

    use sheave::{Buf, Ring, op};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;
    use crate::desk::tests::desk;

    /// A subscriber that panics when something is logged.
    struct Panics;

    impl Subscriber for Panics {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, _: &Event<'_>) {
            panic!("nothing is to be logged");
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    /// A device whose requests end at once, like librbd ends failed ones. The counter is the number of requests that
    /// were still in their slots.
    #[derive(Debug)]
    struct GivenBack(Arc<Flight>, Arc<AtomicU32>);

    // SAFETY: no memory is touched.
    unsafe impl Driver for GivenBack {
        fn limits(&self) -> Limits {
            Limits::default()
        }

        fn capabilities(&self) -> Capabilities {
            Capabilities::default()
        }

        fn size_bytes(&self) -> u64 {
            1 << 20
        }

        fn open_hctx(&self, open: &mut HctxOpen<'_>) -> Result<Box<dyn HwQueue>, DeviceError> {
            let (flight, left, remote) = (self.0.clone(), self.1.clone(), open.remote.clone());
            Ok(Box::new(GivenBackQueue { flight, left, remote, threads: Vec::new() }))
        }
    }

    #[derive(Debug)]
    struct GivenBackQueue {
        flight: Arc<Flight>,
        left: Arc<AtomicU32>,
        remote: Remote,
        threads: Vec<JoinHandle<()>>,
    }

    // SAFETY: no memory is touched, and each request is completed by the thread that it goes to.
    unsafe impl HwQueue for GivenBackQueue {
        fn queue_rqs(&mut self, list: &mut RqList, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) {
            while let Some(rq) = list.pop() {
                let (rq, flight) = (Some(self.remote.send_out(rq)), self.flight.clone());
                let slot = Slot { rq, pieces: Vec::new(), op: Op::Write, len: 4096, flight };
                // As `start` does. Relaxed: as there.
                self.flight.under_way.fetch_add(1, Ordering::Relaxed);
                let (arg, left) = (Box::into_raw(Box::new(slot)).expose_provenance(), self.left.clone());
                self.threads.push(std::thread::spawn(move || {
                    let arg = std::ptr::with_exposed_provenance_mut::<Slot>(arg);
                    // SAFETY: without the library there is no completion to be looked at; the slot is this thread's.
                    tracing::subscriber::with_default(Panics, || unsafe { ended(null_mut(), arg.cast()) });
                    // SAFETY: it was made above, and `ended` is through with it.
                    let slot = unsafe { Box::from_raw(arg) };
                    // Relaxed: read after this thread has ended.
                    left.fetch_add(u32::from(slot.rq.is_some()), Ordering::Relaxed);
                }));
            }
        }

        fn poll(&mut self, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) {}

        fn next_event(&self) -> NextEvent {
            NextEvent::Remote
        }

        fn timed_out(&mut self, _: u16, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) -> TimedOut {
            TimedOut::Waiting
        }

        fn shutdown(&mut self, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) {
            for thread in self.threads.drain(..) {
                thread.join().expect("no panic passes a function that C calls");
            }
        }
    }

    #[test]
    fn a_request_ends_though_what_is_logged_for_it_panics() {
        let flight = Arc::new(Flight { under_way: AtomicU32::new(0), desk: Arc::new(desk()) });
        let left = Arc::new(AtomicU32::new(0));
        let device = Device::from_driver("given-back", Box::new(GivenBack(flight.clone(), left.clone())));
        let mut ring = Ring::builder().entries(8).build().expect("a ring");
        let fd = ring.attach(&device).expect("attached");
        ring.push(op::write(fd, Buf::zeroed(4096, 4096).expect("memory"))).expect("room");
        ring.submit().expect("submitted");
        let _ = ring.wait(1, Some(Duration::from_secs(10)));
        assert_eq!(ring.pop().map(|done| done.res), Some(-libc::EIO));
        drop(ring);
        assert_eq!(left.load(Ordering::Relaxed), 0, "nobody would end what stays in its slot");
        assert_eq!(flight.under_way.load(Ordering::Acquire), 0, "who drops a queue would wait for ever");
    }
}
