//! Devices that are extended while rings have them attached.

use super::*;
use crate::bio::Op;
use crate::claim::Sharing;
use crate::linear;
use crate::support::{BLOCK, Puppet, Rig};
use sheave_base::status::Status;

fn puppet() -> Puppet {
    Puppet::new().caps(|caps| caps.volatile_cache = true)
}

fn ops(puppet: &Puppet) -> Vec<(Op, u64)> {
    std::mem::take(&mut puppet.script().seen).iter().map(|seen| (seen.op, seen.sector)).collect()
}

#[test]
fn a_ring_that_had_it_attached_reaches_all_of_it() {
    let (first, second, third) = (puppet(), puppet(), puppet());
    let device = first.device();
    let mut rig = Rig::new(&[&device]);
    let route = rig.ctx.route(0);
    rig.io(Op::Write, 0, BLOCK, 0);
    rig.drain();
    assert_eq!((rig.take_ok(), ops(&first)), (vec![0], vec![(Op::Write, 0)]));
    // The extension begins at 1 MiB, before the end of the first device; sectors behind that are the second's from now
    // on.
    device.extend(1 << 20, &second.device()).expect("extends");
    let whole = second.device().size_bytes();
    assert_eq!((device.size_bytes(), device.first_leg_bytes()), ((1 << 20) + whole, 1 << 20));
    assert!(device.whole_queue().is_none() && device.legs().len() == 2);
    rig.io(Op::Write, 2047, 2 * 512, 1);
    rig.io(Op::Read, 8, BLOCK, 2);
    rig.io(Op::Write, 2048 + 80, BLOCK, 3);
    rig.flush(4);
    rig.drain();
    let mut ended = rig.take_ok();
    ended.sort_unstable();
    assert_eq!(ended, [1, 2, 3, 4]);
    assert_eq!(ops(&first), [(Op::Write, 2047), (Op::Read, 8), (Op::Flush, 0)]);
    assert_eq!(ops(&second), [(Op::Write, 0), (Op::Write, 80), (Op::Flush, 0)]);
    assert!(route.is_some() && rig.ctx.route(0).is_none(), "a lane is for one leg");
    // A second extension. Only a flush makes the ring notice it.
    device.extend((1 << 20) + whole, &third.device()).expect("extends");
    rig.flush(5);
    rig.drain();
    assert_eq!((rig.take_ok(), ops(&first), ops(&second)), (vec![5], vec![(Op::Flush, 0)], vec![(Op::Flush, 0)]));
    assert_eq!(ops(&third), [(Op::Flush, 0)]);
    rig.io(Op::Read, device.size_bytes() / 512, BLOCK, 6);
    rig.drain();
    assert_eq!(rig.take_ended(), [(6, Status::IoErr)]);
}

#[test]
fn what_comes_after_is_cut_off_when_it_is_extended_anew() {
    let (first, wrong, right) = (puppet(), puppet(), puppet());
    let device = first.device();
    let mut rig = Rig::new(&[&device]);
    for other in [&wrong, &right] {
        device.extend(1 << 20, &other.device()).expect("extends");
        rig.io(Op::Write, 2048, BLOCK, 0);
        rig.drain();
        assert_eq!((rig.take_ok(), ops(other)), (vec![0], vec![(Op::Write, 0)]));
    }
    assert_eq!(device.legs().len(), 2);
    assert!(ops(&wrong).is_empty() && ops(&first).is_empty());
}

#[test]
fn rings_that_attach_later_and_stacks_see_it_too() {
    let (first, second) = (puppet(), puppet());
    let device = linear::partition("part", &first.device(), 4096, 1 << 20).expect("a piece");
    device
        .extend(1 << 20, &linear::partition("other", &second.device(), 8192, 4096).expect("a piece"))
        .expect("extends");
    assert_eq!(device.size_bytes(), (1 << 20) + 4096);
    let _claim = device.claim(Sharing::Alone).expect("nobody has it");
    let mut rig = Rig::new(&[&device]);
    rig.io(Op::Write, 2040, 2 * BLOCK, 0);
    rig.drain();
    assert_eq!((rig.take_ok(), ops(&first), ops(&second)), (vec![0], vec![(Op::Write, 2048)], vec![(Op::Write, 16)]));
}

#[test]
fn a_device_that_does_less_is_refused() {
    let device = Puppet::new().caps(|caps| caps.fua = true).device();
    let refused = |other: Device, word: &str| {
        let error = device.extend(1 << 20, &other).expect_err("refused").to_string();
        assert!(error.contains(word), "{error}");
    };
    refused(Puppet::new().caps(|caps| (caps.fua, caps.volatile_cache) = (false, true)).device(), "FUA");
    refused(Puppet::new().caps(|caps| (caps.fua, caps.volatile_cache) = (true, true)).device(), "no volatile cache");
    refused(Puppet::new().caps(|caps| (caps.fua, caps.read_only) = (true, true)).device(), "writes");
    refused(Puppet::new().caps(|caps| caps.fua = true).limits(|limits| limits.logical_block = 4096).device(), "blocks");
    for at in [0, 100, device.size_bytes() + 512] {
        let error = device.extend(at, &puppet().device()).expect_err("refused").to_string();
        assert!(error.contains("cannot go on at"), "{error}");
    }
    assert_eq!(device.legs().len(), 1);
}

#[test]
fn a_device_may_be_extended_by_itself() {
    let first = puppet();
    let device = first.device();
    let mut rig = Rig::new(&[&device]);
    let whole = device.size_bytes();
    device.extend(whole, &device).expect("extends");
    assert_eq!(device.size_bytes(), 2 * whole, "by what it was");
    rig.io(Op::Write, whole / 512 + 8, BLOCK, 0);
    rig.flush(1);
    rig.drain();
    assert_eq!((rig.take_ok(), ops(&first)), (vec![0, 1], vec![(Op::Write, 8), (Op::Flush, 0)]));
    device.extend(whole, &device).expect("extends");
    assert_eq!(device.size_bytes(), 3 * whole);
}
