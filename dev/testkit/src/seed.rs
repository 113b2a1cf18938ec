//! The seeds of a randomized test: the same few on every machine, one to reproduce a failure, or new ones for hours.
//!
//! Owns `SHEAVE_SEED` (one seed, to reproduce a failure) and `SHEAVE_ROUND` (set by `cargo xtask stress`, which runs
//! the tests round after round). A test draws everything from its seed, and prints the seed when it fails.

use std::ops::Range;

use crate::skip::under_sanitizer;

/// Environment variable with the one seed to run.
pub const SEED_ENV: &str = "SHEAVE_SEED";

/// Environment variable with the round of a stress run. Each round has seeds of its own.
pub const ROUND_ENV: &str = "SHEAVE_ROUND";

/// Distance between the first seeds of two rounds: more seeds than any test uses in a round.
const ROUND: u64 = 1 << 20;

/// Returns the seeds for a randomized test that uses `count` of them in an ordinary run: `0..count`, the one seed of
/// `SHEAVE_SEED`, or `count` new ones in each round of `cargo xtask stress` and of `cargo xtask nightly`. Under a
/// sanitizer an ordinary run uses a quarter of them, because the sanitizer checks memory, which all seeds use in the
/// same ways.
///
/// ```
/// for seed in sheave_testkit::seeds(16) {
///     // Everything random comes from `seed`; every failure names it: `SHEAVE_SEED={seed} cargo test NAME`.
/// #   let _ = seed;
/// }
/// ```
///
/// # Panics
///
/// Panics if one of the variables is not a number: a silent default would not reproduce anything.
pub fn seeds(count: u64) -> Range<u64> {
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        Some(text.trim().parse::<u64>().unwrap_or_else(|_| panic!("{name}={text}: must be a number")))
    };
    let count = if under_sanitizer() && number(ROUND_ENV).is_none() { count.div_ceil(4) } else { count };
    range(count, number(SEED_ENV), number(ROUND_ENV))
}

pub(crate) fn range(count: u64, seed: Option<u64>, round: Option<u64>) -> Range<u64> {
    match (seed, round) {
        (Some(seed), _) => seed..seed.saturating_add(1),
        (None, Some(round)) => {
            let first = round.wrapping_mul(ROUND);
            first..first.saturating_add(count)
        }
        (None, None) => 0..count,
    }
}
