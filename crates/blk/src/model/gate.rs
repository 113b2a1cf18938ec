//! Freeze and quiesce against running rings: the promises of their guards hold in every schedule.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sheave_base::sync::{Arc, thread};

use super::{assert_all_ended, drain, explore};
use crate::Device;
use crate::queue::{GateGuard, Queue};
use crate::support::{Puppet, Rig};

/// Timeout of a call that closes the gate: it checks once and does not wait, because models have no real time.
const NOW: Duration = Duration::ZERO;
/// Bios of each ring.
const BIOS: u32 = 3;
/// More than all rings' requests. The driver counts down from here for each request that it ends.
const FINISH: u32 = 1_000;

/// Returns the number of requests that the driver has. Tags do not show it: a ring takes them before it reads the gate,
/// and returns them if that is frozen.
fn held(puppet: &Puppet) -> u32 {
    let script = puppet.script();
    script.seen.len() as u32 - (FINISH - script.finish)
}

/// Starts a ring that reads one bio at a time while the gate opens and closes.
fn ring(device: &Device) -> thread::JoinHandle<()> {
    let device = device.clone();
    thread::spawn(move || {
        let mut rig = Rig::with(8, false, &[&device]);
        for owner in 0..BIOS {
            assert!(rig.read(u64::from(owner) * 2, owner));
            rig.poll();
        }
        drain(&mut rig);
        assert_all_ended(&mut rig, BIOS);
    })
}

/// Tries to close the gate several times, and calls `closed` whenever that succeeds. Returns the number of successes.
fn close_and_look(
    device: &Device,
    puppet: &Puppet,
    close: fn(&Arc<Queue>) -> Option<GateGuard>,
    closed: fn(&Puppet),
) -> u32 {
    let queue = &device.legs()[0].queue;
    let mut successes = 0;
    for _ in 0..3 {
        if let Some(guard) = close(queue) {
            successes += 1;
            closed(puppet);
            let seen = puppet.script().seen.len();
            thread::yield_now();
            thread::yield_now();
            assert_eq!(puppet.script().seen.len(), seen, "a request reached the driver through a closed gate");
            closed(puppet);
            drop(guard);
        }
        thread::yield_now();
    }
    successes
}

/// Explores one kind of closing, and asserts that some execution closed the gate while requests were still to come.
fn explore_closing(rings: usize, close: fn(&Arc<Queue>) -> Option<GateGuard>, closed: fn(&Puppet)) {
    // Not the `Arc` of `sync`, because it counts from outside of the executions.
    let in_the_middle = std::sync::Arc::new(AtomicU64::new(0));
    let counter = in_the_middle.clone();
    explore(move || {
        let puppet = Puppet::new().depth(4);
        puppet.script().finish = FINISH;
        let device = puppet.device();
        let threads: Vec<_> = (0..rings).map(|_| ring(&device)).collect();
        let successes = close_and_look(&device, &puppet, close, closed);
        let seen = puppet.script().seen.len();
        if successes > 0 && seen > 0 && seen < rings * BIOS as usize {
            // Relaxed: only the number counts.
            counter.fetch_add(1, Ordering::Relaxed);
        }
        for thread in threads {
            thread.join().expect("ring");
        }
        assert_eq!((device.in_flight().total(), held(&puppet)), (0, 0));
        assert_eq!(puppet.script().seen.len(), rings * BIOS as usize);
    });
    // Relaxed: all executions have ended.
    assert!(in_the_middle.load(Ordering::Relaxed) > 0, "the gate was never closed in the middle of I/O");
}

#[test]
fn model_a_frozen_driver_has_nothing_and_gets_nothing() {
    explore_closing(
        1,
        |queue| queue.freeze(NOW).ok(),
        |puppet| assert_eq!(held(puppet), 0, "the driver has a request though frozen"),
    );
}

#[test]
fn model_two_rings_are_frozen_together() {
    explore_closing(
        2,
        |queue| queue.freeze(NOW).ok(),
        |puppet| assert_eq!(held(puppet), 0, "the driver has a request though frozen"),
    );
}

#[test]
fn model_a_quiesced_driver_gets_nothing() {
    explore_closing(1, |queue| queue.quiesce(NOW).ok(), |_| ());
}
