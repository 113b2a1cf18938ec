//! The plan of faults: their rates, the draw that decides about one request, and their counts.
//!
//! Owns the kinds of faults, their rates, the generator and the counters. Does not touch requests.
//!
//! Invariants:
//! - P1: a request has at most one fault; one uniform draw decides, so the rates of an operation add up to at most 1.
//! - P2: a decision is a function of the seed, the stream (queue and hardware context) and the number of earlier
//!   decisions.

use std::time::Duration;

use sheave_base::rng::Rng;
use sheave_base::sync::atomic::{AtomicU64, Ordering};

use sheave_blk::bio::{NR_OPS, Op};

/// Kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The request ends with an I/O error and has no effect.
    Error = 0,
    /// Only a first part of a read or write is transferred. The request ends with an I/O error.
    Short = 1,
    /// Only the first blocks of a write reach the device. The request ends with an I/O error.
    Torn = 2,
    /// The request reaches the device late.
    Delay = 3,
    /// A flush is acknowledged and not sent down, as by a device that ignores flushes.
    DroppedFlush = 4,
    /// The request never ends by itself.
    Stuck = 5,
    /// The request goes to another place of the device and ends with success.
    Misdirect = 6,
}

/// Number of kinds.
pub(super) const NR_FAULTS: usize = 7;

impl FaultKind {
    /// Every kind, in the order of its value.
    pub const ALL: [FaultKind; NR_FAULTS] = [
        FaultKind::Error,
        FaultKind::Short,
        FaultKind::Torn,
        FaultKind::Delay,
        FaultKind::DroppedFlush,
        FaultKind::Stuck,
        FaultKind::Misdirect,
    ];

    /// Returns the key of this kind in a spec.
    pub fn name(self) -> &'static str {
        match self {
            FaultKind::Error => "error",
            FaultKind::Short => "short",
            FaultKind::Torn => "torn",
            FaultKind::Delay => "delay",
            FaultKind::DroppedFlush => "dropped_flush",
            FaultKind::Stuck => "stuck",
            FaultKind::Misdirect => "misdirect",
        }
    }

    /// Returns true if this fault can happen to operation `op`.
    pub fn applies_to(self, op: Op) -> bool {
        match self {
            FaultKind::Error | FaultKind::Delay | FaultKind::Stuck => true,
            FaultKind::Short => op.has_data(),
            FaultKind::Torn => matches!(op, Op::Write | Op::WriteZeroes),
            FaultKind::DroppedFlush => op == Op::Flush,
            FaultKind::Misdirect => op != Op::Flush,
        }
    }
}

/// Operations that can have faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FaultOps {
    /// Reads only.
    Read,
    /// Everything but reads.
    Write,
    /// Everything.
    #[default]
    All,
}

impl FaultOps {
    fn contains(self, op: Op) -> bool {
        match self {
            FaultOps::Read => op == Op::Read,
            FaultOps::Write => op != Op::Read,
            FaultOps::All => true,
        }
    }
}

/// The faults of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct FaultPlan {
    /// Seed of all random decisions.
    pub seed: u64,
    /// Delay of a delayed request.
    pub delay_time: Duration,
    pub ops: FaultOps,
    /// Time after which a stuck request times out. `None` selects the timeout of the device below.
    pub timeout: Option<Duration>,
    /// Rate of each kind, by its value, among the requests to which it can happen; see [`FaultPlan::with`].
    pub rates: [f64; NR_FAULTS],
}

impl FaultPlan {
    /// Makes a plan without faults.
    pub fn new(seed: u64) -> FaultPlan {
        FaultPlan {
            seed,
            delay_time: Duration::from_millis(1),
            ops: FaultOps::All,
            timeout: None,
            rates: [0.0; NR_FAULTS],
        }
    }

    /// Adds faults of this kind to the plan, for the share `rate` (0 to 1) of the requests to which they can happen.
    #[must_use]
    pub fn with(mut self, kind: FaultKind, rate: f64) -> FaultPlan {
        self.rates[kind as usize] = rate;
        self
    }

    pub fn rate(&self, kind: FaultKind) -> f64 {
        self.rates[kind as usize]
    }

    fn rate_for(&self, kind: FaultKind, op: Op) -> f64 {
        if kind.applies_to(op) && self.ops.contains(op) { self.rate(kind) } else { 0.0 }
    }

