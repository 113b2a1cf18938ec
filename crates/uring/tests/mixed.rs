//! All kinds of operations at once on one ring: reads, chains, drains, timeouts, link timeouts, cancels and messages,
//! some of them through a worker, on a device with latency. Each SQE gives one CQE and each buffer comes back, in every
//! outcome.

use std::collections::HashMap;
use std::time::Duration;

use sheave_base::buf::Buf;
use sheave_base::clock::{Clock, VirtualClock};
use sheave_base::rng::Rng;
use sheave_drivers::open_device;
use sheave_uring::prep::{self, Cancel, Entry, Opcode};
use sheave_uring::{Fd, Ring};

const SEEDS: u64 = 150;
const STEPS: u64 = 40;
/// First user data of messages.
const MESSAGE: u64 = 1 << 32;

/// State of an SQE.
#[derive(Clone, Copy, Debug, Default)]
struct Pushed {
    cqes: u32,
    owns: bool,
    sends: bool,
}

struct Mix {
    rng: Rng,
    ring: Ring,
    time: VirtualClock,
    device: Fd,
    itself: Fd,
    pushed: HashMap<u64, Pushed>,
    next: u64,
    /// Number of messages accepted and not yet received.
    under_way: i64,
}

impl Mix {
    fn new(seed: u64) -> Mix {
        let (clock, time) = Clock::virtual_clock();
        let mut ring = Ring::builder().entries(16).cq_entries(16).in_flight(64).clock(clock).build().unwrap();
        let device = ring.attach(&open_device("null:size=1M,latency=10ms,depth=4").unwrap()).unwrap();
        let handle = ring.handle();
        let itself = ring.attach_ring(&handle).unwrap();
        Mix { rng: Rng::new(seed), ring, time, device, itself, pushed: HashMap::new(), next: 1, under_way: 0 }
    }

    fn target(&mut self) -> Cancel {
        let known = self.next - self.rng.below(self.next.min(20)) - 1;
        match self.rng.below(7) {
            0 => Cancel::everything(),
            1 => Cancel::file(self.device),
            2 => Cancel::file(self.device).all(),
            3 => Cancel::opcode(Opcode::Timeout).all(),
            4 => Cancel::user_data(known).all(),
            _ => Cancel::user_data(known),
        }
    }

    fn entry(&mut self, kind: u64) -> Entry {
        let span = Duration::from_micros(self.rng.below(30_000));
        let known = self.next - self.rng.below(self.next.min(20)) - 1;
        match kind {
            0..6 => prep::read(self.device, Buf::zeroed(512, 512).unwrap()).offset(self.rng.below(2048) * 512).into(),
            6 => prep::read(Fd::NONE, Buf::zeroed(512, 512).unwrap()).into(),
            7 => prep::nop().into(),
            8 | 9 => prep::timeout(span).into(),
            10 => prep::timeout(span).etime_success().into(),
            11 => prep::timeout(Duration::from_secs(1 << 40)).count(self.rng.below(6) as u32).into(),
            12 => prep::timeout_remove(known).into(),
            13 => prep::timeout_update(known, span).into(),
            14 => prep::link_timeout_update(known, span).into(),
            15 | 16 => {
                let target = self.target();
                prep::cancel(target).into()
            }
            17 => prep::message(self.itself, MESSAGE, 0).into(),
            18 => prep::link_timeout(span).into(),
            _ => prep::fsync(self.device).into(),
        }
    }

    fn push(&mut self) {
        let kind = self.rng.below(20);
        let mut entry = self.entry(kind);
        for _ in 0..=self.rng.below(2) {
            entry = match self.rng.below(14) {
                0..3 => entry.link(),
                3 => entry.hardlink(),
                4 => entry.drain(),
                5 => entry.run_async(),
                _ => entry,
            };
        }
        if self.ring.push(entry.user_data(self.next)).is_ok() {
            self.pushed.insert(self.next, Pushed { cqes: 0, owns: kind < 7, sends: kind == 17 });
            self.next += 1;
        }
    }

    fn reap(&mut self) {
        for completion in self.ring.completions() {
            if completion.user_data == MESSAGE {
                self.under_way -= 1;
                continue;
            }
            let pushed = self.pushed.get_mut(&completion.user_data).expect("a CQE of what was pushed");
            pushed.cqes += 1;
            assert_eq!(pushed.cqes, 1, "{completion:?} came twice");
            self.under_way += i64::from(pushed.sends && completion.res == 0);
            let (what, owns) = (format!("{completion:?}"), pushed.owns);
            assert_eq!(completion.into_buf().is_some(), owns, "the buffer of {what}");
        }
    }

    fn step(&mut self) {
        for _ in 0..self.rng.below(12) {
            self.push();
        }
        // An error means too much in flight: SQEs that were not taken stay in the SQ.
        let _ = self.ring.submit();
        if self.rng.below(3) == 0 {
            self.time.advance(Duration::from_micros(self.rng.below(20_000)));
            self.ring.reap();
        }
        if self.rng.below(8) == 0 {
            let target = self.target();
            let _ = self.ring.cancel(target);
        }
        if self.rng.below(2) == 0 {
            self.reap();
        }
    }

    /// Waits until everything has ended.
    fn end(&mut self) {
        for round in 0.. {
            let _ = self.ring.submit();
            let _ = self.ring.cancel(Cancel::everything());
            self.time.advance(Duration::from_millis(100));
            self.reap();
            let open = self.pushed.values().filter(|pushed| pushed.cqes == 0).count();
            if open == 0 && self.under_way == 0 {
                break;
            }
            assert!(round < 20_000, "{open} never ended, {} in flight", self.ring.in_flight());
            // Asynchronous operations are with a worker, which polls its device at least every ten milliseconds.
            if round < 1_000 {
                std::thread::yield_now();
            } else {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        assert_eq!(self.ring.in_flight(), 0);
        assert_eq!(self.ring.completions().count(), 0, "and nothing comes after that");
        assert!(self.ring.io().is_idle());
    }
}

#[test]
fn each_sqe_gives_one_cqe_and_each_buffer_comes_back() {
    for seed in sheave_testkit::seeds(SEEDS) {
        println!("seed {seed}");
        let mut mix = Mix::new(seed);
        (0..STEPS).for_each(|_| mix.step());
        mix.end();
    }
}

#[test]
fn a_ring_dropped_in_the_middle_of_it_is_safe() {
    for seed in sheave_testkit::seeds(SEEDS) {
        let mut mix = Mix::new(seed);
        (0..seed % STEPS).for_each(|_| mix.step());
    }
}
