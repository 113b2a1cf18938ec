//! Short items that their own client runs, and the wake-ups put off for them: a worker and its submitter on one CPU.

use super::super::nap::NAP;
use super::*;

/// Makes a pool whose workers run on the CPU to which this thread is bound from now on.
fn pool_on_this_cpu(options: PoolOptions) -> Pool<Probe> {
    let cpu = rustix::thread::sched_getcpu();
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).expect("this thread's own CPU");
    Pool::new(PoolOptions { cpus: vec![cpu], spin: Duration::ZERO, ..options })
}

/// Makes a client whose worker has just run its slot 0, and naps or is about to.
fn napping(options: PoolOptions) -> (Pool<Probe>, Submitter<Probe>, Arc<Seen>) {
    let pool = pool_on_this_cpu(options);
    let (mut submitter, seen) = client(&pool, 256, |slot, _| slot as i32);
    submitter.queue(0, WorkFlags::SHORT);
    submitter.commit();
    seen.wait(1);
    (pool, submitter, seen)
}

/// Makes the worker nap again. Returns the number of results at that time.
fn again(pool: &Pool<Probe>, submitter: &mut Submitter<Probe>, seen: &Seen) -> usize {
    let before = seen.now().len();
    submitter.queue(0, WorkFlags::BOUND);
    submitter.commit();
    seen.wait(before + 1);
    until("the worker sleeps", || pool.counts()[0].idle == 1);
    before + 1
}

#[test]
fn a_client_that_waits_on_its_workers_cpu_takes_its_short_items_back_in_order() {
    let (pool, mut submitter, seen) = napping(options(1, 1));
    let (mut helped, mut all) = (0, 0);
    until("a nap lasted until the client waited", || {
        let before = again(&pool, &mut submitter, &seen);
        (1..=100).for_each(|slot| assert!(submitter.queue(slot, WorkFlags::SHORT)));
        submitter.commit();
        let mut back = Vec::new();
        submitter.help(&mut back);
        let first = back.len();
        assert!(first <= 64, "{first} at once");
        submitter.help(&mut back);
        // The items taken back are the head of the row, in order, unless a worker came first.
        assert!(back.is_sorted(), "{back:?}");
        submitter.wake_deferred();
        let mut ended: Vec<u32> = seen.wait(before + 100 - back.len())[before..].iter().map(|end| end.0).collect();
        ended.extend(&back);
        ended.sort_unstable();
        assert_eq!(ended, (1..=100).collect::<Vec<_>>(), "each once, here or there");
        all += back.len() as u64;
        helped = helped.max(back.len());
        helped == 100
    });
    assert_eq!(pool.counts()[0].helped, all, "counted apart");
}

#[test]
fn a_client_that_neither_waits_nor_calls_is_served_by_the_worker_that_naps() {
    // A long idle timeout, so that no worker ends during the test and finds the items then.
    let (pool, mut submitter, seen) = napping(PoolOptions { idle_timeout: Duration::from_secs(3600), ..options(1, 1) });
    let mut deferred = 0;
    while deferred < 20 {
        let before = again(&pool, &mut submitter, &seen);
        submitter.queue(1, WorkFlags::SHORT);
        submitter.commit();
        deferred += u32::from(std::mem::take(&mut submitter.deferred));
        // Only the worker's own look after its nap finds the item.
        assert_eq!(seen.wait(before + 1)[before], (1, 1));
    }
}

#[test]
fn what_is_not_short_wakes_the_worker_at_once_and_is_not_overtaken() {
    let (pool, mut submitter, seen) = napping(options(1, 1));
    for round in 0..50 {
        let before = again(&pool, &mut submitter, &seen);
        let order = if round % 2 == 0 { [1, 2] } else { [2, 1] };
        for slot in order {
            submitter.queue(slot, if slot == 1 { WorkFlags::BOUND } else { WorkFlags::SHORT });
        }
        submitter.commit();
        assert!(!submitter.has_deferred(), "a worker was woken");
        let mut back = Vec::new();
        submitter.help(&mut back);
        assert!(back.is_empty(), "the worker that was woken does it");
        let ended: Vec<u32> = seen.wait(before + 2)[before..].iter().map(|end| end.0).collect();
        assert_eq!(ended, order);
    }
}

