//! Waits for I/O that its thread has not reaped: which operations wait, how the waits end, and their errors. Uses only
//! rings, volumes and the public interface. Row V26 of the contract in docs/concepts/volumes.md.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sheave::volumes::{Checksum, CreateOptions, OpenOptions, Pool, PoolError, Volume};
use sheave::{Buf, Fd, Ring, Waited, op, open_device};

const MIB: u64 = 1 << 20;
/// A time longer than any step here takes.
const PATIENCE: Duration = Duration::from_secs(20);
/// Limit of a wait that ends at this limit.
const SHORT: Duration = Duration::from_millis(300);
const ETIMEDOUT: i32 = -110;
const ECANCELED: i32 = -125;

fn pool(longest_wait: Duration, checksum: Checksum) -> Pool {
    let device = open_device("ram:size=64M").expect("a device");
    Pool::create(&device, &CreateOptions::default().checksum(checksum)).expect("a pool");
    let pool = Pool::open(&device, &OpenOptions::default().longest_wait(longest_wait)).expect("it opens");
    for name in ["a", "b"] {
        pool.create_volume(name, 8 * MIB).expect("a volume");
    }
    pool
}

fn filled(byte: u8) -> Buf {
    let mut buf = Buf::zeroed(4096, 4096).expect("memory");
    buf.fill(byte);
    buf
}

/// Makes a ring that reaps nothing unless it is told to, with a volume attached.
fn attached(volume: Volume) -> (Ring, Fd) {
    let mut ring = Ring::builder().entries(8).polled(true).build().expect("a ring");
    let fd = ring.attach_file(Arc::new(volume)).expect("attached");
    (ring, fd)
}

fn run(ring: &mut Ring, entry: impl op::Op) -> i32 {
    ring.push(entry).expect("room");
    ring.submit_and_wait(1).expect("submitted");
    let results: Vec<i32> = ring.completions().map(|done| done.res).collect();
    assert_eq!(results.len(), 1);
    results[0]
}

/// Submits an I/O and reaps nothing.
fn leave(ring: &mut Ring, entry: impl op::Op) {
    ring.push(entry).expect("room");
    ring.submit().expect("submitted");
}

/// A thread named `sleeper` with a read of a volume that it reaps only when told to.
struct Sleeper {
    wake: Sender<()>,
    thread: JoinHandle<i32>,
}

impl Sleeper {
    fn new(volume: Volume) -> Sleeper {
        let (wake, woken): (_, Receiver<()>) = channel();
        let (begun, begins) = channel();
        let work = move || {
            let (mut ring, fd) = attached(volume);
            assert_eq!(run(&mut ring, op::write(fd, filled(1)).offset(0)), 4096);
            leave(&mut ring, op::read(fd, filled(0)).offset(0));
            begun.send(()).expect("somebody waits");
            let _ = woken.recv_timeout(PATIENCE);
            ring.drain();
            ring.completions().next().expect("the read").res
        };
        let thread = std::thread::Builder::new().name("sleeper".into()).spawn(work).expect("a thread");
        begins.recv_timeout(PATIENCE).expect("it reads");
        Sleeper { wake, thread }
    }

    /// Lets the thread reap. Returns the result of the read.
    fn end(self) -> i32 {
        let _ = self.wake.send(());
        self.thread.join().expect("no panic")
    }
}

fn assert_quick(before: Instant, what: &str) {
    assert!(before.elapsed() < PATIENCE / 4, "{what}: {:?}", before.elapsed());
}

