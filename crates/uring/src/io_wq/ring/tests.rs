//! A ring whose pool can create no thread: a pool that was shut down behaves like one.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sheave_base::buf::Buf;
use sheave_base::grace::Grace;
use sheave_base::status::Status;
use sheave_blk::Device;
use sheave_drivers::open_device;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::mapping::{Intent, MapFlags, Mapping, MappingKind};
use sheave_iomap::{File, SummedDone, WriteDone};

use super::super::pool::Pool;
use super::super::ring_work::{Kind, RingSource, Work};
use super::super::shared::PoolOptions;
use super::super::{Cancelled, IoWq, RingWq};
use crate::Ring;
use crate::prep;

#[test]
fn without_a_thread_the_ring_issues_what_only_wanted_to_be_asynchronous() {
    let mut ring = Ring::builder().entries(8).build().expect("a ring");
    ring.io_wq().pool.shutdown();
    for user_data in 0..4 {
        ring.push(prep::nop().run_async().user_data(user_data)).expect("room");
    }
    ring.submit_and_wait(4).expect("submitted");
    let ended: Vec<_> = ring.completions().map(|c| (c.user_data, c.res)).collect();
    assert_eq!(ended, [(0, 0), (1, 0), (2, 0), (3, 0)]);
    assert_eq!(ring.in_flight(), 0);
}

/// Space in which every write is the first to its place; with or without checksums.
#[derive(Debug)]
struct New {
    device: Device,
    grace: Arc<Grace>,
    flags: MapFlags,
    calls: Mutex<Vec<&'static str>>,
}

impl File for New {
    fn device(&self) -> &Device {
        &self.device
    }

    fn size_bytes(&self) -> u64 {
        1 << 20
    }

    fn grace(&self) -> Option<&Arc<Grace>> {
        Some(&self.grace)
    }

    fn map(&self, pos: u64, len: u64, _: Intent) -> Result<Mapping, Status> {
        Ok(Mapping::new(MappingKind::Unwritten, pos, len, pos).flags(self.flags))
    }

    fn end_summed(&self, _: &SummedDone<'_>) -> Result<(), Status> {
        Err(Status::Again)
    }

    fn end_summed_blocking(&self, _: &SummedDone<'_>, _: &MayBlock) -> Result<(), Status> {
        assert_eq!(self.grace.seats(), 1, "the ring is counted");
        self.calls.lock().unwrap().push("sum");
        Ok(())
    }

    fn end_write(&self, done: WriteDone<'_>, _: &MayBlock) -> Result<(), Status> {
        assert_eq!((self.grace.seats(), done.status), (1, Status::Ok));
        self.calls.lock().unwrap().push("end");
        Ok(())
    }
}

#[test]
fn without_a_thread_the_file_hears_of_the_end_of_every_write_all_the_same() {
    for (flags, calls) in [(MapFlags::NONE, vec!["end"; 2]), (MapFlags::SUMMED, vec!["sum", "sum", "end", "end"])] {
        for reaps in 0..4 {
            let device = open_device("ram:size=1M").expect("a device");
            let (grace, calls_made) = (Arc::new(Grace::new()), Mutex::new(Vec::new()));
            let file = Arc::new(New { device, grace, flags, calls: calls_made });
            let mut ring = Ring::builder().entries(8).polled(true).build().expect("a ring");
            ring.io_wq().pool.shutdown();
            let fd = ring.attach_file(file.clone()).expect("attached");
            for n in 0..2 {
                let entry = prep::write(fd, Buf::zeroed(4096, 4096).expect("memory")).offset(n * 4096).user_data(n);
                ring.push(entry).expect("room");
            }
            ring.submit().expect("submitted");
            let ticket = file.grace.start();
            // The ring is dropped this many steps before or after the end.
            if reaps == 3 {
                ring.drain();
                let ended: Vec<_> = ring.completions().map(|c| (c.user_data, c.res)).collect();
                assert_eq!(ended, [(0, 4096), (1, 4096)], "slower for the caller, and right");
                assert!(file.grace.is_over(ticket));
            }
            (0..reaps % 3).for_each(|_| ring.reap());
            drop(ring);
            let mut heard = file.calls.lock().unwrap().clone();
            heard.sort_unstable_by_key(|call| *call == "end");
            assert_eq!(heard, calls, "dropped after {reaps} reaps");
            assert!(file.grace.is_over(ticket) && file.grace.seats() == 0);
        }
    }
}

