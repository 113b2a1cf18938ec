//! `IOSQE_ASYNC` writes into a page cache: one at a time for each device, in the order of their submission.

mod support;

use std::time::{Duration, Instant};

use sheave_blk::Device;
use sheave_blk::driver::Capabilities;
use sheave_drivers::open_device;
use sheave_uring::prep;
use sheave_uring::{IoWq, Ring};

use support::{Puppet, buf, reaped};

/// Lengths of the writes, which go to workers one after the other, each to its own place.
const LENGTHS: [usize; 6] = [4096, 65536, 4096, 4096, 65536, 65536];

fn page_cache(caps: &mut Capabilities) {
    (caps.volatile_cache, caps.direct_io) = (true, false);
}

fn until(what: &str, mut so: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(30);
    while !so() {
        assert!(Instant::now() < limit, "never: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Returns a ring whose four workers have begun all of the writes that they can begin.
fn writing(device: &Device) -> (Ring, IoWq) {
    let wq = IoWq::builder().max_workers(4, 1).build().expect("a pool");
    let mut ring = Ring::builder().entries(16).io_wq(&wq).build().expect("a ring");
    let fd = ring.attach(device).expect("attached");
    for (n, len) in LENGTHS.into_iter().enumerate() {
        ring.push(prep::write(fd, buf(len)).offset((n as u64) << 16).run_async().user_data(n as u64)).expect("room");
    }
    ring.submit().expect("submitted");
    until("a worker has begun", || device.in_flight().total() > 0);
    // Time for others to begin that must not: a blocked worker is replaced after 50 us.
    std::thread::sleep(Duration::from_millis(20));
    (ring, wq)
}

#[test]
fn writes_into_a_page_cache_run_one_at_a_time_in_order() {
    let puppet = Puppet::new().caps(page_cache).holding();
    let device = puppet.device();
    let (mut ring, wq) = writing(&device);
    for begun in 1..=LENGTHS.len() {
        until("the next one begins", || puppet.sectors_seen().len() == begun);
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(device.in_flight().total(), 1, "one at a time");
        puppet.script().finish = 1;
        until("it ends", || puppet.script().finish == 0);
    }
    ring.drain();
    let sectors: Vec<u64> = (0..LENGTHS.len() as u64).map(|n| n << 7).collect();
    assert_eq!(puppet.sectors_seen(), sectors, "in the order of their submission");
    let ended: Vec<(u64, i32)> = (0..).zip(LENGTHS.map(|len| len as i32)).collect();
    assert_eq!(reaped(&mut ring), ended);
    assert_eq!(wq.counts()[0].queued, 0);
}

#[test]
fn writes_past_the_page_cache_run_beside_each_other() {
    let direct: fn(&mut Capabilities) = |caps| (caps.volatile_cache, caps.direct_io) = (true, true);
    let none: fn(&mut Capabilities) = |caps| (caps.volatile_cache, caps.direct_io) = (false, false);
    for caps in [direct, none] {
        let puppet = Puppet::new().caps(caps).holding();
        let device = puppet.device();
        let (ring, _wq) = writing(&device);
        until("others begin beside it", || device.in_flight().total() > 1);
        drop(ring);
    }
}

#[test]
fn reads_do_not_wait_for_writes() {
    let puppet = Puppet::new().caps(page_cache).holding();
    let device = puppet.device();
    let (mut ring, _wq) = writing(&device);
    let fd = ring.attach(&device).expect("attached");
    ring.push(prep::read(fd, buf(65536)).run_async().user_data(99)).expect("room");
    ring.submit().expect("submitted");
    until("the read has begun beside the write", || device.in_flight().total() == 2);
}

#[test]
fn the_last_of_many_writes_to_a_place_is_what_the_file_has() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("disk.img");
    let device = open_device(&format!("file:{},size=4M,direct=off", path.display())).expect("a device");
    assert!(!device.capabilities().direct_io && device.capabilities().volatile_cache, "it is buffered");
    let wq = IoWq::builder().max_workers(4, 1).build().expect("a pool");
    let mut ring = Ring::builder().entries(64).io_wq(&wq).build().expect("a ring");
    let fd = ring.attach(&device).expect("attached");
    for round in 0..50_u64 {
        for n in 0..32 {
            let mut data = buf(if n % 3 == 0 { 65536 } else { 4096 });
            data.fill(n);
            ring.push(prep::write(fd, data).offset(65536).run_async().user_data(u64::from(n))).expect("room");
        }
        ring.submit_and_wait(32).expect("submitted");
        assert!(ring.completions().all(|done| done.res > 0));
        let there = std::fs::read(&path).expect("the file");
        assert!(there[65536..65536 + 4096].iter().all(|&byte| byte == 31), "round {round}");
        assert!(there[65536 + 4096..2 * 65536].iter().all(|&byte| byte == 30), "round {round}");
    }
    assert_eq!(wq.counts()[0].helped, 0, "ordered writes are the workers'");
    // The worker makes the write call itself: the kernel has created no thread for writes that would block in the file
    // system.
    let tasks = std::fs::read_dir("/proc/self/task").expect("proc").flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    assert_eq!(names.filter(|name| name.starts_with("iou-wrk")).count(), 0, "threads of the kernel's");
}
