//! All features at once, from a seed: several clients, random hashes, cancels, limits, idle timeouts, clients that come
//! and go, and a shutdown in the middle. Each item must end once, and each hash keep its order.
//!
//! Three seconds in all; `cargo xtask stress --minutes 60 -p sheave-uring anything_goes` runs other seeds for longer.

use sheave_base::rng::Rng;

use super::*;

const SLOTS: u32 = 96;
const ROUNDS: u64 = 12;
const ROUND: Duration = Duration::from_millis(250);

/// State shared by the items of a round: busy hashes, and the order in which items ran.
struct Log {
    busy: [AtomicU32; HASH_BUCKETS as usize],
    /// Ticket and bucket of each item, in the order in which they ran.
    ran: Mutex<Vec<(u64, u32)>>,
    /// Ticket, bucket and pace of each slot's item.
    slots: [Mutex<(u64, Option<u32>, u64)>; SLOTS as usize],
}

impl Log {
    fn new() -> Log {
        Log {
            busy: std::array::from_fn(|_| AtomicU32::new(0)),
            ran: Mutex::new(Vec::new()),
            slots: std::array::from_fn(|_| Mutex::new((0, None, 0))),
        }
    }

    fn run(&self, slot: u32, blocks: bool) -> i32 {
        let (ticket, bucket, pace) = *self.slots[slot as usize].lock().unwrap();
        if let Some(bucket) = bucket {
            if self.busy[bucket as usize].fetch_add(1, SeqCst) != 0 {
                return -1;
            }
            self.ran.lock().unwrap().push((ticket, bucket));
        }
        match pace {
            0 if blocks => std::thread::sleep(Duration::from_micros(200)),
            1..4 => std::thread::yield_now(),
            _ => {}
        }
        if let Some(bucket) = bucket {
            self.busy[bucket as usize].fetch_sub(1, SeqCst);
        }
        0
    }
}

/// Runs one client: queues, cancels and reaps until the time is up, then checks the counts.
fn drive(pool: &Pool<Probe>, seed: u64, until: Instant, ends: bool) -> u64 {
    let mut rng = Rng::new(seed);
    let log = Arc::new(Log::new());
    let logged = Arc::clone(&log);
    let (mut submitter, seen) = client(pool, SLOTS, move |slot, section| logged.run(slot, section.is_some()));
    let (mut queued, mut cancelled, mut read, mut ticket) = (0_usize, 0_usize, 0_usize, 0_u64);
    let mut free: Vec<u32> = (0..SLOTS).collect();
    let mut live: Vec<u32> = Vec::new();
    while Instant::now() < until {
        for _ in 0..rng.below(40) {
            if free.is_empty() {
                break;
            }
            let slot = free.swap_remove(rng.below(free.len() as u64) as usize);
            let hash = rng.below(12) as u32;
            let flags = match rng.below(6) {
                0 => WorkFlags::SHORT,
                1 => WorkFlags::BOUND,
                2 => WorkFlags::UNBOUND,
                _ => WorkFlags::hashed(hash),
            };
            ticket += 1;
            *log.slots[slot as usize].lock().unwrap() = (ticket, flags.bucket(), rng.below(40));
            assert!(submitter.queue(slot, flags), "seed {seed}: slot {slot} was free");
            queued += 1;
            live.push(slot);
        }
        submitter.commit();
        for _ in 0..rng.below(6) {
            if live.is_empty() {
                break;
            }
            let at = rng.below(live.len() as u64) as usize;
            if submitter.cancel(live[at]) == Cancelled::Queued {
                cancelled += 1;
                free.push(live.swap_remove(at));
            }
        }
        if rng.below(64) == 0 {
            pool.set_max_workers([1 + rng.below(8) as u32, 1 + rng.below(4) as u32]);
        }
        reap(&seen, &mut read, &mut free, &mut live, seed);
    }
    let results = seen.wait(queued - cancelled);
    reap(&seen, &mut read, &mut free, &mut live, seed);
    assert_eq!((results.len(), live.len()), (queued - cancelled, 0), "seed {seed}: one end each");
    if !ends {
        assert!(results.iter().all(|&(_, res)| res == 0), "seed {seed}: two of one hash at once");
        let ran = log.ran.lock().unwrap();
        for bucket in 0..HASH_BUCKETS {
            let of_bucket = ran.iter().filter(|&&(_, of)| of == bucket).map(|&(ticket, _)| ticket);
            assert!(of_bucket.is_sorted(), "seed {seed}: bucket {bucket} out of order");
        }
    }
    queued as u64
}

/// Takes new results; the slot of each must have been live.
fn reap(seen: &Seen, read: &mut usize, free: &mut Vec<u32>, live: &mut Vec<u32>, seed: u64) {
    let done = seen.done.lock().unwrap();
    for &(slot, _) in &done[*read..] {
        let at = live.iter().position(|&other| other == slot);
        let at = at.unwrap_or_else(|| panic!("seed {seed}: slot {slot} ended twice"));
        free.push(live.swap_remove(at));
    }
    *read = done.len();
}

fn round(seed: u64, time: Duration) -> u64 {
    let mut rng = Rng::new(seed);
    let idle_timeout = Duration::from_micros(50 + rng.below(5_000));
    let spin = Duration::from_micros(rng.below(60));
    let pool = Pool::new(PoolOptions { idle_timeout, spin, ..options(1 + rng.below(6) as u32, 2) });
    let until = Instant::now() + time;
    let ends = rng.below(4) == 0;
    let ran = std::thread::scope(|scope| {
        let pool = &pool;
        let clients: Vec<_> =
            (0..3).map(|client| scope.spawn(move || drive(pool, seed * 8 + client, until, ends))).collect();
        if ends {
            std::thread::sleep(time / 2);
            pool.shutdown();
        }
        clients.into_iter().map(|client| client.join().expect("a client found something wrong")).sum()
    });
    assert_eq!(pool.counts().map(|acct| acct.queued), [0, 0], "seed {seed}: left behind");
    ran
}

#[test]
fn anything_goes_and_every_item_ends_once_in_its_order() {
    let items: u64 = sheave_testkit::seeds(ROUNDS).map(|seed| round(seed, ROUND)).sum();
    println!("{items} items");
    assert!(items > 1_000);
}
