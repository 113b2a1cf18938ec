//! The flight recorder of a ring, on a virtual clock, with a delay inserted at each stage. It always names the delayed
//! stage and the activities beside it, and the stages add up to the latency.
#![allow(unsafe_code)] // Raw SQEs.

use std::sync::Arc;
use std::time::Duration;

use sheave_base::beside::{Activities, Activity, Beside};
use sheave_base::clock::{Clock, VirtualClock};
use sheave_base::rng::Rng;
use sheave_base::status::Status;
use sheave_blk::Device;
use sheave_blk::stats::Stage;
use sheave_iomap::io_stats::{IoGroup, IoKind};
use sheave_iomap::mapping::Intent;
use sheave_iomap::slow::{Place, SlowIo};
use sheave_iomap::{File, Mapping, MappingKind, RawFile};
use sheave_uring::sqe::{Sqe, opcode};
use sheave_uring::{Fd, IoWq, Ring};

use crate::support::{Puppet, fsync, push, reaped, rw};
use crate::thin::{Call, Thin, UNIT};

const ADDR: u64 = 1 << 24;
/// Usual time of an I/O on the device of these tests.
const USUAL: Duration = Duration::from_micros(100);

fn ring(clock: Clock, limit: Duration, polled: bool) -> Ring {
    let wq = IoWq::builder().stepped(true).build().unwrap();
    let builder = Ring::builder().entries(256).clock(clock).spin(Duration::ZERO).io_wq(&wq);
    builder.slow_limit(limit).polled(polled).build().unwrap()
}

fn read(fd: Fd, pos: u64) -> Sqe {
    rw(opcode::READ, fd, pos, ADDR, 4096, pos)
}

/// A file whose lookups take a given time. It is its device from end to end, but does not report that.
#[derive(Debug)]
struct SlowLookups {
    device: Device,
    time: VirtualClock,
    takes: Duration,
    io: Arc<IoGroup>,
    beside: Activities,
}

impl SlowLookups {
    fn new(device: Device, (clock, time): (Clock, VirtualClock), takes: Duration) -> Arc<SlowLookups> {
        Arc::new(SlowLookups { device, time, takes, io: Arc::default(), beside: Activities::new(clock) })
    }
}

impl File for SlowLookups {
    fn device(&self) -> &Device {
        &self.device
    }

    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn io_group(&self) -> Option<&Arc<IoGroup>> {
        Some(&self.io)
    }

    fn beside(&self) -> Option<&Activities> {
        Some(&self.beside)
    }

    fn map(&self, pos: u64, len: u64, _: Intent) -> Result<Mapping, Status> {
        self.time.advance(self.takes);
        Ok(Mapping::new(MappingKind::Mapped, pos, len, pos))
    }
}

/// A ring with a raw file on a device with a given latency.
struct Rig {
    ring: Ring,
    time: VirtualClock,
    puppet: Puppet,
    file: Arc<RawFile>,
    fd: Fd,
}

impl Rig {
    fn new(puppet: Puppet, limit: Duration) -> Rig {
        let (clock, time) = Clock::virtual_clock();
        time.advance(Duration::from_secs(1));
        let mut ring = ring(clock, limit, false);
        let file = Arc::new(RawFile::new(puppet.device()));
        let fd = ring.attach_file(file.clone()).unwrap();
        Rig { ring, time, puppet, file, fd }
    }

    /// Runs one I/O that takes `takes` in the driver, on a polled ring.
    fn one(&mut self, sqe: Sqe, takes: Duration) {
        self.puppet.script().finish = 0;
        push(&mut self.ring, &[sqe]);
        self.ring.submit().unwrap();
        self.time.advance(takes);
        self.ring.reap();
        self.puppet.script().finish = u32::MAX;
        self.ring.drain();
        assert_eq!(reaped(&mut self.ring).len(), 1);
    }

    /// Runs `ios` usual reads, and then updates the usual times.
    fn warm_up(&mut self, ios: u64) {
        (0..ios).for_each(|n| self.one(read(self.fd, n * 4096), USUAL));
        self.time.advance(Duration::from_millis(1100));
        self.one(read(self.fd, 0), USUAL);
    }

