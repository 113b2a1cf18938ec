//! Limits, idle workers, threads that cannot be created, and shutdown.

use std::io;
use std::sync::atomic::AtomicBool;

use super::*;

#[test]
fn there_are_never_more_workers_than_the_limit() {
    let pool = Pool::new(options(3, 3));
    let running = Arc::new((AtomicU32::new(0), AtomicU32::new(0)));
    let counted = Arc::clone(&running);
    let (mut submitter, seen) = client(&pool, 128, move |_, _| {
        let now = counted.0.fetch_add(1, SeqCst) + 1;
        counted.1.fetch_max(now, SeqCst);
        // Independent of the machine's load: the first items wait for the others.
        until("all that may be are at work", || counted.1.load(SeqCst) >= 3);
        std::thread::sleep(Duration::from_micros(500));
        counted.0.fetch_sub(1, SeqCst);
        0
    });
    for slot in 0..128 {
        submitter.queue(slot, WorkFlags::BOUND);
    }
    submitter.commit();
    seen.wait(128);
    assert_eq!(running.1.load(SeqCst), 3, "all of them are used, and no more");
    assert_eq!(pool.counts()[0].created, 3);
}

#[test]
fn a_lowered_limit_takes_effect_while_workers_sleep_and_while_they_work() {
    let pool = Pool::new(options(8, 1));
    let gate = Gate::default();
    let at = gate.clone();
    let (mut submitter, seen) = client(&pool, 64, move |_, _| {
        at.pass();
        0
    });
    for slot in 0..8 {
        submitter.queue(slot, WorkFlags::BOUND);
    }
    submitter.commit();
    until("all eight are blocked", || pool.counts()[0].in_section == 8);
    pool.set_max_workers([3, 1]);
    gate.open();
    seen.wait(8);
    until("five have ended", || pool.counts()[0].workers <= 3);
    pool.set_max_workers([1, 1]);
    until("two more have ended, asleep or not", || pool.counts()[0].workers <= 1);
    for slot in 0..64 {
        submitter.queue(slot, WorkFlags::BOUND);
    }
    submitter.commit();
    seen.wait(72);
    assert!(pool.counts()[0].workers <= 1);
    pool.set_max_workers([0, 0]);
    assert_eq!(pool.counts().map(|acct| acct.limit), [1, 1], "work must end");
}

#[test]
fn a_raised_limit_takes_effect() {
    let pool = Pool::new(options(1, 1));
    let gate = Gate::default();
    let at = gate.clone();
    let (mut submitter, seen) = client(&pool, 3, move |slot, _| {
        if slot == 0 {
            at.pass();
        }
        0
    });
    submitter.queue(0, WorkFlags::BOUND);
    submitter.queue(1, WorkFlags::BOUND);
    submitter.commit();
    until("the only worker is blocked", || pool.counts()[0].in_section == 1);
    // Nothing is queued after this.
    pool.set_max_workers([2, 1]);
    seen.wait(1);
    submitter.queue(2, WorkFlags::BOUND);
    submitter.commit();
    seen.wait(2);
    gate.open();
    seen.wait(3);
}

#[test]
fn idle_workers_end_after_their_time_and_come_back() {
    let pool = Pool::new(PoolOptions { idle_timeout: Duration::from_millis(20), ..options(4, 4) });
    let (mut submitter, seen) = client(&pool, 4, |_, _| {
        std::thread::sleep(Duration::from_millis(2));
        0
    });
    for round in 1..=3 {
        for slot in 0..4 {
            submitter.queue(slot, WorkFlags::BOUND);
        }
        submitter.commit();
        seen.wait(4 * round);
        until("all are gone", || pool.counts()[0].workers == 0);
    }
}

/// Makes a pool whose threads cannot be created while the flag is set.
fn failing(bound: u32, fails: &Arc<AtomicBool>) -> Pool<Probe> {
    let fails = Arc::clone(fails);
    let gate: shared::SpawnGate =
        Arc::new(move || if fails.load(SeqCst) { Err(io::Error::other("on purpose")) } else { Ok(()) });
    Pool::with_gate(options(bound, 1), Some(gate))
}

