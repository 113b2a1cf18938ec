//! Accounting with queues that share tags, partitions of partitions, and devices with several pieces on one queue. Each
//! request is counted once in the right place.

use std::time::Duration;

use sheave_base::status::Status;
use sheave_blk::bio::Op;
use sheave_blk::queue::Queue;
use sheave_blk::{Device, linear};

use crate::support::{Puppet, Rig};

const MIB: u64 = 1 << 20;

/// Makes a disk with host-wide tags, and another queue over it that shares them.
fn shared_tags(puppet: &Puppet) -> (Device, Device) {
    let disk = puppet.device();
    let lower = &disk.legs()[0].queue;
    let upper = Queue::over(lower, "upper", Box::new(puppet.clone()), lower.timeout());
    let upper = Device::from_queue("upper", upper);
    (disk, upper)
}

#[test]
fn queues_that_share_tags_count_their_own_requests() {
    let puppet = Puppet::new().host_depth(8).holding();
    let (disk, upper) = shared_tags(&puppet);
    let mut below = Rig::new(&[&disk]);
    (0..3).for_each(|n| assert!(below.read(n * 2, n as u32)));
    assert_eq!((disk.in_flight().reads, upper.in_flight().reads), (3, 0));
    let mut above = Rig::new(&[&upper]);
    (0..2).for_each(|n| assert!(above.read(n * 2, n as u32)));
    assert_eq!((disk.in_flight().reads, upper.in_flight().reads), (3, 2));
    puppet.script().finish = u32::MAX;
    below.drain();
    assert_eq!((disk.in_flight().reads, upper.in_flight().reads), (0, 2));
    above.drain();
    assert_eq!((disk.in_flight().total(), upper.in_flight().total()), (0, 0));
    // The tags go from one queue to the other and back.
    puppet.script().finish = 0;
    (0..8).for_each(|n| assert!(above.read(n * 2, n as u32)));
    assert_eq!((disk.in_flight().reads, upper.in_flight().reads), (0, 8));
    puppet.script().finish = u32::MAX;
    above.drain();
}

#[test]
fn an_idle_queue_freezes_while_another_uses_the_shared_tags() {
    let puppet = Puppet::new().host_depth(8).holding();
    let (disk, upper) = shared_tags(&puppet);
    let mut below = Rig::new(&[&disk]);
    below.read(0, 0);
    let frozen = upper.freeze(Duration::ZERO).expect("nothing of this queue is in flight");
    assert!(disk.freeze(Duration::ZERO).is_err(), "the read is the disk's");
    drop(frozen);
    puppet.script().finish = u32::MAX;
    below.drain();
}

#[test]
fn partitions_of_queues_that_share_tags_are_not_mixed_up() {
    let puppet = Puppet::new().host_depth(8).holding();
    let (disk, upper) = shared_tags(&puppet);
    let low = linear::partition("low", &disk, 0, MIB).unwrap();
    let up = linear::partition("up", &upper, MIB, MIB).unwrap();
    assert_eq!(low.legs()[0].part, up.legs()[0].part, "numbers are a queue's own");
    let mut rig = Rig::new(&[&low]);
    rig.read(0, 0);
    assert_eq!((low.in_flight().reads, up.in_flight().reads), (1, 0));
    puppet.script().finish = u32::MAX;
    rig.drain();
}

#[test]
fn a_partition_counts_what_its_partitions_have_in_flight() {
    let puppet = Puppet::new().holding();
    let disk = puppet.device();
    let outer = linear::partition("outer", &disk, 0, 8 * MIB).unwrap();
    let inner = linear::partition("inner", &outer, MIB, MIB).unwrap();
    let beside = linear::partition("beside", &outer, 4 * MIB, MIB).unwrap();
    let mut rig = Rig::new(&[&inner, &outer, &disk]);
    let reads = |devices: [&Device; 4]| devices.map(|device| device.in_flight().reads);
    rig.read(0, 0);
    assert_eq!(reads([&disk, &outer, &inner, &beside]), [1, 1, 1, 0]);
    rig.io_to(1, Op::Read, 0, 64, 4096, 1);
    rig.io_to(2, Op::Read, 0, 128, 4096, 2);
    assert_eq!(reads([&disk, &outer, &inner, &beside]), [3, 2, 1, 0]);
    puppet.script().finish = u32::MAX;
    rig.drain();
    assert_eq!(reads([&disk, &outer, &inner, &beside]), [0; 4]);
}

#[test]
fn pieces_on_one_queue_count_a_request_once() {
    let puppet = Puppet::new().holding();
    let disk = puppet.device();
    let a = linear::partition("a", &disk, 0, MIB).unwrap();
    let b = linear::partition("b", &disk, 8 * MIB, MIB).unwrap();
    let both = linear::concatenate("both", &[a.clone(), b]).unwrap();
    let overlapping = linear::concatenate("overlapping", &[disk.clone(), a.clone()]).unwrap();
    let mut rig = Rig::new(&[&both]);
    rig.read(0, 0);
    let counts = [&disk, &a, &both, &overlapping].map(|device| device.in_flight().total());
    assert_eq!(counts, [1, 1, 1, 1]);
    puppet.script().finish = u32::MAX;
    rig.drain();
    let counts = [&disk, &a, &both, &overlapping].map(|device| device.stats().ios());
    assert_eq!(counts, [1, 1, 1, 1], "statistics are the queue's, and it is one queue");
}

