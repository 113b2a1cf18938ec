//! Both engines: the same tests where io_uring is forbidden, the choice between them, and features of the threads
//! alone.

use std::io::Write;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use super::rig::{LONG, Rig, memory, vec_of};
use super::trouble::silent_by;
use super::*;
use crate::open_device;
use sheave_base::status::Status;
use sheave_blk::bio::{BIO_FUA, Op};
use sheave_testkit::seccomp;

/// Tests of this directory that test the kernel ring itself or its ability to cancel a read, and tests that cannot
/// share a process with others, because they count its locks or threads.
const NOT_THERE: [&str; 13] = [
    "registered_buffers_serve_before_and_after_the_kernel_ring_is_made",
    "two_devices_of_a_ring_share_its_kernel_ring_and_two_rings_a_device",
    "a_kernel_ring_that_takes_nothing_more_does_not_hold_up_the_end",
    "slots_for_files_are_given_back",
    "a_ring_that_goes_ends_each_io_once_and_frees_the_memory_after_it",
    "another_thread_wakes_a_ring_that_waits_for_io",
    "a_read_that_nobody_answers_times_out_once",
    "where_io_uring_is_forbidden",
    "whatever_refuses_rings",
    "a_kernel_ring_that_is_forbidden_later",
    "threads_come_with_work",
    "each_request_of_a_batch_has_a_thread",
    "claim::",
];

/// Runs under a filter like Docker's default profile, which returns EPERM for io_uring_setup.
#[test]
fn the_same_tests_pass_where_io_uring_is_forbidden() {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["host::tests::", "--test-threads=4"]);
    // Among others this test itself, which would start itself again and again.
    for test in NOT_THERE {
        command.args(["--skip", test]);
    }
    let out = thread::scope(|scope| {
        let run = || {
            seccomp::forbid_rings();
            command.output().expect("it runs")
        };
        scope.spawn(run).join().expect("no panic")
    });
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{said}{}", String::from_utf8_lossy(&out.stderr));
    let passed = said.split("test result: ok. ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<u32>().ok());
    assert!(passed.is_some_and(|passed| passed >= 35), "{said}");
}

fn engine_of(spec: &str) -> (Option<Engine>, Vec<String>) {
    let device = open_device(spec).expect("a device");
    let engine = device.capabilities().engine;
    if let Some((mut rig, bdev)) = Rig::over(&device) {
        let mut data = memory(4096, 1);
        assert_eq!(rig.run(bdev, Op::Write, 0, 0, &mut data), Status::Ok);
    }
    (engine, device.notices())
}

#[test]
fn the_engine_is_what_the_spec_says_or_what_is_allowed() {
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let spec = |more: &str| format!("file:{},size=1M{more}", dir.path().join("disk").display());
    let told = |notices: &[String]| notices.iter().filter(|notice| notice.contains("engine=sync")).count();
    let (engine, notices) = engine_of(&spec(",engine=sync"));
    assert_eq!((engine, told(&notices)), (Some(Engine::Sync), 0), "asked for, so nobody needs to be told: {notices:?}");
    assert_eq!(open_device("ram:size=1M").expect("a device").capabilities().engine, None);
    let error = open_device(&spec(",engine=fast")).expect_err("no such engine").to_string();
    assert!(error.contains("uring") && error.contains("sync"), "{error}");
    thread::scope(|scope| {
        let run = || {
            seccomp::forbid_rings();
            for more in ["", ",engine=auto"] {
                let device = open_device(&spec(more)).expect("a device");
                assert_eq!(device.capabilities().engine, Some(Engine::Sync));
                let rigs: Vec<_> = (0..3).map(|_| Rig::over(&device).expect("attached")).collect();
                assert_eq!(told(&device.notices()), 1, "once: {:?}", device.notices());
                assert!(device.notices().iter().any(|n| n.contains("seccomp")), "{:?}", device.notices());
                drop(rigs);
            }
            // An error for engine=uring names the cause and the fix.
            let device = open_device(&spec(",engine=uring")).expect("a device");
            let error = Rig::new().ctx.attach(&device).expect_err("forbidden");
            assert!(matches!(error, DeviceError::Kring { .. }), "{error}");
        };
        scope.spawn(run).join().expect("no panic");
    });
}

