//! Overdue requests on a virtual clock: found in time, never early, reported to the driver that has them, and ended
//! once.

use std::time::Duration;

use sheave_base::status::Status;
use sheave_blk::bio::{BIO_FUA, Op};

use crate::support::{BLOCK, Puppet, Rig};

const TIMEOUT: Duration = Duration::from_millis(1000);
const STEP: Duration = Duration::from_millis(10);

fn rig(puppet: &Puppet) -> Rig {
    Rig::new(&[&puppet.device_with_timeout(TIMEOUT)])
}

/// Lets `steps` pass, with a wait (that does not sleep) and a poll in each.
fn pass(rig: &mut Rig, steps: u32) {
    for _ in 0..steps {
        rig.time.advance(STEP);
        rig.ctx.wait(1, Some(Duration::ZERO));
        rig.poll();
    }
}

/// Polls as a busy ring does, without ever waiting.
fn poll_often(rig: &mut Rig) {
    for _ in 0..300 {
        rig.poll();
    }
}

#[test]
fn overdue_after_one_timeout_and_at_most_a_quarter_more() {
    let puppet = Puppet::new().holding();
    puppet.script().ends_overdue = true;
    let mut rig = rig(&puppet);
    pass(&mut rig, 7);
    rig.read(0, 0);
    pass(&mut rig, 99);
    assert!(puppet.script().overdue.is_empty(), "not earlier than the timeout");
    pass(&mut rig, 27);
    assert_eq!(puppet.script().overdue.len(), 1, "not later than a quarter more");
    assert_eq!(rig.take_ended(), [(0, Status::Timeout)]);
    assert_eq!(rig.in_flight(), 0);
    assert_eq!(rig.device().stats().op(Op::Read).errors, 1);
}

#[test]
fn a_busy_ring_walks_as_well() {
    let puppet = Puppet::new().holding();
    puppet.script().ends_overdue = true;
    let mut rig = rig(&puppet);
    rig.read(0, 0);
    for _ in 0..20 {
        rig.time.advance(TIMEOUT / 10);
        poll_often(&mut rig);
    }
    assert_eq!(rig.take_ended(), [(0, Status::Timeout)]);
}

#[test]
fn overdue_is_found_by_cycle_counter() {
    for stats in [true, false] {
        let puppet = Puppet::new().holding();
        puppet.script().ends_overdue = true;
        let mut rig = Rig::with(64, stats, &[&puppet.device_with_timeout(TIMEOUT)]);
        rig.read(0, 0);
        let mut steps = 0;
        while rig.ended.is_empty() {
            rig.time.advance(STEP);
            rig.poll();
            steps += 1;
            assert!(steps < 140, "a timeout is 100 steps, a walk is due a quarter later at most");
        }
        assert!(steps > 100, "not earlier than the timeout");
        assert_eq!(rig.take_ended(), [(0, Status::Timeout)]);
    }
}

#[test]
fn overdue_is_found_by_stamp() {
    for stats in [true, false] {
        let puppet = Puppet::new().holding();
        puppet.script().ends_overdue = true;
        puppet.script().lifo = true;
        let mut rig = Rig::with(64, stats, &[&puppet.device_with_timeout(TIMEOUT)]);
        rig.read(0, 0);
        for step in 1.. {
            rig.time.advance(STEP);
            rig.read(u64::from(step) * 2, step);
            puppet.script().finish = 1;
            rig.poll();
            puppet.script().finish = 0;
            if rig.take_ended().contains(&(0, Status::Timeout)) {
                assert!(step > 100);
                break;
            }
            assert!(step < 140, "it is not forgotten over the others");
        }
    }
}

#[test]
fn polls_read_no_clock_to_find_what_is_overdue() {
    let puppet = Puppet::new().holding();
    let mut rig = rig(&puppet);
    rig.read(0, 0);
    rig.poll();
    let reads = rig.time.reads();
    (0..10_000).for_each(|_| assert_eq!(rig.poll(), 0));
    assert_eq!(rig.time.reads(), reads, "no time has passed, and a look at the cycle counter tells");
    let looks = rig.time.looks();
    for n in 1..100 {
        rig.read(n * 2, n as u32);
        puppet.script().finish = 1;
        assert_eq!(rig.poll(), 1);
    }
    assert_eq!(rig.time.looks(), looks, "a poll that ends something has a stamp");
}

#[test]
fn a_driver_may_ask_for_more_time() {
    let puppet = Puppet::new().holding();
    let mut rig = rig(&puppet);
    rig.read(0, 0);
    pass(&mut rig, 350);
    assert_eq!(puppet.script().overdue.len(), 3, "it is asked again every timeout");
    puppet.script().finish = 1;
    rig.poll();
    assert_eq!(rig.take_ok(), [0]);
    pass(&mut rig, 200);
    assert_eq!(puppet.script().overdue.len(), 3);
}

