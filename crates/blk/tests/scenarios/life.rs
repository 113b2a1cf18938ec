//! Life of a ring and its devices: attach, detach, statistics turned on and off, and rings dropped during I/O.

use std::time::Duration;

use sheave_base::status::Status;
use sheave_blk::Device;
use sheave_blk::bio::{BIO_FUA, BIO_PREFLUSH, Op};

use crate::support::{BLOCK, Puppet, Rig};

#[test]
fn detaching_one_device_loses_nothing_of_another() {
    let puppets = [Puppet::new(), Puppet::new()];
    let devices = puppets.each_ref().map(Puppet::device);
    let mut rig = Rig::new(&[&devices[0], &devices[1]]);
    // Ended without a driver, and not polled for yet.
    rig.io_to(1, Op::Read, 0, 1 << 40, BLOCK, 0);
    rig.ctx.detach(rig.devices[0].0, &mut |_: u32, _| unreachable!("nothing is on its way"));
    rig.drain();
    assert_eq!(rig.take_ended(), [(0, Status::IoErr)]);
    rig.io_to(0, Op::Read, 0, 0, BLOCK, 1);
    rig.drain();
    assert_eq!(rig.take_ended(), [(1, Status::Offline)], "the number of a detached device names nothing");
    let again = rig.ctx.attach(&devices[0]).unwrap();
    assert_eq!(again, rig.devices[0].0, "numbers are used again");
    rig.read(0, 2);
    rig.drain();
    assert_eq!(rig.take_ok(), [2]);
}

#[test]
fn attaching_twice_shares_one_hardware_context() {
    let puppet = Puppet::new().depth(4).holding();
    let device = puppet.device();
    let mut rig = Rig::new(&[&device, &device]);
    for owner in 0..8 {
        rig.io_to((owner % 2) as usize, Op::Read, 0, u64::from(owner) * 16, BLOCK, owner);
    }
    assert_eq!(rig.in_flight(), 4, "one set of tags");
    puppet.script().finish = u32::MAX;
    rig.drain();
    assert_eq!(rig.take_ok(), [0, 1, 2, 3, 4, 5, 6, 7]);
    rig.ctx.detach(rig.devices[1].0, &mut |_: u32, _| unreachable!("nothing is on its way"));
    rig.read(0, 8);
    rig.drain();
    assert_eq!(rig.take_ok(), [8], "the other number still leads there");
}

#[test]
fn too_many_devices_are_refused_in_plain_words() {
    let devices: Vec<Device> = (0..65).map(|_| Puppet::new().device()).collect();
    let mut rig = Rig::new(&devices[..64].iter().collect::<Vec<_>>());
    let error = rig.ctx.attach(&devices[64]).expect_err("a ring has 64 ways out");
    assert!(error.to_string().contains("64") && error.to_string().contains("Detach one"), "{error}");
    rig.ctx.detach(rig.devices[10].0, &mut |_: u32, _| unreachable!("nothing is on its way"));
    assert_eq!(rig.ctx.attach(&devices[64]).unwrap(), rig.devices[10].0);
}

/// Makes a ring with I/O in every state: waiting, gathered, refused, with the driver, in a flush sequence, split.
fn busy_rig(puppet: &Puppet, stats: bool) -> (Rig, u32) {
    let mut rig = Rig::with(64, stats, &[&puppet.device()]);
    let mut owner = 0;
    let mut next = || {
        owner += 1;
        owner - 1
    };
    rig.io(Op::Read, 1 << 40, BLOCK, next());
    rig.flush(next());
    rig.io_flags(Op::Write, BIO_FUA | BIO_PREFLUSH, 0, BLOCK, next());
    rig.io(Op::Read, 0, 20 * BLOCK, next());
    (0..4).for_each(|n| assert!(rig.read(100 + n * 2, next())));
    rig.poll();
    puppet.script().accept = 1;
    (0..4).for_each(|n| assert!(rig.write(200 + n * 2, next())));
    rig.flush(next());
    rig.io(Op::Discard, 0, 100 * BLOCK, next());
    rig.ctx.start_plug(4);
    (0..12).for_each(|n| assert!(rig.read(300 + n * 2, next())));
    (rig, owner)
}