#[test]
fn items_end_with_no_thread_if_no_worker_can_be_created() {
    let fails = Arc::new(AtomicBool::new(true));
    let pool = failing(4, &fails);
    let (mut submitter, seen) = client(&pool, 16, |_, _| 0);
    for slot in 0..16 {
        submitter.queue(slot, if slot % 2 == 0 { WorkFlags::BOUND } else { WorkFlags::hashed(slot) });
    }
    submitter.commit();
    let done = seen.wait(16);
    assert!(done.iter().all(|&(_, res)| res == NOT_RUN), "{done:?}");
    let counts = pool.counts()[0];
    assert_eq!((counts.workers, counts.idle, counts.in_section, counts.queued, counts.created), (0, 0, 0, 0, 0));
    assert!(counts.failed > 0);
    fails.store(false, SeqCst);
    for slot in 0..16 {
        submitter.queue(slot, WorkFlags::BOUND);
    }
    submitter.commit();
    assert!(seen.wait(32)[16..].iter().all(|&(_, res)| res == 0));
}

#[test]
fn without_a_second_thread_the_first_serves_all() {
    let fails = Arc::new(AtomicBool::new(false));
    let pool = failing(4, &fails);
    let flag = Arc::clone(&fails);
    let (mut submitter, seen) = client(&pool, 16, move |_, _| {
        flag.store(true, SeqCst);
        std::thread::sleep(Duration::from_micros(500));
        0
    });
    submitter.queue(0, WorkFlags::BOUND);
    submitter.commit();
    seen.wait(1);
    for slot in 0..16 {
        submitter.queue(slot, WorkFlags::BOUND);
    }
    submitter.commit();
    assert!(seen.wait(17).iter().all(|&(_, res)| res == 0));
    let counts = pool.counts()[0];
    assert_eq!((counts.workers, counts.created), (1, 1));
    assert!(counts.failed > 0, "it was tried");
}

#[test]
fn a_shutdown_ends_every_item_once_and_reaches_both_accounts() {
    let pool = Pool::new(PoolOptions { spin: Duration::ZERO, ..options(2, 2) });
    let gate = Gate::default();
    let at = gate.clone();
    let (mut submitter, seen) = client(&pool, 40, move |slot, _| {
        if slot % 20 < 2 {
            at.pass();
        }
        1
    });
    for slot in 0..40 {
        submitter.queue(slot, if slot < 20 { WorkFlags::BOUND } else { WorkFlags::UNBOUND });
    }
    submitter.commit();
    until("both accounts are at work", || pool.counts().iter().all(|acct| acct.in_section == 2));
    let ending = pool.clone();
    let shutdown = std::thread::spawn(move || ending.shutdown());
    until("the pool ends", || pool.shared().closed.load(SeqCst));
    gate.open();
    shutdown.join().unwrap();
    let mut done = seen.now();
    done.sort_unstable();
    assert_eq!(done.iter().map(|&(slot, _)| slot).collect::<Vec<_>>(), (0..40).collect::<Vec<_>>(), "once each");
    assert!(done[..20].iter().all(|&(_, res)| res == 1), "bound work is run");
    assert!(
        done[22..].iter().all(|&(_, res)| WorkDone::Result(res) == CANCELLED),
        "unbound work that had not started is not"
    );
    assert_eq!(pool.counts().map(|acct| acct.workers), [0, 0]);
    // Items queued later are refused.
    submitter.queue(0, WorkFlags::BOUND);
    submitter.commit();
    assert_eq!(seen.wait(41)[40], (0, NOT_RUN));
}

#[test]
fn dropping_an_idle_pool_ends_its_workers() {
    let idle = Duration::from_secs(60);
    let pool = Pool::new(PoolOptions { idle_timeout: idle, ..options(2, 2) });
    let (mut submitter, seen) = client(&pool, 2, |_, _| 0);
    submitter.queue(0, WorkFlags::BOUND);
    submitter.queue(1, WorkFlags::UNBOUND);
    submitter.commit();
    seen.wait(2);
    until("both sleep", || pool.counts().iter().all(|acct| acct.idle == acct.workers));
    let start = Instant::now();
    drop(submitter);
    drop(pool);
    assert!(start.elapsed() < idle / 2, "nobody waits for the idle timeout");
}

