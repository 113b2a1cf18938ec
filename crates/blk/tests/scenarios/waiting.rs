//! Waiting: a ring that goes to sleep leaves nothing unsent that could go on, and is woken by the event that it waits
//! for.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use sheave_base::status::Status;
use sheave_blk::bio::{BIO_FUA, Op};
use sheave_blk::driver::{Capabilities, Driver, HctxOpen, HwEnv, HwQueue, NextEvent, Remote, RemoteRq, TimedOut};
use sheave_blk::limits::Limits;
use sheave_blk::request::{DoneList, RqList, RqTable};
use sheave_blk::{Device, DeviceError};

use crate::support::{BLOCK, Puppet, Rig};

const NOW: Option<Duration> = Some(Duration::ZERO);
/// Longer than any test. A sleep of this length is a lost wake-up.
const LONG: Duration = Duration::from_secs(30);

/// Waits and polls until the ring is idle, as a program does.
fn run_asleep(rig: &mut Rig) -> Vec<(u32, Status)> {
    let start = Instant::now();
    while !rig.ctx.is_idle() {
        rig.ctx.wait(1, Some(LONG));
        assert!(start.elapsed() < LONG, "a wake-up was lost");
        rig.poll();
    }
    rig.take_ended()
}

#[test]
fn waiting_flushes_the_plug() {
    let puppet = Puppet::new();
    let mut rig = Rig::new(&[&puppet.device()]);
    rig.read(0, 0);
    rig.drain();
    rig.ctx.start_plug(4);
    rig.read(1, 1);
    rig.ctx.start_plug(4);
    rig.read(5, 5);
    rig.ctx.wait(2, NOW);
    assert_eq!(puppet.sectors_seen(), [0, 8, 40], "sleeping on gathered requests would be for ever");
    rig.ctx.finish_plug();
    rig.ctx.finish_plug();
    assert_eq!(run_asleep(&mut rig), [(0, Status::Ok), (1, Status::Ok), (5, Status::Ok)]);
}

#[test]
fn waiting_in_a_plug_sends_what_a_poll_has_gathered() {
    let puppet = Puppet::new().depth(1);
    let mut rig = Rig::new(&[&puppet.device()]);
    rig.ctx.start_plug(4);
    (0..4).for_each(|n| assert!(rig.read(n * 2, n as u32)));
    assert_eq!(run_asleep(&mut rig).len(), 4);
    rig.ctx.finish_plug();
}

#[test]
fn a_ring_that_waits_for_a_tag_of_another_is_woken() {
    let puppet = Puppet::new().host_depth(1).holding();
    let device = puppet.device();
    let mut rig = Rig::new(&[&device]);
    rig.read(0, 0);
    rig.poll();
    let (send, receive) = channel();
    let other = thread::spawn(move || {
        let mut rig = Rig::new(&[&device]);
        rig.read(1, 1);
        rig.poll();
        send.send(()).unwrap();
        run_asleep(&mut rig)
    });
    receive.recv().unwrap();
    assert_eq!(puppet.sectors_seen(), [0], "there is one tag");
    puppet.script().finish = u32::MAX;
    rig.drain();
    assert_eq!(other.join().unwrap(), [(1, Status::Ok)]);
}

#[test]
fn bios_that_another_device_gave_back_are_used_before_sleeping() {
    let puppets: Vec<Puppet> = (0..5).map(|_| Puppet::new().limits(|l| l.max_sectors = 8).holding()).collect();
    let devices: Vec<Device> = puppets.iter().map(Puppet::device).collect();
    let mut rig = Rig::with(5, true, &devices.iter().collect::<Vec<_>>());
    let mut gates: Vec<_> = devices.iter().map(|device| device.freeze(Duration::ZERO).unwrap()).collect();
    for at in 0..5 {
        assert!(rig.io_to(at, Op::Read, 0, 0, 2 * BLOCK, at as u32));
    }
    // The last four split off a bio of the reserve each; the first then finds none.
    gates.drain(1..);
    rig.poll();
    gates.clear();
    rig.poll();
    assert_eq!(puppets.iter().map(|p| p.sectors_seen().len()).collect::<Vec<_>>(), [0, 2, 2, 2, 2]);
    // The bio of the reserve comes back last, after the first device was polled.
    for _ in 0..2 {
        puppets.iter().for_each(|puppet| puppet.script().lifo = true);
        puppets.iter().for_each(|puppet| puppet.script().finish = 1);
        rig.poll();
    }
    assert_eq!(rig.take_ok(), [1, 2, 3, 4]);
    rig.ctx.wait(1, NOW);
    assert_eq!(puppets[0].sectors_seen(), [0, 8], "the ring would sleep for ever");
    puppets[0].script().finish = u32::MAX;
    rig.drain();
    assert_eq!(rig.take_ok(), [0]);
}

