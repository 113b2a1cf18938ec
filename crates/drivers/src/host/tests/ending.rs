//! The end of a hardware context, a device or a ring, and its effect on others.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::rig::{LONG, Rig, memory, vec_of};
use super::trouble::silent;
use super::*;
use crate::open_device;
use sheave_base::status::Errno;
use sheave_base::status::Status;
use sheave_blk::bio::{BIO_FUA, Op};
use sheave_blk::device::Device;
use sheave_kring::{KernelRing, KringError};
use sheave_testkit::seccomp;

fn device(dir: &Path, name: &str) -> Device {
    open_device(&format!("file:{},size=4M", dir.join(name).display())).expect("a device")
}

#[test]
fn a_ring_that_goes_ends_each_io_once_and_frees_the_memory_after_it() {
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let (real, (mute, writer)) = (device(dir.path(), "disk"), silent(dir.path(), LONG, 64));
    for polls in 0..3 {
        let mut rig = Rig::new();
        let Some(bdev) = rig.attach(&real) else { return };
        let pipe = rig.attach(&mute).expect("attached");
        let mut data = memory(128 * 4096, 1);
        rig.ctx.start_plug(96);
        for (n, block) in data.chunks_mut(4096).enumerate() {
            let (bdev, op) = if n % 3 == 0 { (pipe, Op::Read) } else { (bdev, Op::Write) };
            rig.submit(bdev, op, if n % 7 == 0 { BIO_FUA } else { 0 }, n as u64 * 8192, 4096, &[vec_of(block)]);
        }
        rig.submit(bdev, Op::Flush, 0, 0, 0, &[]);
        rig.ctx.finish_plug();
        // The ring ends before anything is sent, after everything is sent, and after some I/O has ended.
        for _ in 0..polls {
            rig.ctx.commit();
            rig.poll();
        }
        let start = Instant::now();
        let ended = &mut rig.ended;
        rig.ctx.shutdown(&mut |owner, status| ended.push((owner, status)));
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        rig.each_ended_once();
        assert!(rig.ended.iter().all(|(_, status)| matches!(status, Status::Ok | Status::Canceled)), "{:?}", rig.ended);
        assert_eq!((real.in_flight().total(), mute.in_flight().total()), (0, 0));
        // The kernel no longer writes to the memory.
        data.fill(0x77);
        (&writer).write_all(&[1; 4096]).expect("written");
        drop(rig);
        assert!(data.iter().all(|byte| *byte == 0x77));
        let mut sink = [0; 4096];
        std::io::Read::read_exact(&mut File::open(dir.path().join("pipe")).expect("opened"), &mut sink).expect("read");
    }
}

#[test]
fn a_device_that_goes_takes_nothing_of_the_others_with_it() {
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let [a, b] = ["a", "b"].map(|name| device(dir.path(), name));
    let Some((mut rig, first)) = Rig::over(&a) else { return };
    for round in 0..20 {
        let second = rig.attach(&b).expect("attached");
        let mut data = memory(32 * 4096, round);
        rig.ctx.start_plug(32);
        for (n, block) in data.chunks_mut(4096).enumerate() {
            rig.submit(first, Op::Write, 0, n as u64 * 8192, 4096, &[vec_of(block)]);
        }
        rig.ctx.finish_plug();
        rig.ctx.commit();
        // The second device is idle, as `detach` requires. I/O of the first in the kernel goes on.
        rig.ctx.detach(second, &mut |_: u32, _| unreachable!("nothing is on its way"));
        rig.drain();
    }
    assert!(rig.ended.iter().all(|(_, status)| status.is_ok()));
}

