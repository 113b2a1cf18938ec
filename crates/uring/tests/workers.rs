//! Rings and their workers: every request given to them comes back once, a shared pool serves all its rings, cancels
//! reach waiting requests, limits hold, and a dropped ring leaves the others intact.
#![allow(unsafe_code)] // Raw SQEs.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use sheave_base::status::Status;
use sheave_blk::Device;
use sheave_drivers::open_device;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::mapping::Intent;
use sheave_iomap::{File, Mapping, MappingKind};
use sheave_uring::prep::{self, Cancel, Entry};
use sheave_uring::sqe::{IOSQE_ASYNC, IOSQE_IO_DRAIN, IOSQE_IO_LINK, Sqe, opcode};
use sheave_uring::{Fd, IoWq, Ring, RingError, Waited};

use crate::support::{Puppet, buf, fsync, nop, nop_result, push, reaped, ring, run, rw};

const ECANCELED: i32 = -125;
const ETIME: i32 = -62;
const PATIENCE: Duration = Duration::from_secs(20);

/// A file whose syncs wait at a gate.
#[derive(Debug)]
struct Gated {
    device: Device,
    open: Mutex<bool>,
    opened: Condvar,
    /// Number of syncs begun, and of syncs ended.
    begun: AtomicU32,
    ended: AtomicU32,
}

impl Gated {
    fn new() -> Arc<Gated> {
        let device = open_device("null:size=1M").expect("a device");
        let (open, opened) = (Mutex::new(false), Condvar::new());
        Arc::new(Gated { device, open, opened, begun: AtomicU32::new(0), ended: AtomicU32::new(0) })
    }

    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    /// Waits until `count` syncs have begun.
    fn wait_begun(&self, count: u32) {
        until("a worker has begun", || self.begun.load(Ordering::SeqCst) >= count);
    }
}

impl File for Gated {
    fn device(&self) -> &Device {
        &self.device
    }

    fn size_bytes(&self) -> u64 {
        1 << 20
    }

    fn map(&self, pos: u64, len: u64, _: Intent) -> Result<Mapping, Status> {
        Ok(Mapping::new(MappingKind::Mapped, pos, len, pos))
    }

    fn sync(&self, _: &MayBlock) -> Option<Result<(), Status>> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let limit = Instant::now() + PATIENCE;
        let mut open = self.open.lock().unwrap();
        while !*open {
            let left = limit.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "the gate never opened");
            open = self.opened.wait_timeout(open, left).unwrap().0;
        }
        self.ended.fetch_add(1, Ordering::SeqCst);
        Some(Ok(()))
    }
}

fn until(what: &str, mut so: impl FnMut() -> bool) {
    let limit = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < limit, "never: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn async_nop(user_data: u64) -> Sqe {
    nop(user_data, IOSQE_ASYNC)
}

/// Returns a ring over a pool whose only bound worker is stuck in a sync of this file. CQE 999 is to come.
fn stuck() -> (Ring, IoWq, Arc<Gated>) {
    let wq = IoWq::builder().max_workers(1, 1).build().expect("a pool");
    let file = Gated::new();
    let mut ring = Ring::builder().entries(64).io_wq(&wq).build().expect("a ring");
    let fd = ring.attach_file(file.clone()).expect("attached");
    push(&mut ring, &[fsync(fd, 999)]);
    ring.submit().expect("submitted");
    file.wait_begun(1);
    (ring, wq, file)
}

