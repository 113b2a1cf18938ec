//! A ring, or its reference to a device, dropped in the middle of I/O with requests that are delayed, stuck, in the
//! device and on another thread: it ends at once, everything in flight is given up, and the memory of an operation is
//! freed only after the device is done with it. The address sanitizer checks that.

use std::time::{Duration, Instant};

use sheave::op;
use sheave::{Buf, Device, Fd, Ring, open_device};
use sheave_drivers::fault::{self, FaultKind, FaultPlan};

use crate::disk::Disk;
use crate::program::{DEVICE_BYTES, Program, Shape};
use crate::{file_spec, files_work, within_time};

/// Delay of half of all requests, longer than any test. The others take their usual time.
const FOREVER: Duration = Duration::from_secs(3600);

fn slow(seed: u64) -> FaultPlan {
    let mut plan = FaultPlan::new(seed).with(FaultKind::Delay, 0.3).with(FaultKind::Stuck, 0.2);
    plan = plan.with(FaultKind::Torn, 0.05).with(FaultKind::Misdirect, 0.05);
    plan.delay_time = FOREVER;
    plan.timeout = Some(FOREVER);
    plan
}

/// Opens every kind of device that a run can be on.
fn devices(dir: &tempfile::TempDir) -> Vec<Device> {
    let mut specs = vec![
        format!("null:size={DEVICE_BYTES}"),
        format!("null:size={DEVICE_BYTES},latency=1ms"),
        format!("null:size={DEVICE_BYTES},complete=thread,latency=200us"),
        format!("null:size={DEVICE_BYTES},host_depth=20,latency=1ms"),
        format!("ram:size={DEVICE_BYTES}"),
        format!("linear:over=ram:size={0}+null:size={0},complete=thread", DEVICE_BYTES / 2),
    ];
    if files_work() {
        specs.push(file_spec(dir));
    }
    let opened = specs.iter().map(|spec| open_device(spec).expect("a good spec"));
    opened.chain([Disk::new(DEVICE_BYTES, false).device()]).collect()
}

/// Runs `work` for seeds on every kind of device, with its faults on top.
fn on_all(name: &str, seeds: u64, plan: fn(u64) -> FaultPlan, work: fn(u64, Device)) {
    let name = name.to_string();
    within_time(&name.clone(), move || {
        let dir = tempfile::tempdir().expect("a directory");
        for under in devices(&dir) {
            for seed in sheave_testkit::seeds(seeds) {
                let (device, _) = fault::over(under.name(), &under, &plan(seed)).expect("good rates");
                let start = Instant::now();
                work(seed, device);
                let took = start.elapsed();
                assert!(took < Duration::from_secs(30), "{name}: {}: seed {seed}: took {took:?}", under.name());
            }
        }
    });
}

/// Fills the ring with reads and writes that own their memory. Returns their number.
fn fill_ring(ring: &mut Ring, fd: Fd, seed: u64) -> usize {
    let mut pushed = 0;
    while ring.sq_space() > 0 {
        let buf = Buf::zeroed(4096 << (pushed % 3), 4096).expect("memory");
        let offset = (seed + pushed) * 7 % 100 * 4096;
        let entry: op::Entry = if pushed % 2 == 0 {
            op::read(fd, buf).offset(offset).into()
        } else {
            op::write(fd, buf).offset(offset).into()
        };
        let entry = entry.user_data(pushed);
        // Some are linked, so that the next one waits.
        let entry = if pushed % 5 == 0 { entry.link() } else { entry };
        ring.push(entry).expect("there is room");
        pushed += 1;
    }
    ring.submit().expect("there is room");
    pushed as usize
}

#[test]
fn a_ring_dropped_at_once_gives_up_what_is_in_flight() {
    on_all("dropped at once", 4, slow, |seed, device| {
        let mut ring = Ring::builder().entries(64).build().expect("a ring");
        let fd = ring.attach(&device).expect("attaches");
        fill_ring(&mut ring, fd, seed);
        assert!(ring.in_flight() > 0, "seed {seed}: half of all requests cannot end");
        drop(ring);
        assert_eq!(device.in_flight().total(), 0);
        drop(device.freeze(Duration::ZERO).expect("idle"));
    });
}

#[test]
fn a_program_dropped_in_its_middle_leaves_nothing() {
    on_all("dropped in the middle", 6, slow, |seed, device| {
        let mut program = Program::new(Shape { checked: false, ..Shape::new(seed) }, &device);
        for _ in 0..5 + seed % 20 {
            program.step();
        }
        drop(program);
        assert_eq!(device.in_flight().total(), 0);
    });
}

#[test]
fn the_last_handle_of_a_device_may_go_first() {
    on_all("device first", 4, slow, |seed, device| {
        let mut ring = Ring::builder().entries(32).polled(seed % 2 == 0).build().expect("a ring");
        let fd = ring.attach(&device).expect("attaches");
        drop(device);
        fill_ring(&mut ring, fd, seed);
        let _ = ring.wait(1, Some(Duration::from_millis(1)));
        // Completions that were not read own memory too.
        drop(ring);
    });
}

/// Returns faults that delay requests but let all of them end.
fn sluggish(seed: u64) -> FaultPlan {
    FaultPlan { delay_time: Duration::from_millis(2), timeout: Some(Duration::from_millis(20)), ..slow(seed) }
}

#[test]
fn a_file_detached_in_its_middle_serves_what_is_in_flight() {
    on_all("detached", 4, sluggish, |seed, device| {
        let mut ring = Ring::builder().entries(64).build().expect("a ring");
        let fd = ring.attach(&device).expect("attaches");
        let pushed = fill_ring(&mut ring, fd, seed);
        ring.detach(fd).expect("attached");
        drop(device);
        ring.push(op::nop().user_data(1000)).expect("there is room");
        ring.push(op::fsync(fd).user_data(1001)).expect("there is room");
        ring.submit().expect("there is room");
        ring.drain();
        let completions: Vec<_> = ring.completions().collect();
        assert_eq!(completions.len(), pushed + 2, "seed {seed}");
        for completion in completions {
            match completion.user_data {
                1000 => assert_eq!(completion.res, 0),
                1001 => assert_eq!(completion.res, -libc::EBADF),
                _ => assert!(completion.into_buf().is_some(), "seed {seed}: memory comes back"),
            }
        }
        assert_eq!(ring.in_flight(), 0);
    });
}

#[test]
fn a_ring_may_go_while_another_goes_on() {
    on_all("one of two", 3, sluggish, |seed, device| {
        let mut going = Ring::builder().entries(32).build().expect("a ring");
        let mut staying = Ring::builder().entries(32).build().expect("a ring");
        let (a, b) = (going.attach(&device).expect("attaches"), staying.attach(&device).expect("attaches"));
        fill_ring(&mut going, a, seed);
        let pushed = fill_ring(&mut staying, b, seed + 1);
        drop(going);
        staying.drain();
        assert_eq!(staying.completions().count(), pushed, "seed {seed}");
        assert_eq!(device.in_flight().total(), 0);
    });
}

#[test]
fn completions_and_buffers_outlive_their_ring() {
    on_all("outlive", 2, sluggish, |seed, device| {
        let mut ring = Ring::builder().entries(32).build().expect("a ring");
        let fd = ring.attach(&device).expect("attaches");
        fill_ring(&mut ring, fd, seed);
        let _ = ring.wait(8, None);
        let some: Vec<_> = ring.completions().take(5).collect();
        drop(ring);
        for completion in some {
            let mut buf = completion.into_buf().expect("read and write give their memory back");
            buf.fill(7);
        }
    });
}
