//! One limit for all rings of a device: no ring keeps tags that it does not use, and none starves.

use sheave_base::status::Status;
use sheave_blk::bio::Op;

use crate::support::{BLOCK, Puppet, Rig};

/// Submits `count` reads. Returns the number of them that have reached the driver when the last was submitted.
fn gets(rig: &mut Rig, puppet: &Puppet, count: u32) -> usize {
    let before = puppet.sectors_seen().len();
    (0..count).for_each(|n| assert!(rig.read(u64::from(n) * 2, n)));
    puppet.sectors_seen().len() - before
}

#[test]
fn unused_tags_of_a_plug_are_returned() {
    let puppet = Puppet::new().host_depth(8).holding();
    let device = puppet.device();
    let (mut a, mut b) = (Rig::new(&[&device]), Rig::new(&[&device]));
    a.ctx.start_plug(32);
    a.read(0, 0);
    a.ctx.finish_plug();
    assert_eq!(gets(&mut b, &puppet, 20), 7);
    assert_eq!(device.in_flight().total(), 8);
}

#[test]
fn unused_tags_are_returned_after_a_full_batch() {
    let puppet = Puppet::new().host_depth(64).holding();
    let device = puppet.device();
    let (mut a, mut b) = (Rig::new(&[&device]), Rig::with(128, true, &[&device]));
    a.ctx.start_plug(64);
    (0..32).for_each(|n| assert!(a.read(n * 2, n as u32)));
    a.ctx.finish_plug();
    assert_eq!(puppet.sectors_seen().len(), 32);
    assert_eq!(gets(&mut b, &puppet, 64), 32);
}

/// Keeps `depth` reads of the ring in flight.
fn keep_busy(rig: &mut Rig, depth: u32, next: &mut u32) {
    while rig.ctx.bios().live() < depth {
        assert!(rig.read(u64::from(*next) * 2 % 10_000, *next));
        *next += 1;
    }
}

#[test]
fn a_ring_that_comes_late_gets_its_share() {
    for rings in 2..=4 {
        let puppet = Puppet::new().host_depth(4);
        let device = puppet.device();
        let mut busy = Rig::new(&[&device]);
        let mut late: Vec<Rig> = (1..rings).map(|_| Rig::new(&[&device])).collect();
        let mut next = 0;
        keep_busy(&mut busy, 16, &mut next);
        let mut rounds = 0;
        late.iter_mut().for_each(|rig| assert!(rig.read(1, 7)));
        while late.iter().any(|rig| rig.ended.is_empty()) {
            busy.poll();
            keep_busy(&mut busy, 16, &mut next);
            late.iter_mut().for_each(|rig| assert!(rig.poll() <= 1));
            rounds += 1;
            assert!(rounds < 10, "{rings} rings, 4 tags: the first one leaves some to the others");
        }
        assert!(busy.ended.len() as u32 >= rounds, "and goes on meanwhile");
        // Alone again, the ring can have all tags.
        late.clear();
        busy.drain();
        puppet.script().finish = 0;
        assert_eq!(gets(&mut busy, &puppet, 16), 4);
        puppet.script().finish = u32::MAX;
        busy.drain();
    }
}

#[test]
fn a_hungry_ring_that_goes_away_leaves_its_share() {
    let puppet = Puppet::new().host_depth(4).holding();
    let device = puppet.device();
    let (mut a, mut b) = (Rig::new(&[&device]), Rig::new(&[&device]));
    assert_eq!(gets(&mut a, &puppet, 4), 4);
    assert_eq!(gets(&mut b, &puppet, 1), 0);
    drop(b);
    puppet.script().finish = u32::MAX;
    a.drain();
    puppet.script().finish = 0;
    assert_eq!(gets(&mut a, &puppet, 8), 4);
    puppet.script().finish = u32::MAX;
    a.drain();
}

#[test]
fn a_hint_dies_with_its_plug() {
    let puppet = Puppet::new().host_depth(8).holding();
    let device = puppet.device();
    let (mut a, mut b) = (Rig::new(&[&device]), Rig::new(&[&device]));
    a.ctx.start_plug(8);
    a.ctx.finish_plug();
    a.read(0, 0);
    a.poll();
    assert_eq!(gets(&mut b, &puppet, 20), 7);
}

#[test]
fn a_split_that_finds_no_bio_keeps_no_tag() {
    let puppet = Puppet::new().host_depth(8).limits(|l| l.max_sectors = 8).holding();
    let device = puppet.device();
    let (mut a, mut b) = (Rig::with(1, true, &[&device]), Rig::new(&[&device]));
    // One bio, so one piece (from the reserve) at a time.
    assert!(a.io(Op::Read, 0, 4 * BLOCK, 0));
    assert_eq!(gets(&mut b, &puppet, 20), 7);
    puppet.script().finish = u32::MAX;
    while !(a.ctx.is_idle() && b.ctx.is_idle()) {
        a.poll();
        b.poll();
    }
    assert_eq!(a.take_ended(), [(0, Status::Ok)]);
    assert_eq!(b.take_ok().len(), 20);
}

#[test]
fn tags_of_a_ring_that_goes_away_are_free() {
    let puppet = Puppet::new().host_depth(4).holding();
    let device = puppet.device();
    let mut b = Rig::new(&[&device]);
    {
        let mut a = Rig::new(&[&device]);
        a.ctx.start_plug(3);
        (0..3).for_each(|n| assert!(a.read(n * 2, n as u32)));
        a.ctx.finish_plug();
        a.ctx.start_plug(1);
        a.read(9, 9);
    }
    assert_eq!(device.in_flight().total(), 0);
    assert_eq!(gets(&mut b, &puppet, 8), 4);
    b.shutdown();
    assert_eq!(b.ended.len(), 8);
}

#[test]
fn a_driver_that_claims_no_depth_or_too_much_is_bounded() {
    for (claim, expect) in [(0, 1), (u16::MAX, 4096)] {
        let puppet = Puppet::new().host_depth(claim).holding();
        let mut rig = Rig::with(5000, true, &[&puppet.device()]);
        assert_eq!(gets(&mut rig, &puppet, 5000), expect);
        puppet.script().finish = u32::MAX;
        rig.drain();
        assert_eq!(rig.take_ok().len(), 5000);
    }
}
