//! Which seeds a randomized test runs: the same few on every machine, one to reproduce, or new ones for hours.
//!
//! Owns `SHEAVE_SEED` (one seed, to reproduce a failure) and `SHEAVE_ROUND` (set by `cargo xtask stress`, which runs
//! the tests round after round). A test prints its seed when it fails, and draws everything from it.

use std::ops::Range;

use crate::skip::under_sanitizer;

/// Runs exactly this seed.
pub const SEED_ENV: &str = "SHEAVE_SEED";

/// Names the round of a stress run: each has seeds of its own.
pub const ROUND_ENV: &str = "SHEAVE_ROUND";

/// Seeds of one round of a stress run; more than any test takes in a round.
const ROUND: u64 = 1 << 20;

/// The seeds for a randomized test that takes `count` of them in an ordinary run: `0..count`, the one seed of
/// `SHEAVE_SEED`, or `count` new ones in each round of `cargo xtask stress` and of `cargo xtask nightly`. Under a
/// sanitizer an ordinary run takes a quarter of them: it looks at memory, which all seeds touch in the same ways.
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
/// When one of the variables is set to what is no number: a silent default would not reproduce anything.
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
