//! Wrong parameters of submitters, and calls at the wrong time: each I/O ends once, and no value is trusted that could
//! break memory safety.

use sheave_base::status::Status;
use sheave_blk::bio::{BIO_CHILD, BIO_FUA, BIO_WAITS, NO_FIXED_BUF, Op};
use sheave_blk::ctx::lane::PlainKind;
use sheave_blk::ctx::{BioSpec, MAX_VECS};

use crate::support::{BLOCK, Puppet, Rig, address, vec_at};

fn spec(rig: &Rig, op: Op, flags: u16, bytes: u32, owner: u32) -> BioSpec {
    BioSpec { bdev: rig.devices[0].0, op, flags, sector: 0, bytes, owner }
}

#[test]
fn memory_that_is_not_as_long_as_its_io_is_refused() {
    let puppet = Puppet::new();
    let mut rig = Rig::new(&[&puppet.device()]);
    let whole = vec_at(address(0), BLOCK as usize);
    for (owner, vecs) in
        [&[][..], &[vec_at(address(0), 512)], &[whole, whole], &[vec_at(0, usize::MAX), whole]].iter().enumerate()
    {
        let spec = spec(&rig, Op::Read, 0, BLOCK, owner as u32);
        assert!(rig.ctx.submit(&spec, vecs, NO_FIXED_BUF));
    }
    rig.drain();
    assert_eq!(rig.take_ended(), (0..4).map(|owner| (owner, Status::Invalid)).collect::<Vec<_>>());
    assert!(puppet.script().seen.is_empty());
    assert!(rig.read(0, 9), "and the bios are back");
    rig.drain();
    assert_eq!(rig.take_ok(), [9]);
}

#[test]
fn more_pieces_than_a_bio_can_count_are_refused_and_all_that_it_can_count_arrive() {
    let puppet = Puppet::new().limits(|limits| {
        limits.max_segments = u16::MAX;
        limits.max_sectors = u32::MAX >> 9;
    });
    let mut rig = Rig::new(&[&puppet.device()]);
    for (owner, pieces) in [(0, MAX_VECS), (1, MAX_VECS + 1), (2, 2 * (MAX_VECS + 1))] {
        let vecs: Vec<_> = (0..pieces).map(|at| vec_at(address(0) + 1024 * at, 512)).collect();
        let spec = spec(&rig, Op::Read, 0, pieces as u32 * 512, owner);
        assert!(rig.ctx.submit(&spec, &vecs, NO_FIXED_BUF));
    }
    rig.drain();
    assert_eq!(rig.take_ended(), [(0, Status::Ok), (1, Status::Invalid), (2, Status::Invalid)]);
    let pieces: usize = puppet.script().seen.iter().map(|seen| seen.vecs.len()).sum();
    assert_eq!(pieces, MAX_VECS);
}

#[test]
fn flags_that_are_the_block_layers_own_do_not_count() {
    let puppet = Puppet::new();
    let mut rig = Rig::new(&[&puppet.device()]);
    // A bio with the flag of a child or a parent would refer to a parent or children that do not exist.
    let own = !BIO_FUA & (BIO_CHILD | BIO_WAITS | 1 << 4 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 12 | 7 << 13);
    for (owner, op) in [Op::Read, Op::Write, Op::Flush, Op::Discard].into_iter().enumerate() {
        let bytes = if op == Op::Flush { 0 } else { BLOCK };
        let vec = vec_at(address(0), BLOCK as usize);
        let spec = spec(&rig, op, own, bytes, owner as u32);
        assert!(rig.ctx.submit(&spec, if op.has_data() { std::slice::from_ref(&vec) } else { &[] }, NO_FIXED_BUF));
    }
    rig.drain();
    let mut ended = rig.take_ok();
    ended.sort_unstable();
    assert_eq!(ended, [0, 1, 2, 3]);
}