#[test]
fn a_driver_that_refuses_with_empty_hands_is_asked_again() {
    let puppet = Puppet::new();
    let mut rig = Rig::new(&[&puppet.device()]);
    puppet.script().accept = 0;
    rig.read(0, 0);
    rig.poll();
    puppet.script().accept = u32::MAX;
    assert_eq!(run_asleep(&mut rig), [(0, Status::Ok)]);
}

/// Requests that [`Elsewhere`] takes.
const DEPTH: u32 = 32;

/// A driver whose requests are completed by whichever thread removes them from its list.
#[derive(Clone, Debug, Default)]
struct Elsewhere(Arc<Mutex<Vec<RemoteRq>>>);

impl Elsewhere {
    /// Completes `many` requests on another thread, one every `pause`.
    fn complete(&self, many: usize, pause: Duration) -> thread::JoinHandle<()> {
        let taken: Vec<RemoteRq> = self.0.lock().unwrap().drain(..many).collect();
        thread::spawn(move || {
            for rq in taken {
                thread::sleep(pause);
                rq.complete(Status::Ok);
            }
        })
    }
}

#[allow(unsafe_code)] // A driver vouches for the memory of its requests.
// SAFETY: D7: its queues take every request within the limits that it reports.
unsafe impl Driver for Elsewhere {
    fn limits(&self) -> Limits {
        Limits::default().queue_depth(DEPTH as u16)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default().volatile_cache(true)
    }

    fn size_bytes(&self) -> u64 {
        1 << 30
    }

    fn open_hctx(&self, open: &mut HctxOpen<'_>) -> Result<Box<dyn HwQueue>, DeviceError> {
        Ok(Box::new(ElsewhereQueue { sent: self.clone(), remote: open.remote.clone() }))
    }
}

#[derive(Debug)]
struct ElsewhereQueue {
    sent: Elsewhere,
    remote: Remote,
}

#[allow(unsafe_code)] // A driver vouches for the memory of its requests.
// SAFETY: D1 to D6: each request ends once, where it came, and no memory is touched.
unsafe impl HwQueue for ElsewhereQueue {
    fn queue_rqs(&mut self, list: &mut RqList, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) {
        let mut sent = self.sent.0.lock().unwrap();
        while let Some(rq) = list.pop() {
            sent.push(self.remote.send_out(rq));
        }
    }

    fn poll(&mut self, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) {}

    fn next_event(&self) -> NextEvent {
        NextEvent::Remote
    }

    fn timed_out(&mut self, _: u16, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) -> TimedOut {
        TimedOut::Waiting
    }

    fn shutdown(&mut self, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) {
        self.sent.0.lock().unwrap().drain(..).for_each(|rq| rq.complete(Status::Offline));
    }
}

/// Makes a ring with reads `apart` blocks from each other, which are with another thread.
fn sent_away(elsewhere: &Elsewhere, reads: u32, apart: u64) -> Rig {
    let mut rig = Rig::new(&[&Device::from_driver("elsewhere", Box::new(elsewhere.clone()))]);
    rig.ctx.start_plug(reads);
    (0..reads).for_each(|n| assert!(rig.read(u64::from(n) * apart, n)));
    rig.ctx.finish_plug();
    rig
}

/// Half of the time after which a wait for several completions is content with one.
const SOON: Duration = Duration::from_millis(5);

/// Returns true if `act` takes less than [`SOON`] in one of many tries, because the machine may be busy.
fn is_soon(mut act: impl FnMut() -> Duration) -> bool {
    (0..500).any(|_| {
        let took = act();
        assert!(took < LONG, "a wake-up was lost");
        took < SOON
    })
}

/// Returns the time until a wait finds something.
fn time_of_wait(rig: &mut Rig, wanted: u32) -> Duration {
    let start = Instant::now();
    loop {
        rig.ctx.wait(wanted, Some(LONG));
        let took = start.elapsed();
        // The wake-up may come after the completion that it announces, which a poll then found already.
        if rig.poll() > 0 || took >= LONG {
            return took;
        }
    }
}

