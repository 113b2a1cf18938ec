//! A driver that refuses requests: they are offered again, in order, before newer ones, and count once.

use sheave_blk::bio::Op;

use crate::support::{Puppet, Rig};

#[test]
fn refused_requests_are_offered_again_by_poll() {
    let puppet = Puppet::new();
    let mut rig = Rig::new(&[&puppet.device()]);
    puppet.script().accept = 2;
    rig.ctx.start_plug(8);
    (0..8).for_each(|n| assert!(rig.read(n * 2, n as u32)));
    rig.ctx.finish_plug();
    let counts = |rig: &Rig| (rig.device().accounted().total(), rig.in_flight());
    assert_eq!(counts(&rig), (8, 2), "a refused request keeps its tag and is accounted once");
    rig.poll();
    assert_eq!(rig.take_ok(), [0, 1]);
    assert_eq!(counts(&rig), (6, 0));
    puppet.script().accept = u32::MAX;
    rig.drain();
    assert_eq!(rig.take_ok(), [2, 3, 4, 5, 6, 7]);
    assert_eq!(counts(&rig), (0, 0));
    assert_eq!(puppet.sectors_seen(), (0..8).map(|n| n * 16).collect::<Vec<_>>());
    assert_eq!(rig.device().stats().op(Op::Read).ios, 8);
}

#[test]
fn refused_come_before_waiting_and_new_ones() {
    let puppet = Puppet::new().depth(40);
    let mut rig = Rig::with(256, true, &[&puppet.device()]);
    puppet.script().accept = 0;
    rig.ctx.start_plug(60);
    (0..60).for_each(|n| assert!(rig.read(n * 2, n as u32)));
    rig.ctx.finish_plug();
    // 40 have tags and were refused, 20 wait. The driver accepts one at a time from now on.
    for n in 0..60 {
        puppet.script().accept = 1;
        rig.poll();
        rig.poll();
        assert_eq!(rig.ended.len(), n + 1, "one request a turn");
        if n == 10 {
            assert!(rig.read(1000, 60));
        }
    }
    puppet.script().accept = u32::MAX;
    rig.drain();
    assert_eq!(rig.take_ok(), (0..61).collect::<Vec<u32>>());
}

#[test]
fn a_ring_does_not_sleep_for_long_on_a_driver_that_refuses_and_holds_nothing() {
    let puppet = Puppet::new();
    puppet.script().accept = 0;
    // The timeout walk would wake the ring too, so it is far away.
    let timeout = std::time::Duration::from_secs(3600);
    let mut rig = Rig::new(&[&puppet.device_with_timeout(timeout)]);
    rig.read(0, 0);
    rig.poll();
    let start = std::time::Instant::now();
    rig.ctx.wait(1, Some(std::time::Duration::from_secs(20)));
    assert!(start.elapsed() < std::time::Duration::from_secs(10), "nobody will wake it: it asks the driver again");
    puppet.script().accept = u32::MAX;
    rig.drain();
    assert_eq!(rig.take_ok(), [0]);
}
