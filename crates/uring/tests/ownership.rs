//! Typed ownership: memory that a device may touch is never freed, whatever is dropped and when.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use sheave_base::status::Status;
use sheave_blk::driver::{Capabilities, Driver, HctxOpen, HwEnv, HwQueue, NextEvent, Remote, RemoteRq, TimedOut};
use sheave_blk::limits::Limits;
use sheave_blk::request::{DoneList, RqList, RqTable};
use sheave_blk::{Device, DeviceError};
use sheave_drivers::open_device;
use sheave_uring::{Ring, prep};

use crate::support::{Puppet, buf, ring};
use crate::watch::Watch;

/// A device that writes to the memory of its reads late, from another thread. Checks for freed memory before each
/// write; the address sanitizer would see the write, too.
#[derive(Clone, Debug)]
struct Late {
    delay: Duration,
    watched: Arc<Mutex<Vec<Watch>>>,
    written: Arc<AtomicU32>,
}

#[derive(Debug)]
struct LateQueue {
    late: Late,
    remote: Remote,
    threads: Vec<JoinHandle<()>>,
}

impl Late {
    fn new(delay: Duration) -> Late {
        Late { delay, watched: Arc::default(), written: Arc::default() }
    }

    fn write(&self, rq: RemoteRq, base: usize, len: usize) {
        std::thread::sleep(self.delay);
        let freed = self.watched.lock().unwrap().iter().any(|watch| watch.addr() == base && watch.is_freed());
        // SAFETY: the ring keeps the memory until the request has ended: what this test is about.
        #[allow(unsafe_code)]
        unsafe {
            std::ptr::write_bytes(base as *mut u8, 0xee, len);
        }
        self.written.fetch_add(1, Ordering::SeqCst);
        rq.complete(if freed { Status::Medium } else { Status::Ok });
        assert!(!freed, "memory was freed before the device was done with it");
    }
}

#[allow(unsafe_code)] // The author of a driver vouches for the memory of its requests.
// SAFETY: D7: its queues take whatever it says that they take.
unsafe impl Driver for Late {
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
        Ok(Box::new(LateQueue { late: self.clone(), remote: open.remote.clone(), threads: Vec::new() }))
    }
}

#[allow(unsafe_code)] // The author of a driver vouches for the memory of its requests.
// SAFETY: D1 to D6: each request ends once, where it came, and its memory is not touched afterwards.
unsafe impl HwQueue for LateQueue {
    fn queue_rqs(&mut self, list: &mut RqList, rqs: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) {
        while let Some(rq) = list.pop() {
            let memory: Vec<(usize, usize)> = rqs.segments(rq.tag()).map(|vec| (vec.base(), vec.len())).collect();
            let (late, rq) = (self.late.clone(), self.remote.send_out(rq));
            let [(base, len)] = memory[..] else { panic!("the test sends one piece of memory a request") };
            self.threads.push(std::thread::spawn(move || late.write(rq, base, len)));
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
            thread.join().expect("no memory was freed too early");
        }
    }
}

/// Returns a ring with reads of a late device in flight, and the watches of their memory.
fn in_flight(late: &Late) -> (Ring, Vec<Watch>) {
    let mut ring = ring();
    let fd = ring.attach(&Device::from_driver("late", Box::new(late.clone()))).unwrap();
    let mut watches = Vec::new();
    // A read that is issued, one that a link holds back, a vectored one, and one without CQE. Their sectors are apart,
    // so that nothing merges.
    let entries = [prep::read(fd, watched(&mut watches)).offset(0).link(), prep::read(fd, watched(&mut watches))];
    let vectored = prep::readv(fd, vec![watched(&mut watches)]).offset(16384);
    let skipped = prep::read(fd, watched(&mut watches)).offset(32768).skip_success();
    late.watched.lock().unwrap().extend(&watches);
    for entry in entries.into_iter().chain([vectored, skipped]) {
        ring.push(entry).unwrap();
    }
    ring.submit().unwrap();
    (ring, watches)
}

fn watched(watches: &mut Vec<Watch>) -> sheave_base::buf::Buf {
    let memory = buf(4096);
    watches.push(Watch::new(&memory));
    memory
}

#[test]
fn a_ring_dropped_in_mid_io_waits_for_the_device() {
    let late = Late::new(Duration::from_millis(20));
    let (ring, watches) = in_flight(&late);
    drop(ring);
    assert_eq!(late.written.load(Ordering::SeqCst), 3, "all that had begun; the linked one never did");
    assert!(watches.iter().all(|watch| watch.is_freed()), "and nothing leaks");
}