#[test]
fn a_flood_of_nops_has_one_cqe_each_and_one_worker() {
    let mut ring = Ring::builder().entries(256).cq_entries(1024).build().unwrap();
    for round in 0..20 {
        for batch in 0..4 {
            let sqes: Vec<Sqe> = (0..256).map(|n| async_nop(round * 1024 + batch * 256 + n)).collect();
            push(&mut ring, &sqes);
            assert_eq!(ring.submit().unwrap(), 256);
        }
        let mut seen = Vec::new();
        while seen.len() < 1024 {
            assert!(ring.wait(1, Some(PATIENCE)).is_ready());
            seen.extend(reaped(&mut ring));
        }
        // If ring and worker share a CPU, the ring runs items while the worker is in the middle of others, so the order
        // varies.
        seen.sort_unstable();
        assert_eq!(seen, (0..1024).map(|n| (round * 1024 + n, 0)).collect::<Vec<_>>());
    }
    let [bound, unbound] = ring.io_wq().counts();
    assert_eq!((bound.created, unbound.created), (1, 0), "{bound:?}");
    assert_eq!(ring.wait(1, None), Waited::Idle, "nothing is left that could complete");
}

/// Submits, and sleeps until all completions are there. A ring that sleeps with work that was not handed to workers
/// never gets them: only the reap of a timeout happens between its sleeps.
fn slept_for(ring: &mut Ring, entries: Vec<Entry>) -> Vec<(u64, i32)> {
    let count = entries.len() as u32;
    for (entry, user_data) in entries.into_iter().zip(1..) {
        ring.push(entry.user_data(user_data)).expect("the SQ has room");
    }
    assert_eq!(ring.submit().expect("slots are free"), count);
    assert_eq!(ring.wait(count, Some(PATIENCE)), Waited::Ready(count), "all end: {:?}", reaped(ring));
    let mut seen = reaped(ring);
    seen.sort_unstable();
    seen
}

#[test]
fn work_started_by_timeout_is_committed_before_sleep() {
    const SOON: Duration = Duration::from_millis(5);
    const NEVER: Duration = Duration::from_secs(3600);
    let file = Gated::new();
    file.open();
    let mut ring = ring();
    let fd = ring.attach_file(file.clone()).expect("attached");
    let nop = || Entry::from(prep::nop()).run_async();
    // Behind a timeout in a chain: an operation that a worker begins, and one that queues work for a worker.
    assert_eq!(slept_for(&mut ring, vec![prep::timeout(SOON).hardlink().into(), nop()]), [(1, ETIME), (2, 0)]);
    assert_eq!(
        slept_for(&mut ring, vec![prep::timeout(SOON).hardlink().into(), prep::fsync(fd).into()]),
        [(1, ETIME), (2, 0)]
    );
    // Behind a drain.
    assert_eq!(slept_for(&mut ring, vec![prep::timeout(SOON).into(), nop().drain()]), [(1, ETIME), (2, 0)]);
    // Behind a link timeout that fired.
    let guarded = vec![prep::timeout(NEVER).hardlink().into(), prep::link_timeout(SOON).hardlink().into(), nop()];
    assert_eq!(slept_for(&mut ring, guarded), [(1, ECANCELED), (2, ETIME), (3, 0)]);
    // Behind a timeout whose count was reached. The last completion comes from a worker.
    let counted = vec![prep::timeout(NEVER).count(1).hardlink().into(), nop(), nop()];
    assert_eq!(slept_for(&mut ring, counted), [(1, 0), (2, 0), (3, 0)]);
}

#[test]
fn results_links_and_drains_of_what_ran_on_a_worker() {
    let mut ring = Ring::builder().entries(16).build().unwrap();
    let cqes = run(&mut ring, &[nop_result(1, IOSQE_ASYNC, -5), nop_result(2, IOSQE_ASYNC, 7)]);
    assert_eq!(cqes, [(1, -5), (2, 7)]);
    // The lowest numbers collide with words that have another meaning between a worker and its ring.
    for res in (0..5).map(|more| i32::MIN + more) {
        let cqes = run(&mut ring, &[nop_result(1, IOSQE_ASYNC, res), nop_result(2, IOSQE_ASYNC, res)]);
        assert_eq!(cqes, [(1, res), (2, res)]);
    }
    let chain = [nop_result(1, IOSQE_ASYNC | IOSQE_IO_LINK, -5), async_nop(2), async_nop(3)];
    let mut cqes = run(&mut ring, &chain);
    cqes.sort_unstable();
    assert_eq!(cqes, [(1, -5), (2, ECANCELED), (3, 0)]);
    let drained = [async_nop(1), nop(2, 0), nop(3, IOSQE_ASYNC | IOSQE_IO_DRAIN), nop(4, 0)];
    let cqes = run(&mut ring, &drained);
    let at = |user_data| cqes.iter().position(|&cqe| cqe == (user_data, 0)).expect("it ended");
    assert!(at(3) > at(1) && at(3) > at(2) && at(4) > at(3), "{cqes:?}");
}

