//! Random numbers from a seed: one seed, one sequence, on every machine and in every version.
//!
//! Owns [`Rng`] and [`mix`], for loads, injected faults, simulations and tests. Not for secrets. Everything random of a
//! run is drawn from one seed; each part of the run draws from a [fork](Rng::fork) of its own, so that one part may
//! draw more without changing what the others get.
//!
//! A seed is a promise: `fault:seed=7` and `cargo xtask sim --seed 7` repeat a run years later. Small generators of the
//! registry do not give that promise (fastrand changed its sequences from 2.0 to 2.1), and the generator is three
//! lines: Wang Yi's wyrand (public domain). From one number to the next its state takes an addition only, so the
//! multiplications of neighbouring numbers overlap in the processor.
//!
//! Invariants:
//! - I1: a seed's sequence never changes. A test compares it with numbers that are written down.
//! - I2: drawing takes no memory, no lock and no system call.
//!
//! Called by `sheave-load` once an I/O, by the `fault` driver once a request, and by tests everywhere.

/// A sequence of numbers that its seed determines.
#[derive(Clone, Debug)]
pub struct Rng(u64);

/// Spreads the bits of a number: equal for equal numbers, and unlike for others (the finalizer of splitmix64).
#[inline]
#[must_use]
pub fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Maps 64 random bits onto `0..bound` by their high bits, without a division (Lemire, "Fast Random Integer Generation
/// in an Interval", 2019, without its rejection step): below 2^40 values none is off its fair share by more than 2^-24.
#[inline]
#[must_use]
pub fn scale(bits: u64, bound: u64) -> u64 {
    ((u128::from(bits) * u128::from(bound)) >> 64) as u64
}

impl Rng {
    /// The sequence of this seed.
    #[inline]
    #[must_use]
    pub fn new(seed: u64) -> Rng {
        // Mixed: all sequences are parts of one, and those of neighbouring seeds must not overlap.
        Rng(mix(seed))
    }

    /// A sequence of its own for the part of the run with this number. Draws nothing.
    #[must_use]
    pub fn fork(&self, part: u64) -> Rng {
        Rng(mix(self.0 ^ mix(part)))
    }

    /// The next 64 bits.
    #[inline]
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0xa076_1d64_78bd_642f);
        let wide = u128::from(self.0) * u128::from(self.0 ^ 0xe703_7ed1_a0b4_28db);
        (wide >> 64) as u64 ^ wide as u64
    }

    /// A number below `bound`; 0 when that is 0.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        scale(self.draw(), bound)
    }

    /// A number of the range, ends included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        debug_assert!(low <= high, "a range is told from its lower end");
        low + self.below(high - low + 1)
    }

    /// True in this many cases of a hundred.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// One of them.
    ///
    /// # Panics
    /// When there is none.
    pub fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        assert!(!all.is_empty(), "there is something to pick from");
        &all[self.below(all.len() as u64) as usize]
    }

    /// Puts them into a random order.
    pub fn shuffle<T>(&mut self, all: &mut [T]) {
        for at in (1..all.len()).rev() {
            all.swap(at, self.below(at as u64 + 1) as usize);
        }
    }

    /// Random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for word in bytes.chunks_mut(8) {
            word.copy_from_slice(&self.draw().to_le_bytes()[..word.len()]);
        }
    }
}

#[cfg(all(test, not(any(shuttle, loom))))]
mod tests;
