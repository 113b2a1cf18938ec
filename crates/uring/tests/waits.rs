//! The calls of a ring that wait or do not: submit, submit_and_wait, wait, completions, drain; their conditions for
//! returning.

use std::time::{Duration, Instant};

use sheave_base::status::Status;
use sheave_blk::Device;
use sheave_drivers::open_device;
use sheave_iomap::mapping::{Intent, MapFlags};
use sheave_iomap::{File, Mapping, MappingKind};
use sheave_uring::sqe::{IOSQE_IO_LINK, Sqe, opcode};
use sheave_uring::{IoWq, Ring, Waited, prep};

use crate::support::{Puppet, buf, nop, push, reaped, ring, rw};

/// Long enough to tell waiting from returning, even on a busy machine.
const LATENCY: Duration = Duration::from_millis(30);
/// Time for tries, of which one has to succeed.
const PATIENCE: Duration = Duration::from_secs(30);

fn spec(complete: &str) -> Device {
    open_device(&format!("null:size=1M,latency={}ms,complete={complete}", LATENCY.as_millis())).unwrap()
}

#[test]
fn submit_does_not_wait_and_submit_and_wait_does() {
    for complete in ["timer", "thread"] {
        for spin in [Duration::ZERO, Duration::from_micros(10), Duration::from_millis(500)] {
            let mut ring = Ring::builder().entries(8).spin(spin).build().unwrap();
            let fd = ring.attach(&spec(complete)).unwrap();
            let start = Instant::now();
            ring.push(prep::read(fd, buf(512)).user_data(1)).unwrap();
            assert_eq!(ring.submit().unwrap(), 1);
            ring.push(prep::nop().user_data(2)).unwrap();
            ring.push(prep::read(fd, buf(512)).user_data(3)).unwrap();
            assert_eq!(ring.submit_and_wait(3).unwrap(), 2);
            assert!(start.elapsed() >= LATENCY);
            let mut seen = reaped(&mut ring);
            seen.sort_unstable();
            assert_eq!(seen, [(1, 512), (2, 0), (3, 512)], "{complete}, spin {spin:?}");
        }
    }
}

#[test]
fn waiting_for_nothing_returns() {
    let mut ring = ring();
    assert_eq!(ring.wait(1, None), Waited::Idle, "nothing is left that could complete");
    assert_eq!(ring.submit_and_wait(5).unwrap(), 0);
    ring.drain();
    // Still true once the ring has a worker, or an entry for itself in its file table: neither can wake it.
    ring.push(prep::nop().run_async().user_data(1)).unwrap();
    assert_eq!(ring.submit_and_wait(1).unwrap(), 1);
    assert_eq!(reaped(&mut ring), [(1, 0)]);
    let handle = ring.handle();
    ring.attach_ring(&handle).unwrap();
    drop(handle);
    assert_eq!(ring.wait(1, None), Waited::Idle);
}

#[test]
fn more_than_will_come_is_what_comes() {
    let mut ring = Ring::builder().entries(8).cq_entries(4).build().unwrap();
    let fd = ring.attach(&spec("timer")).unwrap();
    ring.push(prep::read(fd, buf(512))).unwrap();
    ring.push(prep::read(fd, buf(512)).skip_success()).unwrap();
    ring.submit_and_wait(100).unwrap();
    assert_eq!((ring.in_flight(), ring.completions().count()), (0, 1));
}

#[test]
fn a_wait_ends_with_its_time() {
    let puppet = Puppet::new().holding();
    let mut ring = ring();
    let fd = ring.attach(&puppet.device()).unwrap();
    ring.push(prep::read(fd, buf(512))).unwrap();
    ring.submit().unwrap();
    let start = Instant::now();
    assert_eq!(ring.wait(1, Some(LATENCY)), Waited::TimedOut);
    assert!(start.elapsed() >= LATENCY);
    assert_eq!(ring.wait(1, Some(Duration::ZERO)), Waited::TimedOut);
    puppet.script().finish = u32::MAX;
    assert_eq!(ring.wait(1, Some(Duration::from_secs(60))), Waited::Ready(1));
}

#[test]
fn a_handle_can_still_send_so_the_ring_waits_and_is_woken() {
    let mut ring = ring();
    let handle = ring.handle();
    let sender = std::thread::spawn(move || {
        std::thread::sleep(LATENCY);
        handle.send(9, 3).unwrap();
    });
    assert_eq!(ring.wait(1, None), Waited::Ready(1));
    assert_eq!(reaped(&mut ring), [(9, 3)]);
    sender.join().unwrap();
    assert_eq!(ring.wait(1, None), Waited::Idle, "and once the handle is gone there is nothing to wait for");
}