/// Other reasons for which a process cannot have rings, and a filter of some of the calls: each selects the other
/// engine, except a lack of descriptors.
#[test]
fn whatever_refuses_rings_leaves_the_other_engine() {
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let spec = format!("file:{},size=1M", dir.path().join("disk").display());
    let cases = [
        (libc::SYS_io_uring_setup, libc::EOPNOTSUPP),
        (libc::SYS_io_uring_setup, libc::ENOMEM),
        (libc::SYS_io_uring_setup, libc::EINVAL),
        (libc::SYS_io_uring_setup, libc::EAGAIN),
        (libc::SYS_io_uring_enter, libc::EPERM),
        (libc::SYS_io_uring_enter, libc::ENOSYS),
    ];
    for (call, errno) in cases {
        let run = || {
            seccomp::refuse(call, errno);
            let (engine, notices) = engine_of(&spec);
            // `engine_of` has also written, by that engine.
            assert_eq!(engine, Some(Engine::Sync), "{errno}: {notices:?}");
            assert!(notices.iter().any(|notice| notice.contains("engine=sync")), "{errno}: {notices:?}");
        };
        thread::scope(|scope| scope.spawn(run).join().expect("no panic"));
    }
    for errno in [libc::EMFILE, libc::ENFILE] {
        let run = || {
            seccomp::refuse(libc::SYS_io_uring_setup, errno);
            let error = Rig::new().ctx.attach(&open_device(&spec).expect("a device")).expect_err("no descriptor");
            assert!(error.to_string().contains("ulimit -n"), "{error}");
        };
        thread::scope(|scope| scope.spawn(run).join().expect("no panic"));
    }
}

#[test]
fn a_call_that_does_not_come_back_is_told_and_waited_for() {
    let dir = tempfile::tempdir().expect("a directory");
    let (device, writer) = silent_by(Engine::Sync, dir.path(), Duration::from_millis(50), 100);
    let (mut rig, bdev) = Rig::over(&device).expect("attached");
    // Declared after the ring and so dropped before it: if this test fails, the ring waits for reads that then end.
    let mut writer = writer;
    // More reads than threads: those that no thread has begun can be ended. A slow machine has some more of them.
    let mut data = memory(70 * 4096, 0);
    for block in data.chunks_mut(4096) {
        rig.submit(bdev, Op::Read, 0, 0, 4096, &[vec_of(block)]);
    }
    let start = Instant::now();
    while rig.ended.len() < 6 || device.notices().is_empty() {
        rig.ctx.wait(1, Some(Duration::from_millis(20)));
        rig.poll();
        assert!(start.elapsed() < LONG, "{:?}: {:?}", device.notices(), rig.ended);
    }
    assert!(rig.ended.iter().all(|(_, status)| *status == Status::Timeout), "{:?}", rig.ended);
    assert!(device.notices()[0].contains("waits in the kernel"), "{:?}", device.notices());
    // The end of the ring waits for the other reads, because the kernel may still access their memory.
    let feeder = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        // Writes until the reading end is closed.
        while writer.write_all(&[8; 4096]).is_ok() {}
    });
    let ended = &mut rig.ended;
    rig.ctx.shutdown(&mut |owner, status| ended.push((owner, status)));
    rig.each_ended_once();
    assert!(rig.ended.iter().any(|(_, status)| status.is_ok()), "{:?}", rig.ended);
    for (owner, status) in &rig.ended {
        let block = &data[*owner as usize * 4096..][..4096];
        let was_read = status.is_ok();
        assert!(block.iter().all(|byte| *byte == if was_read { 8 } else { 0 }), "{owner}: {status:?}");
        assert!(was_read || matches!(status, Status::Timeout | Status::Canceled), "{owner}: {status:?}");
    }
    assert_eq!(device.in_flight().total(), 0);
    drop((rig, device));
    feeder.join().expect("fed");
}