#[test]
fn reads_and_bad_files_go_the_same_way() {
    let mut ring = Ring::builder().entries(16).build().unwrap();
    let fd = ring.attach(&open_device("null:size=1M").unwrap()).unwrap();
    let memory = crate::support::buf(4096);
    let read = |fd: Fd| Sqe { flags: IOSQE_ASYNC, ..rw(opcode::READ, fd, 0, memory.as_ptr() as u64, 4096, 5) };
    assert_eq!(run(&mut ring, &[read(fd)]), [(5, 4096)]);
    assert_eq!(run(&mut ring, &[read(Fd::NONE)]), [(5, -9)]);
}

#[test]
fn what_waits_behind_a_blocked_worker_is_cancelled_at_once() {
    let (mut ring, _wq, file) = stuck();
    push(&mut ring, &(0..8).map(async_nop).collect::<Vec<_>>());
    ring.submit().unwrap();
    assert_eq!(reaped(&mut ring), []);
    for user_data in [0, 4, 7] {
        assert_eq!(ring.cancel(Cancel::user_data(user_data)), Ok(1));
    }
    ring.push(prep::cancel(Cancel::user_data(5)).user_data(100)).unwrap();
    ring.submit().unwrap();
    assert_eq!(reaped(&mut ring), [(0, ECANCELED), (4, ECANCELED), (7, ECANCELED), (100, 0), (5, ECANCELED)]);
    // Their slots are reused while their entries are still in the pool.
    push(&mut ring, &(20..28).map(async_nop).collect::<Vec<_>>());
    ring.submit().unwrap();
    file.open();
    ring.drain();
    let mut rest = reaped(&mut ring);
    rest.sort_unstable();
    let expected: Vec<u64> = [1, 2, 3, 6].into_iter().chain(20..28).chain([999]).collect();
    assert_eq!(rest, expected.into_iter().map(|user_data| (user_data, 0)).collect::<Vec<_>>());
}

#[test]
fn a_guard_ends_what_waits_behind_a_blocked_worker() {
    let (mut ring, _wq, file) = stuck();
    push(&mut ring, &[nop(1, IOSQE_ASYNC | IOSQE_IO_LINK)]);
    ring.push(prep::link_timeout(Duration::from_millis(2)).user_data(2)).unwrap();
    ring.submit().unwrap();
    let mut ended = Vec::new();
    until("the guard has fired", || {
        ended.extend(reaped(&mut ring));
        ended.len() == 2
    });
    ended.sort_unstable();
    assert_eq!(ended, [(1, ECANCELED), (2, -62)]);
    file.open();
    ring.drain();
    assert_eq!(reaped(&mut ring), [(999, 0)]);
}

#[test]
fn what_runs_is_not_cancelled_and_ends_by_itself() {
    let (mut ring, _wq, file) = stuck();
    assert!(ring.cancel(Cancel::user_data(999)).is_err());
    file.open();
    ring.drain();
    assert_eq!(reaped(&mut ring), [(999, 0)]);
}

#[test]
fn a_shared_pool_serves_all_its_rings_and_their_results_do_not_mix() {
    let wq = IoWq::builder().max_workers(2, 1).name("shared").build().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let wq = wq.clone();
            scope.spawn(move || {
                let mut ring = Ring::builder().entries(64).io_wq(&wq).build().unwrap();
                for round in 0..200 {
                    let first = (thread << 32) + round * 64;
                    push(&mut ring, &(first..first + 64).map(async_nop).collect::<Vec<_>>());
                    ring.submit_and_wait(64).unwrap();
                    assert_eq!(reaped(&mut ring), (first..first + 64).map(|at| (at, 0)).collect::<Vec<_>>());
                }
            });
        }
    });
    let bound = wq.counts()[0];
    assert!(bound.created <= 2 && bound.workers <= bound.limit && bound.queued == 0, "{bound:?}");
}