/// File whose sync waits until another sync has begun.
#[derive(Debug)]
struct Pair(Device, AtomicU32);

impl File for Pair {
    fn device(&self) -> &Device {
        &self.0
    }

    fn size_bytes(&self) -> u64 {
        1 << 20
    }

    fn map(&self, pos: u64, len: u64, _: Intent) -> Result<Mapping, Status> {
        Ok(Mapping::new(MappingKind::Mapped, pos, len, pos))
    }

    fn sync(&self, _: &MayBlock) -> Option<Result<(), Status>> {
        self.1.fetch_add(1, Ordering::SeqCst);
        let limit = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while self.1.load(Ordering::SeqCst) < 2 {
            assert!(std::time::Instant::now() < limit, "no second worker has come");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        Some(Ok(()))
    }
}

/// Makes a pool in which the creation of those threads fails whose numbers `refuses` accepts.
fn gated(tries: &Arc<AtomicU32>, refuses: impl Fn(u32) -> bool + Send + Sync + 'static) -> IoWq {
    let tried = Arc::clone(tries);
    let gate = move || match refuses(tried.fetch_add(1, Ordering::SeqCst)) {
        true => Err(std::io::Error::other("on purpose")),
        false => Ok(()),
    };
    let options = PoolOptions { max_workers: [4, 1], ..PoolOptions::default() };
    IoWq { pool: Pool::with_gate(options, Some(Arc::new(gate))) }
}

/// Makes a ring that has submitted a sync of two files; one ends when the other has begun.
fn two_syncs(pool: &IoWq) -> (Ring, Arc<Pair>) {
    let mut ring = Ring::builder().entries(8).io_wq(pool).build().expect("a ring");
    let file = Arc::new(Pair(open_device("null:size=1M").expect("a device"), AtomicU32::new(0)));
    for n in 0..2 {
        let fd = ring.attach_file(file.clone()).expect("attached");
        ring.push(prep::fsync(fd).user_data(n)).expect("room");
    }
    ring.submit().expect("submitted");
    (ring, file)
}

#[test]
fn a_ring_that_waits_makes_the_worker_that_could_not_be_made() {
    let tries = Arc::new(AtomicU32::new(0));
    let (mut ring, _) = two_syncs(&gated(&tries, |n| (1..=5).contains(&n)));
    ring.submit_and_wait(2).expect("submitted");
    assert!(ring.completions().all(|c| c.res == 0));
    assert!(tries.load(Ordering::SeqCst) > 6);
}

#[test]
fn a_ring_that_waits_for_a_thread_sleeps_between_its_tries() {
    let tries = Arc::new(AtomicU32::new(0));
    let (mut ring, file) = two_syncs(&gated(&tries, |n| n > 0));
    let (limit, mut waits) = (Instant::now() + Duration::from_secs(30), 0);
    let tried = loop {
        assert_eq!(ring.wait(1, Some(Duration::from_millis(300))), crate::Waited::TimedOut);
        waits += 1;
        let tried = tries.load(Ordering::SeqCst);
        // On a busy machine the ring may have been awake only at the begin and at the end of a wait.
        if tried >= 3 {
            break tried;
        }
        assert!(Instant::now() < limit, "{tried} tries in {waits} waits of 300 ms");
    };
    assert!(tried < waits * 60, "one try each 10 ms, not {tried} in {waits} waits of 300 ms");
    file.1.fetch_add(1, Ordering::SeqCst);
    ring.drain();
    assert_eq!(ring.completions().count(), 2);
}

#[test]
fn a_wait_from_outside_tries_again_to_make_a_worker() {
    let tries = Arc::new(AtomicU32::new(0));
    let (mut ring, file) = two_syncs(&gated(&tries, |n| n > 0));
    let limit = Instant::now() + Duration::from_secs(20);
    while !ring.state().core.wq.is_starved() {
        assert!(Instant::now() < limit, "no second worker was wanted");
        std::thread::yield_now();
    }
    let tried = tries.load(Ordering::SeqCst);
    let wait = loop {
        // A report of the pool's state may come first.
        if let Some(wait) = ring.prepare_wait() {
            break wait;
        }
    };
    assert!(wait.timeout.is_some_and(|time| time <= Duration::from_millis(10)), "{:?}", wait.timeout);
    assert!(tries.load(Ordering::SeqCst) > tried);
    file.1.fetch_add(1, Ordering::SeqCst);
    ring.drain();
}

#[test]
fn a_sync_that_the_pool_has_no_place_for_ends_with_its_time_limit() {
    let wq = IoWq::builder().build().expect("a pool");
    let parker = sheave_base::parker::Parker::new().expect("a parker");
    let task_work = crate::task_work::TaskWork::new(1, 1, parker.unparker());
    let others: Vec<_> = (0..super::super::MAX_CLIENTS)
        .map(|_| wq.pool.submitter(RingSource::new(task_work.done_queue(), 1, || None), 1).expect("a place"))
        .collect();
    let mut ring = Ring::builder().entries(8).io_wq(&wq).build().expect("a ring");
    let file = Arc::new(Pair(open_device("null:size=1M").expect("a device"), AtomicU32::new(2)));
    let fd = ring.attach_file(file).expect("attached");
    for round in 0..3 {
        ring.push(prep::fsync(fd).link().user_data(round)).expect("room");
        ring.push(prep::link_timeout(Duration::from_secs(60)).user_data(9)).expect("room");
        ring.submit_and_wait(2).expect("submitted");
        let mut ended: Vec<_> = ring.completions().map(|c| (c.user_data, c.res)).collect();
        ended.sort_unstable();
        assert_eq!(ended, [(round, -11), (9, -125)]);
        assert_eq!(ring.in_flight(), 0);
        assert!(!ring.state().core.timers.is_armed(), "nobody is left to guard");
    }
    drop(others);
}

#[test]
fn a_cancel_gives_the_work_up_at_once_and_nothing_is_expected_of_it() {
    let file = Arc::new(New {
        device: open_device("null:size=1M").expect("a device"),
        grace: Arc::new(Grace::new()),
        flags: MapFlags::NONE,
        calls: Mutex::new(Vec::new()),
    });
    let parker = sheave_base::parker::Parker::new().expect("a parker");
    let task_work = crate::task_work::TaskWork::new(4, 4, parker.unparker());
    let pool = IoWq::builder().stepped(true).build().expect("a pool");
    let mut wq = RingWq::new(pool, task_work.done_queue(), 4, || None);
    assert!(wq.queue(2, Work::Sync(file.clone())) && wq.wants_steps());
    wq.commit();
    assert_eq!(Arc::strong_count(&file), 2);
    assert_eq!(wq.cancel(2), Cancelled::Queued);
    assert_eq!(Arc::strong_count(&file), 1);
    assert!(!wq.wants_steps());
}

/// Makes a connection to a pool without a worker.
fn way(slots: u32) -> RingWq {
    let parker = sheave_base::parker::Parker::new().expect("a parker");
    let task_work = crate::task_work::TaskWork::new(slots, slots, parker.unparker());
    let pool = IoWq::builder().stepped(true).build().expect("a pool");
    RingWq::new(pool, task_work.done_queue(), slots, || None)
}

#[test]
fn a_ring_sleeps_until_several_results_only_while_each_of_them_is_one_cqe() {
    let mut wq = way(8);
    let offload = |wq: &mut RingWq, slot, alone| assert!(wq.offload(slot, Work::Nothing, Kind::Short, alone));
    assert_eq!(wq.results_to_wait_for(8), 0, "nothing is on its way");
    (0..3).for_each(|slot| offload(&mut wq, slot, true));
    assert_eq!([1, 3, 8].map(|wanted| wq.results_to_wait_for(wanted)), [1, 3, 3], "no more than there are");
    offload(&mut wq, 3, false);
    assert_eq!(wq.results_to_wait_for(8), 0, "another follows one of them");
    offload(&mut wq, 4, true);
    assert_eq!(wq.results_to_wait_for(8), 0, "that one may be still to come");
    (0..5).for_each(|_| wq.took());
    offload(&mut wq, 5, true);
    assert_eq!(wq.results_to_wait_for(8), 1, "all of them have come");
}

#[test]
fn a_wait_from_outside_wakes_the_worker_that_was_not_woken() {
    let cpu = rustix::thread::sched_getcpu();
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).expect("this thread's own CPU");
    let wq = IoWq::builder().cpus(&[cpu]).build().expect("a pool");
    let mut ring = Ring::builder().entries(8).io_wq(&wq).build().expect("a ring");
    let limit = std::time::Instant::now() + std::time::Duration::from_secs(20);
    let mut deferred = 0;
    while deferred < 5 {
        assert!(std::time::Instant::now() < limit, "{deferred} wake-ups were put off");
        ring.push(prep::nop().run_async()).expect("room");
        ring.submit().expect("submitted");
        let was_deferred = ring.state().core.wq.has_deferred();
        deferred += u32::from(was_deferred);
        // A result that is already there ends the wait at once.
        let waits = ring.prepare_wait().is_some();
        assert!(!(waits && ring.state().core.wq.has_deferred()), "it will sleep, and nobody helps");
        ring.drain();
        assert_eq!(ring.completions().count(), 1);
    }
}