/// Asserts that the error of a change that waits for a volume's I/O names the volume, the thread and the time.
fn assert_names_the_holder(error: &PoolError, volume: &str, thread: &str) {
    let text = error.to_string();
    assert!(matches!(error, PoolError::Busy { .. }), "{text}");
    for part in [&format!("volume '{volume}'"), thread, "1 I/Os", "0.", " s"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// Checks V26.
#[test]
fn io_of_one_volume_that_nobody_reaps_holds_up_nothing_of_another() {
    let pool = pool(PATIENCE, Checksum::None);
    let sleeper = Sleeper::new(pool.open_volume("a").expect("opens"));
    let (mut ring, fd) = attached(pool.open_volume("b").expect("opens"));
    let before = Instant::now();
    assert_eq!(run(&mut ring, op::write(fd, filled(2)).offset(8192)), 4096);
    assert_eq!(run(&mut ring, op::punch_hole(fd, 8192, 4096)), 0, "a part of a unit waits for the volume's writers");
    pool.snapshot("b", "b1").expect("nothing is under way in b");
    pool.rollback("b", "b1").expect("nor now");
    pool.resize("b", 4 * MIB + 512).expect("nor now");
    // Space that `b` frees is available again, several times the size of the pool in all.
    for round in 0..4 * pool.info().size_bytes / MIB {
        let at = (round % 3) * MIB;
        assert_eq!(run(&mut ring, op::write(fd, filled(3)).offset(at)), 4096, "round {round}");
        assert_eq!(run(&mut ring, op::punch_hole(fd, at, MIB)), 0);
    }
    pool.sync().expect("synced");
    assert_quick(before, "all of it");
    assert_eq!(sleeper.end(), 4096);
}

#[test]
fn a_full_pool_gives_one_volume_back_what_it_let_go_while_a_read_of_another_goes_on() {
    let pool = pool(PATIENCE, Checksum::None);
    pool.create_volume("c", 64 * MIB).expect("thin");
    let sleeper = Sleeper::new(pool.open_volume("a").expect("opens"));
    let (mut ring, fd) = attached(pool.open_volume("c").expect("opens"));
    let unit = pool.info().unit_bytes;
    let before = Instant::now();
    let mut units = 0;
    while run(&mut ring, op::write(fd, filled(4)).offset(units * unit)) == 4096 {
        units += 1;
    }
    for round in 0..3 {
        assert_eq!(run(&mut ring, op::punch_hole(fd, 0, 16 * unit)), 0);
        for at in 0..16 {
            assert_eq!(run(&mut ring, op::write(fd, filled(5)).offset(at * unit)), 4096, "round {round}, unit {at}");
        }
    }
    assert_quick(before, "three rounds in a full pool");
    assert_eq!(sleeper.end(), 4096);
}

#[test]
fn a_thread_that_has_not_reaped_its_own_io_does_not_wait_for_itself() {
    for checksum in [Checksum::None, Checksum::Crc32c] {
        let pool = pool(PATIENCE, checksum);
        let (mut ring, fd) = attached(pool.open_volume("a").expect("opens"));
        assert_eq!(run(&mut ring, op::write(fd, filled(1)).offset(0)), 4096);
        // An overwrite, a first write, which a worker ends, and a read.
        leave(&mut ring, op::write(fd, filled(2)).offset(0).user_data(10));
        leave(&mut ring, op::write(fd, filled(3)).offset(MIB).user_data(11));
        leave(&mut ring, op::read(fd, filled(0)).offset(0).user_data(12));
        let before = Instant::now();
        pool.snapshot("a", "s").expect("the wait runs the ring");
        assert_quick(before, "a snapshot");
        let mut seen: Vec<(u64, i32)> = Vec::new();
        ring.drain();
        seen.extend(ring.completions().map(|done| (done.user_data, done.res)));
        seen.sort_unstable();
        assert_eq!(seen, [(10, 4096), (11, 4096), (12, 4096)], "each completion is there for the caller");
        // The writes ended before the snapshot returned, so each is in it as a whole or not at all.
        let (mut copy, of) = attached(pool.open_volume("s").expect("opens"));
        copy.push(op::read(of, filled(0)).offset(0)).expect("room");
        copy.submit_and_wait(1).expect("submitted");
        let buf = copy.completions().next().and_then(|done| done.into_buf()).expect("its buffer");
        assert!(matches!(buf[0], 1 | 2) && buf.iter().all(|byte| *byte == buf[0]), "{:?}", &buf[..8]);
        leave(&mut ring, op::write(fd, filled(6)).offset(0));
        pool.rollback("a", "s").expect("nor does a rollback");
        leave(&mut ring, op::write(fd, filled(7)).offset(2 * MIB));
        pool.resize("a", MIB + 512 * 8).expect("nor a resize");
        assert_quick(before, "all of it");
    }
}

#[test]
fn a_thread_that_waits_for_another_lets_that_one_wait_for_it() {
    let pool = pool(PATIENCE, Checksum::None);
    let before = Instant::now();
    let barrier = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        for (mine, theirs) in [("a", "b"), ("b", "a")] {
            let (pool, barrier) = (&pool, &barrier);
            scope.spawn(move || {
                let (mut ring, fd) = attached(pool.open_volume(mine).expect("opens"));
                assert_eq!(run(&mut ring, op::write(fd, filled(1)).offset(0)), 4096);
                leave(&mut ring, op::read(fd, filled(0)).offset(0));
                barrier.wait();
                // Each snapshot waits for the other thread's read. The second snapshot also waits until the first one
                // is made.
                pool.snapshot(theirs, &format!("of-{theirs}")).expect("the other's ring is run by its own wait");
                ring.drain();
            });
        }
    });
    assert_quick(before, "both");
}

