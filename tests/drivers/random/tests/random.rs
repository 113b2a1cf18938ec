//! The whole library at random, from safe code: operations of every kind on devices, files and volumes, honest and
//! lying; handles, descriptors and completions kept too long; rings and devices dropped in any order. Only one kind of
//! result is asserted, as memory does not show it: an operation on an `Fd` that was detached, or is of another ring,
//! fails. The address sanitizer checks the memory (`cargo xtask asan -p sheave-outside-random`), and a program that
//! hangs or panics by itself fails. `SHEAVE_RANDOM_SECONDS` sets the time for which new programs are run.
#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use sheave::op::Cancel;
use sheave::volumes::{CreateOptions, OpenOptions, Pool};
use sheave::{Buf, Completion, Device, Fd, FixedFile, Ring, RingHandle, op, open_device};
use sheave_outside_random::{LIE, LyingFile, SIZE, liar};

/// Number of ticks after which a program counts as hanging. Most programs take milliseconds.
const LONGEST: u32 = 60;
const TICK: Duration = Duration::from_secs(5);

/// Flag in the user data of operations whose `Fd` is stale or foreign, which must fail.
const MUST_FAIL: u64 = 1 << 32;

/// Set when any code panics that is not a lying driver or file. A ring catches the panics of its drivers, so a panic of
/// the ring itself would otherwise pass for one of theirs.
static PANICKED: AtomicBool = AtomicBool::new(false);

/// One step: a kind of action and its parameters.
type Step = (u8, u8, u8, u32);

/// The objects that a program has, including some that it keeps although it should not.
struct World {
    rings: [Option<Ring>; 2],
    devices: Vec<Option<Device>>,
    pool: Option<Pool>,
    fds: Vec<Fd>,
    /// Descriptors that each ring has attached and not detached, without those of an earlier ring in its place.
    named: [HashSet<Fd>; 2],
    handles: Vec<RingHandle>,
    kept: Vec<Completion>,
}

fn buf(len: u32) -> Buf {
    Buf::zeroed(((len % 16 + 1) * 512) as usize, 512).expect("memory")
}

impl World {
    fn new(seed: u64) -> World {
        let ram = open_device("ram:size=1M").expect("a device");
        let big = open_device("ram:size=64M").expect("a device");
        Pool::create(&big, &CreateOptions::default()).expect("a pool");
        let pool = Pool::open(&big, &OpenOptions::default()).expect("a pool");
        pool.create_volume("v", 1 << 30).expect("a volume");
        let bad = format!("fault:seed={seed},error=0.1,delay=0.2,delay_time=200us,over=ram:size=1M");
        let late = "null:size=1M,latency=100us,complete=thread";
        let mut devices = vec![liar(seed, &ram), liar(seed ^ 1, &open_device(&bad).expect("a device")), ram];
        devices.extend([bad.as_str(), late].map(|spec| open_device(spec).expect("a device")));
        World {
            rings: [None, None],
            devices: devices.into_iter().map(Some).collect(),
            pool: Some(pool),
            fds: vec![Fd::NONE],
            named: Default::default(),
            handles: Vec::new(),
            kept: Vec::new(),
        }
    }

    fn fd(&self, at: u8) -> Fd {
        self.fds[usize::from(at) % self.fds.len()]
    }

    /// Keeps completions, and asserts that operations which must fail have failed.
    fn keep(&mut self, done: impl IntoIterator<Item = Completion>) {
        for done in done {
            let (number, res) = (done.user_data, done.res);
            assert!(number & MUST_FAIL == 0 || res < 0, "an operation on an Fd that names nothing ended with {res}");
            self.kept.push(done);
        }
    }

    fn attach(&mut self, ring: usize, what: u8, seed: u32) {
        let device = self.devices[usize::from(what) % self.devices.len()].clone();
        let pool = &self.pool;
        let handle = self.handles.last();
        let named = &mut self.named[ring];
        let Some(ring) = &mut self.rings[ring] else { return };
        let fd = match what >> 4 {
            0..8 => device.and_then(|device| ring.attach(&device).ok()),
            8..12 => device.and_then(|device| ring.attach_file(Arc::new(LyingFile::new(seed.into(), &device))).ok()),
            12..15 => pool
                .as_ref()
                .and_then(|pool| pool.open_volume("v").ok())
                .and_then(|volume| ring.attach_file(Arc::new(volume)).ok()),
            _ => handle.and_then(|handle| ring.attach_ring(handle).ok()),
        };
        self.fds.extend(fd);
        named.extend(fd);
    }

