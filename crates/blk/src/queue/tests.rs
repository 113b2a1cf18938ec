//! In-flight counts, computed from the tags: exact when nothing changes, per partition and whole in one pass, after any
//! sequence of events. Readers during changes are in `model::tags`.

use std::time::Duration;

use super::*;
use crate::Device;
use crate::bio::{BIO_FUA, Op};
use crate::device::Leg;
use crate::support::{BLOCK, Puppet, Rig};

/// Makes a device, and two partitions of 1,000 sectors on it.
fn partitioned(puppet: &Puppet) -> [Device; 3] {
    let whole = puppet.device();
    let queue = whole.legs()[0].queue.clone();
    let part = |offset: u64| {
        let part = queue.new_partition(0);
        Device::from_legs(
            "part",
            vec![Leg { start: 0, sectors: 1000, offset, part, queue: queue.clone(), lower: None }],
        )
    };
    let (one, two) = (part(0), part(1000));
    [whole, one, two]
}

/// Returns the counts by partition (0 is the device), checked against the whole count of each pass.
fn by_part(rig: &Rig) -> [u32; 3] {
    let counts = [0, 1, 2].map(|part| rig.queue().in_flight(part));
    let whole = counts[0].0;
    assert!(counts.iter().all(|count| count.0 == whole), "each pass gives the same whole");
    assert_eq!(counts[0].1, whole, "the device is all of it");
    let direct = whole.total().checked_sub(counts[1].1.total() + counts[2].1.total());
    let direct = direct.expect("the whole is its partitions and what is direct");
    assert_eq!(rig.devices[0].1.in_flight(), whole);
    for part in [1, 2] {
        assert_eq!(rig.devices[part].1.in_flight(), counts[part].1);
    }
    [direct, counts[1].1.total(), counts[2].1.total()]
}

fn rigs() -> [(Puppet, Rig); 2] {
    [Puppet::new(), Puppet::new().host_depth(64)].map(|puppet| {
        let puppet = puppet.caps(|caps| caps.volatile_cache = true).holding();
        let devices = partitioned(&puppet);
        let rig = Rig::new(&devices.iter().collect::<Vec<_>>());
        (puppet, rig)
    })
}

#[test]
fn partitions_and_directions_in_one_pass() {
    for (puppet, mut rig) in rigs() {
        assert_eq!(by_part(&rig), [0, 0, 0]);
        rig.io_to(0, Op::Read, 0, 5000, BLOCK, 0);
        for owner in 1..3 {
            rig.io_to(1, Op::Write, 0, u64::from(owner) * 100, BLOCK, owner);
        }
        for owner in 3..6 {
            rig.io_to(2, Op::Discard, 0, u64::from(owner) * 100, BLOCK, owner);
        }
        rig.poll();
        assert_eq!(by_part(&rig), [1, 2, 3]);
        assert_eq!(rig.device().in_flight(), InFlight { reads: 1, writes: 2, other: 3 });
        // A flush counts for the device, even if it came through a partition.
        rig.io_to(2, Op::Flush, 0, 0, 0, 6);
        rig.poll();
        assert_eq!(by_part(&rig), [2, 2, 3]);
        puppet.script().finish = 4;
        rig.poll();
        assert_eq!(by_part(&rig), [1, 0, 2], "oldest first: the read, both writes, a discard");
        puppet.script().finish = u32::MAX;
        rig.drain();
        assert_eq!(by_part(&rig), [0, 0, 0]);
        assert_eq!(rig.take_ok().len(), 7);
    }
}

#[test]
fn merges_do_not_cross_partitions() {
    for (puppet, mut rig) in rigs() {
        rig.ctx.start_plug(4);
        // The last blocks of partition one and the first of two are adjacent on the device.
        rig.io_to(1, Op::Read, 0, 984, BLOCK, 0);
        rig.io_to(1, Op::Read, 0, 992, BLOCK, 1);
        rig.io_to(2, Op::Read, 0, 0, BLOCK, 2);
        rig.io_to(2, Op::Read, 0, 8, BLOCK, 3);
        rig.ctx.finish_plug();
        let seen: Vec<_> = puppet.script().seen.iter().map(|seen| (seen.sector, seen.bytes)).collect();
        assert_eq!(seen, [(984, 2 * BLOCK), (1000, 2 * BLOCK)]);
        assert_eq!(by_part(&rig), [0, 1, 1]);
        puppet.script().finish = u32::MAX;
        rig.drain();
        assert_eq!(by_part(&rig), [0, 0, 0]);
    }
}

