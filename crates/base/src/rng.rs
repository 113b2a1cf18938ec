//! Random numbers from a seed: one seed, one sequence, on every machine and in every version.
//!
//! Owns [`Rng`] and [`mix`], for loads, injected faults, simulations and tests. Not for secrets. All random numbers of
//! a run come from one seed; each part of the run draws from its own [fork](Rng::fork), so that a part that draws more
//! does not change the numbers of the others.
//!
//! A seed is a promise: `fault:seed=7` and `cargo xtask sim --seed 7` repeat a run years later. Small generators on
//! crates.io do not promise that (fastrand changed its sequences from 2.0 to 2.1), and the generator is three lines:
//! Wang Yi's wyrand (public domain). Its state advances by an addition only, so the multiplications of consecutive
//! numbers overlap in the processor.
//!
//! Invariants:
//! - I1: the sequence of a seed never changes. A test compares it with recorded numbers.
//! - I2: drawing takes no memory, no lock and no system call.
//!
//! Called by `sheave-load` once per I/O, by the `fault` driver once per request, and by tests everywhere.

/// A sequence of random numbers, determined by its seed.
#[derive(Clone, Debug)]
pub struct Rng(u64);

/// Spreads the bits of a number over the whole word (the finalizer of splitmix64).
#[inline]
#[must_use]
pub fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Maps 64 random bits to `0..bound` by their high bits, without a division (Lemire, "Fast Random Integer Generation in
/// an Interval", 2019, without its rejection step). For a `bound` below 2^40 each value's probability is off by at most
/// a factor of 2^-24.
#[inline]
#[must_use]
pub fn scale(bits: u64, bound: u64) -> u64 {
    ((u128::from(bits) * u128::from(bound)) >> 64) as u64
}

impl Rng {
    /// Returns the sequence of `seed`.
    #[inline]
    #[must_use]
    pub fn new(seed: u64) -> Rng {
        // Mixed because all sequences are parts of one, and those of consecutive seeds must not overlap.
        Rng(mix(seed))
    }

    /// Returns a separate sequence for the part `part` of the run. Draws nothing.
    #[must_use]
    pub fn fork(&self, part: u64) -> Rng {
        Rng(mix(self.0 ^ mix(part)))
    }

    /// Returns the next 64 bits.
    #[inline]
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0xa076_1d64_78bd_642f);
        let wide = u128::from(self.0) * u128::from(self.0 ^ 0xe703_7ed1_a0b4_28db);
        (wide >> 64) as u64 ^ wide as u64
    }

    /// Returns a number below `bound`; 0 if that is 0.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        scale(self.draw(), bound)
    }

    /// Returns a number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        debug_assert!(low <= high, "a range is told from its lower end");
        low + self.below(high - low + 1)
    }

    /// Returns true with a probability of `chance` percent.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// Returns a random element of `all`.
    ///
    /// # Panics
    /// If `all` is empty.
    pub fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        assert!(!all.is_empty(), "there is something to pick from");
        &all[self.below(all.len() as u64) as usize]
    }

    /// Puts `all` into a random order.
    pub fn shuffle<T>(&mut self, all: &mut [T]) {
        for at in (1..all.len()).rev() {
            all.swap(at, self.below(at as u64 + 1) as usize);
        }
    }

    /// Fills `bytes` with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for word in bytes.chunks_mut(8) {
            word.copy_from_slice(&self.draw().to_le_bytes()[..word.len()]);
        }
    }
}

#[cfg(all(test, not(any(shuttle, loom))))]
mod tests;
