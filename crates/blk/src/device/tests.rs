//! Devices made of legs: I/O goes to the right leg and stays inside, and flushes reach every queue.

use super::*;
use crate::bio::{BIO_FUA, BIO_PREFLUSH, Op};
use crate::support::{BLOCK, Puppet, Rig};
use sheave_base::rng::Rng;
use sheave_base::status::Status;

fn leg(device: &Device, start: u64, sectors: u64, offset: u64) -> Leg {
    let queue = device.legs()[0].queue.clone();
    Leg { start, sectors, offset, part: queue.new_partition(0), queue, lower: None }
}

#[test]
fn nothing_gets_out_of_a_partition() {
    let puppet = Puppet::new();
    let part = Device::from_legs("part", vec![leg(&puppet.device(), 0, 1000, 2048)]);
    let mut rig = Rig::new(&[&part]);
    let bad = [993, 1000, 1 << 40, u64::MAX - 7, u64::MAX, u64::MAX - 2048, u64::MAX - 2047, u64::MAX - 2050];
    for (owner, sector) in bad.into_iter().enumerate() {
        rig.io(Op::Write, sector, BLOCK, owner as u32);
    }
    rig.drain();
    assert!(puppet.sectors_seen().is_empty(), "{:?}", puppet.script().seen);
    assert_eq!(rig.take_ended(), (0..8).map(|owner| (owner, Status::IoErr)).collect::<Vec<_>>());
    rig.io(Op::Write, 992, BLOCK, 0);
    rig.drain();
    assert_eq!(puppet.sectors_seen(), [992 + 2048]);
}

#[test]
fn nothing_gets_past_the_end_of_a_whole_device() {
    let puppet = Puppet::new();
    let mut rig = Rig::new(&[&puppet.device()]);
    for (owner, sector) in [(1 << 21) - 7, 1 << 21, u64::MAX, u64::MAX - 7].into_iter().enumerate() {
        rig.io(Op::Read, sector, BLOCK, owner as u32);
        rig.io(Op::Discard, sector, BLOCK, owner as u32);
    }
    rig.drain();
    assert!(puppet.sectors_seen().is_empty());
    assert!(rig.take_ended().iter().all(|(_, status)| *status == Status::IoErr));
}

/// Makes a device of 100 sectors of each of three puppets.
fn concatenated(puppets: &[Puppet; 3]) -> Device {
    let legs = puppets.iter().enumerate().map(|(at, puppet)| leg(&puppet.device(), at as u64 * 100, 100, 10)).collect();
    Device::from_legs("linear", legs)
}

fn puppets() -> [Puppet; 3] {
    std::array::from_fn(|_| Puppet::new().caps(|caps| caps.volatile_cache = true))
}

#[test]
fn a_bio_is_cut_where_it_crosses_legs() {
    let puppets = puppets();
    let mut rig = Rig::new(&[&concatenated(&puppets)]);
    rig.io(Op::Write, 96, 512 * 108, 0);
    rig.io(Op::Read, 200, 512 * 100, 1);
    rig.io(Op::Read, 296, 512 * 5, 2);
    rig.drain();
    let mut ended = rig.take_ended();
    ended.sort_unstable_by_key(|end| end.0);
    assert_eq!(ended, [(0, Status::Ok), (1, Status::Ok), (2, Status::IoErr)]);
    let seen = puppets
        .map(|puppet| puppet.script().seen.iter().map(|seen| (seen.sector, seen.bytes / 512)).collect::<Vec<_>>());
    assert_eq!(seen, [vec![(106, 4)], vec![(10, 100)], vec![(10, 4), (10, 100), (106, 4)]]);
}

#[test]
fn each_queue_under_a_device_is_a_device_with_its_own_counts() {
    let [a, b, _] = puppets();
    let (a, b) = (a.device(), b.device());
    let whole = Device::from_legs("linear", vec![leg(&a, 0, 100, 10), leg(&b, 100, 100, 10), leg(&a, 200, 100, 500)]);
    let mut rig = Rig::new(&[&whole, &a]);
    for (owner, sector) in [0, 100, 200, 208].into_iter().enumerate() {
        rig.io(Op::Read, sector, BLOCK, owner as u32);
    }
    // Beside the device, on one of its queues.
    rig.io_to(1, Op::Read, 0, 2000, BLOCK, 4);
    rig.drain();
    let parts = whole.by_queue();
    let counts: Vec<_> = parts.iter().map(|part| (part.name(), part.stats().op(Op::Read).sectors)).collect();
    assert_eq!(counts, [(a.name(), 24), (b.name(), 8)]);
    assert_eq!(parts.iter().map(Device::size_bytes).collect::<Vec<_>>(), [200 << 9, 100 << 9]);
    parts[1].set_stats(false);
    assert_eq!((whole.keeps_stats(), a.keeps_stats(), b.keeps_stats()), (false, true, false));
    assert!(a.by_queue()[0].same(&a), "a device of one queue is itself");
}

#[test]
fn a_flush_goes_to_every_queue_once_and_ends_once() {
    let puppets = puppets();
    let devices = puppets.each_ref().map(Puppet::device);
    // Two legs are on one queue, which gets one flush for both.
    let legs = vec![
        leg(&devices[0], 0, 100, 10),
        leg(&devices[1], 100, 100, 10),
        leg(&devices[0], 200, 100, 500),
        leg(&devices[2], 300, 100, 10),
    ];
    let mut rig = Rig::new(&[&Device::from_legs("linear", legs)]);
    puppets[1].script().fail = vec![(Op::Flush, Status::Medium)];
    rig.flush(0);
    rig.drain();
    assert_eq!(rig.take_ended(), [(0, Status::Medium)]);
    for puppet in &puppets {
        assert_eq!(puppet.script().seen.iter().filter(|seen| seen.op == Op::Flush).count(), 1);
    }
    puppets[1].script().fail.clear();
    rig.flush(1);
    rig.io_flags(Op::Write, BIO_FUA, 96, 512 * 8, 2);
    rig.drain();
    assert_eq!(rig.take_ok().len(), 2);
}