    fn slow(&self) -> Vec<SlowIo> {
        self.ring.flight_recorder().expect("statistics are on").read(0).ios
    }
}

#[test]
fn what_takes_four_times_as_long_as_usual_is_kept_and_nothing_else() {
    let mut rig = Rig::new(Puppet::new(), Duration::from_secs(1));
    rig.one(read(rig.fd, 0), Duration::from_millis(900));
    assert_eq!(rig.slow(), [], "nothing is usual yet, and the limit is a second");
    rig.one(read(rig.fd, 0), Duration::from_millis(1001));
    assert_eq!(rig.slow().len(), 1, "which holds from the start");
    rig.warm_up(3000);
    rig.one(read(rig.fd, 4096), 3 * USUAL);
    assert_eq!(rig.slow().len(), 1);
    rig.one(read(rig.fd, 8192), 5 * USUAL);
    let slow = rig.slow();
    let last = slow.last().unwrap();
    assert_eq!((slow.len(), last.kind, last.place, last.len, last.ios), (2, IoKind::Read, Place::File(8192), 4096, 1));
    assert_eq!((last.file, last.depth, last.beside), (rig.file.io_group().unwrap().id(), 1, Beside::default()));
    assert_eq!(last.split.driver_ns, 5 * USUAL.as_nanos() as u64);
    assert!(last.usual_p999_ns.abs_diff(100_000) < 13_000 && last.slow_above_ns == 4 * last.usual_p999_ns);
    let line = last.explain("the disk");
    assert!(
        line.starts_with("read of 4 KiB at 8 KiB of the disk took 500 us: 500 us in the driver; depth 1;"),
        "{line}"
    );
    // Writes are another class, with no usual time yet.
    rig.one(Sqe { opcode: opcode::WRITE, ..read(rig.fd, 0) }, 100 * USUAL);
    assert_eq!(rig.slow().len(), 2);
    assert_eq!(rig.file.io_group().unwrap().slow_ios(), slow, "the file knows its own");
    let (recorder, number) = (rig.ring.flight_recorder().unwrap(), last.number);
    recorder.set_limit(Duration::from_micros(50));
    rig.warm_up(1);
    assert!(recorder.read(number + 1).ios.iter().any(|io| io.latency_ns() == 100_000), "a new limit holds soon");
}

/// Returns a file whose fourth unit needs a worker's lookup of the given time.
fn slow_to_map(time: VirtualClock, takes: Duration) -> Arc<Thin> {
    let file = Thin::new(&Puppet::new().device(), 8, MappingKind::Mapped, move |_, call, _| {
        if let Call::MapBlocking(_) = call {
            time.advance(takes);
        }
        Ok(())
    });
    file.forget(3);
    file
}

