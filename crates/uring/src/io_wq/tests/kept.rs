//! The context that a worker keeps from one item to the next, also through a short sleep (I3 of `worker`).

use super::*;

/// State that a worker keeps for its client.
#[derive(Default)]
struct Kept(Option<Arc<Counts>>);

/// Number of times that a worker began to keep something, and that it let go.
#[derive(Default)]
struct Counts {
    begun: AtomicU32,
    let_go: AtomicU32,
    ended: AtomicU32,
}

/// Source whose items leave something with their worker.
struct Keeper(Arc<Counts>);

impl Source for Keeper {
    type Context = Kept;

    fn run(&self, kept: &mut Kept, _: u32, _: &Section<'_>) -> WorkDone {
        if kept.0.is_none() {
            self.0.begun.fetch_add(1, SeqCst);
            kept.0 = Some(Arc::clone(&self.0));
        }
        WorkDone::Result(0)
    }

    fn run_short(&self, _: &mut Kept, slots: &[u32], ends: &mut impl Ends) {
        (0..slots.len()).for_each(|at| ends.end(at, WorkDone::Result(0)));
    }

    fn finish(&self, done: &[(u32, WorkDone)]) {
        self.0.ended.fetch_add(done.len() as u32, SeqCst);
    }

    fn rest(kept: &mut Kept) {
        if let Some(counts) = kept.0.take() {
            counts.let_go.fetch_add(1, SeqCst);
        }
    }
}

/// Runs one item, and returns when its worker is asleep.
fn run_one(pool: &Pool<Keeper>, submitter: &mut Submitter<Keeper>, counts: &Counts) {
    let before = counts.ended.load(SeqCst);
    assert!(submitter.queue(0, WorkFlags::BOUND));
    submitter.commit();
    until("the item ends", || counts.ended.load(SeqCst) > before);
    until("its worker sleeps", || pool.counts()[0].idle == pool.counts()[0].workers);
}

fn keeper() -> (Pool<Keeper>, Submitter<Keeper>, Arc<Counts>) {
    let pool = Pool::new(options(1, 1));
    let counts = Arc::new(Counts::default());
    let submitter = pool.submitter(Keeper(Arc::clone(&counts)), 1).expect("room for a client");
    (pool, submitter, counts)
}

#[test]
fn a_worker_keeps_its_context_through_a_short_sleep_and_not_through_a_long_one() {
    let (pool, mut submitter, counts) = keeper();
    for _ in 0..200 {
        run_one(&pool, &mut submitter, &counts);
    }
    // A machine that does not run this test for 10 ms now and then makes a sleep long.
    assert!(counts.begun.load(SeqCst) < 150, "{} of 200 items", counts.begun.load(SeqCst));
    until("the sleep is long", || counts.let_go.load(SeqCst) == counts.begun.load(SeqCst));
}

#[test]
fn a_client_that_goes_finds_no_sleeping_worker_with_its_context() {
    for _ in 0..50 {
        let (pool, mut submitter, counts) = keeper();
        run_one(&pool, &mut submitter, &counts);
        drop(submitter);
        assert_eq!((counts.begun.load(SeqCst), counts.let_go.load(SeqCst)), (1, 1));
        drop(pool);
    }
}
