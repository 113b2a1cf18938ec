//! Fairness: an item waits for at most one batch of each other client, and not behind computing work while a CPU idles.

use super::*;

/// Clients in the order in which their items ran.
type Log = Arc<Mutex<Vec<usize>>>;

/// Client that records its number; its slot 0 waits at the gate.
fn logging(pool: &Pool<Probe>, who: usize, log: &Log, gate: &Gate) -> (Submitter<Probe>, Arc<Seen>) {
    let (log, gate) = (Arc::clone(log), gate.clone());
    client(pool, 4096, move |slot, section| {
        if slot == 0 && section.is_some() {
            gate.pass();
        }
        log.lock().unwrap().push(who);
        0
    })
}

#[test]
fn an_item_waits_for_at_most_a_batch_of_each_other_client() {
    for (shards, flags, most) in [
        (1, WorkFlags::SHORT, 64),
        (4, WorkFlags::SHORT, 64),
        (1, WorkFlags::BOUND, 1),
        (4, WorkFlags::BOUND, 1),
        (1, WorkFlags::hashed(1), 1),
        (4, WorkFlags::hashed(1), 1),
    ] {
        let pool = Pool::new(PoolOptions { shards, ..options(1, 1) });
        let (log, gate) = (Log::default(), Gate::default());
        let mut clients: Vec<_> = (0..6).map(|who| logging(&pool, who, &log, &gate)).collect();
        // The only worker is busy while the others queue: floods of five clients, and last one item of the sixth.
        clients[0].0.queue(0, WorkFlags::BOUND);
        clients[0].0.commit();
        until("the worker is in its section", || pool.counts()[0].in_section == 1);
        for (submitter, _) in &mut clients[..5] {
            (1..1000).for_each(|slot| assert!(submitter.queue(slot, flags)));
            submitter.commit();
        }
        clients[5].0.queue(1, WorkFlags::SHORT);
        clients[5].0.commit();
        gate.open();
        clients[5].1.wait(1);
        let log = log.lock().unwrap();
        let at = log.iter().position(|&who| who == 5).expect("it ran");
        for other in 0..5 {
            let before = log[1..at].iter().filter(|&&who| who == other).count();
            assert!(before <= most, "{shards} shards, {flags:?}: {before} items of client {other} went before");
        }
    }
}

/// Item that computes until the test stops it.
fn spin_until(stop: &AtomicU32, at_least: u32) {
    let limit = Instant::now() + PATIENCE;
    while stop.load(SeqCst) < at_least {
        assert!(Instant::now() < limit, "never stopped");
        std::hint::spin_loop();
    }
}

#[test]
fn work_behind_an_item_that_computes_has_an_idle_cpu() {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        eprintln!("skipped: there is one CPU");
        return;
    }
    let pool = Pool::new(options(8, 1));
    let done = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&done);
    let (mut submitter, seen) = client(&pool, 8, move |slot, _| {
        if slot == 0 {
            // Computes until the other items, which are trivial, have ended.
            spin_until(&count, 7);
        } else {
            count.fetch_add(1, SeqCst);
        }
        0
    });
    (0..8).for_each(|slot| assert!(submitter.queue(slot, WorkFlags::BOUND)));
    submitter.commit();
    seen.wait(8);
}

#[test]
fn items_are_long_that_take_25_us_one_with_the_other() {
    for (ended, us, long) in
        [(0, 50, true), (1, 50, true), (2, 50, true), (3, 50, false), (40, 1000, true), (41, 1000, false)]
    {
        assert_eq!(super::super::worker::are_long(ended, Duration::from_micros(us)), long, "{ended} in {us} us");
    }
}

/// Item that computes for a given time.
fn compute(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

#[test]
fn items_that_end_but_take_their_time_have_every_cpu() {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        eprintln!("skipped: there is one CPU");
        return;
    }
    // On a busy machine the second worker may get its first turn when the first has done all of it.
    let others_help = (0..20).any(|_| {
        let pool = Pool::new(options(8, 1));
        // Shorter than the interval between two looks of the standby.
        let (mut submitter, seen) = client(&pool, 4096, |_, _| {
            compute(Duration::from_micros(60));
            0
        });
        (0..4096).for_each(|slot| assert!(submitter.queue(slot, WorkFlags::BOUND)));
        submitter.commit();
        seen.wait(4096);
        seen.threads() >= 2
    });
    assert!(others_help, "one worker did all of it while a CPU had nothing to do");
}

#[test]
fn work_that_computes_has_no_more_workers_than_cpus_and_one_that_watches() {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from) as u32;
    let pool = Pool::new(options(64, 1));
    let stop = Arc::new(AtomicU32::new(0));
    let stopped = Arc::clone(&stop);
    let (mut submitter, seen) = client(&pool, 32, move |_, _| {
        spin_until(&stopped, 1);
        0
    });
    (0..32).for_each(|slot| assert!(submitter.queue(slot, WorkFlags::BOUND)));
    submitter.commit();
    std::thread::sleep(Duration::from_millis(100));
    let counts = pool.counts()[0];
    stop.store(1, SeqCst);
    seen.wait(32);
    assert!(counts.workers <= cpus + 1, "{cpus} CPUs: {counts:?}");
}
