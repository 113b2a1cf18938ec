//! Options that turn a mechanism of the fast path off: each by what it counts.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sheave_base::buf::Buf;
use sheave_base::clock::{Clock, VirtualClock};
use sheave_blk::bio_set::BioStore;
use sheave_drivers::open_device;
use sheave_uring::{Ring, RingBuilder, RingError, prep};

/// Does so many batches of 32 reads.
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
            // Every other block: nothing to merge.
            ring.push(prep::read(fd, buf).offset(at * 1024)).expect("room");
        }
        ring.submit_and_wait(32).expect("submitted");
        assert!(ring.completions().all(|done| done.res == 512));
    }
}

#[test]
fn the_age_of_a_stamp_is_what_the_clock_is_read_for() {
    // One is for the attached device: from then on its timeout counts.
    let reads = |builder: RingBuilder| batches(builder, 100).1.reads() - 1;
    // Waiting looks at it as well, in all of them alike.
    let unbounded = batches(Ring::builder().stamp_age(Duration::MAX), 100).1.looks();
    let looks = |builder: RingBuilder| batches(builder, 100).1.looks() - unbounded;
    let begins = looks(Ring::builder());
    assert!((3100..3110).contains(&begins), "how old it is, for each request with a slot but the first: {begins}");
    assert_eq!(looks(Ring::builder().stamp_age(Duration::MAX)), 0, "however old");
    assert_eq!(looks(Ring::builder().stamp_age(Duration::ZERO)), 0, "there is none");
    assert_eq!(reads(Ring::builder()), 200, "one for a batch, and one for its completions");
    assert_eq!(reads(Ring::builder().stamp_age(Duration::MAX)), 200);
    assert_eq!(reads(Ring::builder().stamp_age(Duration::ZERO)), 3300, "one for each request");
    assert_eq!(reads(Ring::builder().stats(false).stamp_age(Duration::ZERO)), 0, "statistics alone want stamps");
}

#[test]
fn without_a_cache_each_io_goes_to_the_pool() {
    let refills = |builder: RingBuilder| batches(builder, 100).0.io().bios().refills();
    assert_eq!(refills(Ring::builder()), 1);
    assert_eq!(refills(Ring::builder().bio_cache(0)), 3200);
    assert_eq!(refills(Ring::builder().bio_cache(8)), 1, "it holds 8 and the slack of 64");
}

/// Counts what it gives.
#[derive(Debug)]
struct Seen(Arc<Mutex<(u64, BTreeSet<u32>)>>);

impl BioStore for Seen {
    fn get(&mut self, bio: u32) -> bool {
        let mut seen = self.0.lock().expect("one thread");
        seen.0 += 1;
        seen.1.insert(bio)
    }

    fn put(&mut self, bio: u32) {
        assert!(self.0.lock().expect("one thread").1.remove(&bio));
    }
}

#[test]
fn a_store_sees_what_the_cache_does_not_serve() {
    for (cache, gets, kept) in [(None, 32, 32), (Some(0), 3200, 0)] {
        let seen = Arc::new(Mutex::new((0, BTreeSet::new())));
        let builder = Ring::builder().entries(32).polled(true);
        let builder = if let Some(bios) = cache { builder.bio_cache(bios) } else { builder };
        let mut ring = builder.build().expect("a ring");
        ring.set_bio_store(Box::new(Seen(seen.clone()))).expect("the ring is idle");
        run(&mut ring, 100);
        let seen = seen.lock().expect("one thread");
        assert_eq!((seen.0, seen.1.len()), (gets, kept), "cache {cache:?}");
    }
}

#[test]
fn a_store_comes_before_io() {
    let mut ring = Ring::builder().build().expect("a ring");
    let fd = ring.attach(&open_device("null:size=1M,latency=1h").expect("a device")).expect("attached");
    ring.push(prep::read(fd, Buf::zeroed(512, 512).expect("memory"))).expect("room");
    ring.submit().expect("submitted");
    let refused = ring.set_bio_store(Box::new(Seen(Arc::default())));
    assert!(matches!(refused, Err(RingError::InUse(_))), "a bio is live");
}
