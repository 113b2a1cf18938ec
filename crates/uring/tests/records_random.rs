//! Random mixes of plain records and other requests on devices of all kinds, whose gates close and open meanwhile: each
//! SQE gives its one CQE, and nothing is left in flight.

use std::collections::BTreeMap;
use std::time::Duration;

use sheave_base::rng::Rng;
use sheave_drivers::open_device;
use sheave_uring::sqe::{IOSQE_IO_DRAIN, Sqe, opcode};
use sheave_uring::{Fd, Ring};

use crate::support::{buf, nop, reaped, rw};

const SOON: Duration = Duration::from_secs(10);

/// Returns an SQE of a random mix (mostly plain, of several lengths, some adjacent to the one before), and its expected
/// result.
fn any_sqe(rng: &mut Rng, fds: &[Fd], addr: u64, last: &mut u64, user_data: u64) -> (Sqe, Option<i32>) {
    let fd = fds[rng.below(fds.len() as u64) as usize];
    let opcode = if rng.below(3) == 0 { opcode::WRITE } else { opcode::READ };
    let len = [512, 4096, 4096, 4096, 16384][rng.below(5) as usize];
    let off = if rng.below(3) == 0 { *last } else { rng.below(1000) * 65536 };
    *last = off + u64::from(len);
    let sqe = rw(opcode, fd, off, addr + rng.below(64) * 512, len, user_data);
    match rng.below(12) {
        0 => (nop(user_data, 0), Some(0)),
        1 => (Sqe { off: sqe.off + 1, ..sqe }, Some(-22)),
        2 => (Sqe { flags: IOSQE_IO_DRAIN, ..sqe }, Some(len as i32)),
        _ => (sqe, Some(len as i32)),
    }
}

/// Submits random SQEs to two devices whose gates close and open. Every SQE gives its one CQE.
fn mix(seed: u64, specs: [&str; 2], cq_entries: u32) {
    let mut rng = Rng::new(seed);
    let devices = specs.map(|spec| open_device(spec).expect("a device"));
    let mut ring =
        Ring::builder().entries(32).cq_entries(cq_entries).in_flight(64).polled(true).build().expect("a ring");
    let fds = devices.each_ref().map(|device| ring.attach(device).expect("attached"));
    let mut memory = buf(128 << 10);
    let addr = memory.as_mut_ptr() as u64;
    let (mut expected, mut last, mut next) = (BTreeMap::new(), 0, 0);
    let mut gates = Vec::new();
    for _ in 0..120 {
        for _ in 0..rng.below(20) {
            let (sqe, res) = any_sqe(&mut rng, &fds, addr, &mut last, next);
            // SAFETY: the memory lives as long as the ring; nobody reads it.
            #[allow(unsafe_code)]
            if unsafe { ring.push_sqe(&sqe) } {
                expected.insert(next, res.expect("each has one"));
                next += 1;
            }
        }
        let _ = ring.submit();
        let live = devices.iter().map(|device| device.in_flight().total()).sum::<u32>();
        assert!(live <= ring.in_flight(), "a tag without a request");
        match rng.below(8) {
            0 if gates.is_empty() => {
                gates.extend(devices[rng.below(2) as usize].quiesce(SOON).expect("nobody is inside"))
            }
            1 if gates.is_empty() && ring.in_flight() == 0 => gates.extend(devices[0].freeze(SOON).expect("idle")),
            2 | 3 => gates.clear(),
            4 => ring.reap(),
            5 => _ = ring.wait(1, Some(Duration::ZERO)),
            _ => {}
        }
        for (user_data, res) in reaped(&mut ring) {
            assert_eq!(expected.remove(&user_data), Some(res), "seed {seed}, {specs:?}: SQE {user_data}");
        }
    }
    gates.clear();
    while !expected.is_empty() {
        let _ = ring.submit();
        let _ = ring.wait(1, Some(SOON));
        for (user_data, res) in reaped(&mut ring) {
            assert_eq!(expected.remove(&user_data), Some(res), "seed {seed}, {specs:?}: SQE {user_data}");
        }
    }
    let io = ring.io();
    let bios = io.bios();
    assert_eq!((ring.in_flight(), bios.live(), bios.promised()), (0, 0, 0));
    assert_eq!(devices.iter().map(|device| device.in_flight().total()).sum::<u32>(), 0);
}

#[test]
fn each_sqe_of_a_random_mix_gives_one_cqe() {
    let pairs = [
        ["null:size=1G", "ram:size=128M"],
        ["null:size=1G,depth=5", "null:size=1G,host_depth=9"],
        ["null:size=1G,complete=thread", "null:size=1G,latency=20us"],
        ["fault:delay=0.3,delay_time=10us,over=null:size=1G", "null:size=1G,depth=70"],
    ];
    for seed in 0..12 {
        for specs in pairs {
            mix(seed, specs, if seed % 3 == 0 { 32 } else { 64 });
        }
    }
}
