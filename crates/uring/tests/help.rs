//! A ring on the CPU of its workers runs short items itself before it waits, without delaying other rings.

use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use sheave_drivers::open_device;
use sheave_uring::prep::{self, Entry};
use sheave_uring::{IoWq, Ring};

use crate::support::{buf, reaped};

/// Binds this thread to its current CPU. Returns settings of a pool that stays on that CPU too.
fn on_this_cpu() -> sheave_uring::IoWqBuilder {
    let cpu = rustix::thread::sched_getcpu();
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).expect("this thread's own CPU");
    IoWq::builder().cpus(&[cpu])
}

/// Floods the ring with short reads and NOPs. Returns the number of items that the ring itself ran, as counted by its
/// pool.
fn flood(wq: &IoWq, items: u64) -> u64 {
    let device = open_device("ram:size=1M").expect("a device");
    let mut ring = Ring::builder().entries(128).io_wq(wq).build().expect("a ring");
    let fd = ring.attach(&device).expect("attached");
    let (mut next, mut seen) = (0, Vec::new());
    while (seen.len() as u64) < items {
        while next < items && next - seen.len() as u64 + 32 <= 128 {
            for _ in 0..32 {
                let entry: Entry = if next % 2 == 0 { prep::read(fd, buf(4096)).into() } else { prep::nop().into() };
                ring.push(entry.run_async().user_data(next)).expect("room");
                next += 1;
            }
            ring.submit().expect("submitted");
        }
        ring.submit_and_wait(32).expect("submitted");
        seen.extend(reaped(&mut ring));
    }
    seen.sort_unstable();
    let expected: Vec<(u64, i32)> = (0..items).map(|n| (n, if n % 2 == 0 { 4096 } else { 0 })).collect();
    assert_eq!(seen, expected, "each once");
    assert_eq!(wq.counts()[0].queued, 0);
    wq.counts()[0].helped
}

#[test]
fn a_ring_that_waits_on_its_workers_cpu_runs_its_short_items_itself() {
    let wq = on_this_cpu().build().expect("a pool");
    let helped = flood(&wq, 64 << 10);
    // On a busy machine the worker sometimes comes first.
    assert!(helped > 4 << 10, "{helped} of {}", 64 << 10);
}

#[test]
fn workers_run_everything_where_help_is_not_wanted() {
    let wq = on_this_cpu().help(false).build().expect("a pool");
    assert_eq!(flood(&wq, 4 << 10), 0);
}

/// Binds this thread to its current CPU. Returns settings of a pool on another CPU, if there is one.
fn on_another_cpu() -> Option<sheave_uring::IoWqBuilder> {
    let cpu = rustix::thread::sched_getcpu();
    let allowed = rustix::thread::sched_getaffinity(None).expect("the CPUs of this thread");
    let other = (0..rustix::thread::CpuSet::MAX_CPU).find(|&other| other != cpu && allowed.is_set(other))?;
    on_this_cpu();
    Some(IoWq::builder().cpus(&[other]))
}

#[test]
fn workers_of_another_cpu_run_everything() {
    let Some(options) = on_another_cpu() else { return println!("skipped: one CPU only") };
    let wq = options.build().expect("a pool");
    assert_eq!(flood(&wq, 4 << 10), 0);
}

/// Runs each of the entries alone, `times` times, and waits for it. Returns the number of items that the ring ran.
fn one_by_one(wq: &IoWq, times: u64, entries: impl Fn(sheave_uring::Fd) -> Vec<Entry>) -> u64 {
    let device = open_device("ram:size=1M").expect("a device");
    let mut ring = Ring::builder().entries(8).io_wq(wq).build().expect("a ring");
    let fd = ring.attach(&device).expect("attached");
    let before = wq.counts()[0].helped;
    for _ in 0..times {
        let entries = entries(fd);
        let wanted = entries.len();
        entries.into_iter().for_each(|entry| ring.push(entry.run_async()).expect("room"));
        ring.submit_and_wait(wanted as u32).expect("submitted");
        let ended = reaped(&mut ring);
        assert!(ended.len() == wanted && ended.iter().all(|&(_, res)| res >= 0), "{ended:?}");
    }
    wq.counts()[0].helped - before
}

#[test]
fn a_ring_that_waits_for_one_short_item_alone_runs_it_wherever_its_workers_are() {
    let Some(options) = on_another_cpu() else { return println!("skipped: one CPU only") };
    let wq = options.build().expect("a pool");
    assert_eq!(one_by_one(&wq, 50, |_| vec![prep::nop().into()]), 50);
    assert_eq!(one_by_one(&wq, 50, |fd| vec![prep::read(fd, buf(4096)).into()]), 50);
    assert_eq!(wq.counts().map(|counts| counts.created), [0, 0], "nobody was made for them");
    // Two items at once run in parallel, and long items are not run on the ring's thread.
    assert_eq!(one_by_one(&wq, 50, |_| vec![prep::nop().into(), prep::nop().into()]), 0);
    assert_eq!(one_by_one(&wq, 50, |fd| vec![prep::read(fd, buf(64 << 10)).into()]), 0);
    let no_help = on_this_cpu().help(false).build().expect("a pool");
    assert_eq!(one_by_one(&no_help, 50, |_| vec![prep::nop().into()]), 0);
}