#[test]
fn a_ring_that_goes_takes_back_what_no_thread_has_begun_and_nothing_of_another() {
    let dir = tempfile::tempdir().expect("a directory");
    let (device, mut writer) = silent_by(Engine::Sync, dir.path(), LONG, 100);
    let (mut stays, on) = Rig::over(&device).expect("attached");
    let mut kept = memory(66 * 4096, 0);
    for block in kept.chunks_mut(4096) {
        stays.submit(on, Op::Read, 0, 0, 4096, &[vec_of(block)]);
    }
    let (mut goes, bdev) = Rig::over(&device).expect("attached");
    let mut lost = memory(4096, 0);
    goes.submit(bdev, Op::Read, 0, 0, 4096, &[vec_of(&mut lost)]);
    let ended = &mut goes.ended;
    goes.ctx.shutdown(&mut |owner, status| ended.push((owner, status)));
    assert_eq!(goes.ended, [(0, Status::Canceled)]);
    writer.write_all(&[3; 16 * 4096]).expect("written");
    let feeder = thread::spawn(move || writer.write_all(&[3; 50 * 4096]).expect("written"));
    stays.drain();
    feeder.join().expect("fed");
    assert!(stays.ended.iter().all(|(_, status)| status.is_ok()) && kept.iter().all(|byte| *byte == 3));
}

/// Returns the directories of the file threads in /proc.
fn file_threads() -> impl Iterator<Item = PathBuf> {
    let tasks = fs::read_dir("/proc/self/task").expect("tasks").flatten().map(|task| task.path());
    tasks.filter(|task| fs::read(task.join("comm")).is_ok_and(|comm| comm == b"sheave-file\n"))
}

#[test]
fn each_request_of_a_batch_has_a_thread_of_those_that_sleep() {
    let dir = tempfile::tempdir().expect("a directory");
    let (device, mut writer) = silent_by(Engine::Sync, dir.path(), LONG, 100);
    let (mut rig, bdev) = Rig::over(&device).expect("attached");
    let mut data = memory(16 * 4096, 0);
    let call = format!("{} ", libc::SYS_preadv2);
    let reading =
        || file_threads().filter(|task| fs::read_to_string(task.join("syscall")).is_ok_and(|s| s.starts_with(&call)));
    for round in 0..3 {
        rig.ctx.start_plug(16);
        for block in data.chunks_mut(4096) {
            rig.submit(bdev, Op::Read, 0, 0, 4096, &[vec_of(block)]);
        }
        rig.ctx.finish_plug();
        let start = Instant::now();
        while reading().count() < 16 {
            assert!(start.elapsed() < LONG, "round {round}: {} threads wait for the 16 reads", reading().count());
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(file_threads().count(), 16, "round {round}");
        writer.write_all(&[7; 16 * 4096]).expect("written");
        rig.drain();
        // All threads go to sleep, so the next round has to wake them.
        while reading().count() > 0 {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// O_DSYNC covers only writes, so zeroes and holes need a sync. If syncs are impossible, they fail on a file with
/// sync=on, and succeed on another.
#[test]
fn zeroes_and_holes_of_a_file_that_is_written_through_are_synced() {
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    thread::scope(|scope| {
        let run = || {
            seccomp::forbid(libc::SYS_fdatasync);
            for (sync, name) in [(true, "on"), (false, "off")] {
                let path = dir.path().join(name);
                let spec = format!("file:{},size=1M,engine=sync,sync={name}", path.display());
                let device = open_device(&spec).expect("a device");
                let (mut rig, bdev) = Rig::over(&device).expect("attached");
                assert_eq!(device.capabilities().volatile_cache, !sync);
                for op in [Op::WriteZeroes, Op::Discard] {
                    let status = rig.run_range(bdev, op, 0, 4096, 4096);
                    assert_eq!(status.is_ok(), !sync, "{op:?} with sync={name}: {status:?}");
                }
            }
        };
        scope.spawn(run).join().expect("no panic");
    });
}

#[test]
fn threads_come_with_work_and_go_with_the_device() {
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let threads = || file_threads().count();
    let spec = format!("file:{},size=1M,engine=sync", dir.path().join("disk").display());
    let device = open_device(&spec).expect("a device");
    let (mut rig, bdev) = Rig::over(&device).expect("attached");
    let mut data = memory(16 * 4096, 5);
    for _ in 0..50 {
        rig.ctx.start_plug(16);
        for (n, block) in data.chunks_mut(4096).enumerate() {
            rig.submit(bdev, Op::Write, BIO_FUA, n as u64 * 8192, 4096, &[vec_of(block)]);
        }
        rig.ctx.finish_plug();
        rig.submit(bdev, Op::Flush, 0, 0, 0, &[]);
        rig.drain();
    }
    let many = threads();
    assert!((1..=17).contains(&many), "{many} threads for 17 requests at a time");
    drop((rig, device));
    assert_eq!(threads(), 0);
}
