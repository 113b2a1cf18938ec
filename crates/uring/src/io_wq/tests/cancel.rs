//! Cancel in every state, and the sweep of a full shard of entries that cancels left behind.

use super::*;

#[test]
fn every_state_has_its_outcome() {
    let pool = Pool::new(options(1, 1));
    let gate = Gate::default();
    let at = gate.clone();
    let (mut submitter, seen) = client(&pool, 4, move |slot, section| {
        if slot == 0 {
            at.pass();
        }
        i32::from(section.is_some_and(Section::is_cancelled))
    });
    assert_eq!(submitter.cancel(0), Cancelled::NotFound, "never queued");
    assert_eq!(submitter.cancel(99), Cancelled::NotFound, "no such slot");
    submitter.queue(0, WorkFlags::BOUND);
    submitter.commit();
    until("it runs", || pool.counts()[0].in_section == 1);
    for slot in 1..4 {
        submitter.queue(slot, WorkFlags::BOUND);
    }
    assert_eq!(submitter.cancel(3), Cancelled::Queued, "not even handed over");
    submitter.commit();
    assert_eq!(submitter.cancel(1), Cancelled::Queued);
    assert_eq!(submitter.cancel(0), Cancelled::Running);
    gate.open();
    let done = seen.wait(2);
    assert_eq!(done, [(0, 1), (2, 0)], "the running one saw that it was cancelled, and ended by itself");
    until("its state is idle", || submitter.cancel(2) == Cancelled::NotFound);
    assert_eq!(submitter.cancel(0), Cancelled::NotFound);
}

#[test]
fn a_blocked_pool_holds_any_number_of_cancelled_entries() {
    for flags in [WorkFlags::BOUND, WorkFlags::SHORT, WorkFlags::hashed(1)] {
        let pool = Pool::new(PoolOptions { shards: 1, ..options(1, 1) });
        let gate = Gate::default();
        let at = gate.clone();
        let (mut submitter, seen) = client(&pool, 8, move |slot, section| {
            if slot == 0 && section.is_some() {
                at.pass();
            }
            slot as i32
        });
        submitter.queue(0, WorkFlags::hashed(1));
        submitter.commit();
        until("the only worker is blocked", || pool.counts()[0].in_section == 1);
        submitter.queue(1, flags);
        for _ in 0..10_000 {
            for slot in 2..8 {
                assert!(submitter.queue(slot, flags));
            }
            submitter.commit();
            for slot in 2..8 {
                assert_eq!(submitter.cancel(slot), Cancelled::Queued);
            }
        }
        assert!(pool.counts()[0].queued <= 2 * 8, "{:?}", pool.counts()[0]);
        gate.open();
        assert_eq!(seen.wait(2), [(0, 0), (1, 1)]);
    }
}

#[test]
fn closing_a_client_cancels_what_waits_and_waits_for_what_runs() {
    let pool = Pool::new(options(1, 1));
    let gate = Gate::default();
    let (started, ended) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (at, begun, over) = (gate.clone(), Arc::clone(&started), Arc::clone(&ended));
    let (mut submitter, _seen) = client(&pool, 4, move |_, _| {
        begun.fetch_add(1, SeqCst);
        at.pass();
        over.fetch_add(1, SeqCst);
        0
    });
    for slot in 0..4 {
        submitter.queue(slot, WorkFlags::BOUND);
    }
    submitter.commit();
    until("one runs", || started.load(SeqCst) == 1);
    let opener = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(5));
        gate.open();
    });
    drop(submitter);
    assert_eq!((started.load(SeqCst), ended.load(SeqCst)), (1, 1));
    opener.join().unwrap();
}
