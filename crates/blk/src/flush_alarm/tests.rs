//! Flushes that trigger an alarm, and flushes that fail because of it.

use super::*;
use crate::bio::{BIO_FUA, BIO_OWNER, NO_FIXED_BUF, Op};
use crate::ctx::BioSpec;
use crate::linear::{concatenate, partition};
use crate::support::{BLOCK, Puppet, Rig};

fn puppet(fua: bool) -> Puppet {
    Puppet::new().caps(|caps| (caps.volatile_cache, caps.fua) = (true, fua))
}

fn alarm() -> Arc<FlushAlarm> {
    Arc::new(FlushAlarm::default())
}

/// Sends one flush with these flags to a device of the rig. Returns its status.
fn flush(rig: &mut Rig, device: usize, flags: u16) -> Status {
    let bdev = rig.devices[device].0;
    let spec = BioSpec { bdev, op: Op::Flush, flags, sector: 0, bytes: 0, owner: 9 };
    assert!(rig.ctx.submit(&spec, &[], NO_FIXED_BUF));
    rig.drain();
    let ended = rig.take_ended();
    assert_eq!(ended.len(), 1);
    ended[0].1
}

/// V3: a later flush proves nothing about data that an earlier one lost.
#[test]
fn after_a_failed_flush_none_ends_well_but_the_owners() {
    let puppet = puppet(true);
    let device = puppet.device();
    let alarm = alarm();
    let watch = device.watch_flushes(&alarm);
    let mut rigs = [Rig::new(&[&device]), Rig::new(&[&device])];
    assert_eq!(flush(&mut rigs[0], 0, 0), Status::Ok);
    assert_eq!(alarm.failed(), None);
    puppet.script().fail = vec![(Op::Flush, Status::Medium)];
    assert_eq!(flush(&mut rigs[0], 0, 0), Status::Medium);
    puppet.script().fail.clear();
    assert_eq!((alarm.failed(), alarm.epoch()), (Some(Status::Medium), FlushAlarm::RINGING));
    for rig in &mut rigs {
        assert_eq!(flush(rig, 0, 0), Status::IoErr, "A2, of any ring");
        assert_eq!(flush(rig, 0, BIO_OWNER), Status::Ok);
    }
    puppet.script().fail = vec![(Op::Flush, Status::Timeout)];
    assert_eq!(flush(&mut rigs[1], 0, BIO_OWNER), Status::Timeout);
    assert_eq!(alarm.failed(), Some(Status::Medium), "the first is the cause");
    puppet.script().fail.clear();
    drop(watch);
    assert_eq!(flush(&mut rigs[0], 0, 0), Status::Ok, "nobody relies on it any more");
}

#[test]
fn both_kinds_of_fua_ring_it_and_plain_writes_do_not() {
    for (fua, fails, status, rings) in [
        (true, Op::Write, Status::Medium, true),
        (true, Op::Write, Status::NoSpc, false),
        (false, Op::Write, Status::Medium, false),
        (false, Op::Flush, Status::Medium, true),
    ] {
        let puppet = puppet(fua);
        let device = puppet.device();
        let alarm = alarm();
        let _watch = device.watch_flushes(&alarm);
        let mut rig = Rig::new(&[&device]);
        puppet.script().fail = vec![(fails, status)];
        assert!(rig.io_flags(Op::Write, BIO_FUA, 0, BLOCK, 1));
        rig.drain();
        assert_eq!(rig.take_ended(), [(1, status)]);
        assert_eq!(alarm.failed().is_some(), rings, "FUA of its own {fua}, {fails:?} fails with {status:?}");
        assert!(rig.io_flags(Op::Write, 0, 0, BLOCK, 2));
        rig.drain();
        rig.take_ended();
        assert_eq!(alarm.failed().is_some(), rings, "a plain write that fails lost nothing that was acknowledged");
    }
}

#[test]
fn what_never_reached_the_driver_does_not_ring_it() {
    let puppet = puppet(true).holding();
    puppet.script().accept = 0;
    let device = puppet.device();
    let alarm = alarm();
    let _watch = device.watch_flushes(&alarm);
    let mut rig = Rig::new(&[&device]);
    rig.flush(0);
    rig.poll();
    rig.shutdown();
    assert_eq!(rig.take_ended(), [(0, Status::Canceled)]);
    assert_eq!(alarm.failed(), None);
}

/// The cache belongs to the whole disk: a flush that fails for one partition may have lost data of another.
#[test]
fn all_who_watch_a_queue_hear_and_each_is_distrusted_alone() {
    let puppet = puppet(true);
    let whole = puppet.device();
    let half = whole.size_bytes() / 2;
    let parts = [partition("a", &whole, 0, half).unwrap(), partition("b", &whole, half, half).unwrap()];
    let alarms = [alarm(), alarm()];
    let a = parts[0].watch_flushes(&alarms[0]);
    let _b = parts[1].watch_flushes(&alarms[1]);
    let mut rig = Rig::new(&[&parts[0], &parts[1], &whole]);
    puppet.script().fail = vec![(Op::Flush, Status::IoErr)];
    assert_eq!(flush(&mut rig, 0, 0), Status::IoErr);
    puppet.script().fail.clear();
    assert!(alarms.iter().all(|alarm| alarm.failed().is_some()));
    drop(a);
    assert_eq!(flush(&mut rig, 0, 0), Status::Ok, "its owner has begun anew");
    assert_eq!(flush(&mut rig, 1, 0), Status::IoErr, "and this one has not");
    assert_eq!(flush(&mut rig, 2, 0), Status::Ok);
}

#[test]
fn each_leg_is_watched_and_what_comes_later_when_it_is_told() {
    let puppets = [puppet(true), puppet(true), puppet(true)];
    let devices = puppets.each_ref().map(Puppet::device);
    let device = concatenate("both", &devices[..2]).unwrap();
    let alarm = alarm();
    let _watch = device.watch_flushes(&alarm);
    let _later = devices[2].watch_flushes(&alarm);
    device.extend(device.size_bytes(), &devices[2]).unwrap();
    let mut rig = Rig::new(&[&device]);
    assert_eq!(flush(&mut rig, 0, 0), Status::Ok);
    puppets[2].script().fail = vec![(Op::Flush, Status::IoErr)];
    assert_eq!(flush(&mut rig, 0, 0), Status::IoErr);
    puppets[2].script().fail.clear();
    assert!(alarm.failed().is_some());
    assert_eq!(flush(&mut rig, 0, 0), Status::IoErr);
    assert_eq!(flush(&mut rig, 0, BIO_OWNER), Status::Ok, "the flag reaches each leg");
}

#[test]
fn an_epoch_counts_until_it_rings() {
    let alarm = alarm();
    assert_eq!((alarm.epoch(), alarm.next_epoch(), alarm.epoch_now()), (1, 1, 2));
    alarm.ring(Status::Timeout);
    assert_eq!(alarm.next_epoch(), FlushAlarm::RINGING);
    assert_eq!((alarm.epoch(), alarm.failed()), (FlushAlarm::RINGING, Some(Status::Timeout)));
}