#[test]
fn a_ring_that_goes_takes_its_work_back_and_leaves_the_pool_to_the_others() {
    let (mut ring, wq, file) = stuck();
    let mut other = Ring::builder().entries(64).io_wq(&wq).build().unwrap();
    push(&mut other, &(0..32).map(async_nop).collect::<Vec<_>>());
    other.submit().unwrap();
    // Only starts of operations are queued. They are dropped with the ring, although no worker is free.
    drop(other);
    let mut third = Ring::builder().entries(64).io_wq(&wq).build().unwrap();
    push(&mut third, &[async_nop(1)]);
    third.submit().unwrap();
    file.open();
    third.drain();
    ring.drain();
    assert_eq!((reaped(&mut third), reaped(&mut ring)), (vec![(1, 0)], vec![(999, 0)]));
}

#[test]
fn dropping_a_ring_runs_the_completions_that_it_began() {
    let (ring, wq, file) = stuck();
    let opener = {
        let file = Arc::clone(&file);
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(5));
            file.open();
        })
    };
    drop(ring);
    assert_eq!(file.ended.load(Ordering::SeqCst), 1, "the drop has waited for it");
    opener.join().unwrap();
    assert_eq!(wq.counts()[0].queued, 0);
}

#[test]
fn blocked_syncs_bring_workers_up_to_the_limit_and_limits_change() {
    let wq = IoWq::builder().max_workers(4, 1).idle_timeout(Duration::from_millis(50)).build().unwrap();
    let file = Gated::new();
    let mut ring = Ring::builder().entries(64).io_wq(&wq).build().unwrap();
    // Syncs of one open file share a batch, so each of these has its own open file.
    let syncs: Vec<Sqe> = (0..16).map(|n| fsync(ring.attach_file(file.clone()).unwrap(), n)).collect();
    push(&mut ring, &syncs);
    ring.submit().unwrap();
    file.wait_begun(4);
    let bound = wq.counts()[0];
    assert_eq!((bound.workers, bound.limit), (4, 4), "{bound:?}");
    assert_eq!(wq.set_max_workers(Some(2), None).unwrap(), [4, 1]);
    file.open();
    ring.drain();
    assert_eq!(reaped(&mut ring).len(), 16);
    until("two have gone, then all, for they are idle", || wq.counts()[0].workers == 0);
    assert_eq!(wq.counts()[0].limit, 2);
}

#[test]
fn threads_bear_the_name_of_the_pool() {
    let (mut ring, _wq, file) = stuck();
    let named = |name: &str| {
        let tasks = std::fs::read_dir("/proc/self/task").expect("proc");
        let names = tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
        names.into_iter().any(|comm| comm.trim() == name)
    };
    let own = IoWq::builder().name("mine").build().unwrap();
    let mut other = Ring::builder().entries(8).io_wq(&own).build().unwrap();
    assert_eq!(run(&mut other, &[async_nop(1)]), [(1, 0)]);
    assert!(named("mine-0") && named("sheave-wq-0"));
    file.open();
    ring.drain();
}