/// Makes every further enter of a kernel ring fail with EBADF: removes its registered descriptor from the thread's
/// table, or replaces the file of its descriptor if it is entered by that.
#[allow(unsafe_code)]
fn take_from_kernel(ring: &mut KernelRing) {
    const UNREGISTER_RING_FDS: libc::c_uint = 21;
    const SLOTS: u32 = 16;
    if ring.features().registered_ring {
        // Two words of 64 bits a slot, the first with its number, as `struct io_uring_rsrc_update`.
        let slots: Vec<u64> = (0..SLOTS).flat_map(|slot| [u64::from(slot), 0]).collect();
        let (call, fd, table) = (libc::SYS_io_uring_register, ring.as_raw_fd(), slots.as_ptr());
        // SAFETY: the kernel reads the table during the call.
        let done = unsafe { libc::syscall(call, fd, UNREGISTER_RING_FDS, table, SLOTS) };
        assert_eq!(done, i64::from(SLOTS), "{}", std::io::Error::last_os_error());
    } else {
        let null = File::open("/dev/null").expect("opens");
        // SAFETY: the descriptor stays open, as its owner relies on.
        assert!(unsafe { libc::dup2(null.as_raw_fd(), ring.as_raw_fd()) } >= 0);
    }
    assert_eq!(ring.enter(1, Some(Duration::ZERO)), Err(KringError::Enter { errno: Errno::EBADF }));
}

#[test]
fn a_kernel_ring_that_takes_nothing_more_does_not_hold_up_the_end() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = device(dir.path(), "disk");
    for slept in [false, true] {
        let Some((mut rig, bdev)) = Rig::over(&device) else { return };
        let mut data = memory(4096, 1);
        if slept {
            // After a wait the wake-up poll and the timer are in the kernel.
            assert_eq!(rig.run(bdev, Op::Write, 0, 0, &mut data), Status::Ok);
        }
        for _ in 0..20 {
            rig.submit(bdev, Op::Write, 0, 0, 4096, &[vec_of(&mut data)]);
            rig.submit(bdev, Op::Flush, 0, 0, 0, &[]);
        }
        take_from_kernel(rig.ctx.kring_slot().get(false).expect("a ring"));
        let ended = &mut rig.ended;
        rig.ctx.shutdown(&mut |owner, status| ended.push((owner, status)));
        rig.each_ended_once();
    }
}

/// A filter is installed while a ring is in use. Each I/O ends once, with an error, and the kernel no longer uses its
/// memory then; later I/O gets an error with the reason.
#[test]
fn a_kernel_ring_that_is_forbidden_later_fails_with_all_that_it_has() {
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let (real, (mute, writer)) = (device(dir.path(), "disk"), silent(dir.path(), LONG, 64));
    for taken in [false, true] {
        let run = || {
            let Some((mut rig, bdev)) = Rig::over(&real) else { return };
            let pipe = rig.attach(&mute).expect("attached");
            let mut data = memory(8 * 4096, 1);
            let mut blocks = data.chunks_mut(4096);
            let mut submit = |rig: &mut Rig, to, op| {
                rig.submit(to, op, 0, 0, 4096, &[vec_of(blocks.next().expect("a block"))]);
            };
            if taken {
                submit(&mut rig, pipe, Op::Read);
                rig.ctx.commit();
                rig.poll();
                assert_eq!(rig.in_flight(), 1);
            }
            seccomp::forbid(libc::SYS_io_uring_enter);
            submit(&mut rig, bdev, Op::Write);
            submit(&mut rig, pipe, Op::Read);
            rig.submit(bdev, Op::Flush, 0, 0, 0, &[]);
            rig.drain();
            assert!(rig.ended.iter().all(|(_, status)| *status == Status::IoErr), "{:?}", rig.ended);
            // Later I/O fails too.
            submit(&mut rig, bdev, Op::Write);
            rig.drain();
            assert_eq!(rig.ended.last().map(|(_, status)| *status), Some(Status::IoErr));
            let why = rig.ctx.kernel_failure().expect("it has failed").to_string();
            assert!(why.contains("io_uring_enter") && why.contains("seccomp"), "{why}");
            let error = rig.ctx.attach(&device(dir.path(), "other")).expect_err("no kernel ring").to_string();
            assert!(error.contains("io_uring_enter"), "{error}");
            data.fill(0x77);
            (&writer).write_all(&[1; 4096]).expect("written");
            drop(rig);
            assert!(data.iter().all(|byte| *byte == 0x77), "a read of the kernel came after its end");
            let mut sink = [0; 4096];
            std::io::Read::read_exact(&mut File::open(dir.path().join("pipe")).expect("opened"), &mut sink)
                .expect("read");
        };
        thread::scope(|scope| scope.spawn(run).join().expect("no panic"));
    }
    assert_eq!((real.in_flight().total(), mute.in_flight().total()), (0, 0));
}