#[test]
fn a_ring_that_waits_hears_that_the_last_handle_has_gone() {
    let mut ring = ring();
    for message in [false, true] {
        let handle = ring.handle();
        let clone = handle.clone();
        let other = std::thread::spawn(move || {
            drop(clone);
            std::thread::sleep(LATENCY);
            if message {
                handle.send(9, 3).unwrap();
            }
            drop(handle);
        });
        if message {
            assert_eq!(ring.wait(1, None), Waited::Ready(1), "what was sent comes first");
            assert_eq!(reaped(&mut ring), [(9, 3)]);
        }
        assert_eq!(ring.wait(1, None), Waited::Idle);
        other.join().unwrap();
    }
}

#[test]
fn drain_waits_for_all_and_leaves_the_completions() {
    for complete in ["timer", "thread"] {
        let mut ring = Ring::builder().entries(16).cq_entries(4).in_flight(16).build().unwrap();
        let fd = ring.attach(&spec(complete)).unwrap();
        for n in 0..8 {
            ring.push(prep::read(fd, buf(512)).offset(n * 4096).user_data(n)).unwrap();
        }
        ring.push(prep::nop().drain().user_data(8)).unwrap();
        ring.push(prep::nop().run_async().user_data(9)).unwrap();
        ring.push(prep::nop().user_data(10)).unwrap();
        assert_eq!(ring.submit().unwrap(), 11);
        ring.push(prep::nop().user_data(11)).unwrap();
        ring.drain();
        assert_eq!(ring.in_flight(), 0);
        let mut seen = Vec::new();
        while seen.len() < 11 {
            seen.extend(reaped(&mut ring).iter().map(|cqe| cqe.0));
        }
        assert_eq!(seen[..9], [0, 1, 2, 3, 4, 5, 6, 7, 8], "{complete}");
        seen.sort_unstable();
        assert_eq!(seen, (0..11).collect::<Vec<_>>(), "what was not submitted is not drained");
    }
}

#[test]
fn completions_are_consumed_as_far_as_they_are_iterated() {
    let mut ring = ring();
    push(&mut ring, &[nop(1, 0), nop(2, 0), nop(3, 0)]);
    ring.submit().unwrap();
    assert_eq!(ring.completions().len(), 3);
    assert_eq!(ring.completions().next().map(|c| c.user_data), Some(1));
    let mut iter = ring.completions();
    assert_eq!((iter.len(), iter.next().map(|c| c.user_data), iter.len()), (2, Some(2), 1));
    assert_eq!(reaped(&mut ring), [(3, 0)]);
    assert_eq!(reaped(&mut ring), []);
}

#[test]
fn a_polled_ring_completes_when_it_is_asked() {
    let mut ring = Ring::builder().entries(8).polled(true).build().unwrap();
    let fd = ring.attach(&open_device("null:").unwrap()).unwrap();
    ring.push(prep::read(fd, buf(512)).user_data(1)).unwrap();
    ring.submit().unwrap();
    assert_eq!(ring.in_flight(), 1, "submit does not look");
    assert_eq!(reaped(&mut ring), [(1, 512)]);
}

#[test]
fn settings_out_of_bounds_are_named() {
    for (builder, name) in [
        (Ring::builder().entries(0), "entries"),
        (Ring::builder().entries(32769), "entries"),
        (Ring::builder().cq_entries(0), "cq_entries"),
        (Ring::builder().cq_entries(u32::MAX), "cq_entries"),
        (Ring::builder().in_flight(0), "in_flight"),
        (Ring::builder().in_flight(65537), "in_flight"),
    ] {
        let error = builder.build().unwrap_err().to_string();
        assert!(error.starts_with(name) && error.contains("give 1 to"), "{error}");
    }
    assert_eq!(Ring::builder().entries(5).build().unwrap().sq_space(), 8);
}

/// Returns the number of times that this thread has gone to sleep.
fn sleeps() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    line.trim().parse().unwrap()
}

#[test]
fn a_ring_that_waits_for_several_sleeps_until_another_thread_has_completed_them() {
    let memory = buf(512);
    for _ in 0..20 {
        let mut ring = Ring::builder().entries(16).spin(Duration::ZERO).build().unwrap();
        let fd = ring.attach(&open_device("null:size=1M,latency=5ms,complete=thread").unwrap()).unwrap();
        // The other thread completes the reads one by one, as far apart in time as they were submitted.
        for at in 0..16 {
            push(&mut ring, &[rw(opcode::READ, fd, at * 2048, memory.as_ptr() as u64, 512, at)]);
            ring.submit().unwrap();
            std::thread::sleep(Duration::from_micros(200));
        }
        let (start, before) = (Instant::now(), sleeps());
        assert_eq!(ring.wait(16, None), Waited::Ready(16));
        let (took, slept) = (start.elapsed(), sleeps() - before);
        // Completions gather for at most 10 ms, which a busy machine may repeat several times.
        assert!(slept <= 4 + took.as_millis() as u64 / 5, "woken {slept} times in {took:?}");
    }
}

