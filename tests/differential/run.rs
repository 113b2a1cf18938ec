//! Runs one program on one ring: the loop that is the same for the kernel and for Sheave.
//!
//! Owns the rule that decides when a batch is quiet (I1 of `program`). The ring behind it is a [`Target`]. Called by
//! the tests in `main` and by the shrinker.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::abi::RawSqe;
use crate::program::{ARENA_BYTES, DEVICE_BYTES, FIXED_BYTES, Image, Places, Program, Shape};
use sheave_base::rng::Rng;

/// One completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cqe {
    pub user_data: u64,
    pub res: i32,
    pub flags: u32,
}

/// The bytes of the device and of the memory that operations use.
#[derive(Clone, PartialEq, Eq)]
pub struct Bytes {
    pub arena: Vec<u8>,
    pub fixed: [Vec<u8>; 2],
    pub device: Vec<u8>,
}

impl Bytes {
    /// Returns the bytes that every ring starts with.
    pub fn before(seed: u64) -> Self {
        let mut rng = Rng::new(!seed);
        let mut filled = |len: u64| {
            let mut bytes = vec![0u8; len as usize];
            rng.fill(&mut bytes);
            bytes
        };
        Bytes {
            arena: filled(ARENA_BYTES),
            fixed: [filled(FIXED_BYTES[0]), filled(FIXED_BYTES[1])],
            device: filled(DEVICE_BYTES),
        }
    }
}

/// A ring under test together with its device and memory.
pub trait Target {
    fn name(&self) -> &str;
    /// Returns true if reads return the data written.
    fn has_bytes(&self) -> bool {
        true
    }
    /// Makes a new ring, and fills device and memory.
    fn open(&mut self, shape: Shape, bytes: &Bytes) -> Places;
    /// Queues all SQEs and submits once. Returns the number that the ring reports as consumed.
    fn submit(&mut self, sqes: &[RawSqe]) -> u32;
    /// Takes CQEs out of the ring. Waits up to `patience` for the first.
    fn reap(&mut self, out: &mut Vec<Cqe>, patience: Duration);
    /// Returns true if the ring reports that completions wait for room in the CQ.
    fn overflowed(&mut self) -> bool;
    /// Ends the ring and returns the current bytes.
    fn close(&mut self) -> Bytes;
}

/// Everything that a program left behind on one ring.
#[derive(Clone, PartialEq, Eq)]
pub struct Outcome {
    /// CQEs in the order of posting.
    pub cqes: Vec<Cqe>,
    /// Result of each submit.
    pub submitted: Vec<u32>,
    /// The overflow flag after each submit of a program that hoards its CQEs.
    pub overflow: Vec<bool>,
    /// User data of certain CQEs that did not arrive in time.
    pub missing: Vec<u64>,
    pub bytes: Bytes,
    /// True if the bytes have a meaning.
    pub has_bytes: bool,
}

/// Times to wait for CQEs that may or may not arrive.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Time without a new CQE after which a batch counts as quiet.
    pub settle: Duration,
    /// Time after which a certain CQE that has not arrived counts as missing.
    pub give_up: Duration,
}

impl Patience {
    const fn of(settle_ms: u64, give_up_ms: u64) -> Patience {
        Patience { settle: Duration::from_millis(settle_ms), give_up: Duration::from_millis(give_up_ms) }
    }

    /// Successive attempts. On a busy machine the first one is too short, so a difference must persist in all of them.
    pub const LOOKS: [Patience; 3] = [Self::of(3, 1000), Self::of(60, 5000), Self::of(600, 10_000)];
    /// Patience while a program that differs is made smaller.
    pub const SHRINKING: Patience = Self::of(12, 500);
}

/// Runs `program` on `target` from a fresh ring and fresh bytes.
pub fn run(target: &mut dyn Target, program: &Program, patience: Patience) -> Outcome {
    let places = target.open(program.shape, &Bytes::before(program.seed));
    let image = Image::new(program, places);
    let mut outcome = Outcome {
        cqes: Vec::new(),
        submitted: Vec::new(),
        overflow: Vec::new(),
        missing: Vec::new(),
        bytes: Bytes { arena: Vec::new(), fixed: [Vec::new(), Vec::new()], device: Vec::new() },
        has_bytes: target.has_bytes(),
    };
    let mut waiting = false; // a chain behind a timeout may start at any time
    for batch in &program.batches {
        let sqes: Vec<RawSqe> = batch.iter().map(|op| image.sqe(op)).collect();
        outcome.submitted.push(target.submit(&sqes));
        if program.shape.hoard {
            outcome.overflow.push(target.overflowed());
            continue;
        }
        let (certain, others) = Program::awaited(batch);
        let missing = await_all(target, &mut outcome.cqes, &certain, patience.give_up);
        outcome.missing.extend(missing);
        waiting |= batch.iter().any(|op| op.nature.pending);
        if others || waiting {
            settle(target, &mut outcome.cqes, patience.settle);
        }
    }
    settle(target, &mut outcome.cqes, patience.settle);
    outcome.bytes = target.close();
    outcome
}

/// Waits for the CQEs of `certain`. Returns those that did not arrive.
fn await_all(target: &mut dyn Target, cqes: &mut Vec<Cqe>, certain: &[u64], give_up: Duration) -> Vec<u64> {
    let mut open: HashMap<u64, u32> = HashMap::new();
    for &user_data in certain {
        *open.entry(user_data).or_default() += 1;
    }
    let deadline = Instant::now() + give_up;
    while !open.is_empty() && Instant::now() < deadline {
        let seen = cqes.len();
        target.reap(cqes, Duration::from_millis(20));
        for cqe in &cqes[seen..] {
            if let Some(count) = open.get_mut(&cqe.user_data) {
                *count -= 1;
                if *count == 0 {
                    open.remove(&cqe.user_data);
                }
            }
        }
    }
    open.into_keys().collect()
}

/// Reaps until nothing has arrived for `quiet`.
fn settle(target: &mut dyn Target, cqes: &mut Vec<Cqe>, quiet: Duration) {
    loop {
        let seen = cqes.len();
        target.reap(cqes, quiet);
        if cqes.len() == seen {
            return;
        }
    }
}