    fn push(&mut self, ring: usize, what: u8, on: u8, at: u32) {
        let (fd, offset) = (self.fd(on), u64::from(at) * 512 % (2 * SIZE));
        let is_on_fd = matches!(what % 20, 0..=9 | 11..=14 | 18);
        let must_fail = if is_on_fd && !self.named[ring].contains(&fd) { MUST_FAIL } else { 0 };
        let Some(ring) = &mut self.rings[ring] else { return };
        let (len, number) = (at >> 8, u64::from(at % 7));
        let end = (at % 9000) as usize;
        let mut entry: op::Entry = match what % 20 {
            0 => op::read(fd, buf(len)).offset(offset).into(),
            1 => op::write(fd, buf(len)).offset(offset).into(),
            2 => op::write(fd, buf(len)).offset(offset).dsync().into(),
            3 => op::read(fd, vec![0; end]).offset(offset).into(),
            4 => op::read(fd, vec![0; end]).part(end / 3..end / 2).offset(offset).into(),
            5 => op::write(fd, Arc::<[u8]>::from(vec![1; end])).offset(offset).into(),
            6 => op::readv(fd, vec![buf(len), buf(at)]).offset(offset).into(),
            7 => op::writev(fd, vec![buf(len), buf(at)]).offset(offset).into(),
            8 => op::read_fixed(fd, (at % 5) as u16, end / 2..end).offset(offset).into(),
            9 => op::write_fixed(fd, (at % 5) as u16, end / 2..end).offset(offset).into(),
            10 => op::read(FixedFile(at % 4), buf(len)).offset(offset).into(),
            11 => op::fsync(fd).into(),
            12 => op::fdatasync(fd).into(),
            13 => op::punch_hole(fd, offset, u64::from(len) * 512).into(),
            14 => op::zero_range(fd, offset, u64::from(len) * 512).into(),
            15 => op::timeout(Duration::from_micros(u64::from(at % 2000))).count(at % 3).into(),
            16 => op::timeout_remove(number).into(),
            17 => op::cancel(Cancel::user_data(number).and(Cancel::file(fd)).all()).into(),
            18 => op::message(fd, number, 5).into(),
            _ => op::link_timeout(Duration::from_micros(u64::from(at % 500))).into(),
        };
        entry = entry.user_data(number | must_fail);
        entry = match what / 20 % 6 {
            0 => entry.link(),
            1 => entry.hardlink(),
            2 => entry.drain(),
            3 => entry.run_async(),
            4 => entry.skip_success(),
            _ => entry,
        };
        if at.is_multiple_of(11) {
            _ = ring.push_chain([entry, op::fsync(fd).into(), op::nop().into()]);
        } else if ring.push(entry).is_err() {
            _ = ring.submit();
        }
    }

    fn registered(&mut self, ring: usize, what: u8, at: u32) {
        let fds = [self.fd(what), self.fd(at as u8), Fd::NONE];
        let Some(ring) = &mut self.rings[ring] else { return };
        let index = (at % 5) as u16;
        match what % 6 {
            0 => _ = ring.register_buffers((0..at % 4).map(buf).collect()),
            1 => _ = ring.update_buffer(index, at.is_multiple_of(2).then(|| buf(at))),
            2 => _ = ring.buffer_mut(index).map(|bytes| bytes.fill(3)),
            3 => _ = ring.register_files(&fds),
            4 => _ = ring.update_file(usize::from(index), fds[0]),
            _ => ring.unregister_files(),
        }
    }

    fn complete(&mut self, ring: usize, what: u8, at: u32) {
        let Some(ring) = &mut self.rings[ring] else { return };
        let mut seen = Vec::new();
        match what % 8 {
            0 => _ = ring.submit(),
            1 => _ = ring.wait(at % 5, Some(Duration::from_micros(u64::from(at % 700)))),
            2 => ring.reap(),
            3 => _ = ring.prepare_wait(),
            4 => seen.extend(ring.pop()),
            5 => _ = std::mem::ManuallyDrop::new(ring.completions()), // forgotten
            6 => seen.extend(ring.completions().take(at as usize % 4)),
            _ => _ = ring.cancel(Cancel::everything()),
        }
        self.keep(seen);
        if self.kept.len() > 20 {
            self.kept.drain(..10).for_each(|done| drop(done.into_bufs()));
        }
    }

