//! Waiting: nothing that could go on is left lying when a ring goes to sleep, and what it waits for wakes it.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use sheave_base::status::Status;
use sheave_blk::Device;
use sheave_blk::bio::Op;

use crate::support::{BLOCK, Puppet, Rig};

const NOW: Option<Duration> = Some(Duration::ZERO);
/// Longer than any test; a sleep of this length is a wake-up that was lost.
const LONG: Duration = Duration::from_secs(5);

/// Waits and polls until the ring is idle, as a program would.
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
    let other = std::thread::spawn(move || {
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
    // The last four split a bio of the reserve off each; then the first finds none.
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