#[test]
fn workers_run_where_they_are_told_to_and_are_moved() {
    let cpus_of = |name: &str| {
        let tasks = std::fs::read_dir("/proc/self/task").expect("proc").flatten();
        let status = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok());
        let of_pool = status.filter(|status| status.starts_with(&format!("Name:\t{name}")));
        of_pool
            .filter_map(|status| Some(status.split_once("Cpus_allowed_list:\t")?.1.lines().next()?.to_owned()))
            .collect::<Vec<_>>()
    };
    let all = std::fs::read_to_string(format!("/proc/{}/status", std::process::id())).expect("proc");
    let all = all.split_once("Cpus_allowed_list:\t").and_then(|(_, rest)| rest.lines().next()).expect("a list");
    let first: usize = all.split(['-', ',']).next().and_then(|cpu| cpu.parse().ok()).expect("a CPU");
    let wq = IoWq::builder().name("placed").cpus(&[first]).build().unwrap();
    let mut ring = Ring::builder().entries(8).io_wq(&wq).build().unwrap();
    assert_eq!(run(&mut ring, &[async_nop(1)]), [(1, 0)]);
    assert_eq!(cpus_of("placed"), [first.to_string()]);
    wq.set_cpus(&[]).unwrap();
    assert_eq!(cpus_of("placed"), [all]);
    wq.set_cpus(&[first]).unwrap();
    assert_eq!(cpus_of("placed"), [first.to_string()]);
    assert!(matches!(wq.set_cpus(&[100_000]), Err(RingError::Cpu(100_000))));
}

#[test]
fn settings_out_of_bounds_are_refused_with_their_bounds() {
    for (bound, unbound) in [(0, 1), (1, 0), (4097, 1), (1, 4097)] {
        let refused = IoWq::builder().max_workers(bound, unbound).build();
        assert!(matches!(refused, Err(RingError::Setting { low: 1, high: 4096, .. })), "{refused:?}");
    }
    let wq = IoWq::builder().build().unwrap();
    assert!(wq.set_max_workers(Some(0), None).is_err() && wq.set_max_workers(None, Some(5000)).is_err());
    assert!(matches!(IoWq::builder().cpus(&[100_000]).build(), Err(RingError::Cpu(100_000))));
    assert!(matches!(IoWq::builder().name("a\0b").build(), Err(RingError::WorkerName)));
    let before = wq.counts().map(|acct| acct.limit);
    assert_eq!(wq.set_max_workers(None, None).unwrap(), before);
}

#[test]
fn a_file_of_a_ring_that_is_gone_is_closed_while_a_worker_is_stuck_for_another_ring() {
    let wq = IoWq::builder().max_workers(1, 1).help(false).build().unwrap();
    let (gate, file) = (Gated::new(), Gated::new());
    let mut ring = Ring::builder().entries(8).io_wq(&wq).build().unwrap();
    let fd = ring.attach_file(file.clone()).unwrap();
    push(&mut ring, &[async_nop(0)]);
    ring.submit().unwrap();
    ring.drain();
    // The worker has both rings in its copy of the table.
    let mut stuck = Ring::builder().entries(8).io_wq(&wq).build().unwrap();
    let gated = stuck.attach_file(gate.clone()).unwrap();
    push(&mut stuck, &[fsync(gated, 999)]);
    stuck.submit().unwrap();
    gate.wait_begun(1);
    push(&mut ring, &[fsync(fd, 1), async_nop(2)]);
    let memory = crate::support::buf(4096);
    push(&mut ring, &[Sqe { flags: IOSQE_ASYNC, ..rw(opcode::READ, fd, 0, memory.as_ptr() as u64, 4096, 3) }]);
    ring.submit().unwrap();
    drop(ring);
    assert_eq!(Arc::strong_count(&file), 1, "only this test has it");
    gate.open();
    stuck.drain();
}

/// Returns a ring that does not poll, with `reads` reads that its workers have begun and the device holds.
fn reads_on_workers(puppet: &Puppet, reads: u64) -> Ring {
    let wq = IoWq::builder().max_workers(1, 1).build().expect("a pool");
    let mut ring = Ring::builder().entries(16).spin(Duration::ZERO).io_wq(&wq).build().expect("a ring");
    let fd = ring.attach(&puppet.device()).expect("attached");
    for n in 0..reads {
        ring.push(prep::read(fd, buf(4096)).offset(n << 20).run_async().user_data(n)).expect("room");
    }
    ring.submit().expect("submitted");
    until("the device has them", || puppet.sectors_seen().len() as u64 == reads);
    ring
}