#[test]
fn a_ring_that_is_shut_down_ends_every_bio_once() {
    for depth in [1, 2, 7, 64] {
        for bios_in_limits in [8, 64, 100_000] {
            let puppet = Puppet::new()
                .depth(depth)
                .limits(|limits| limits.max_sectors = bios_in_limits)
                .limits(|limits| limits.max_discard_sectors = bios_in_limits)
                .caps(|caps| caps.volatile_cache = true)
                .holding();
            let (mut rig, count) = busy_rig(&puppet, true);
            rig.shutdown();
            let mut owners: Vec<u32> = rig.take_ended().iter().map(|end| end.0).collect();
            owners.sort_unstable();
            assert_eq!(owners, (0..count).collect::<Vec<_>>());
            assert_eq!(rig.ctx.bios().live(), 0, "no bio leaks");
            assert_eq!(rig.ctx.bios().reserved(), 4);
            assert_eq!(rig.in_flight(), 0);
            assert!(rig.ctx.is_idle());
            // The ring has no devices now, and later I/O ends accordingly.
            rig.read(0, 99);
            rig.poll();
            assert_eq!(rig.take_ended(), [(99, Status::Offline)]);
        }
    }
}

#[test]
fn a_ring_that_is_dropped_leaves_nothing_behind() {
    for host_depth in [None, Some(8)] {
        let puppet = Puppet { host_depth, ..Puppet::new().caps(|caps| caps.volatile_cache = true).holding() };
        let device = puppet.device();
        drop(busy_rig(&puppet, true));
        let mut rig = Rig::new(&[&device]);
        puppet.script().accept = u32::MAX;
        puppet.script().finish = u32::MAX;
        (0..20).for_each(|n| assert!(rig.read(u64::from(n) * 2, n)));
        rig.drain();
        assert_eq!(rig.take_ok().len(), 20);
    }
}

#[test]
fn statistics_can_be_toggled_in_the_middle_of_io() {
    let puppet = Puppet::new().holding();
    let device = puppet.device();
    let mut rig = Rig::with(64, true, &[&device]);
    let time = rig.time.clone();
    let pass = move || time.advance(Duration::from_nanos(1000));
    rig.read(0, 0);
    pass();
    rig.ctx.set_stats(false);
    rig.read(2, 1);
    pass();
    assert_eq!(device.in_flight().reads, 2, "in-flight does not care");
    puppet.script().finish = 1;
    rig.poll();
    assert_eq!(device.stats().op(Op::Read).ios, 0);
    rig.read(4, 2);
    pass();
    rig.ctx.set_stats(true);
    pass();
    puppet.script().finish = u32::MAX;
    rig.drain();
    assert_eq!(device.in_flight().total(), 0);
    let stats = device.stats();
    assert_eq!(stats.op(Op::Read).ios, 2);
    assert_eq!(stats.op(Op::Read).split.time_ns, 2000, "what is in flight counts from when statistics were turned on");
    assert_eq!(rig.take_ok(), [0, 1, 2]);
}

#[test]
fn a_ring_with_many_bios_caches_some_of_them_and_loses_none() {
    let puppet = Puppet::new().holding();
    let mut rig = Rig::with(2_000, true, &[&puppet.device()]);
    for round in 0..3 {
        for owner in 0..1_500 {
            assert!(rig.read(u64::from(owner) * 2, owner));
        }
        puppet.script().finish = u32::MAX;
        rig.drain();
        puppet.script().finish = 0;
        assert_eq!(rig.take_ok().len(), 1_500, "round {round}");
        let bios = rig.ctx.bios();
        assert!((512..=576).contains(&bios.cached()), "{}", bios.cached());
        assert_eq!((bios.available(), bios.live()), (2_000, 0));
    }
}
