//! A driver that waits for a descriptor: passes the suite, and its ring sleeps without using the processor.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use sheave::drivers::Registry;
use sheave::{Buf, Ring, op};
use sheave_conformance::Suite;
use sheave_outside_bell::register;

fn registry() -> Registry {
    let mut registry = Registry::standard();
    register(&mut registry).expect("a free name");
    registry
}

/// Returns true if there is a kernel ring here; reports a skip if not.
fn has_kernel_ring() -> bool {
    let device = registry().open("bell:size=1M").expect("opened");
    match Ring::builder().build().expect("a ring").attach(&device) {
        Ok(_) => true,
        Err(error) => {
            eprintln!("SKIPPED: {error}");
            false
        }
    }
}

#[test]
fn passes_the_suite() {
    if has_kernel_ring() {
        Suite::new(|| registry().open("bell:size=4M")).run().assert_passed();
        Suite::new(|| registry().open("linear:over=bell:size=1M,delay=100us+ram:size=1M")).run().assert_passed();
    }
}

#[test]
fn a_ring_sleeps_until_the_descriptor_is_readable() {
    if !has_kernel_ring() {
        return;
    }
    let device = registry().open("bell:size=1M,delay=200ms").expect("opened");
    let mut ring = Ring::builder().build().expect("a ring");
    let fd = ring.attach(&device).expect("attached");
    for round in 0..3 {
        ring.push(op::write(fd, Buf::zeroed(4096, 4096).expect("memory")).offset(round * 4096)).expect("room");
        let (start, used) = (Instant::now(), clock_gettime(ClockId::ThreadCPUTime));
        ring.submit_and_wait(1).expect("submitted");
        let used = clock_gettime(ClockId::ThreadCPUTime) - used;
        assert_eq!(ring.pop().expect("waited for").res, 4096);
        assert!(start.elapsed() >= Duration::from_millis(200), "{:?}", start.elapsed());
        let used = Duration::new(used.tv_sec as u64, used.tv_nsec as u32);
        // A tenth of the wait; a ring that spins uses processor time for all of it.
        assert!(used < Duration::from_millis(20), "{used:?} of processor time in a wait of {:?}", start.elapsed());
    }
}