#[test]
fn a_ring_that_wants_several_completions_of_another_thread_is_woken_for_the_last() {
    // In total less than the time that the wait would allow, except on a busy machine, where the ring may also be woken
    // so late that all have come, unless they come in longer intervals. So there are many tries.
    let ended_by = |wanted: u32, pause: Duration| {
        let elsewhere = Elsewhere::default();
        let mut rig = sent_away(&elsewhere, 16, 2);
        let thread = elsewhere.complete(16, pause);
        let start = Instant::now();
        rig.ctx.wait(wanted, Some(LONG));
        assert!(start.elapsed() < LONG, "a wake-up was lost");
        let ended = rig.poll();
        thread.join().unwrap();
        rig.drain();
        assert_eq!(rig.take_ok().len(), 16);
        ended
    };
    let pause = Duration::from_micros(100);
    assert!((0..500).any(|_| ended_by(16, pause) == 16), "all of them with one wait, once at least");
    assert!((1..50).any(|round| ended_by(1, round * pause) < 16), "who wants one is not kept waiting");
}

#[test]
fn one_completion_is_enough_when_the_others_do_not_come() {
    let elsewhere = Elsewhere::default();
    let mut rig = sent_away(&elsewhere, 4, 2);
    elsewhere.complete(1, Duration::ZERO).join().unwrap();
    let mut took = time_of_wait(&mut rig, 4);
    let short = Duration::from_millis(1);
    let start = Instant::now();
    rig.ctx.wait(4, Some(short));
    assert!(start.elapsed() >= short, "the wake-up for what was found has ended the next sleep");
    for (pause_ms, why) in [(2, "it came while they gathered"), (30, "it came afterwards")] {
        let thread = elsewhere.complete(1, Duration::from_millis(pause_ms));
        took += time_of_wait(&mut rig, 4);
        thread.join().unwrap();
        assert!(took < LONG, "the ring has slept for completions that nobody promised: {why}");
    }
    elsewhere.complete(1, Duration::ZERO).join().unwrap();
    rig.drain();
}

#[test]
fn a_wait_for_several_knows_how_many_may_come() {
    let merged = is_soon(|| {
        let elsewhere = Elsewhere::default();
        let mut rig = sent_away(&elsewhere, 4, 1);
        rig.read(1000, 4);
        rig.read(2000, 5);
        assert_eq!(elsewhere.0.lock().unwrap().len(), 3, "four of the six go in one request");
        let thread = elsewhere.complete(1, Duration::from_micros(200));
        let took = time_of_wait(&mut rig, 4);
        thread.join().unwrap();
        elsewhere.complete(2, Duration::ZERO).join().unwrap();
        rig.drain();
        took
    });
    assert!(merged, "a request may be several I/Os");
    let all = is_soon(|| {
        let elsewhere = Elsewhere::default();
        let mut rig = sent_away(&elsewhere, 4, 2);
        let thread = elsewhere.complete(4, Duration::from_micros(100));
        let took = time_of_wait(&mut rig, 64);
        thread.join().unwrap();
        rig.drain();
        took
    });
    assert!(all, "no more than are on their way");
}

#[test]
fn what_waits_for_the_end_of_a_request_does_not_wait_for_others() {
    let flush = is_soon(|| {
        let elsewhere = Elsewhere::default();
        let mut rig = sent_away(&elsewhere, 1, 2);
        rig.io_flags(Op::Write, BIO_FUA, 8000, BLOCK, 1);
        elsewhere.0.lock().unwrap().reverse();
        let thread = elsewhere.complete(1, Duration::from_micros(200));
        let took = time_of_wait(&mut rig, 2);
        thread.join().unwrap();
        assert_eq!(elsewhere.0.lock().unwrap().len(), 2, "a flush follows the write");
        elsewhere.complete(2, Duration::ZERO).join().unwrap();
        rig.drain();
        took
    });
    assert!(flush, "a flush follows a write with FUA");
    let tag = is_soon(|| {
        let elsewhere = Elsewhere::default();
        let mut rig = sent_away(&elsewhere, DEPTH + 1, 2);
        let thread = elsewhere.complete(1, Duration::from_micros(200));
        let took = time_of_wait(&mut rig, DEPTH);
        thread.join().unwrap();
        elsewhere.complete(DEPTH as usize, Duration::ZERO).join().unwrap();
        rig.drain();
        took
    });
    assert!(tag, "who found no tag needs the first that is free");
}