#[test]
fn a_short_item_beside_one_that_workers_have_is_theirs() {
    let Some(options) = on_another_cpu() else { return println!("skipped: one CPU only") };
    let wq = options.build().expect("a pool");
    let mut ring = Ring::builder().entries(8).io_wq(&wq).build().expect("a ring");
    let fd = ring.attach(&open_device("ram:size=64M").expect("a device")).expect("attached");
    ring.push(prep::read(fd, buf(32 << 20)).run_async()).expect("room");
    ring.submit().expect("submitted");
    ring.push(prep::nop().run_async()).expect("room");
    ring.submit_and_wait(2).expect("submitted");
    assert_eq!(reaped(&mut ring).len(), 2);
    assert_eq!(wq.counts()[0].helped, 0);
}

#[test]
fn a_write_is_in_the_file_without_another_call_also_while_the_worker_naps() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("disk.img");
    let device = open_device(&format!("file:{},size=4M", path.display())).expect("a device");
    let wq = on_this_cpu().build().expect("a pool");
    let mut ring = Ring::builder().entries(8).io_wq(&wq).build().expect("a ring");
    let fd = ring.attach(&device).expect("attached");
    let file = std::fs::File::open(&path).expect("the file");
    for round in 1..=40_u8 {
        // Short writes, for which a napping worker is not woken, and long writes.
        let len = if round % 4 == 0 { 1 << 20 } else { 4096 };
        let mut data = buf(len);
        data.fill(round);
        ring.push(prep::write(fd, data).run_async().user_data(1)).expect("room");
        ring.submit().expect("submitted");
        let limit = Instant::now() + Duration::from_secs(20);
        loop {
            let mut there = vec![0; len];
            file.read_exact_at(&mut there, 0).expect("read");
            if there.iter().all(|&byte| byte == round) {
                break;
            }
            assert!(Instant::now() < limit, "round {round}: never written");
            std::thread::sleep(Duration::from_micros(50));
        }
        // After this the worker has no work, and naps.
        ring.drain();
        assert_eq!(reaped(&mut ring), [(1, len as i32)]);
    }
}

#[test]
fn an_idle_ring_and_its_worker_use_no_cpu_after_a_flood() {
    let wq = on_this_cpu().build().expect("a pool");
    flood(&wq, 4 << 10);
    let cpu = || rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let limit = Instant::now() + Duration::from_secs(30);
    loop {
        let before = cpu();
        std::thread::sleep(Duration::from_millis(300));
        let after = cpu();
        let used = (after.tv_sec - before.tv_sec) * 1_000_000 + (after.tv_nsec - before.tv_nsec) / 1000;
        // At first the worker naps, on a busy machine for longer. Other tests of this process may run, too.
        if used < 1000 {
            break;
        }
        assert!(Instant::now() < limit, "{used} us of CPU time in 300 ms of nothing");
    }
}

#[test]
fn dropped_ring_with_deferred_wake_up_does_not_stall_pool() {
    // Longer than any test.
    let idle = Duration::from_secs(60);
    let wq = on_this_cpu().idle_timeout(idle).build().expect("a pool");
    let device = open_device("ram:size=1M").expect("a device");
    let mut other = Ring::builder().entries(8).io_wq(&wq).build().expect("a ring");
    let fd = other.attach(&device).expect("attached");
    for _ in 0..50 {
        let mut ring = Ring::builder().entries(8).io_wq(&wq).build().expect("a ring");
        for n in 0..8 {
            ring.push(prep::nop().run_async().user_data(n)).expect("room");
        }
        ring.submit().expect("submitted");
        // At this point the worker naps, has begun, or is about to nap.
        drop(ring);
        for entry in [Entry::from(prep::nop()), prep::read(fd, buf(64 << 10)).into()] {
            other.push(entry.run_async()).expect("room");
            other.submit_and_wait(1).expect("submitted");
            assert_eq!(reaped(&mut other).len(), 1);
        }
        assert_eq!(wq.counts()[0].queued, 0, "nothing of the ring that went is left");
    }
    let mut last = Ring::builder().entries(8).io_wq(&wq).build().expect("a ring");
    last.push(prep::nop().run_async()).expect("room");
    last.submit().expect("submitted");
    // Drops both rings and the pool while a wake-up is deferred: the drop must not wait for a worker's idle timeout.
    let start = Instant::now();
    drop((last, other, wq));
    assert!(start.elapsed() < idle / 2, "{:?}", start.elapsed());
}
