//! Partitions and concatenations: their refusals, the place of each address, and the device whose statistics count an
//! I/O.

#[path = "../../blk/tests/support/mod.rs"]
mod support;

use sheave_base::clock::Clock;
use sheave_base::status::Status;
use sheave_blk::Device;
use sheave_blk::bio::{NO_FIXED_BUF, Op};
use sheave_blk::ctx::{BioSpec, IoCtx, IoCtxOptions};
use sheave_blk::device::Leg;
use sheave_blk::linear::partition;
use sheave_drivers::open_device;

use support::vec_at;

fn ctx() -> IoCtx {
    let clock = Clock::real();
    IoCtx::new(IoCtxOptions { bios: 64, kring_entries: 8, iopoll: false, stats: true, clock })
        .expect("a context can be made")
}

/// Runs one I/O on a device to its end.
fn io(ctx: &mut IoCtx, bdev: u16, op: Op, sector: u64, memory: &mut [u8]) -> Status {
    let vec = vec_at(memory.as_mut_ptr() as usize, memory.len());
    let data = [vec];
    let vecs = if op.has_data() { &data[..] } else { &[] };
    let bytes = if op == Op::Flush { 0 } else { memory.len() as u32 };
    assert!(ctx.submit(&BioSpec { bdev, op, flags: 0, sector, bytes, owner: 7 }, vecs, NO_FIXED_BUF));
    let mut ended = None;
    while ended.is_none() {
        ctx.poll(&mut |owner, status| {
            assert_eq!(owner, 7);
            assert!(ended.replace(status).is_none(), "an I/O ends once");
        });
    }
    ended.expect("the loop ends with it")
}

#[test]
fn what_does_not_fit_is_refused_with_cause_and_fix() {
    for (spec, says) in [
        ("partition:start=100,size=1M,over=null:size=4M", "multiples of the block size"),
        ("partition:start=1M,size=0,over=null:size=4M", "size not 0"),
        ("partition:start=3M,size=2M,over=null:size=4M", "go beyond the device"),
        ("partition:start=9M,over=null:size=4M", "start=9437184 is beyond the device"),
        ("partition:start=1M,size=1M", "over="),
        ("partition:over=null:size=1M+null:size=1M", "one device"),
        ("linear:over=", "no kind"),
        ("linear:size=1M,over=null:size=1M", "size"),
    ] {
        let error = open_device(spec).expect_err(spec).to_string();
        assert!(error.contains(says), "{spec}: {error}");
    }
}

#[test]
fn a_concatenation_has_the_bytes_of_all_in_order() {
    let device = open_device("linear:over=ram:size=64k+ram:size=32k+ram:size=64k").expect("a good spec");
    assert_eq!(device.size_bytes(), 160 << 10);
    let mut ctx = ctx();
    let bdev = ctx.attach(&device).expect("attaches");
    let parts: Vec<u16> = device
        .legs()
        .iter()
        .map(|leg| {
            let spec = format!("leg {}", leg.start);
            let one = Device::from_legs(&spec, vec![Leg { start: 0, ..leg.clone() }]);
            ctx.attach(&one).expect("attaches")
        })
        .collect();
    // One write over all three, cut at both seams; then each device has its piece.
    let mut data: Vec<u8> = (0..160 << 10).map(|i: u32| (i / 512 * 7 + i % 251) as u8).collect();
    assert_eq!(io(&mut ctx, bdev, Op::Write, 0, &mut data), Status::Ok);
    for (leg, part) in device.legs().iter().zip(parts) {
        let mut got = vec![0; (leg.sectors << 9) as usize];
        assert_eq!(io(&mut ctx, part, Op::Read, 0, &mut got), Status::Ok);
        let from = (leg.start << 9) as usize;
        assert!(got == data[from..from + got.len()], "leg at sector {}", leg.start);
    }
    assert_eq!(io(&mut ctx, bdev, Op::Flush, 0, &mut []), Status::Ok);
    let mut beyond = vec![0; 1024];
    assert_eq!(io(&mut ctx, bdev, Op::Read, 319, &mut beyond), Status::IoErr, "one sector beyond the end");
}

#[test]
fn a_partition_of_a_partition_lies_where_it_should_and_is_counted_by_itself() {
    let whole = open_device("ram:size=1M").expect("a good spec");
    let outer = partition("outer", &whole, 256 << 10, 512 << 10).expect("fits");
    let inner = partition("inner", &outer, 128 << 10, 64 << 10).expect("fits");
    assert_eq!((inner.legs()[0].offset, inner.size_bytes()), ((384 << 10) >> 9, 64 << 10));
    assert_ne!(inner.legs()[0].part, outer.legs()[0].part);
    let mut ctx = ctx();
    let (all, part) = (ctx.attach(&whole).expect("attaches"), ctx.attach(&inner).expect("attaches"));
    let mut data = vec![0xa5; 4096];
    assert_eq!(io(&mut ctx, part, Op::Write, 8, &mut data), Status::Ok);
    let mut got = vec![0; 4096];
    assert_eq!(io(&mut ctx, all, Op::Read, 768 + 8, &mut got), Status::Ok);
    assert_eq!(got, data);
    assert_eq!(io(&mut ctx, part, Op::Write, 121, &mut data), Status::IoErr, "beyond the partition, not the device");
    assert_eq!((whole.in_flight().total(), inner.in_flight().total()), (0, 0));
}

#[test]
fn in_flight_of_the_whole_is_that_of_its_partitions_and_its_own() {
    let whole = open_device("null:size=1M,latency=10s").expect("a good spec");
    let first = partition("first", &whole, 0, 512 << 10).expect("fits");
    let second = partition("second", &whole, 512 << 10, 512 << 10).expect("fits");
    let mut ctx = ctx();
    let mut memory = vec![0; 512];
    let vec = vec_at(memory.as_mut_ptr() as usize, 512);
    for (device, op, count) in [(&whole, Op::Read, 1), (&first, Op::Read, 2), (&second, Op::Write, 3)] {
        let bdev = ctx.attach(device).expect("attaches");
        for at in 0..count {
            let spec = BioSpec { bdev, op, flags: 0, sector: at * 16, bytes: 512, owner: 0 };
            assert!(ctx.submit(&spec, &[vec], NO_FIXED_BUF));
        }
    }
    let counts = [&whole, &first, &second].map(|device| (device.in_flight().reads, device.in_flight().writes));
    assert_eq!(counts, [(3, 3), (2, 0), (0, 3)]);
    ctx.shutdown(&mut |_, _| {});
    assert_eq!(whole.in_flight().total(), 0);
}