#[test]
fn slots_for_files_are_given_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let [a, b] = ["a", "b"].map(|name| device(dir.path(), name));
    let Some((mut rig, first)) = Rig::over(&a) else { return };
    let slots = rig.ctx.kring_slot().get(false).expect("a ring").features().file_slots;
    let mut data = memory(4096, 3);
    for _ in 0..2 * slots {
        let bdev = rig.attach(&b).expect("attached");
        assert_eq!(rig.run(bdev, Op::Write, 0, 0, &mut data), Status::Ok);
        rig.ctx.detach(bdev, &mut |_: u32, _| unreachable!("nothing is on its way"));
    }
    let free = rig.ctx.kring_slot().get(false).expect("a ring").register_file(0);
    assert!(free.is_some() || slots == 0);
    assert_eq!(rig.run(first, Op::Read, 0, 0, &mut data), Status::Ok);
}

#[test]
fn another_thread_wakes_a_ring_that_waits_for_io() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mute, _writer) = silent(dir.path(), LONG, 8);
    let Some((mut rig, bdev)) = Rig::over(&mute) else { return };
    let mut data = memory(4 * 4096, 0);
    for block in data.chunks_mut(4096) {
        rig.submit(bdev, Op::Read, 0, 0, 4096, &[vec_of(block)]);
    }
    for wanted in [1, 4] {
        for _ in 0..3 {
            let unparker = rig.ctx.unparker();
            let waker = thread::spawn(move || {
                thread::sleep(Duration::from_millis(20));
                unparker.unpark();
            });
            let start = Instant::now();
            rig.ctx.wait(wanted, Some(LONG));
            assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
            rig.poll();
            waker.join().expect("woken");
        }
    }
    // Without a wake-up the wait ends after its timeout.
    let start = Instant::now();
    rig.ctx.wait(4, Some(Duration::from_millis(30)));
    assert!((Duration::from_millis(25)..Duration::from_secs(5)).contains(&start.elapsed()), "{:?}", start.elapsed());
    assert_eq!(rig.ended, []);
}

#[test]
fn flushes_beside_the_kernel_ring_end_with_it() {
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let mut host = Host::new(
        HostFile::open(dir.path().join("disk"), HostOpts { size: Some(MIB), ..HostOpts::default() }).expect("opened"),
        16,
    );
    host.beside = true;
    let device = Device::from_driver("beside", Box::new(host));
    let Some((mut rig, bdev)) = Rig::over(&device) else { return };
    let mut data = memory(8 * 4096, 4);
    for block in data.chunks_mut(4096) {
        rig.submit(bdev, Op::Write, BIO_FUA, 0, 4096, &[vec_of(block)]);
        rig.submit(bdev, Op::Flush, 0, 0, 0, &[]);
        rig.submit(bdev, Op::WriteZeroes, 0, 8192, 4096, &[]);
    }
    rig.drain();
    assert!(rig.ended.iter().all(|(_, status)| status.is_ok()), "{:?}", rig.ended);
    rig.submit(bdev, Op::Flush, 0, 0, 0, &[]);
    rig.submit(bdev, Op::WriteZeroes, 0, 8192, 4096, &[]);
    let ended = &mut rig.ended;
    rig.ctx.shutdown(&mut |owner, status| ended.push((owner, status)));
    rig.each_ended_once();
}

#[test]
fn a_ring_on_which_nobody_waits_still_gets_done() {
    // Polling alone must submit, run and finish, as a caller that never sleeps does.
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let (send, receive) = mpsc::channel();
    let device = device(dir.path(), "disk");
    let runner = thread::spawn(move || {
        let Some((mut rig, bdev)) = Rig::over(&device) else { return send.send(()).expect("sent") };
        let mut data = memory(4096, 4);
        for _ in 0..10 {
            rig.submit(bdev, Op::Write, BIO_FUA, 0, 4096, &[vec_of(&mut data)]);
            while rig.in_flight() > 0 {
                rig.poll();
            }
        }
        send.send(()).expect("sent");
    });
    receive.recv_timeout(LONG).expect("polling alone gets there");
    runner.join().expect("ran");
}