#[test]
fn a_reused_tag_starts_anew() {
    let puppet = Puppet::new().depth(1).holding();
    let mut rig = rig(&puppet);
    for owner in 0..10 {
        rig.read(0, owner);
        pass(&mut rig, 80);
        puppet.script().finish = 1;
        rig.poll();
    }
    assert!(puppet.script().overdue.is_empty());
    assert_eq!(rig.take_ok().len(), 10);
}

#[test]
fn refused_requests_do_not_time_out() {
    // The puppet panics if it is called for a request that it does not hold.
    let puppet = Puppet::new();
    let mut rig = rig(&puppet);
    rig.read(0, 0);
    rig.drain();
    puppet.script().accept = 0;
    (1..40).for_each(|n| assert!(rig.read(n * 2, n as u32)));
    rig.ctx.start_plug(2);
    rig.read(100, 40);
    for _ in 0..200 {
        rig.time.advance(STEP);
        poll_often(&mut rig);
    }
    rig.ctx.finish_plug();
    let quiesced = rig.queue().quiesce(Duration::ZERO).unwrap();
    pass(&mut rig, 200);
    drop(quiesced);
    puppet.script().accept = u32::MAX;
    rig.drain();
    assert_eq!(rig.take_ok().len(), 41);
}

#[test]
fn gathered_requests_do_not_time_out() {
    // The same as above, without a request that was refused before.
    let puppet = Puppet::new();
    let mut rig = rig(&puppet);
    rig.ctx.start_plug(2);
    rig.read(0, 0);
    for _ in 0..200 {
        rig.time.advance(STEP);
        poll_often(&mut rig);
    }
    rig.ctx.finish_plug();
    rig.drain();
    assert_eq!(rig.take_ok(), [0]);
}

/// A device that was busy for longer than a timeout ends its requests all at once. The ring notices when it is about to
/// sleep.
#[test]
fn just_ended_requests_do_not_time_out() {
    // The puppet panics if it is called for a request that it does not hold.
    let puppet = Puppet::new();
    let mut rig = rig(&puppet);
    puppet.script().accept = 0;
    (0..3).for_each(|n| assert!(rig.read(n * 2, n as u32)));
    pass(&mut rig, 50);
    rig.time.advance(2 * TIMEOUT);
    puppet.script().accept = u32::MAX;
    puppet.script().in_call = true;
    rig.ctx.wait(1, Some(Duration::ZERO));
    assert_eq!(puppet.script().seen.len(), 3, "sent off before the sleep");
    assert!(rig.ended.is_empty() && puppet.script().overdue.is_empty());
    rig.poll();
    assert_eq!(rig.take_ok(), [0, 1, 2]);
}

/// A device is frozen for a moment (for a resize, for example) while it refuses requests. Requests sent afterwards have
/// a whole timeout, although their tags are those of requests that had waited for long.
#[test]
fn requests_resent_after_a_freeze_get_a_whole_timeout() {
    let puppet = Puppet::new().depth(1);
    let mut rig = rig(&puppet);
    puppet.script().accept = 0;
    rig.read(0, 0);
    pass(&mut rig, 80);
    assert!(rig.device().accounted().total() > 0, "refused, with a tag");
    let queue = rig.queue().clone();
    let freezer = std::thread::spawn(move || drop(queue.freeze(Duration::from_secs(60)).expect("the ring polls")));
    while !freezer.is_finished() {
        rig.poll();
        std::thread::yield_now();
    }
    freezer.join().unwrap();
    puppet.script().accept = u32::MAX;
    puppet.script().finish = 0;
    rig.poll();
    assert_eq!(rig.in_flight(), 1, "the driver has it now");
    pass(&mut rig, 95);
    assert!(puppet.script().overdue.is_empty(), "its time began when it went to the driver");
    pass(&mut rig, 35);
    assert_eq!(puppet.script().overdue.len(), 1);
    puppet.script().finish = u32::MAX;
    rig.drain();
    assert_eq!(rig.take_ok(), [0]);
}

#[test]
fn a_flush_can_be_overdue_and_ends_its_sequence() {
    let puppet = Puppet::new().caps(|caps| caps.volatile_cache = true).holding();
    puppet.script().ends_overdue = true;
    let mut rig = rig(&puppet);
    rig.flush(0);
    rig.poll();
    rig.io_flags(Op::Write, BIO_FUA, 0, BLOCK, 1);
    puppet.script().finish = 0;
    pass(&mut rig, 130);
    let mut ended = rig.take_ended();
    ended.sort_unstable_by_key(|end| end.0);
    assert_eq!(ended, [(0, Status::Timeout), (1, Status::Timeout)]);
    assert!(rig.ctx.is_idle());
}