#[test]
fn idle_workers_use_no_cpu() {
    let pool = Pool::new(PoolOptions { name: "quiet".into(), ..options(4, 1) });
    let (mut submitter, seen) = client(&pool, 4, |_, _| {
        std::thread::sleep(Duration::from_millis(1));
        0
    });
    for slot in 0..4 {
        submitter.queue(slot, WorkFlags::BOUND);
    }
    submitter.commit();
    seen.wait(4);
    until("all sleep", || pool.counts()[0].idle == pool.counts()[0].workers);
    let (used, workers) = cpu_of_threads("quiet");
    assert!(workers > 0 && used > 0, "{workers} workers have used {used} ns");
    // On a loaded machine the last worker to announce its sleep may not be asleep yet.
    until("no CPU time is used any more", || {
        let before = cpu_of_threads("quiet");
        std::thread::sleep(Duration::from_millis(50));
        cpu_of_threads("quiet") == before
    });
}

/// Returns the CPU time in ns of the threads whose name begins with `name`, and their number.
fn cpu_of_threads(name: &str) -> (u64, usize) {
    let tasks = std::fs::read_dir("/proc/self/task").expect("proc");
    let read = |task: &std::path::Path, file: &str| std::fs::read_to_string(task.join(file)).unwrap_or_default();
    let of_pool = tasks.flatten().map(|task| task.path()).filter(|task| read(task, "comm").starts_with(name));
    let times = of_pool.map(|task| read(&task, "schedstat").split(' ').next().and_then(|ns| ns.parse().ok()));
    times.fold((0, 0), |(sum, count), ns: Option<u64>| (sum + ns.unwrap_or_default(), count + 1))
}

/// Makes a pool with one worker, which is in its first item, behind the gate; while the flag is set no thread can be
/// created for its second item.
fn starved() -> (Pool<Probe>, Submitter<Probe>, Arc<Seen>, Gate, Arc<AtomicBool>) {
    let refuse = Arc::new(AtomicBool::new(false));
    let refused = Arc::clone(&refuse);
    let say = move || if refused.load(SeqCst) { Err(io::Error::other("on purpose")) } else { Ok(()) };
    let pool = Pool::with_gate(options(4, 1), Some(Arc::new(say)));
    let gate = Gate::default();
    let at = gate.clone();
    let (mut submitter, seen) = client(&pool, 3, move |slot, _| {
        if slot == 0 {
            at.pass();
        }
        0
    });
    submitter.queue(0, WorkFlags::BOUND);
    submitter.commit();
    until("the only worker is blocked", || pool.counts()[0].in_section == 1);
    refuse.store(true, SeqCst);
    submitter.queue(1, WorkFlags::BOUND);
    submitter.commit();
    assert!(submitter.is_starved());
    (pool, submitter, seen, gate, refuse)
}

#[test]
fn a_worker_that_could_not_be_made_is_made_later() {
    let (pool, submitter, seen, gate, refuse) = starved();
    submitter.retry();
    assert!(submitter.is_starved() && seen.now().is_empty(), "still refused");
    assert_eq!(pool.counts()[0].failed, 2);
    refuse.store(false, SeqCst);
    submitter.retry();
    seen.wait(1);
    assert!(!submitter.is_starved());
    gate.open();
    seen.wait(2);
}

#[test]
fn starved_mark_is_cleared_when_no_work_is_left() {
    let (_pool, submitter, seen, gate, _) = starved();
    gate.open();
    seen.wait(2);
    submitter.retry();
    assert!(!submitter.is_starved());
}

std::thread_local! {
    static LAST_ACT: std::cell::RefCell<Option<Leaves>> = const { std::cell::RefCell::new(None) };
}

/// Waits at a gate in the destructor of its thread, and a given time behind it.
struct Leaves(Gate, Arc<AtomicU32>, Duration);

impl Drop for Leaves {
    fn drop(&mut self) {
        self.0.pass();
        std::thread::sleep(self.2);
        self.1.fetch_add(1, SeqCst);
    }
}