/// Waits, and asserts that the ring was woken: a ring whose time is over would find the completions by itself.
fn woken(ring: &mut Ring, wanted: u32) -> Waited {
    let start = Instant::now();
    let waited = ring.wait(wanted, Some(PATIENCE));
    assert!(start.elapsed() < PATIENCE, "nobody has woken it");
    waited
}

#[test]
fn wake_count_is_reset_after_timed_out_wait() {
    let puppet = Puppet::new().holding();
    let mut ring = reads_on_workers(&puppet, 4);
    assert_eq!(ring.wait(4, Some(Duration::from_millis(5))), Waited::TimedOut);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            puppet.script().finish = 1;
        });
        assert_eq!(woken(&mut ring, 1), Waited::Ready(1));
    });
}

#[test]
fn a_timeout_that_counts_hears_of_each_result_while_its_ring_waits_for_more() {
    let puppet = Puppet::new().holding();
    let mut ring = reads_on_workers(&puppet, 4);
    ring.push(prep::timeout(Duration::from_secs(3600)).count(1).user_data(99)).expect("room");
    ring.submit().expect("submitted");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            puppet.script().finish = 1;
        });
        assert_eq!(woken(&mut ring, 2), Waited::Ready(2), "the read, and the timeout that it ends");
    });
    let ended = reaped(&mut ring);
    assert!(ended.contains(&(99, 0)), "{ended:?}");
}

/// A file that runs an asynchronous operation on its own pool when it is dropped.
#[derive(Debug)]
struct LastWords {
    device: Device,
    wq: IoWq,
    said: std::sync::mpsc::Sender<Vec<(u64, i32)>>,
}

impl File for LastWords {
    fn device(&self) -> &Device {
        &self.device
    }

    fn size_bytes(&self) -> u64 {
        1 << 20
    }

    fn map(&self, pos: u64, len: u64, _: Intent) -> Result<Mapping, Status> {
        Ok(Mapping::new(MappingKind::Mapped, pos, len, pos))
    }

    fn sync(&self, _: &MayBlock) -> Option<Result<(), Status>> {
        Some(Ok(()))
    }
}

impl Drop for LastWords {
    fn drop(&mut self) {
        let mut ring = Ring::builder().entries(8).io_wq(&self.wq).build().expect("a ring");
        let ended = run(&mut ring, &[async_nop(7)]);
        // The receiver is gone if the test has failed.
        let _ = self.said.send(ended);
    }
}

#[test]
fn a_file_may_use_its_own_pool_when_it_goes_however_it_goes() {
    for rounds in 0..8 {
        let wq = IoWq::builder().max_workers(1, 1).build().expect("a pool");
        let (said, heard) = std::sync::mpsc::channel();
        let device = open_device("ram:size=1M").expect("a device");
        let file = Arc::new(LastWords { device, wq: wq.clone(), said });
        // Runs on another thread, so that a deadlock fails the test and does not hang it.
        let thread = std::thread::spawn(move || {
            let mut ring = Ring::builder().entries(8).io_wq(&wq).build().expect("a ring");
            let fd = ring.attach_file(file).expect("attached");
            let memory = buf(4096);
            let read = rw(opcode::READ, fd, 0, memory.as_ptr() as u64, 4096, 1);
            push(&mut ring, &[Sqe { flags: IOSQE_ASYNC, ..read }, fsync(fd, 2), Sqe { user_data: 3, ..read }]);
            ring.submit().expect("submitted");
            // With work that is queued, in progress or ended; the file is detached before the ring is dropped, or with
            // it.
            (0..rounds / 2).for_each(|_| ring.reap());
            if rounds % 2 == 0 {
                ring.detach(fd).expect("attached");
            }
            drop(ring);
            drop(memory);
        });
        assert_eq!(heard.recv_timeout(PATIENCE).expect("it went, and the pool served it"), [(7, 0)]);
        thread.join().expect("no panic");
    }
}
