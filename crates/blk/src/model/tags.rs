//! Readers of the in-flight count while I/O comes and goes, and rings that compete for host-wide tags.

use sheave_base::sync::thread;

use super::{TURNS, assert_all_ended, explore};
use crate::Device;
use crate::support::{Puppet, Rig};

/// Bios of each ring.
const BIOS: u32 = 3;

/// Starts a ring that reads in batches and sleeps when it has nothing to do, so that a lost wake-up is a deadlock.
fn ring(device: &Device) -> thread::JoinHandle<()> {
    let device = device.clone();
    thread::spawn(move || {
        let mut rig = Rig::with(8, false, &[&device]);
        rig.ctx.start_plug(BIOS);
        for owner in 0..BIOS {
            assert!(rig.read(u64::from(owner) * 2, owner));
        }
        rig.ctx.finish_plug();
        for _ in 0..TURNS {
            rig.poll();
            if rig.ctx.is_idle() {
                return assert_all_ended(&mut rig, BIOS);
            }
            rig.ctx.wait(1, None);
        }
        panic!("the ring does not become idle: {} ended so far", rig.ended.len());
    })
}

/// Reads the count while the rings run. It is never above the limit, and 0 at the end.
fn count_and_join(device: &Device, rings: Vec<thread::JoinHandle<()>>, limit: u32) {
    for _ in 0..4 {
        let count = device.in_flight();
        assert!(count.total() <= limit, "{count:?} in flight of at most {limit}");
        assert_eq!(count.total(), count.reads, "nobody writes");
        thread::yield_now();
    }
    for ring in rings {
        ring.join().expect("ring");
    }
    assert_eq!(device.in_flight().total(), 0, "in flight when all is quiet");
}

#[test]
fn model_the_count_is_never_above_the_depth_and_0_at_rest() {
    explore(|| {
        let device = Puppet::new().depth(2).device();
        let rings = vec![ring(&device)];
        count_and_join(&device, rings, 2);
    });
}

#[test]
fn model_rings_share_host_wide_tags_and_none_starves() {
    explore(|| {
        let device = Puppet::new().depth(2).host_depth(2).device();
        let rings = (0..3).map(|_| ring(&device)).collect();
        count_and_join(&device, rings, 2);
    });
}

#[test]
fn model_one_host_wide_tag_goes_round() {
    explore(|| {
        let device = Puppet::new().depth(1).host_depth(1).device();
        let rings = (0..2).map(|_| ring(&device)).collect();
        count_and_join(&device, rings, 1);
    });
}
