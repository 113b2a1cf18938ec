//! One limit for all rings of a device: no ring keeps tags that it does not use, and nobody starves.

use sheave_base::status::Status;
use sheave_blk::bio::Op;

use crate::support::{BLOCK, Puppet, Rig};

/// How many of `count` reads the ring gets into the driver's hands at once.
fn gets(rig: &mut Rig, puppet: &Puppet, count: u32) -> usize {
    let before = puppet.sectors_seen().len();
    (0..count).for_each(|n| assert!(rig.read(u64::from(n) * 2, n)));
    puppet.sectors_seen().len() - before
}

#[test]
fn what_a_plug_announced_and_did_not_use_goes_back() {
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
fn also_after_a_batch_that_was_full() {
    let puppet = Puppet::new().host_depth(64).holding();
    let device = puppet.device();
    let (mut a, mut b) = (Rig::new(&[&device]), Rig::with(128, true, &[&device]));
    a.ctx.start_plug(64);
    (0..32).for_each(|n| assert!(a.read(n * 2, n as u32)));
    a.ctx.finish_plug();
    assert_eq!(puppet.sectors_seen().len(), 32);
    assert_eq!(gets(&mut b, &puppet, 64), 32);
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
