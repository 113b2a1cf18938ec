//! Random numbers of a run: one seed, one sequence, on every machine.
//!
//! Owns [`Rng`] (splitmix64) and [`mix`]. Not for secrets. Everything that is random in a simulation draws from here,
//! each part from a fork of its own, so that one part drawing more leaves the others as they were.

/// A sequence of numbers that its seed determines.
#[derive(Clone, Debug)]
pub struct Rng(u64);

/// Spreads the bits of a number: equal for equal numbers, and unlike for others.
#[inline]
#[must_use]
pub fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    /// The sequence of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Rng {
        Rng(mix(seed))
    }

    /// A sequence of its own for the part of the run with this name.
    #[must_use]
    pub fn fork(&self, part: u64) -> Rng {
        Rng(mix(self.0 ^ mix(part)))
    }

    /// The next 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`; 0 when that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.draw() % bound }
    }

    /// A number of the range, ends included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
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
}

#[cfg(test)]
mod tests;