#[test]
fn without_the_help_option_no_item_is_taken_back() {
    let (pool, mut submitter, seen) = napping(PoolOptions { help: false, ..options(1, 1) });
    for _ in 0..20 {
        let before = again(&pool, &mut submitter, &seen);
        submitter.queue(1, WorkFlags::SHORT);
        submitter.commit();
        let mut back = Vec::new();
        submitter.help(&mut back);
        assert!(back.is_empty());
        submitter.wake_deferred();
        seen.wait(before + 1);
    }
    assert_eq!(pool.counts()[0].helped, 0);
}

#[test]
fn a_client_on_another_cpu_wakes_the_worker() {
    let here = rustix::thread::sched_getcpu();
    let allowed = rustix::thread::sched_getaffinity(None).expect("the CPUs of this thread");
    let Some(other) = (0..rustix::thread::CpuSet::MAX_CPU).find(|&cpu| cpu != here && allowed.is_set(cpu)) else {
        return println!("skipped: one CPU only");
    };
    let (pool, mut submitter, seen) = napping(options(1, 1));
    for _ in 0..20 {
        let before = again(&pool, &mut submitter, &seen);
        let mut set = rustix::thread::CpuSet::new();
        set.set(other);
        rustix::thread::sched_setaffinity(None, &set).expect("a CPU of this thread");
        submitter.queue(1, WorkFlags::SHORT);
        submitter.commit();
        assert!(!submitter.has_deferred());
        let mut back = Vec::new();
        submitter.help(&mut back);
        assert!(back.is_empty(), "both CPUs have something to do");
        seen.wait(before + 1);
        set.clear();
        set.set(here);
        rustix::thread::sched_setaffinity(None, &set).expect("a CPU of this thread");
    }
}

#[test]
fn shutdown_runs_items_whose_wake_up_was_put_off() {
    let mut deferred = 0;
    while deferred < 10 {
        let (pool, mut submitter, seen) = napping(options(1, 1));
        let before = again(&pool, &mut submitter, &seen);
        submitter.queue(1, WorkFlags::SHORT);
        submitter.commit();
        deferred += u32::from(submitter.has_deferred());
        pool.shutdown();
        assert_eq!(seen.wait(before + 1)[before], (1, 1), "run, and not refused");
    }
}

#[test]
fn no_second_nap_unless_a_wake_up_was_put_off() {
    let (pool, _submitter, _seen) = napping(options(1, 1));
    let naps = |pool: &Pool<Probe>| pool.shared().accts[0].nap.is_somebody();
    until("it sleeps until it is woken", || pool.counts()[0].idle == 1 && !naps(&pool));
    std::thread::sleep(4 * NAP);
    assert!(!naps(&pool));
}

#[test]
fn naps_that_are_of_no_use_become_rare_and_come_back_when_they_are() {
    let (pool, mut submitter, seen) = napping(options(1, 1));
    let naps = |pool: &Pool<Probe>| pool.shared().accts[0].nap.is_somebody();
    // An item that only a worker can run wakes it from each nap.
    let mut count = |rounds: u32| (0..rounds).filter(|_| (again(&pool, &mut submitter, &seen), naps(&pool)).1).count();
    count(256);
    let rare = count(256);
    assert!((1..=8).contains(&rare), "{rare} naps in 256 sleeps");
    // One nap in which a client takes items back makes naps frequent again.
    let mut helped = 0;
    for _ in 0..512 {
        again(&pool, &mut submitter, &seen);
        submitter.queue(1, WorkFlags::SHORT);
        submitter.commit();
        let mut back = Vec::new();
        submitter.help(&mut back);
        helped += back.len();
        submitter.wake_deferred();
        until("the worker sleeps", || pool.counts()[0].idle == 1);
    }
    assert!(helped >= 64, "{helped} of 512 short items were taken back");
}
