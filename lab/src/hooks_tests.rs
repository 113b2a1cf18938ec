//! Tests of the hooks that only the lab uses in the product's crates. They compare counts.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use sheave::{Buf, Ring, RingBuilder, RingError, op, open_device};
use sheave_blk::bio_set::BioStore;

/// Does `count` batches of 32 reads.
fn run(ring: &mut Ring, count: u32) {
    let fd = ring.attach(&open_device("null:size=1M").expect("a device")).expect("attached");
    for _ in 0..count {
        for at in 0..32 {
            let buf = Buf::zeroed(512, 512).expect("memory");
            // The reads go to every other block, so that none is merged.
            ring.push(op::read(fd, buf).offset(at * 1024)).expect("room");
        }
        ring.submit_and_wait(32).expect("submitted");
        assert!(ring.completions().all(|done| done.res == 512));
    }
}

fn ring(builder: RingBuilder) -> Ring {
    builder.entries(32).polled(true).build().expect("a ring")
}

#[test]
fn without_a_cache_each_io_goes_to_the_pool() {
    let refills = |builder: RingBuilder| {
        let mut ring = ring(builder);
        run(&mut ring, 100);
        ring.io().bios().refills()
    };
    assert_eq!(refills(Ring::builder()), 0, "a plain read takes no bio");
    assert_eq!(refills(Ring::builder().bio_cache(u32::MAX)), 1, "it does where the cache has a bound");
    assert_eq!(refills(Ring::builder().bio_cache(0)), 3200);
    assert_eq!(refills(Ring::builder().bio_cache(8)), 1, "it holds 8 and the slack of 64");
}

/// A store that counts the bios it gives out, and records which of them were not given back yet.
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
        let builder = Ring::builder();
        let mut ring = ring(if let Some(bios) = cache { builder.bio_cache(bios) } else { builder });
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
    ring.push(op::read(fd, Buf::zeroed(512, 512).expect("memory"))).expect("room");
    ring.submit().expect("submitted");
    let refused = ring.set_bio_store(Box::new(Seen(Arc::default())));
    assert!(matches!(refused, Err(RingError::InUse(_))), "a bio is live");
}