/// Without threads the ring issues operations meant for workers. Their work entry is removed, also for a NOP, which
/// puts no work of its own into the slot.
#[test]
fn stepped_offload_leaves_no_work_entry_behind() {
    let fails = Arc::new(AtomicBool::new(true));
    let flag = Arc::clone(&fails);
    let gate = move || if flag.load(Ordering::Relaxed) { Err(std::io::Error::other("on purpose")) } else { Ok(()) };
    let wq = IoWq { pool: Pool::with_gate(PoolOptions::default(), Some(Arc::new(gate))) };
    let mut ring = Ring::builder().entries(8).io_wq(&wq).build().expect("a ring");
    let fd = ring.attach(&open_device("ram:size=1M").expect("a device")).expect("attached");
    let run = |ring: &mut Ring, many: usize| {
        ring.submit().expect("submitted");
        ring.drain();
        let ended: Vec<i32> = ring.completions().map(|cqe| cqe.res).collect();
        assert_eq!(ended.len(), many);
        ended
    };
    let filled = |byte: u8| {
        let mut data = Buf::zeroed(4096, 4096).expect("memory");
        data.fill(byte);
        data
    };
    for at in 0..2 {
        ring.push(prep::write(fd, filled(1)).offset(at * 4096).run_async()).expect("room");
    }
    assert_eq!(run(&mut ring, 2), [4096, 4096], "the ring has issued them");
    for at in 0..2 {
        ring.push(prep::write(fd, filled(2)).offset(at * 4096)).expect("room");
    }
    run(&mut ring, 2);
    fails.store(false, Ordering::Relaxed);
    for _ in 0..8 {
        ring.push(prep::nop().run_async()).expect("room");
    }
    assert_eq!(run(&mut ring, 8), [0; 8], "a NOP does nothing");
    ring.push(prep::read(fd, Buf::zeroed(8192, 4096).expect("memory"))).expect("room");
    ring.submit().expect("submitted");
    ring.drain();
    let read = ring.pop().expect("it has ended");
    assert!(read.res == 8192 && read.into_buf().expect("its memory").iter().all(|byte| *byte == 2));
}