#[test]
fn a_ring_dropped_with_completions_unread_frees_what_they_own() {
    let late = Late::new(Duration::ZERO);
    let (mut ring, watches) = in_flight(&late);
    let skipped = watches[3];
    ring.drain();
    assert_eq!(ring.in_flight(), 0);
    assert!(skipped.is_freed(), "a success that nobody hears of frees its memory when it ends");
    assert!(watches[..3].iter().all(|watch| !watch.is_freed()), "all else waits to be read");
    drop(ring);
    assert!(watches.iter().all(|watch| watch.is_freed()));
}

#[test]
fn what_is_pushed_and_never_submitted_is_freed_with_the_ring() {
    let mut watches = Vec::new();
    let mut ring = ring();
    let fd = ring.attach(&Puppet::new().device()).unwrap();
    ring.push(prep::write(fd, watched(&mut watches))).unwrap();
    drop(prep::write(fd, watched(&mut watches)));
    assert_eq!((watches[0].is_freed(), watches[1].is_freed()), (false, true));
    drop(ring);
    assert!(watches[0].is_freed());
}

#[test]
fn an_iterator_dropped_early_keeps_the_rest_and_a_completion_dropped_frees_its_own() {
    let mut watches = Vec::new();
    let mut ring = ring();
    let fd = ring.attach(&Puppet::new().device()).unwrap();
    for n in 0..4 {
        ring.push(prep::read(fd, watched(&mut watches)).user_data(n)).unwrap();
    }
    ring.submit_and_wait(4).unwrap();
    let first = ring.completions().next().unwrap();
    assert!(!watches[0].is_freed());
    drop(first);
    assert!(watches[0].is_freed());
    let kept = ring.completions().next().and_then(|c| c.into_buf()).unwrap();
    assert!(!watches[1].is_freed() && !watches[2].is_freed());
    assert_eq!(ring.completions().map(|c| c.user_data).collect::<Vec<_>>(), [2, 3]);
    assert!(watches[2].is_freed() && watches[3].is_freed() && !watches[1].is_freed());
    drop(kept);
    assert!(watches[1].is_freed());
}

#[test]
fn refused_and_cancelled_operations_give_their_memory_back() {
    let mut watches = Vec::new();
    let mut ring = ring();
    let fd = ring.attach(&Puppet::new().device()).unwrap();
    ring.push(prep::read(fd, watched(&mut watches)).offset(u64::MAX - 1).link()).unwrap();
    ring.push(prep::read(fd, watched(&mut watches)).link()).unwrap();
    ring.push(prep::readv(fd, vec![watched(&mut watches), watched(&mut watches)])).unwrap();
    ring.submit_and_wait(3).unwrap();
    let completions: Vec<_> = ring.completions().collect();
    assert_eq!(completions.iter().map(|c| c.res).collect::<Vec<_>>(), [-22, -125, -125]);
    assert!(watches.iter().all(|watch| !watch.is_freed()));
    let bufs: Vec<_> = completions.into_iter().map(sheave_uring::Completion::into_bufs).collect();
    assert_eq!(bufs.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 2]);
}

/// Drops a ring while reads and writes of a device are in flight.
fn drop_in_mid_io(spec: &str) {
    for registered in [false, true] {
        let device = open_device(spec).unwrap();
        let mut watches = Vec::new();
        let mut ring = Ring::builder().entries(64).build().unwrap();
        let fd = ring.attach(&device).unwrap();
        if registered {
            ring.register_buffers(vec![watched(&mut watches)]).unwrap();
        }
        for n in 0..64_u64 {
            let at = n * 8192;
            let entry: prep::Entry = match (registered, n % 2) {
                (true, 0) => prep::read_fixed(fd, 0, 0..4096).offset(at).into(),
                (true, _) => prep::write_fixed(fd, 0, 0..4096).offset(at).into(),
                (false, 0) => prep::read(fd, watched(&mut watches)).offset(at).into(),
                (false, _) => prep::write(fd, watched(&mut watches)).offset(at).into(),
            };
            ring.push(entry).unwrap();
        }
        ring.submit().unwrap();
        assert!(!watches.iter().any(|watch| watch.is_freed()));
        drop(ring);
        assert!(watches.iter().all(|watch| watch.is_freed()), "{spec}");
        assert_eq!(device.in_flight().total(), 0, "{spec}");
    }
}

#[test]
fn null_devices_with_latency_dropped_in_mid_io() {
    drop_in_mid_io("null:size=1M,latency=50ms");
    drop_in_mid_io("null:size=1M,latency=50ms,complete=timer,depth=8");
    drop_in_mid_io("null:size=1M,latency=1ms,complete=thread");
    drop_in_mid_io("null:size=1M,complete=poll");
}

#[test]
fn a_file_dropped_in_mid_io() {
    let dir = tempfile::tempdir().unwrap();
    let spec = format!("file:{},size=1M", dir.path().join("image").display());
    if let Err(error) = open_device(&spec) {
        return sheave_testkit::skip(&format!("no file device here: {error}"));
    }
    drop_in_mid_io(&spec);
}
