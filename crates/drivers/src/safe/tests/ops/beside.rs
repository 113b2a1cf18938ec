//! Drivers that share a kernel ring: an operation of one does not delay another, and a ring is not woken too early.

use std::os::fd::AsRawFd;

use sheave_blk::driver::{Driver, HctxOpen, HwEnv, HwQueue, KernelEvents, NextEvent, TimedOut, kernel_user_data};
use sheave_blk::request::{DoneList, Rq, RqList, RqTable};

use super::*;
use crate::fault::{self, FaultKind, FaultPlan};

/// A driver with unsafe code. A request ends when the eventfd that belongs to its sector is rung. A request to sector
/// 1000 makes the driver panic.
#[derive(Debug)]
struct Rung(Vec<Fd>);

#[derive(Debug)]
struct RungQueue {
    fds: Vec<Fd>,
    hctx: u16,
    held: Vec<Rq>,
}

// SAFETY: D7: its queues take every request.
unsafe impl Driver for Rung {
    fn limits(&self) -> Limits {
        Limits::default().max_sectors(256).queue_depth(8)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn size_bytes(&self) -> u64 {
        1 << 20
    }

    fn open_hctx(&self, open: &mut HctxOpen<'_>) -> Result<Box<dyn HwQueue>, DeviceError> {
        open.kring.get(false).expect("the test has seen that there can be one");
        Ok(Box::new(RungQueue { fds: self.0.clone(), hctx: open.hctx, held: Vec::new() }))
    }
}

// SAFETY: D1: a request is in `held` until it ends, with the one completion of its operation. No memory is accessed.
unsafe impl HwQueue for RungQueue {
    fn queue_rqs(&mut self, list: &mut RqList, rqs: &mut RqTable<'_>, env: &mut HwEnv<'_>, _: &mut DoneList) {
        let kring = env.kring.as_mut().expect("asked for");
        while let Some(rq) = list.pop() {
            let sector = rqs.get(&rq).sector;
            assert!(sector != 1000, "told to panic");
            let fd = &self.fds[sector as usize / 64];
            kring.prep_readable(fd.as_raw_fd(), kernel_user_data(self.hctx, rq.tag(), 0)).expect("room");
            self.held.push(rq);
        }
    }

    fn poll(&mut self, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) {}

    fn kernel_done(&mut self, events: KernelEvents<'_>, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, done: &mut DoneList) {
        for event in events.iter() {
            let at = self.held.iter().position(|rq| rq.tag() == event.tag).expect("it ends once");
            done.push(self.held.remove(at), Status::Ok);
        }
    }

    fn next_event(&self) -> NextEvent {
        if self.held.is_empty() { NextEvent::Idle } else { NextEvent::Kernel }
    }

    fn timed_out(&mut self, _: u16, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) -> TimedOut {
        TimedOut::Waiting
    }

