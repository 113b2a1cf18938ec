//! Openings that fail, or come late: a driver that panics when it is opened, a file that breaks its contract, and rings
//! that are made while a thread ends.
#![forbid(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use sheave::drivers::{KernelUse, Open, Request, SafeDriver, SafeQueue, Step, device, stacked};
use sheave::files::{Intent, Mapping, MappingKind};
use sheave::volumes::{CreateOptions, OpenOptions, Pool};
use sheave::{Capabilities, Device, DeviceError, File, Limits, Ring, Status, op, open_device};

use crate::{buf, ring, run};

const SIZE: u64 = 1 << 20;

fn ram() -> Device {
    open_device("ram:size=1M").expect("a device")
}

/// A driver that needs receive buffers of the ring, and panics whenever it is opened while armed.
#[derive(Debug)]
struct Bursts(Arc<AtomicBool>);

impl SafeDriver for Bursts {
    fn limits(&self) -> Limits {
        Limits::default()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn size_bytes(&self) -> u64 {
        SIZE
    }

    fn kernel(&self) -> Option<KernelUse> {
        Some(KernelUse::new(4).receive_buffers(4, 4096))
    }

    fn open_queue(&self, _: &Open) -> Result<Box<dyn SafeQueue>, DeviceError> {
        if self.0.load(Ordering::Relaxed) {
            std::panic::resume_unwind(Box::new("as the test wants it"));
        }
        Ok(Box::new(Well))
    }
}

#[derive(Debug)]
struct Well;

impl SafeQueue for Well {
    fn start(&mut self, _: &mut Request<'_>) -> Step {
        Step::End(Status::Ok)
    }
}

#[test]
fn a_driver_that_panics_when_it_is_opened_keeps_no_buffers_and_no_device_below_it() {
    let armed = Arc::new(AtomicBool::new(true));
    let mut ring = ring();
    // More times than a ring has places for devices.
    for n in 0..100 {
        let bursts = stacked("bursts", Bursts(Arc::clone(&armed)), vec![ram()]);
        let attached =
            catch_unwind(AssertUnwindSafe(|| ring.attach(&bursts).map(drop).map_err(|error| error.to_string())));
        assert!(attached.is_err(), "{n}: {attached:?}");
    }
    armed.store(false, Ordering::Relaxed);
    let fd = ring.attach(&device("well", Bursts(armed))).expect("nothing is left of the others");
    assert_eq!(run(&mut ring, op::read(fd, buf(0))), 4096);
}

/// A file with an arbitrary block size.
#[derive(Debug)]
struct Odd(Device, u32);

impl File for Odd {
    fn device(&self) -> &Device {
        &self.0
    }

    fn size_bytes(&self) -> u64 {
        1 << 20
    }

    fn block_bytes(&self) -> u32 {
        self.1
    }

    fn map(&self, pos: u64, len: u64, _: Intent) -> Result<Mapping, Status> {
        Ok(Mapping::new(MappingKind::Mapped, pos, len, pos))
    }
}

#[test]
fn a_file_whose_blocks_are_no_power_of_two_is_not_attached() {
    let device = ram();
    for bytes in [0, 3, 513, (1 << 31) + 1, u32::MAX] {
        let refused = ring().attach_file(Arc::new(Odd(device.clone(), bytes))).expect_err("no power of two");
        assert!(refused.to_string().contains(&format!("blocks have {bytes} bytes")), "{refused}");
    }
    for bytes in [1, 512, 8192, 1 << 31] {
        let mut ring = ring();
        let fd = ring.attach_file(Arc::new(Odd(device.clone(), bytes))).expect("a power of two");
        assert_eq!(run(&mut ring, op::read(fd, buf(0))), if bytes <= 4096 { 4096 } else { -22 }, "{bytes}");
    }
}

std::thread_local! {
    static LATE: Late = const { Late };
}

/// A destructor that a thread runs at its end, after the thread's lists of rings are gone.
struct Late;

impl Drop for Late {
    fn drop(&mut self) {
        let device = open_device("ram:size=32M").expect("a device");
        let mut ring = ring();
        let fd = ring.attach(&device).expect("attached");
        assert_eq!(run(&mut ring, op::read(fd, buf(0)).run_async()), 4096);
        drop(ring);
        Pool::create(&device, &CreateOptions::default()).expect("a pool");
        let pool = Pool::open(&device, &OpenOptions::default()).expect("opened");
        let volume = pool.create_volume("v", 1 << 20).expect("a volume");
        let mut ring = Ring::builder().build().expect("a ring");
        let fd = ring.attach_file(Arc::new(volume)).expect("attached");
        assert_eq!(run(&mut ring, op::write(fd, buf(7))), 4096);
        drop(ring);
        pool.close().expect("closed");
        ENDED.store(true, Ordering::Relaxed);
    }
}

static ENDED: AtomicBool = AtomicBool::new(false);

#[test]
fn rings_and_pools_can_be_made_in_a_destructor_at_the_end_of_a_thread() {
    thread::spawn(|| {
        // Registered first, so that it runs after the destructors of the lists.
        LATE.with(|_| ());
        let device = open_device("ram:size=32M").expect("a device");
        Pool::create(&device, &CreateOptions::default()).expect("a pool");
        drop(ring());
    })
    .join()
    .expect("no panic");
    assert!(ENDED.load(Ordering::Relaxed), "the destructor came to its end");
}