#[test]
fn a_route_leads_nowhere_in_another_ring_and_once_its_device_is_detached() {
    let (one, other) = (Puppet::new(), Puppet::new());
    let (mut rig, mut foreign) = (Rig::new(&[&one.device()]), Rig::new(&[&other.device()]));
    let kind = PlainKind::new(true, 0, NO_FIXED_BUF);
    let route = rig.ctx.route(rig.devices[0].0).expect("one leg");
    assert!(rig.ctx.lane(route, kind).is_some());
    assert!(foreign.ctx.lane(route, kind).is_none());
    rig.ctx.detach(rig.devices[0].0, &mut |_: u32, _| unreachable!("nothing is on its way"));
    assert!(rig.ctx.lane(route, kind).is_none());
    let next = rig.ctx.attach(&foreign.devices[0].1).expect("attached");
    assert_eq!(next, rig.devices[0].0, "in the place of the other");
    assert!(rig.ctx.lane(route, kind).is_none());
    let route = rig.ctx.route(next).expect("one leg");
    assert!(rig.ctx.lane(route, kind).is_some());
}

#[test]
fn detach_reports_every_bio_in_flight() {
    let puppet = Puppet::new().depth(4);
    let mut rig = Rig::new(&[&puppet.device()]);
    puppet.script().finish = 0;
    // Four are with the driver, the others wait for tags.
    (0..9).for_each(|n| assert!(rig.read(n * 2, n as u32)));
    let (bdev, ended) = (rig.devices[0].0, &mut rig.ended);
    rig.ctx.detach(bdev, &mut |owner, status| ended.push((owner, status)));
    rig.drain();
    let mut ended = rig.take_ended();
    ended.sort_unstable_by_key(|(owner, _)| *owner);
    let wanted = |owner| (owner, if owner < 4 { Status::Offline } else { Status::Canceled });
    assert_eq!(ended, (0..9).map(wanted).collect::<Vec<_>>());
    assert!(rig.read(0, 10), "the bios are back");
    rig.drain();
    assert_eq!(rig.take_ended(), [(10, Status::Offline)]);
}

#[test]
fn a_reused_device_number_gets_no_io_of_the_old_device() {
    let below = [Puppet::new().holding(), Puppet::new().holding()];
    let devices = below.each_ref().map(Puppet::device);
    let both = sheave_blk::linear::concatenate("both", &devices).expect("a device");
    let mut rig = Rig::with(8, true, &[&both]);
    let bdev = rig.devices[0].0;
    let border = (devices[0].size_bytes() >> 9) - 4;
    // First as many reads as there are bios. Then one after the other ends, and a read across the border of the two
    // devices takes its place, until there is no bio for the pieces of one.
    let first = (0..).take_while(|owner| rig.read(u64::from(*owner) * 2, *owner)).count() as u32;
    let mut crossing = 0;
    let seen = || below.iter().map(|puppet| puppet.script().seen.len() as u32).sum::<u32>();
    while seen() == first + 2 * crossing {
        below[0].script().finish = 1;
        rig.poll();
        below[0].script().finish = 0;
        assert_eq!(rig.take_ended(), [(crossing, Status::Ok)]);
        crossing += 1;
        let spec = BioSpec { bdev, op: Op::Write, flags: 0, sector: border, bytes: BLOCK, owner: first + crossing };
        assert!(rig.ctx.submit(&spec, &[vec_at(address(0), BLOCK as usize)], NO_FIXED_BUF));
    }
    let ended = &mut rig.ended;
    rig.ctx.detach(bdev, &mut |owner, status| ended.push((owner, status)));
    assert_eq!(rig.take_ended().len() as u32, first, "the detach has told of all");
    let other = Puppet::new();
    assert_eq!(rig.ctx.attach(&other.device()).expect("attached"), bdev);
    rig.drain();
    assert!(other.script().seen.is_empty() && rig.take_ended().is_empty());
}
