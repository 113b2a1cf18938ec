//! Hashed work: in order, and never two items of one hash at once, whichever worker runs them.

use super::*;

const HASHES: u32 = 8;

/// Source that checks the order and the exclusion of each hash: item `slot` has the hash `slot % HASHES`.
#[derive(Default)]
struct Order {
    busy: [AtomicU32; HASHES as usize],
    ran: Mutex<Vec<u32>>,
}

impl Order {
    fn run(&self, slot: u32, work: impl FnOnce()) {
        let busy = &self.busy[(slot % HASHES) as usize];
        assert_eq!(busy.fetch_add(1, SeqCst), 0, "two items of one hash at once");
        work();
        self.ran.lock().unwrap().push(slot);
        busy.fetch_sub(1, SeqCst);
    }

    fn check(&self, of_each: usize) {
        let ran = self.ran.lock().unwrap();
        for hash in 0..HASHES {
            let of_hash: Vec<u32> = ran.iter().copied().filter(|slot| slot % HASHES == hash).collect();
            assert_eq!(of_hash.len(), of_each, "hash {hash}");
            assert!(of_hash.is_sorted(), "hash {hash}: {of_hash:?}");
        }
    }
}

fn order_is_kept(work: fn(u32)) {
    let pool = Pool::new(options(8, 1));
    let order = Arc::new(Order::default());
    let watched = Arc::clone(&order);
    let (mut submitter, seen) = client(&pool, 800, move |slot, _| {
        watched.run(slot, || work(slot));
        0
    });
    for slot in 0..800 {
        submitter.queue(slot, WorkFlags::hashed(slot % HASHES));
        if slot % 50 == 0 {
            submitter.commit();
        }
    }
    submitter.commit();
    let done = seen.wait(800);
    assert!(done.iter().all(|&(_, res)| res == 0), "an item saw another beside it");
    order.check(100);
}

#[test]
fn hashed_items_keep_their_order() {
    order_is_kept(|_| {});
    order_is_kept(|slot| {
        if slot % 7 == 0 {
            std::thread::sleep(Duration::from_micros(300));
        }
    });
}

#[test]
fn a_hash_whose_items_have_all_run_is_run_again() {
    let pool = Pool::new(options(2, 1));
    let (mut submitter, seen) = client(&pool, 4, |_, _| 0);
    for round in 1..=20 {
        (0..4).for_each(|slot| assert!(submitter.queue(slot, WorkFlags::hashed(slot / 2))));
        submitter.commit();
        seen.wait(4 * round);
    }
}

#[test]
fn hashes_do_not_wait_for_each_other() {
    let pool = Pool::new(options(8, 1));
    let gate = Gate::default();
    let at = gate.clone();
    let blocked = (0..).find(|&hash| WorkFlags::hashed(hash).bucket() != WorkFlags::hashed(9).bucket()).unwrap();
    let (mut submitter, seen) = client(&pool, 32, move |slot, _| {
        if slot == 0 {
            at.pass();
        }
        0
    });
    for slot in 0..16 {
        submitter.queue(slot, WorkFlags::hashed(blocked));
    }
    for slot in 16..32 {
        submitter.queue(slot, WorkFlags::hashed(9));
    }
    submitter.commit();
    assert!(seen.wait(16).iter().all(|&(slot, _)| slot >= 16), "the others of the blocked hash wait");
    gate.open();
    let done = seen.wait(32);
    assert!(done[16..].iter().map(|&(slot, _)| slot).is_sorted());
}

#[test]
fn one_hash_brings_no_second_runner() {
    let pool = Pool::new(options(16, 1));
    let (mut submitter, seen) = client(&pool, 20, |_, _| {
        std::thread::sleep(Duration::from_millis(1));
        0
    });
    for slot in 0..20 {
        submitter.queue(slot, WorkFlags::hashed(3));
    }
    submitter.commit();
    seen.wait(20);
    assert!(pool.counts()[0].created <= 2, "nobody else could help: {:?}", pool.counts()[0]);
}

#[test]
fn cancelled_head_middle_and_tail_leave_the_order_of_the_rest() {
    let pool = Pool::new(options(4, 1));
    let gate = Gate::default();
    let at = gate.clone();
    let ran = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&ran);
    let (mut submitter, seen) = client(&pool, 12, move |slot, _| {
        if slot == 0 {
            at.pass();
        }
        noted.lock().unwrap().push(slot);
        0
    });
    for slot in 0..10 {
        submitter.queue(slot, WorkFlags::hashed(5));
    }
    submitter.commit();
    until("the first runs", || pool.counts()[0].in_section == 1);
    for slot in [1, 5, 9] {
        assert_eq!(submitter.cancel(slot), Cancelled::Queued);
        assert_eq!(submitter.cancel(slot), Cancelled::NotFound, "one outcome");
    }
    assert_eq!(submitter.cancel(0), Cancelled::Running);
    // Queued behind a cancelled tail, in a slot that a stale entry still names.
    submitter.queue(10, WorkFlags::hashed(5));
    submitter.queue(5, WorkFlags::hashed(5));
    submitter.commit();
    gate.open();
    seen.wait(9);
    assert_eq!(*ran.lock().unwrap(), [0, 2, 3, 4, 6, 7, 8, 10, 5]);
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(seen.now().len(), 9, "a cancelled item has no result");
}