    /// Returns the cumulative rates that a random number is compared with. Fails if a rate is not a probability, or if
    /// the rates for one operation add up to more than 1.
    pub(super) fn odds(&self) -> Result<Odds, String> {
        for kind in FaultKind::ALL {
            let rate = self.rate(kind);
            if !(0.0..=1.0).contains(&rate) {
                return Err(format!("{}={rate}: give a probability from 0 to 1, such as 0.01", kind.name()));
            }
        }
        let mut bounds = [[0; NR_FAULTS]; NR_OPS];
        for op in Op::ALL {
            let mut sum = 0.0;
            for kind in FaultKind::ALL {
                sum += self.rate_for(kind, op);
                bounds[op as usize][kind as usize] = (sum * DRAWS) as u64;
            }
            // Tolerance for rounding: ten times 0.1 is a little more than 1.
            if sum > 1.0 + 1e-9 {
                let (terms, op) = (self.terms(op), op.name());
                return Err(format!(
                    "{terms} is {sum:.3} for a {op}: a request has at most one fault. Lower them to 1 in all"
                ));
            }
        }
        Ok(Odds { bounds })
    }

    /// Returns the rates that add up for an operation, in the user's notation.
    fn terms(&self, op: Op) -> String {
        let some = FaultKind::ALL.iter().filter(|&&kind| self.rate_for(kind, op) > 0.0);
        some.map(|&kind| format!("{}={}", kind.name(), self.rate(kind))).collect::<Vec<_>>().join(" + ")
    }
}

/// Number of values of a draw: as many as the fraction of a double can distinguish.
const DRAWS: f64 = (1u64 << DRAW_BITS) as f64;
const DRAW_BITS: u32 = 53;

/// Cumulative rates of a plan for each operation.
#[derive(Clone, Debug)]
pub(super) struct Odds {
    bounds: [[u64; NR_FAULTS]; NR_OPS],
}

impl Odds {
    /// Returns true if no fault can ever happen.
    pub(super) fn is_quiet(&self) -> bool {
        self.bounds.iter().all(|of_op| of_op[NR_FAULTS - 1] == 0)
    }

    /// Decides about one request (P1, P2).
    #[inline]
    pub(super) fn draw(&self, op: Op, rng: &mut Rng) -> Option<FaultKind> {
        let draw = rng.draw() >> (u64::BITS - DRAW_BITS);
        let bounds = &self.bounds[op as usize];
        if draw >= bounds[NR_FAULTS - 1] {
            return None;
        }
        FaultKind::ALL.into_iter().find(|&kind| draw < bounds[kind as usize])
    }
}

/// Returns the random number generator of one hardware context of one queue.
pub(super) fn stream(seed: u64, queue: u16, hctx: u16) -> Rng {
    Rng::new(seed).fork(u64::from(queue) << 16 | u64::from(hctx))
}

/// Number of faults that a device has injected so far, over all rings: written by its hardware queues, readable by any
/// thread.
#[derive(Debug, Default)]
pub struct FaultCounts([AtomicU64; NR_FAULTS]);

impl FaultCounts {
    /// Returns the number of faults of this kind.
    pub fn get(&self, kind: FaultKind) -> u64 {
        // Relaxed: a count orders nothing; it is exact when the rings are quiet.
        self.0[kind as usize].load(Ordering::Relaxed)
    }

    /// Returns the number of all faults.
    pub fn total(&self) -> u64 {
        FaultKind::ALL.iter().map(|&kind| self.get(kind)).sum()
    }

