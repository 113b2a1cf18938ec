//! A waiting ring uses no CPU: at most 1 % of a core, in every kind of wait.

mod support;

use std::time::{Duration, Instant};

use sheave_drivers::open_device;
use sheave_uring::sqe::{Sqe, opcode};
use sheave_uring::{Ring, Waited, prep};

use support::{buf, push};

const WAIT: Duration = Duration::from_millis(1000);

/// Returns the CPU time of this thread, user and system.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a timespec of our own to fill.
    #[allow(unsafe_code)]
    let answer = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(answer, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Runs `wait`, and returns the elapsed time and the CPU time of this thread.
fn measured(what: &str, wait: impl FnOnce()) -> (Duration, Duration) {
    let (start, cpu) = (Instant::now(), cpu_time());
    wait();
    let (waited, used) = (start.elapsed(), cpu_time() - cpu);
    assert!(waited >= WAIT, "{what}: it has waited, {waited:?}");
    (waited, used)
}

/// Runs `wait`, and compares the CPU time of this thread with the elapsed time.
fn check(what: &str, wait: impl FnOnce()) {
    let (waited, used) = measured(what, wait);
    assert!(used * 100 <= waited, "{what}: {used:?} of CPU in {waited:?}");
}

/// Returns a ring with `depth` reads of the device in flight.
fn reads(spec: &str, depth: u64) -> Ring {
    let mut ring = Ring::builder().entries(64).build().unwrap();
    let fd = ring.attach(&open_device(spec).unwrap()).unwrap();
    for n in 0..depth {
        ring.push(prep::read(fd, buf(512)).offset(n * 4096)).unwrap();
    }
    ring
}

#[test]
fn cpu_time_is_seen() {
    let cpu = cpu_time();
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(200) || cpu_time() == cpu {
        std::hint::spin_loop();
    }
    assert!((cpu_time() - cpu) * 100 > start.elapsed(), "a loop uses more than 1 %, or the tests below say nothing");
}

fn timer(depth: u64) -> (Duration, Duration) {
    let mut ring = reads("null:size=1M,latency=1s", depth);
    let times = measured("timer", || {
        ring.submit_and_wait(depth as u32).unwrap();
    });
    assert_eq!(ring.completions().count() as u64, depth);
    times
}

#[test]
fn waiting_for_a_timer() {
    for depth in [1, 64] {
        // A ring that polls does so each time. Under the address sanitizer, 64 first completions may alone take longer
        // once, when their memory is touched on a busy machine.
        let all: Vec<_> = (0..3).map(|_| timer(depth)).take_while(|(waited, used)| *used * 100 > *waited).collect();
        assert!(all.len() < 3, "timer, depth {depth}: times waited, and CPU time: {all:?}");
    }
}

#[test]
fn waiting_for_another_thread() {
    let mut ring = reads("null:size=1M,latency=1s,complete=thread", 8);
    check("thread", || {
        ring.submit_and_wait(8).unwrap();
    });
    assert_eq!(ring.completions().count(), 8);
}

#[test]
fn a_ring_that_has_polled_in_vain_sleeps_at_once() {
    let mut ring = Ring::builder().entries(8).spin(Duration::from_millis(40)).build().unwrap();
    let fd = ring.attach(&open_device("null:size=1M,latency=120ms,complete=thread").unwrap()).unwrap();
    let mut read = || {
        ring.push(prep::read(fd, buf(512))).unwrap();
        ring.submit_and_wait(1).unwrap();
        assert_eq!(ring.completions().count(), 1);
    };
    (0..5).for_each(|_| read());
    check("after polls in vain", || (0..17).for_each(|_| read()));
}

#[test]
fn draining() {
    for complete in ["timer", "thread"] {
        let mut ring = reads(&format!("null:size=1M,latency=1s,complete={complete}"), 8);
        check("drain", || {
            ring.submit().unwrap();
            ring.drain();
        });
    }
}

#[test]
fn waiting_for_a_message_with_and_without_a_limit() {
    let mut ring = Ring::builder().build().unwrap();
    let handle = ring.handle();
    check("time limit", || assert_eq!(ring.wait(1, Some(WAIT)), Waited::TimedOut));
    // The time runs from the start of the wait, whenever the threads run.
    let (tell, told) = std::sync::mpsc::channel();
    let sender = std::thread::spawn(move || {
        told.recv().unwrap();
        std::thread::sleep(WAIT + Duration::from_millis(20));
        handle.send(0, 0).unwrap();
    });
    check("message", || {
        tell.send(()).unwrap();
        assert_eq!(ring.wait(1, None), Waited::Ready(1));
    });
    sender.join().unwrap();
}

#[test]
fn waiting_for_a_timeout() {
    let mut ring = Ring::builder().build().unwrap();
    let time = [WAIT.as_secs() as i64, 0];
    let timeout = Sqe { opcode: opcode::TIMEOUT, fd: -1, addr: time.as_ptr() as u64, len: 1, ..Sqe::default() };
    push(&mut ring, &[timeout]);
    check("timeout", || {
        ring.submit_and_wait(1).unwrap();
    });
    assert_eq!(ring.completions().next().map(|c| c.res), Some(-62));
}

#[test]
fn waiting_with_a_kernel_ring() {
    // This device uses a kernel ring, in which the ring sleeps from then on, also for other wake-ups.
    let dir = tempfile::tempdir().unwrap();
    let spec = format!("file:{},size=1M", dir.path().join("image").display());
    let file = match open_device(&spec) {
        Ok(file) => file,
        Err(error) => return sheave_testkit::skip(&format!("no file device here: {error}")),
    };
    for complete in ["timer", "thread"] {
        let mut ring = reads(&format!("null:size=1M,latency=1s,complete={complete}"), 8);
        let fd = ring.attach(&file).unwrap();
        ring.push(prep::write(fd, buf(4096)).user_data(1)).unwrap();
        ring.push(prep::fsync(fd).drain().user_data(2)).unwrap();
        check("kernel ring", || {
            ring.submit_and_wait(10).unwrap();
        });
        assert!(ring.completions().all(|c| c.res >= 0));
    }
}