/// Checks V26.
#[test]
fn a_wait_for_another_thread_ends_and_names_volume_thread_and_time() {
    let pool = pool(SHORT, Checksum::None);
    let volume = pool.open_volume("a").expect("opens");
    pool.snapshot("a", "before").expect("nothing is under way");
    let sleeper = Sleeper::new(volume.clone());
    let before = Instant::now();
    let error = pool.snapshot("a", "s").expect_err("the read goes on");
    assert!(before.elapsed() >= SHORT && before.elapsed() < PATIENCE / 4, "{:?}", before.elapsed());
    assert_names_the_holder(&error, "a", "thread 'sleeper' (");
    assert!(pool.volume_info("s").is_err(), "nothing is left of it");
    pool.snapshot("b", "of-b").expect("the other volume is not touched");
    let error = pool.rollback("a", "before").expect_err("nor is it rolled back under the read");
    assert_names_the_holder(&error, "a", "thread 'sleeper' (");
    let (mut ring, fd) = attached(volume.clone());
    assert_eq!(run(&mut ring, op::write(fd, filled(2)).offset(8192)), 4096);
    assert_eq!(run(&mut ring, op::punch_hole(fd, 8192, 4096)), ETIMEDOUT);
    let holders = volume.holders();
    assert!(holders.len() == 1 && holders[0].thread.contains("sleeper") && holders[0].ios == 1, "{holders:?}");
    assert_eq!(sleeper.end(), 4096);
    assert_eq!(run(&mut ring, op::write(fd, filled(2)).offset(16384)), 4096);
    assert_eq!(run(&mut ring, op::punch_hole(fd, 16384, 4096)), 0, "and then it goes on");
    assert_eq!(volume.holders(), []);
    pool.snapshot("a", "s").expect("as does this");
}

#[test]
fn a_wait_for_another_thread_can_be_cancelled() {
    let pool = pool(PATIENCE, Checksum::None);
    let volume = pool.open_volume("a").expect("opens");
    let sleeper = Sleeper::new(volume.clone());
    let (mut ring, fd) = attached(volume);
    assert_eq!(run(&mut ring, op::write(fd, filled(2)).offset(8192)), 4096);
    let before = Instant::now();
    leave(&mut ring, op::punch_hole(fd, 8192, 4096).user_data(7));
    assert_eq!(ring.wait(1, Some(Duration::from_millis(100))), Waited::TimedOut, "the read goes on");
    assert_eq!(ring.cancel(op::Cancel::user_data(7)), Ok(1));
    ring.drain();
    assert_eq!(ring.completions().map(|done| done.res).collect::<Vec<_>>(), [ECANCELED]);
    assert_quick(before, "a cancelled hole");
    assert_eq!(sleeper.end(), 4096);
}

#[test]
fn a_ring_that_is_in_use_is_not_run_and_the_wait_says_so() {
    let pool = pool(SHORT, Checksum::None);
    let (mut ring, fd) = attached(pool.open_volume("a").expect("opens"));
    assert_eq!(run(&mut ring, op::write(fd, filled(1)).offset(0)), 4096);
    leave(&mut ring, op::nop());
    leave(&mut ring, op::read(fd, filled(0)).offset(0));
    // While it lends its CQEs.
    let mut errors: Vec<PoolError> = Vec::new();
    ring.for_each_cqe(|_| errors.push(pool.snapshot("a", "s").expect_err("in use")));
    assert_eq!(errors.len(), 1);
    assert_names_the_holder(&errors[0], "a", "thread '");
    // Each completion is read by one call, and between these calls a wait runs the ring.
    leave(&mut ring, op::nop());
    let mut copies = 0;
    for (_, name) in ring.completions().zip(["s2", "s3", "s4"]) {
        pool.snapshot("a", name).expect("between its calls it is run");
        copies += 1;
    }
    assert!(copies > 0);
}