#[test]
fn few_bios_are_enough_for_many_legs() {
    let puppets: [Puppet; 3] = puppets();
    let devices = puppets.each_ref().map(Puppet::device);
    let legs: Vec<Leg> = (0..30).map(|at| leg(&devices[at % 3], at as u64 * 8, 8, at as u64 * 8)).collect();
    let device = Device::from_legs("linear", legs);
    for bios in 1..6 {
        let mut rig = Rig::with(bios, true, &[&device]);
        assert!(rig.io(Op::Write, 0, 512 * 240, 0));
        rig.drain();
        assert!(rig.flush(1));
        rig.drain();
        assert!(rig.io(Op::Discard, 4, 512 * 200, 2));
        rig.drain();
        assert_eq!(rig.take_ok(), [0, 1, 2], "with {bios} bios");
        assert_eq!(rig.ctx.bios().live(), 0);
        assert_eq!(rig.ctx.bios().reserved(), 4);
    }
    let sectors: u64 =
        puppets.iter().map(|puppet| puppet.script().seen.iter().map(|s| u64::from(s.bytes / 512)).sum::<u64>()).sum();
    assert_eq!(sectors, 5 * (240 + 200));
}

#[test]
fn pieces_that_must_be_cut_again_do_not_wait_for_each_other() {
    for bios in 1..12 {
        let mut rng = Rng::new(u64::from(bios));
        let puppets: [Puppet; 3] = std::array::from_fn(|_| {
            Puppet::new().depth(2).caps(|caps| caps.volatile_cache = true).limits(|limits| limits.max_sectors = 2)
        });
        let devices = puppets.each_ref().map(Puppet::device);
        let legs: Vec<Leg> = (0..6).map(|at| leg(&devices[at % 3], at as u64 * 50, 50, at as u64 * 50)).collect();
        let mut rig = Rig::with(bios, true, &[&Device::from_legs("linear", legs)]);
        // Every bio that comes back becomes a parent again at once.
        let mut owner = 0;
        for _ in 0..100_000 {
            while owner < 100 {
                let (op, sectors) = if rng.percent(20) { (Op::Flush, 0) } else { (Op::Write, 1 + rng.below(100)) };
                let sector = if sectors == 0 { 0 } else { rng.below(200) };
                if !rig.io_flags(op, 0, sector, 512 * sectors as u32, owner) {
                    break;
                }
                owner += 1;
            }
            rig.poll();
            if owner == 100 && rig.ctx.is_idle() {
                break;
            }
        }
        let mut ended = rig.take_ok();
        ended.sort_unstable();
        assert_eq!(ended, (0..100).collect::<Vec<_>>());
    }
}

#[test]
fn cutting_at_the_legs_leaves_reserve_for_cutting_at_the_queue() {
    let plain = Puppet::new().holding();
    let small = Puppet::new().limits(|limits| limits.max_sectors = 2);
    let devices = [plain.device(), small.device()];
    let legs = vec![leg(&devices[1], 0, 50, 0), leg(&devices[1], 50, 50, 100)];
    let linear = Device::from_legs("linear", legs);
    let mut rig = Rig::with(4, true, &[&devices[0], &linear]);
    (0..4).for_each(|n| assert!(rig.read(n * 2, n as u32)));
    let gate = linear.freeze(Duration::ZERO).unwrap();
    // Each bio that comes back becomes a parent, whose pieces wait at the gate.
    let mut submitted = 4;
    for owner in 4..8 {
        plain.script().finish = 1;
        rig.poll();
        submitted += u32::from(rig.io_to(1, Op::Write, 0, 0, 512 * 100, owner));
    }
    drop(gate);
    rig.drain();
    assert_eq!(rig.take_ok().len() as u32, submitted);
}

#[test]
fn what_several_legs_cannot_do_is_said() {
    let puppets = puppets();
    let mut rig = Rig::new(&[&concatenated(&puppets)]);
    rig.io_flags(Op::Write, BIO_PREFLUSH, 0, BLOCK, 0);
    rig.drain();
    assert_eq!(rig.take_ended(), [(0, Status::NotSupp)]);
}

#[test]
fn limits_and_abilities_are_those_of_the_weakest_leg() {
    let good = Puppet::new().caps(|caps| (caps.fua, caps.direct_io, caps.asynchronous) = (true, true, true));
    let poor = Puppet::new()
        .limits(|limits| (limits.logical_block, limits.max_discard_sectors) = (4096, 0))
        .caps(|caps| (caps.volatile_cache, caps.polled, caps.read_only, caps.discard) = (true, false, true, false));
    let device = Device::from_legs("linear", vec![leg(&good.device(), 0, 80, 0), leg(&poor.device(), 80, 80, 0)]);
    let (limits, caps) = (device.limits(), device.capabilities());
    assert_eq!((limits.logical_block, limits.max_discard_sectors), (4096, 0));
    assert!(caps.volatile_cache && caps.read_only && caps.write_zeroes);
    assert!(!(caps.fua || caps.polled || caps.discard || caps.direct_io || caps.asynchronous));
    assert!(good.device().capabilities().asynchronous);
    assert_eq!(device.size_bytes(), 160 * 512);
}