/// Delays one I/O at this stage. Returns its entry in the recorder, and the elapsed ns.
fn delayed_at(stage: Stage, by: Duration, noise: u64) -> (SlowIo, u64) {
    let small = Duration::from_nanos(noise);
    let (clock, time) = Clock::virtual_clock();
    time.advance(Duration::from_secs(1));
    let mut ring = ring(clock.clone(), by / 2, stage == Stage::Reap);
    let last = |ring: &mut Ring, want: usize| {
        ring.drain();
        assert_eq!(reaped(ring).len(), want);
        let slow = ring.flight_recorder().unwrap().read(0).ios;
        *slow.last().expect("it was slow")
    };
    let began = clock.coarse().0;
    match stage {
        Stage::Worker => {
            let fd = ring.attach_file(slow_to_map(time.clone(), by)).unwrap();
            push(&mut ring, &[read(fd, 3 * UNIT)]);
            ring.submit().unwrap();
            time.advance(small);
            (last(&mut ring, 1), clock.coarse().0 - began)
        }
        Stage::Tag => {
            let puppet = Puppet::new().depth(1).holding();
            let fd = ring.attach(&puppet.device()).unwrap();
            push(&mut ring, &[read(fd, 0), read(fd, 1 << 20)]);
            ring.submit().unwrap();
            time.advance(by);
            puppet.script().finish = 1;
            ring.reap();
            time.advance(small);
            puppet.script().finish = u32::MAX;
            (last(&mut ring, 2), clock.coarse().0 - began)
        }
        Stage::Plugged => {
            let puppet = Puppet::new();
            let device = puppet.device();
            let fd = ring.attach(&device).unwrap();
            let behind = SlowLookups::new(device, (clock.clone(), time.clone()), by);
            let behind = ring.attach_file(behind).unwrap();
            push(&mut ring, &[read(fd, 0), read(behind, 1 << 20)]);
            ring.submit().unwrap();
            let ended = clock.coarse().0;
            time.advance(small);
            (last(&mut ring, 2), ended - began)
        }
        Stage::Driver => {
            let puppet = Puppet::new().holding();
            let fd = ring.attach(&puppet.device()).unwrap();
            push(&mut ring, &[read(fd, 0)]);
            ring.submit().unwrap();
            time.advance(by);
            ring.reap();
            time.advance(small);
            puppet.script().finish = u32::MAX;
            (last(&mut ring, 1), clock.coarse().0 - began)
        }
        Stage::Reap => {
            let puppet = Puppet::new();
            let fd = ring.attach(&puppet.device()).unwrap();
            push(&mut ring, &[read(fd, 0)]);
            ring.submit().unwrap();
            time.advance(by);
            (last(&mut ring, 1), clock.coarse().0 - began)
        }
    }
}

#[test]
fn of_a_hundred_delays_at_each_stage_each_is_named() {
    let mut rng = Rng::new(17);
    for stage in Stage::ALL {
        for round in 0..100 {
            let by = Duration::from_nanos(rng.between(1_000_000, 80_000_000));
            let noise = rng.below(100_000);
            let (slow, all_ns) = delayed_at(stage, by, noise);
            let what = format!("{stage:?}, round {round}: {slow:?}");
            assert_eq!(slow.split.longest(), stage, "{what}");
            let parts: u64 = Stage::ALL.iter().map(|&stage| slow.split.ns(stage)).sum();
            assert_eq!(parts, slow.latency_ns(), "{what}");
            let (there, by) = (slow.split.ns(stage), by.as_nanos() as u64);
            assert!((by..=by + noise).contains(&there), "{what}");
            assert_eq!(parts, all_ns, "from its submission to its end: {what}");
        }
    }
}

#[test]
fn a_run_is_one_entry_with_the_depth_it_was_at() {
    let mut rig = Rig::new(Puppet::new().holding(), Duration::from_micros(10));
    let sqes: Vec<_> = (0..40).map(|n| read(rig.fd, n * (1 << 20))).collect();
    push(&mut rig.ring, &sqes);
    rig.ring.submit().unwrap();
    rig.time.advance(Duration::from_millis(1));
    rig.ring.reap();
    rig.puppet.script().finish = u32::MAX;
    rig.ring.drain();
    assert_eq!(reaped(&mut rig.ring).len(), 40);
    let slow = rig.slow();
    assert_eq!(slow.iter().map(|io| io.ios).sum::<u32>(), 40, "each is told of: {slow:?}");
    assert!(slow.len() <= 4, "but not by itself: {slow:?}");
    assert_eq!((slow[0].depth, slow[0].place), (40, Place::File(0)));
}

