//! The end of a request whose log message runs code that panics.

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

/// A device whose requests are ended at once, as librbd ends failed ones. The counter has those whose slots kept them.
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
