//! Waiting, not waiting, waking up and dropping with I/O in flight.

use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};

use super::*;
use sheave_base::status::Errno;

const SHORT: Duration = Duration::from_millis(30);

#[test]
fn an_enter_with_nothing_to_do_is_no_system_call() {
    let Some(mut ring) = ring(4) else { return };
    // The result of the next system call: without one (I4) it is not taken.
    ring.simulated.push_back(Err(libc::EIO));
    assert_eq!(ring.enter(0, None), Ok(0));
    assert_eq!(ring.enter(0, LONG), Ok(0));
    // I5: no completion can come.
    assert_eq!(ring.enter(7, None), Ok(0));
    let file = file_with(&[1; 16]);
    ring.prep_fsync(Target::Raw(file.as_raw_fd()), false, 1).expect("room");
    assert_eq!(ring.enter(1, None), Err(KringError::Enter { errno: Errno::EIO }));
    assert_eq!(ring.enter(1, None), Ok(1));
    // No system call either to wait for completions that are in the queue already.
    ring.simulated.push_back(Err(libc::EIO));
    assert_eq!(ring.enter(1, None), Ok(0));
    assert_eq!(ring.reap(|user_data, res, _| assert_eq!((user_data, res), (1, 0))), 1);
}

#[test]
fn waiting_ends_at_its_timeout_on_every_kernel() {
    for avoid in generations() {
        let Some(mut ring) = ring_with(4, avoid) else { return };
        let event = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        ring.prep_poll_fd(event.as_raw_fd(), 77).expect("room");
        let start = Instant::now();
        assert_eq!(ring.enter(1, Some(SHORT)), Ok(1));
        assert_eq!(ring.enter(1, Some(SHORT)), Ok(0));
        assert!(start.elapsed() >= 2 * SHORT, "{avoid:?}: {:?}", start.elapsed());
        assert_eq!(ring.enter(1, Some(Duration::ZERO)), Ok(0));
        assert_eq!((ring.ready(), ring.in_flight()), (0, 1));
    }
}

#[test]
fn an_eventfd_wakes_the_sleeper_on_every_kernel() {
    for avoid in generations() {
        let Some(mut ring) = ring_with(4, avoid) else { return };
        let event = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        ring.prep_poll_fd(event.as_raw_fd(), 77).expect("room");
        assert_eq!(ring.wake, Some(77));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(SHORT);
                rustix::io::write(&event, &1u64.to_ne_bytes()).expect("written");
            });
            let done = collect(&mut ring, 1);
            assert_eq!(done, [(77, i32::from(libc::POLLIN))], "{avoid:?}");
        });
        assert_eq!((ring.wake, ring.in_flight()), (None, 0));
    }
}

#[test]
fn completions_run_by_an_enter_that_does_not_wait() {
    let Some(mut ring) = ring(4) else { return };
    let event = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
    ring.prep_poll_fd(event.as_raw_fd(), 1).expect("room");
    ring.enter(0, None).expect("entered");
    rustix::io::write(&event, &1u64.to_ne_bytes()).expect("written");
    let start = Instant::now();
    while ring.ready() == 0 {
        ring.enter(0, None).expect("entered");
        assert!(start.elapsed() < Duration::from_secs(20), "the taskrun flag was missed");
    }
    assert_eq!(ring.reap(|_, _, _| {}), 1);
}

#[test]
fn cancelling_gives_two_completions() {
    let Some(mut ring) = ring(4) else { return };
    let event = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
    ring.prep_poll_fd(event.as_raw_fd(), 1).expect("room");
    ring.enter(0, None).expect("entered");
    ring.prep_cancel(1, 2).expect("room");
    ring.prep_cancel(99, 3).expect("room");
    let mut done = collect(&mut ring, 3);
    done.sort_unstable();
    assert_eq!(done, [(1, -libc::ECANCELED), (2, 0), (3, -libc::ENOENT)]);
}