    pub(super) fn count(&self, kind: FaultKind) {
        // Relaxed: see `get`.
        self.0[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns a text such as `error 12, torn 3`; empty if there were no faults.
    pub(super) fn in_words(&self) -> String {
        let some = FaultKind::ALL.iter().map(|&kind| (kind, self.get(kind))).filter(|&(_, count)| count > 0);
        some.map(|(kind, count)| format!("{} {count}", kind.name())).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWN: usize = 100_000;

    fn drawn(plan: &FaultPlan, op: Op, rng: &mut Rng) -> Vec<Option<FaultKind>> {
        let odds = plan.odds().expect("good rates");
        (0..DRAWN).map(|_| odds.draw(op, rng)).collect()
    }

    fn share(drawn: &[Option<FaultKind>], kind: FaultKind) -> f64 {
        drawn.iter().filter(|&&have| have == Some(kind)).count() as f64 / drawn.len() as f64
    }

    /// Returns a plan in which every kind has a rate of its own.
    fn all_kinds() -> FaultPlan {
        let rates = [0.02, 0.03, 0.05, 0.07, 0.3, 0.11, 0.13];
        FaultKind::ALL.into_iter().zip(rates).fold(FaultPlan::new(1), |plan, (kind, rate)| plan.with(kind, rate))
    }

    #[test]
    fn fault_rates_match_the_plan_per_operation() {
        let plan = all_kinds();
        for op in Op::ALL {
            let drawn = drawn(&plan, op, &mut stream(5, 0, 0));
            for kind in FaultKind::ALL {
                let expect = if kind.applies_to(op) { plan.rate(kind) } else { 0.0 };
                let have = share(&drawn, kind);
                // Four standard deviations are under 0.006.
                let off = if expect == 0.0 { 0.0 } else { 0.006 };
                assert!((have - expect).abs() <= off, "{} of {}: {have}, not {expect}", kind.name(), op.name());
            }
        }
    }

    #[test]
    fn certain_is_always_and_nothing_is_never() {
        let always = FaultPlan::new(0).with(FaultKind::Delay, 1.0);
        let mut rng = stream(0, 0, 0);
        assert!(drawn(&always, Op::Read, &mut rng).iter().all(|&kind| kind == Some(FaultKind::Delay)));
        assert!(!always.odds().unwrap().is_quiet());
        let never = FaultPlan::new(0).odds().expect("no faults are a plan too");
        assert!(never.is_quiet() && (0..DRAWN).all(|_| never.draw(Op::Write, &mut rng).is_none()));
        // A sum of ten tenths is a little more than 1 in a double.
        let kinds = [FaultKind::Error, FaultKind::Short, FaultKind::Torn, FaultKind::Delay, FaultKind::Stuck];
        let plan = kinds.into_iter().fold(FaultPlan::new(0), |plan, kind| plan.with(kind, 0.1 + 0.1));
        assert!(drawn(&plan, Op::Write, &mut rng).iter().all(Option::is_some));
    }

    #[test]
    fn operations_left_out_are_left_alone() {
        let mut plan = all_kinds();
        for (ops, touched) in [(FaultOps::Read, vec![Op::Read]), (FaultOps::Write, Op::ALL[1..].to_vec())] {
            plan.ops = ops;
            for op in Op::ALL {
                let some = drawn(&plan, op, &mut stream(3, 0, 0)).iter().any(Option::is_some);
                assert_eq!(some, touched.contains(&op), "{ops:?}: {}", op.name());
            }
        }
    }

    #[test]
    fn a_seed_gives_the_same_again_and_each_stream_its_own() {
        let plan = all_kinds();
        let of = |seed, queue, hctx| drawn(&plan, Op::Write, &mut stream(seed, queue, hctx));
        let one = of(7, 0, 0);
        assert_eq!(one, of(7, 0, 0));
        for other in [of(8, 0, 0), of(7, 1, 0), of(7, 0, 1)] {
            // Independent streams agree on "no fault" in 0.59 squared of all cases. A shifted stream would fail the
            // next check.
            let same = one.iter().zip(&other).filter(|(a, b)| a == b).count();
            assert!(same < DRAWN / 2, "{same} of {DRAWN} decisions are the same");
            assert_ne!(one[1..], other[..DRAWN - 1]);
        }
    }

    #[test]
    fn rates_that_cannot_be_are_told() {
        let plan = FaultPlan::new(0).with(FaultKind::Error, 0.5).with(FaultKind::Torn, 0.6);
        let why = plan.odds().expect_err("1.1 of all writes");
        assert!(why.contains("error=0.5 + torn=0.6 is 1.100 for a write"), "{why}");
        // A read cannot be torn, so the rate for torn writes does not count if only reads have faults.
        assert!(FaultPlan { ops: FaultOps::Read, ..plan }.odds().is_ok());
        for rate in [-0.1, 1.5, f64::NAN, f64::INFINITY] {
            let why = FaultPlan::new(0).with(FaultKind::Stuck, rate).odds().expect_err("no probability");
            assert!(why.contains("stuck=") && why.contains("from 0 to 1"), "{why}");
        }
    }
}