#[test]
fn only_shutdown_waits_for_ending_threads() {
    let pool = Pool::new(PoolOptions { idle_timeout: Duration::from_millis(5), ..options(1, 1) });
    let (gate, gone) = (Gate::default(), Arc::new(AtomicU32::new(0)));
    let (at, left, worker) = (gate.clone(), Arc::clone(&gone), AtomicU32::new(0));
    let (mut submitter, seen) = client(&pool, 1, move |_, _| {
        // The first thread takes longest, and the worker that ends next must join it.
        let time = Duration::from_millis(100) * (2 - worker.fetch_add(1, SeqCst));
        LAST_ACT.set(Some(Leaves(at.clone(), Arc::clone(&left), time)));
        0
    });
    for round in 0..3 {
        submitter.queue(0, WorkFlags::BOUND);
        // Creates a worker, because the last one has ended; that worker's thread hangs in its destructor.
        submitter.commit();
        seen.wait(round + 1);
        until("the worker has gone", || pool.counts()[0].workers == 0);
    }
    gate.open();
    drop(submitter);
    pool.shutdown();
    assert_eq!(gone.load(SeqCst), 3, "all have been waited for");
}

#[test]
fn threads_that_have_ended_are_joined_by_those_that_end_later() {
    let pool = Pool::new(PoolOptions { idle_timeout: Duration::from_millis(1), ..options(1, 1) });
    let (mut submitter, seen) = client(&pool, 1, |_, _| 0);
    for round in 0..20 {
        submitter.queue(0, WorkFlags::BOUND);
        submitter.commit();
        seen.wait(round + 1);
        until("the worker has gone", || pool.counts()[0].workers == 0);
    }
    let roster = pool.shared().accts[0].roster.lock();
    let (threads, workers, ended) = (roster.threads.len(), roster.workers.len(), roster.ended.len());
    // If the test fails, unwinding drops the pool, which takes the lock.
    drop(roster);
    assert!(threads <= 2, "{threads} of 20 threads were not joined");
    assert!(workers <= 1, "the thread ids of {workers} may be others' by now");
    assert!(ended <= 2, "{ended} ended threads are to be joined");
}

/// Source that uses its pool in its destructor.
struct UsesPool(Option<Pool<UsesPool>>);

impl Source for UsesPool {
    type Context = ();

    fn run(&self, _: &mut (), _: u32, _: &Section<'_>) -> WorkDone {
        WorkDone::Result(0)
    }

    fn run_short(&self, _: &mut (), slots: &[u32], ends: &mut impl Ends) {
        (0..slots.len()).for_each(|at| ends.end(at, WorkDone::Result(0)));
    }

    fn finish(&self, _: &[(u32, WorkDone)]) {}
}

impl Drop for UsesPool {
    fn drop(&mut self) {
        if let Some(pool) = self.0.take() {
            let mut submitter = pool.submitter(UsesPool(None), 1).expect("room");
            submitter.queue(0, WorkFlags::SHORT);
            submitter.commit();
        }
    }
}

#[test]
fn a_source_may_use_its_pool_when_it_is_dropped() {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let pool = Pool::new(options(2, 1));
        for _ in 0..100 {
            let mut submitter = pool.submitter(UsesPool(Some(pool.clone())), 4).expect("room");
            submitter.queue(0, WorkFlags::BOUND);
            submitter.queue(1, WorkFlags::SHORT);
            submitter.commit();
        }
        tell.send(()).expect("the test waits");
    });
    told.recv_timeout(PATIENCE).expect("nobody holds a lock of the pool while a client goes");
}

#[test]
fn a_client_does_not_start_with_entries_of_the_one_before_it() {
    let pool = Pool::new(options(1, 1));
    let mut last = None;
    for _ in 0..3 {
        let (mut submitter, seen) = client(&pool, 2, |_, _| 0);
        let vacant = pool.shared().table().vacant();
        assert_eq!(vacant, (1, 0), "in the same place each time");
        submitter.queue(1, WorkFlags::SHORT);
        submitter.commit();
        seen.wait(1);
        drop(submitter);
        let next = pool.shared().table().vacant();
        assert_eq!(next.0, 0);
        assert!(Some(next.1) > last, "a generation that no entry has: {next:?} after {last:?}");
        assert!(next.1 > 0);
        last = Some(next.1);
    }
}
