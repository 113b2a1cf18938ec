//! Options that disable a mechanism of the fast path, each verified by a counter.

use std::time::Duration;

use sheave_base::buf::Buf;
use sheave_base::clock::{Clock, VirtualClock};
use sheave_drivers::open_device;
use sheave_uring::{Ring, RingBuilder, prep};

/// Runs `count` batches of 32 reads on a ring with these settings.
fn batches(builder: RingBuilder, count: u32) -> (Ring, VirtualClock) {
    let (clock, time) = Clock::virtual_clock();
    let mut ring = builder.entries(32).polled(true).clock(clock).build().expect("a ring");
    run(&mut ring, count);
    (ring, time)
}

fn run(ring: &mut Ring, count: u32) {
    let fd = ring.attach(&open_device("null:size=1M").expect("a device")).expect("attached");
    for _ in 0..count {
        for at in 0..32 {
            let buf = Buf::zeroed(512, 512).expect("memory");
            // Every other block, so that nothing merges. Vectored reads take a slot each.
            ring.push(prep::readv(fd, vec![buf]).offset(at * 1024)).expect("room");
        }
        ring.submit_and_wait(32).expect("submitted");
        assert!(ring.completions().all(|done| done.res == 512));
    }
}

#[test]
fn the_age_of_a_stamp_is_what_the_clock_is_read_for() {
    // The attached device reads the clock once: its timeouts start then.
    let reads = |builder: RingBuilder| batches(builder, 100).1.reads() - 1;
    // Waiting also looks at the clock, equally often in all of them.
    let unbounded = batches(Ring::builder().stamp_age(Duration::MAX), 100).1.looks();
    let looks = |builder: RingBuilder| batches(builder, 100).1.looks() - unbounded;
    let begins = looks(Ring::builder());
    assert!((3100..3110).contains(&begins), "how old it is, for each request with a slot but the first: {begins}");
    assert_eq!(looks(Ring::builder().stamp_age(Duration::MAX)), 0, "however old");
    assert_eq!(looks(Ring::builder().stamp_age(Duration::ZERO)), 0, "there is none");
    assert_eq!(reads(Ring::builder()), 400, "a batch, its call, the end of that, and its completions: one for each");
    assert_eq!(reads(Ring::builder().stamp_age(Duration::MAX)), 400);
    assert_eq!(reads(Ring::builder().stamp_age(Duration::ZERO)), 3501, "one for each; the first waits");
    assert_eq!(reads(Ring::builder().stats(false).stamp_age(Duration::ZERO)), 0, "statistics alone want stamps");
}

/// An ordinary build has no hooks of the lab. If the ring had a method with one of these names, that method would be
/// preferred to the trait's, and this would not compile.
#[cfg(not(sheave_lab))]
#[test]
fn what_only_experiments_need_is_not_there() {
    trait Absent: Sized {
        fn set_bio_store(&mut self) -> bool {
            true
        }
        fn late_completions(&self) -> bool {
            true
        }
        fn bio_cache(self) -> bool {
            true
        }
    }
    impl Absent for Ring {}
    impl Absent for RingBuilder {}
    let mut ring = Ring::builder().build().expect("a ring");
    assert!(ring.set_bio_store() && ring.late_completions() && Ring::builder().bio_cache());
}