#[test]
fn a_dropped_ring_has_finished_its_io_and_started_no_more() {
    for avoid in generations() {
        let Some(mut ring) = ring_with(64, avoid) else { return };
        let file = file_with(&[0; 64 * 512]);
        let event = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        let mut ones = [1u8; 512];
        ring.prep_poll_fd(event.as_raw_fd(), 1000).expect("room");
        for n in 0..40 {
            // SAFETY: `ones` outlives the ring, which is dropped below.
            unsafe {
                let seg = [vec_of(&mut ones)];
                ring.prep_rw(KOp::Write, Target::Raw(file.as_raw_fd()), &seg, None, n * 512, 0, n).expect("room");
            }
            if n == 31 {
                ring.enter(0, None).expect("entered");
            }
        }
        drop(ring);
        let mut back = vec![0u8; 64 * 512];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut back, 0).expect("read");
        let (entered, prepared) = back.split_at(32 * 512);
        assert!(prepared.iter().all(|b| *b == 0), "{avoid:?}: what was only prepared was submitted");
        for block in entered.chunks(512) {
            assert!(block.iter().all(|b| *b == block[0]), "{avoid:?}: a torn block");
        }
    }
}

#[test]
fn a_panic_while_reaping_leaves_the_count_right() {
    let Some(mut ring) = ring(4) else { return };
    let file = file_with(&[1; 16]);
    for n in 0..3 {
        ring.prep_fsync(Target::Raw(file.as_raw_fd()), false, n).expect("room");
    }
    ring.enter(3, LONG).expect("entered");
    let reaping = std::panic::AssertUnwindSafe(|| {
        ring.reap(|_, _, _| std::panic::resume_unwind(Box::new(())));
    });
    assert!(std::panic::catch_unwind(reaping).is_err());
    assert_eq!((ring.in_flight(), ring.ready()), (2, 2));
}

#[test]
fn a_wake_up_is_not_counted_as_io_once_the_kernel_has_it() {
    let Some(mut ring) = ring(8) else { return };
    let file = file_with(&[1; 16]);
    let event = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
    for n in 0..3 {
        ring.prep_fsync(Target::Raw(file.as_raw_fd()), false, n).expect("room");
    }
    ring.enter(3, LONG).expect("entered");
    ring.prep_poll_fd(event.as_raw_fd(), 9).expect("room");
    assert_eq!((ring.in_flight(), ring.in_flight_io()), (3, 3), "dropped now, it must wait for three");
    ring.enter(0, None).expect("entered");
    assert_eq!((ring.in_flight(), ring.in_flight_io()), (4, 3));
    assert_eq!(ring.reap(|_, _, _| {}), 3);
    assert_eq!((ring.in_flight(), ring.in_flight_io()), (1, 0));
}

#[test]
fn gathering_settles_for_one_completion_after_a_while() {
    let old = KringAvoid { min_wait: true, ..KringAvoid::default() };
    for avoid in [KringAvoid::default(), old] {
        let Some(mut ring) = ring_with(8, avoid) else { return };
        let event = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        let other = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        for (n, fd) in [(1, &event), (2, &other)] {
            ring.prep_poll_fd(fd.as_raw_fd(), n).expect("room");
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(SHORT);
                rustix::io::write(&event, &1u64.to_ne_bytes()).expect("written");
            });
            let start = Instant::now();
            // Waits for two completions. Only one comes, after the gathering time.
            ring.enter_gather(2, Duration::from_micros(50), LONG).expect("entered");
            assert!(start.elapsed() < Duration::from_secs(10), "{avoid:?}");
        });
        assert_eq!((ring.ready(), ring.in_flight()), (1, 2));
        // A completion that comes within the gathering time does not end the wait before that time.
        rustix::io::write(&other, &1u64.to_ne_bytes()).expect("written");
        assert_eq!(ring.enter_gather(2, Duration::from_secs(20), LONG), Ok(0));
        assert_eq!(ring.enter_gather(0, SHORT, LONG), Ok(0));
        assert_eq!(collect(&mut ring, 2).len(), 2);
    }
}