#[test]
fn equal_to_the_weight_of_the_tags_whatever_happens() {
    for (puppet, mut rig) in rigs() {
        rig.ctx.start_plug(100);
        for n in 0..50 {
            rig.io_to((n % 3) as usize, Op::Write, 0, u64::from(n) * 16, BLOCK, n);
        }
        puppet.script().accept = 10;
        rig.ctx.finish_plug();
        // 32 went when the plug was full. Refused requests keep their tags, and are accounted once.
        for _ in 0..3 {
            rig.poll();
            assert_eq!(rig.device().accounted().total(), 50);
            assert_eq!(by_part(&rig).iter().sum::<u32>(), 42, "the driver has those that it took");
        }
        puppet.script().accept = u32::MAX;
        rig.poll();
        puppet.script().finish = 20;
        puppet.script().lifo = true;
        rig.poll();
        assert_eq!(by_part(&rig).iter().sum::<u32>(), 30);
        // Reused tags: the new requests count, the old ones do not.
        (0..5).for_each(|n| assert!(rig.io_to(2, Op::Read, 0, n * 16, BLOCK, 100 + n as u32)));
        assert_eq!(by_part(&rig).iter().sum::<u32>(), 35);
        rig.io_to(0, Op::Write, BIO_FUA, 0, BLOCK, 200);
        rig.poll();
        assert_eq!(by_part(&rig).iter().sum::<u32>(), 36);
        puppet.script().finish = u32::MAX;
        rig.drain();
        assert_eq!(by_part(&rig), [0, 0, 0]);
        assert_eq!(rig.take_ok().len(), 56);
    }
}

#[test]
fn statistics_off_does_not_change_it() {
    let puppet = Puppet::new().holding();
    let device = puppet.device();
    let mut rigs = [Rig::with(64, true, &[&device]), Rig::with(64, false, &[&device])];
    for rig in &mut rigs {
        (0..3).for_each(|n| assert!(rig.read(n * 2, n as u32)));
    }
    assert_eq!(device.in_flight().reads, 6);
    puppet.script().finish = u32::MAX;
    rigs.iter_mut().for_each(Rig::drain);
    assert_eq!(device.in_flight().total(), 0);
    assert_eq!(device.stats().op(Op::Read).ios, 3, "the ring without statistics counts nothing");
}

#[test]
fn a_ring_that_went_away_left_its_statistics_and_nothing_in_flight() {
    let puppet = Puppet::new().holding();
    let device = puppet.device();
    let mut rig = Rig::new(&[&device]);
    rig.read(0, 0);
    drop(rig);
    assert_eq!(device.in_flight().total(), 0);
    assert_eq!(device.stats().op(Op::Read).ios, 1);
    assert_eq!(device.stats().op(Op::Read).errors, 1, "the driver ended it when the ring went");
}

#[test]
fn capacity_changes_count_for_the_next_bio() {
    let puppet = Puppet::new();
    let mut rig = Rig::new(&[&puppet.device()]);
    rig.queue().set_capacity(8 * u64::from(BLOCK));
    assert_eq!(rig.device().size_bytes(), 8 * u64::from(BLOCK));
    rig.read(7, 0);
    rig.read(8, 1);
    rig.io(Op::Write, 7 * 8, 2 * BLOCK, 2);
    rig.queue().set_capacity(16 * u64::from(BLOCK));
    rig.read(8, 3);
    rig.drain();
    let mut ended = rig.take_ended();
    ended.sort_unstable_by_key(|end| end.0);
    assert_eq!(
        ended.iter().map(|end| end.1).collect::<Vec<_>>(),
        [Status::Ok, Status::IoErr, Status::IoErr, Status::Ok]
    );
}

#[test]
fn partition_numbers_start_at_one() {
    let queue = Queue::new("q", Box::new(Puppet::new()), Duration::from_secs(1));
    assert_eq!([queue.new_partition(0), queue.new_partition(1)], [1, 2]);
}