#[test]
fn what_ran_beside_it_is_told() {
    let puppet = Puppet::new().holding();
    let (clock, time) = Clock::virtual_clock();
    time.advance(Duration::from_secs(1));
    let mut ring = ring(clock.clone(), Duration::from_micros(1), false);
    let file = SlowLookups::new(puppet.device(), (clock, time.clone()), Duration::ZERO);
    let fd = ring.attach_file(file.clone()).unwrap();
    let mut one = |during: Option<Activity>| {
        push(&mut ring, &[read(fd, 1 << 20)]);
        ring.submit().unwrap();
        let running = during.map(|activity| file.beside.begin(activity));
        time.advance(Duration::from_millis(1));
        drop(running);
        time.advance(Duration::from_millis(1));
        puppet.script().finish = u32::MAX;
        ring.drain();
        puppet.script().finish = 0;
        assert_eq!(reaped(&mut ring).len(), 1);
        *ring.flight_recorder().unwrap().read(0).ios.last().unwrap()
    };
    for activity in Activity::ALL {
        let slow = one(Some(activity));
        assert_eq!(slow.beside.activities().collect::<Vec<_>>(), [activity]);
        assert_eq!(slow.place, Place::Device(1 << 20), "a record knows where the file had mapped it");
        assert_eq!(one(None).beside, Beside::default(), "what was over before it did not run beside it");
    }
}

#[test]
fn syncs_and_slots_are_kept_with_their_place() {
    let mut rig = Rig::new(Puppet::new().caps(|caps| caps.volatile_cache = true), Duration::from_micros(1));
    rig.one(fsync(rig.fd, 1), USUAL);
    let sync = rig.slow()[0];
    assert_eq!((sync.kind, sync.len), (IoKind::Other, 0), "{sync:?}");
    assert!(sync.explain("v").starts_with("sync of v took"));
    // The recorder ignores the range of a sync.
    rig.one(Sqe { len: 7, off: 512, ..fsync(rig.fd, 1) }, USUAL);
    let sync = *rig.slow().last().unwrap();
    assert_eq!((sync.place, sync.len), (Place::File(0), 0), "{sync:?}");
    for mode in [0x03, 0x10] {
        rig.one(Sqe { opcode: opcode::FALLOCATE, addr: 65_536, len: mode, off: 8192, ..fsync(rig.fd, 1) }, USUAL);
        let hole = *rig.slow().last().unwrap();
        assert_eq!((hole.kind, hole.place, hole.len), (IoKind::Other, Place::File(8192), 65_536), "{hole:?}");
        assert!(hole.explain("v").starts_with("change of 64 KiB at 8 KiB of v took"), "{}", hole.explain("v"));
    }
    // Behind a drain it needs a slot.
    let drained = Sqe { flags: sheave_uring::sqe::IOSQE_IO_DRAIN, ..read(rig.fd, 12_288) };
    rig.one(drained, USUAL);
    let last = *rig.slow().last().unwrap();
    assert_eq!((last.kind, last.place, last.len, last.ios), (IoKind::Read, Place::File(12_288), 4096, 1));
    assert_eq!(last.latency_ns(), 100_000);
}

#[test]
fn a_frozen_queue_is_named() {
    // The real clock, because a queue uses that one. On a busy machine the read may then spend more time in the driver
    // than it has waited for the queue, so the test repeats it with longer waits.
    for hold_ms in [3, 30, 300, 3000] {
        let puppet = Puppet::new();
        let device = puppet.device();
        let mut ring = Ring::builder().entries(8).slow_limit(Duration::from_millis(1)).build().unwrap();
        let fd = ring.attach(&device).unwrap();
        let gate = device.quiesce(Duration::from_secs(1)).expect("nobody is inside the driver");
        push(&mut ring, &[read(fd, 0)]);
        ring.submit().unwrap();
        std::thread::sleep(Duration::from_millis(hold_ms));
        drop(gate);
        ring.drain();
        let slow = ring.flight_recorder().unwrap().read(0).ios;
        assert_eq!(slow.len(), 1);
        assert_eq!(slow[0].beside.activities().collect::<Vec<_>>(), [Activity::FrozenQueue]);
        if slow[0].split.longest() == Stage::Tag {
            return;
        }
        assert!(hold_ms < 3000, "{}", slow[0].explain("it"));
    }
}

#[test]
fn a_ring_without_statistics_has_no_recorder() {
    let ring = Ring::builder().entries(8).stats(false).build().unwrap();
    assert!(ring.flight_recorder().is_none());
}