#[test]
fn a_chain_goes_on_while_its_ring_waits_for_several() {
    let memory = buf(512);
    let addr = memory.as_ptr() as u64;
    // On a busy machine any of the wake-ups may come late, so there are many tries.
    let (mut took, begun) = (Duration::MAX, Instant::now());
    while took >= Duration::from_millis(15) {
        assert!(begun.elapsed() < PATIENCE, "its second read has waited for the end of the third: {took:?}");
        let mut ring = Ring::builder().entries(16).spin(Duration::ZERO).build().unwrap();
        let [soon, late] = ["1ms", "9ms"].map(|latency| {
            ring.attach(&open_device(&format!("null:size=1M,latency={latency},complete=thread")).unwrap()).unwrap()
        });
        let linked = Sqe { flags: IOSQE_IO_LINK, ..rw(opcode::READ, soon, 0, addr, 512, 1) };
        push(&mut ring, &[linked, rw(opcode::READ, late, 4096, addr, 512, 2), rw(opcode::READ, late, 0, addr, 512, 3)]);
        let start = Instant::now();
        ring.submit_and_wait(3).unwrap();
        took = took.min(start.elapsed());
        assert_eq!(reaped(&mut ring).len(), 3);
    }
}

/// A file whose writes complete on a worker.
#[derive(Debug)]
struct Worked(Device);

impl File for Worked {
    fn device(&self) -> &Device {
        &self.0
    }

    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn map(&self, pos: u64, len: u64, _: Intent) -> Result<Mapping, Status> {
        Ok(Mapping::new(MappingKind::Mapped, pos, len, pos).flags(MapFlags::WORKER))
    }
}

#[test]
fn a_worker_on_the_rings_cpu_does_not_make_a_ring_sleep_for_its_device() {
    const WRITES: u64 = 500;
    let cpu = rustix::thread::sched_getcpu();
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).unwrap();
    let wq = IoWq::builder().cpus(&[cpu]).build().unwrap();
    let mut ring = Ring::builder().entries(8).io_wq(&wq).build().unwrap();
    let device = open_device("null:size=1M,latency=5us").unwrap();
    let fd = ring.attach_file(std::sync::Arc::new(Worked(device))).unwrap();
    let mut memory = Some(buf(4096));
    let before = sleeps();
    for _ in 0..WRITES {
        ring.push(prep::write(fd, memory.take().unwrap())).unwrap();
        ring.submit_and_wait(1).unwrap();
        memory = ring.pop().unwrap().into_buf();
    }
    let slept = sleeps() - before;
    assert!(wq.counts()[0].created > 0 && wq.counts()[0].helped == 0, "{:?}", wq.counts());
    assert!(slept < WRITES * 5 / 4, "{slept} sleeps for {WRITES} writes: once for each, for its worker");
}

#[test]
fn a_polled_ring_is_awake_when_its_device_has_something_soon_and_asleep_before() {
    const READS: u64 = 200;
    for (polled, latency, most) in [(true, "40us", READS / 4), (false, "5us", READS / 4), (false, "40us", 2 * READS)] {
        let mut ring = Ring::builder().entries(8).polled(polled).build().unwrap();
        let fd = ring.attach(&open_device(&format!("null:size=1M,latency={latency}")).unwrap()).unwrap();
        let mut memory = Some(buf(512));
        let least = if most < READS { 0 } else { READS / 2 + 1 };
        // A thread that loses its CPU is late for its device, and so sleeps more often, or less. There are more tries.
        let begun = Instant::now();
        loop {
            let before = sleeps();
            for _ in 0..READS {
                ring.push(prep::read(fd, memory.take().unwrap())).unwrap();
                ring.submit_and_wait(1).unwrap();
                memory = ring.pop().unwrap().into_buf();
            }
            let slept = sleeps() - before;
            if (least..=most).contains(&slept) {
                break;
            }
            assert!(begun.elapsed() < PATIENCE, "polled {polled}, {latency}: {slept} sleeps in {READS} waits");
        }
    }
}

#[test]
fn the_timer_slack_of_its_thread_does_not_make_a_ring_late() {
    const SLACK: Duration = Duration::from_millis(1);
    const LATENCY: Duration = Duration::from_millis(3);
    // Changes this thread only, and each test has its own.
    rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(SLACK.as_nanos() as u64)).unwrap();
    let mut ring = Ring::builder().entries(8).build().unwrap();
    let fd = ring.attach(&open_device("null:size=1M,latency=3ms").unwrap()).unwrap();
    // On a busy machine more than two thirds of the reads may be late. There are more tries.
    for tries in 1.. {
        let mut times: Vec<Duration> = (0..40)
            .map(|_| {
                let start = Instant::now();
                ring.push(prep::read(fd, buf(512))).unwrap();
                ring.submit_and_wait(1).unwrap();
                assert_eq!(ring.completions().count(), 1);
                start.elapsed()
            })
            .collect();
        times.sort_unstable();
        assert!(times[0] >= LATENCY, "{times:?}: never early");
        if times[times.len() / 3] < LATENCY + SLACK * 7 / 10 {
            break;
        }
        assert!(tries < 20, "{times:?}");
    }
    assert_eq!(rustix::thread::current_timer_slack(), Ok(SLACK.as_nanos() as u64), "it is the thread's own");
}
