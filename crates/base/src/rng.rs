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
mod tests {
    use super::*;

    fn drawn(mut rng: Rng) -> [u64; 4] {
        std::array::from_fn(|_| rng.draw())
    }

    /// I1: a change of these numbers breaks every recorded seed.
    #[test]
    fn the_sequence_of_a_seed_never_changes() {
        assert_eq!(
            drawn(Rng::new(0)),
            [0x7950_d340_a3b9_a42d, 0xbe1a_7908_2232_3877, 0xdc88_64b5_8f7f_72c8, 0x0214_fc0b_8ac2_229e]
        );
        assert_eq!(
            drawn(Rng::new(7)),
            [0x9fa5_d83a_a608_d7e3, 0xb81a_6182_57c6_d911, 0x419d_04c2_24c9_23ea, 0xe277_680a_1f0f_2a5e]
        );
        assert_eq!(
            drawn(Rng::new(7).fork(1)),
            [0xb27b_6b28_e866_a2ae, 0x781d_b4ea_bfc3_000b, 0xdafc_871a_7161_8086, 0x2f61_1bf1_8bfd_6266]
        );
    }

    #[test]
    fn a_seed_has_one_sequence_and_so_has_a_fork() {
        assert_ne!(drawn(Rng::new(7)), drawn(Rng::new(8)));
        let base = Rng::new(7);
        assert_eq!(drawn(base.fork(1)), drawn(base.fork(1)));
        assert_ne!(drawn(base.fork(1)), drawn(base.fork(2)));
        assert_ne!(drawn(base.fork(1)), drawn(base));
    }

    #[test]
    fn sequences_of_neighbouring_seeds_do_not_overlap() {
        let mut all: Vec<u64> =
            (0..64).flat_map(|seed| (0..64).scan(Rng::new(seed), |rng, _| Some(rng.draw()))).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 64 * 64);
    }

    #[test]
    fn bounds_hold_and_are_reached() {
        let mut rng = Rng::new(1);
        let mut seen = [false; 5];
        for _ in 0..200 {
            seen[rng.between(3, 7) as usize - 3] = true;
        }
        assert_eq!(seen, [true; 5]);
        assert_eq!((rng.below(0), rng.below(1)), (0, 0));
        assert!(!(0..100).any(|_| rng.percent(0)));
        assert!((0..100).all(|_| rng.percent(100)));
        assert_eq!((scale(0, 10), scale(u64::MAX, 10), scale(u64::MAX, u64::MAX)), (0, 9, u64::MAX - 1));
    }

    #[test]
    fn every_bit_and_every_value_comes_as_often_as_it_should() {
        const DRAWS: u32 = 40_000;
        let mut rng = Rng::new(3);
        let (mut ones, mut values) = ([0u32; 64], [0u32; 10]);
        for _ in 0..DRAWS {
            let bits = rng.draw();
            ones.iter_mut().enumerate().for_each(|(at, ones)| *ones += (bits >> at & 1) as u32);
            values[rng.below(10) as usize] += 1;
        }
        // Six standard deviations: 600 of 20,000, and 360 of 4,000.
        assert!(ones.iter().all(|ones| ones.abs_diff(DRAWS / 2) < 600), "{ones:?}");
        assert!(values.iter().all(|seen| seen.abs_diff(DRAWS / 10) < 360), "{values:?}");
    }

    #[test]
    fn a_shuffle_keeps_everything() {
        let mut all: Vec<u32> = (0..50).collect();
        Rng::new(3).shuffle(&mut all);
        assert_ne!(all, (0..50).collect::<Vec<_>>());
        all.sort_unstable();
        assert_eq!(all, (0..50).collect::<Vec<_>>());
    }

    #[test]
    fn bytes_are_those_of_the_words() {
        let mut bytes = [0; 11];
        Rng::new(5).fill(&mut bytes);
        let [first, second, ..] = drawn(Rng::new(5));
        assert_eq!(
            (bytes[..8].to_vec(), bytes[8..].to_vec()),
            (first.to_le_bytes().to_vec(), second.to_le_bytes()[..3].to_vec())
        );
    }
}