    fn handles(&mut self, ring: usize, what: u8, at: u32) {
        match what % 4 {
            0 => self.handles.extend(self.rings[ring].as_ref().map(Ring::handle)),
            1 => _ = self.handles.pop(),
            2 => {
                for handle in self.handles.iter().take(3) {
                    let handle = handle.clone();
                    std::thread::spawn(move || {
                        _ = handle.send(u64::from(at), 1);
                        handle.wake();
                    });
                }
            }
            _ => self.handles.truncate(4),
        }
    }

    fn step(&mut self, (what, which, on, at): Step) {
        let ring = usize::from(what & 1);
        if self.rings[ring].is_none() {
            let builder = Ring::builder().entries(1 << (at % 6)).polled(at & 64 != 0);
            self.rings[ring] = builder.in_flight(8 + at % 60).build().ok();
            self.named[ring].clear();
        }
        match what >> 1 {
            0..10 => self.attach(ring, which, at),
            10..70 => self.push(ring, which, on, at),
            70..100 => self.complete(ring, which, at),
            100..108 => self.registered(ring, which, at),
            108..116 => self.handles(ring, which, at),
            116..121 => {
                let fd = self.fd(on);
                if self.rings[ring].as_mut().is_some_and(|ring| ring.detach(fd).is_ok()) {
                    self.named[ring].remove(&fd);
                }
            }
            121..123 => {
                let at = usize::from(which) % self.devices.len();
                self.devices[at] = None;
            }
            123 => _ = self.pool.as_ref().map(|pool| pool.create_volume(&at.to_string(), 1 << 20)),
            124 if at.is_multiple_of(4) => self.pool = None,
            _ => self.rings[ring] = None,
        }
    }
}

/// Runs one program. Its seed is also the seed of the liars and of the faults.
fn run(seed: u64, steps: Vec<Step>) {
    panic::set_hook(Box::new(|info| {
        if info.payload_as_str() != Some(LIE) {
            PANICKED.store(true, Ordering::Relaxed);
            eprintln!("{info}\n{}", std::backtrace::Backtrace::force_capture());
        }
    }));
    let mut world = World::new(seed);
    // Some objects to begin with.
    for what in [0, 1] {
        for which in [0, 1, 2, 3, 4, 130, 200] {
            world.step((what, which, 0, 77));
        }
    }
    for step in steps {
        world.step(step);
    }
    if seed.is_multiple_of(2) {
        world.devices.clear();
        world.pool = None;
    }
    drop(world);
    assert!(!PANICKED.load(Ordering::Relaxed), "a panic that is not of a liar was contained");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_that_safe_code_does_breaks_memory(seed: u64, steps in prop::collection::vec(any::<Step>(), 1..200)) {
        run(seed, steps);
    }
}

/// Returns the program of a number.
fn program(number: u64) -> Vec<Step> {
    let bytes: Vec<u8> = number.to_le_bytes().into_iter().cycle().take(32).collect();
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(ProptestConfig::default(), rng);
    let steps = prop::collection::vec(any::<Step>(), 1..400).new_tree(&mut runner).expect("nothing is rejected");
    steps.current()
}

/// Returns the numbers of the programs to run: one number to repeat it, or new ones until the time is over. The default
/// is a set that is the same everywhere.
fn numbers() -> Box<dyn Iterator<Item = u64>> {
    let number = |key: &str| std::env::var(key).ok().map(|text| text.parse::<u64>().expect("a number"));
    if let Some(again) = number("SHEAVE_RANDOM_SEED") {
        return Box::new([again].into_iter());
    }
    let Some(seconds) = number("SHEAVE_RANDOM_SECONDS") else { return Box::new(0..20) };
    let start = Instant::now();
    let first = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970").as_nanos() as u64;
    Box::new((first..).take_while(move |_| start.elapsed().as_secs() < seconds))
}

/// The sanitizer ends the process, so each program is printed before it runs: `SHEAVE_RANDOM_SEED=N` runs it again.
#[test]
fn programs_for_as_long_as_one_likes() {
    let now = Arc::new(AtomicU64::new(0));
    let watched = Arc::clone(&now);
    std::thread::spawn(move || {
        let (mut last, mut ticks) = (0, 0);
        loop {
            // Counts ticks instead of reading a clock: when the process is stopped for a while, the count stops too.
            std::thread::sleep(TICK);
            let number = watched.load(Ordering::Relaxed);
            ticks = if number == last { ticks + 1 } else { 0 };
            last = number;
            if ticks == LONGEST {
                eprintln!("program {number} hangs");
                std::process::abort();
            }
        }
    });
    let mut count = 0;
    for number in numbers() {
        now.store(number, Ordering::Relaxed);
        eprintln!("program {number}");
        run(number, program(number));
        count += 1;
    }
    println!("{count} programs");
}