    fn shutdown(&mut self, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) {}
}

fn bells(many: usize) -> Vec<Fd> {
    (0..many).map(|_| Arc::new(eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd"))).collect()
}

/// Rings one eventfd after the other, each after a delay. Returns the time of the last ring.
fn ring_each(bells: &[Fd], after: Duration) -> std::thread::JoinHandle<Instant> {
    let bells = bells.to_vec();
    std::thread::spawn(move || {
        for bell in bells {
            std::thread::sleep(after);
            rustix::io::write(&*bell, &1u64.to_ne_bytes()).expect("rung");
        }
        Instant::now()
    })
}

/// Time for which completions of the kernel ring surely gather: a little less than the 10 ms of a ring.
const GATHERS: Duration = Duration::from_millis(9);

/// Runs a ring that waits for four I/Os. Returns the number that had ended at each wake-up, and the time from the start
/// of the wait to the last ring of an eventfd.
fn wakes_of_four() -> (Vec<usize>, Duration) {
    let fds = bells(4);
    let mut rig = Rig::new(&Device::from_driver("rung", Box::new(Rung(fds.clone()))));
    for sector in [0, 64, 128, 192] {
        rig.send(Op::Write, sector, BLOCK, 0);
    }
    let (mut woken, start) = (Vec::new(), Instant::now());
    let ringer = ring_each(&fds, Duration::from_micros(500));
    while rig.ended.len() < 4 {
        rig.ctx.wait(4 - rig.ended.len() as u32, Some(LONG));
        rig.poll();
        woken.push(rig.ended.len());
    }
    (woken, ringer.join().expect("rung") - start)
}

#[test]
fn a_ring_that_waits_for_several_in_the_kernel_wakes_for_the_last() {
    match KernelRing::new(8, KringOpts::default()) {
        Ok(kring) if kring.features().min_wait => {}
        _ => return sheave_testkit::skip("no kernel ring that lets completions gather (Linux 6.12)"),
    }
    // On a busy machine the eventfds may be rung over a longer time than completions gather. Such a round is repeated.
    let (mut rounds, begun) = (Vec::new(), Instant::now());
    while rounds.len() < 10 {
        if begun.elapsed() > Duration::from_secs(20) {
            return sheave_testkit::skip("the machine is too busy for four wake-ups of a thread within 9 ms");
        }
        let (woken, took) = wakes_of_four();
        if took < GATHERS {
            rounds.push(woken);
        }
    }
    assert!(rounds.iter().all(|woken| *woken == [4]), "{rounds:?}");
}

#[test]
fn a_driver_that_panics_is_not_waited_for_by_what_others_watch() {
    panics_beside_one_that_watches(&|watcher| watcher);
}

#[test]
fn a_panicked_driver_is_not_waited_for_beside_a_faulty_watching_device() {
    // Faults of flushes, which are not sent here: with a plan without faults the fault layer would not be in the path.
    let plan = FaultPlan::new(1).with(FaultKind::DroppedFlush, 1.0);
    panics_beside_one_that_watches(&|watcher| fault::over("faulty", &watcher, &plan).expect("a device").0);
}

fn panics_beside_one_that_watches(wrapped: &dyn Fn(Device) -> Device) {
    let (_near, far) = pair();
    let watcher = driver(4).on_poll(move |rqs, seen| {
        if seen.tokens.is_empty() {
            seen.tokens.push(rqs.watch(&far).expect("room"));
            seen.tokens.push(rqs.timer(Duration::from_secs(1000)).expect("room"));
        }
    });
    let Some(_) = rig(&watcher) else { return };
    let fds = bells(1);
    let mut rig = Rig::new(&Device::from_driver("rung", Box::new(Rung(fds.clone()))));
    let beside = with_timeout("watches", watcher.clone(), Vec::new(), Duration::from_secs(30));
    rig.ctx.attach(&wrapped(beside)).expect("attached");
    rig.poll();
    rig.ctx.commit();
    assert_eq!(watcher.seen().tokens.len(), 2, "the kernel has them");
    rig.send(Op::Write, 0, BLOCK, 0);
    rig.poll();
    rig.ctx.commit();
    let ringer = ring_each(&fds, Duration::from_millis(200));
    rig.send(Op::Write, 1000, BLOCK, 0);
    let start = Instant::now();
    assert_eq!(rig.wait_all(), [Status::Ok, Status::IoErr], "what the kernel has of it is waited for");
    assert!(start.elapsed() < LONG);
    ringer.join().expect("rung");
    assert!(watcher.seen().ends.is_empty(), "who has not panicked keeps what it has");
}

/// Socket operations of a server's ring may last until a client sends something, so the shutdown must not wait for
/// them. A socket operation that has ended must not count in place of an operation of the driver.
#[test]
fn a_driver_that_panics_is_not_waited_for_by_operations_on_sockets() {
    if rig(&driver(4)).is_none() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("sock");
    let listener = UnixListener::bind(&path).expect("listening");
    let fds = bells(1);
    let rung = || Device::from_driver("rung", Box::new(Rung(fds.clone())));
    let mut rig = Rig::new(&rung());
    rig.ctx.sockets().expect("a kernel ring").accept(listener.as_raw_fd(), 7).expect("room");
    rig.ctx.commit();
    let (failed, hear) = std::sync::mpsc::channel::<()>();
    let client = std::thread::spawn(move || {
        let _ = hear.recv_timeout(LONG / 2);
        UnixStream::connect(path).expect("connected")
    });
    let start = Instant::now();
    rig.send(Op::Write, 1000, BLOCK, 0);
    assert_eq!(rig.wait_all(), [Status::IoErr]);
    assert!(start.elapsed() < LONG / 4, "until somebody has connected");
    drop(failed);
    until(&mut rig, "a connection", |rig| rig.ctx.has_socket_events());
    let mut events = Vec::new();
    rig.ctx.take_socket_events(&mut events);
    assert!(matches!(events[..], [event] if event.token == 7 && event.res >= 0), "{events:?}");
    // SAFETY: a new descriptor, of which nobody else knows.
    drop(unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(events[0].res) });
    drop(client.join().expect("connected"));

    rig.bdev = rig.ctx.attach(&rung()).expect("attached");
    rig.send(Op::Write, 0, BLOCK, 0);
    rig.poll();
    rig.ctx.commit();
    let ringer = ring_each(&fds, Duration::from_millis(200));
    rig.send(Op::Write, 1000, BLOCK, 0);
    let all = [Status::IoErr, Status::Ok, Status::IoErr];
    assert_eq!(rig.wait_all(), all, "what the kernel has of the driver is waited for");
    ringer.join().expect("rung");
}

#[test]
fn a_request_that_the_driver_has_ended_does_not_wait_for_ever_for_an_operation_that_holds_it() {
    let (_near, far) = pair();
    let driver = driver(4).on_commit(move |rqs, seen| {
        receive_first(rqs, seen, &far);
        assert!(rqs.end(seen.ids[0], Status::Medium));
    });
    if rig(&driver).is_none() {
        return;
    }
    let device = with_timeout("early", driver.clone(), Vec::new(), Duration::from_millis(50));
    let mut rig = Rig::new(&device);
    let start = Instant::now();
    rig.send(Op::Read, 0, BLOCK, 9);
    assert_eq!(rig.wait_all(), [Status::Medium], "as the driver has said");
    assert!(start.elapsed() < LONG / 2);
    assert_eq!(driver.seen().ends.iter().map(|end| end.1).collect::<Vec<_>>(), [ECANCELED], "the driver hears of it");
}