#[test]
fn what_the_driver_refused_is_accounted_and_not_in_the_driver() {
    let puppet = Puppet::new().holding();
    let mut rig = Rig::new(&[&puppet.device()]);
    puppet.script().accept = 2;
    rig.ctx.start_plug(5);
    (0..5).for_each(|n| assert!(rig.read(n * 2, n as u32)));
    rig.ctx.finish_plug();
    assert_eq!((rig.device().accounted().reads, rig.in_flight()), (5, 2), "three were refused");
    puppet.script().accept = 1;
    rig.poll();
    assert_eq!((rig.device().accounted().reads, rig.in_flight()), (5, 3), "one more was taken");
    let quiesced = rig.queue().quiesce(Duration::ZERO).unwrap();
    puppet.script().accept = u32::MAX;
    rig.read(100, 5);
    assert_eq!(
        (rig.device().accounted().reads, rig.in_flight()),
        (5, 3),
        "a quiesced queue gives nothing on, and takes nothing"
    );
    drop(quiesced);
    rig.poll();
    assert_eq!((rig.device().accounted().reads, rig.in_flight()), (6, 6));
    puppet.script().finish = u32::MAX;
    rig.drain();
    assert_eq!((rig.device().accounted().total(), rig.in_flight()), (0, 0));
    // A tag that was refused once carries no state to its next use.
    puppet.script().finish = 0;
    (0..6).for_each(|n| assert!(rig.read(n * 2, n as u32)));
    assert_eq!((rig.device().accounted().reads, rig.in_flight()), (6, 6));
    puppet.script().finish = u32::MAX;
    rig.drain();
}

#[test]
fn gathered_requests_are_not_counted() {
    for host_depth in [None, Some(64)] {
        let mut puppet = Puppet::new().holding();
        puppet.host_depth = host_depth;
        let mut rig = Rig::new(&[&puppet.device()]);
        rig.read(200, 9);
        rig.ctx.start_plug(8);
        (0..4).for_each(|n| assert!(rig.read(n * 2, n as u32)));
        let counts = |rig: &Rig| (rig.device().accounted().total(), rig.in_flight());
        assert_eq!(counts(&rig), (1, 1), "four are gathered");
        // The completion frees a tag of the word that also contains the gathered ones.
        puppet.script().finish = 1;
        rig.poll();
        assert_eq!(rig.take_ok(), [9]);
        assert_eq!(counts(&rig), (0, 0), "four are still gathered, host-wide tags: {host_depth:?}");
        rig.ctx.finish_plug();
        assert_eq!(counts(&rig), (4, 4));
        puppet.script().finish = u32::MAX;
        rig.drain();
        assert_eq!(counts(&rig), (0, 0));
    }
}

#[test]
fn a_flush_is_in_flight_while_the_driver_has_it() {
    let puppet = Puppet::new().caps(|caps| caps.volatile_cache = true).holding();
    let mut rig = Rig::new(&[&puppet.device()]);
    rig.ctx.start_plug(4);
    assert!(rig.flush(0));
    assert_eq!((puppet.script().seen.len(), rig.in_flight()), (0, 0), "it is gathered");
    rig.ctx.finish_plug();
    assert_eq!((puppet.script().seen.len(), rig.in_flight()), (1, 1));
    puppet.script().finish = u32::MAX;
    rig.drain();
    assert_eq!((rig.take_ok(), rig.in_flight()), (vec![0], 0));
}

#[test]
fn errors_are_a_part_of_what_is_counted() {
    let puppet = Puppet::new();
    puppet.script().fail = vec![(Op::Read, Status::Medium)];
    let device = puppet.device();
    let mut rig = Rig::with(64, false, &[&device]);
    (0..5).for_each(|n| assert!(rig.read(n * 2, n as u32)));
    rig.drain();
    let counts = |device: &Device| (device.stats().op(Op::Read).ios, device.stats().op(Op::Read).errors);
    assert_eq!(counts(&device), (0, 0), "without statistics no errors either, or they are more than the I/Os");
    rig.ctx.set_stats(true);
    (0..5).for_each(|n| assert!(rig.read(n * 2, n as u32)));
    rig.drain();
    assert_eq!(counts(&device), (5, 5));
}

/// A deep queue has tags in several words of the set. In any order of completion the count of those in flight is right
/// at every moment, and all tags can be taken again.
#[test]
fn the_tags_of_a_deep_queue_come_back_in_whatever_order_its_requests_end() {
    for lifo in [true, false] {
        let puppet = Puppet::new().depth(128).holding();
        let mut rig = Rig::with(256, true, &[&puppet.device()]);
        for round in 0..2 {
            puppet.script().seen.clear();
            rig.ctx.start_plug(128);
            (0..128).for_each(|n| assert!(rig.read(n * 2, n as u32)));
            rig.ctx.finish_plug();
            assert_eq!(rig.in_flight(), 128, "round {round}");
            let tags: std::collections::BTreeSet<u16> = puppet.script().seen.iter().map(|seen| seen.tag).collect();
            assert_eq!(tags.len(), 128, "no tag is had twice");
            puppet.script().lifo = lifo;
            for left in (0..128).step_by(16).rev() {
                puppet.script().finish = 16;
                rig.poll();
                assert_eq!(rig.in_flight(), left, "round {round}: all of a batch have tags of one word");
            }
        }
        assert_eq!(rig.take_ok().len(), 256);
    }
}
