//! The sequence of blocks, each to be read or written.
//!
//! A step runs once per I/O in the measured loop. It therefore has no division, no allocation and no branch that is
//! hard to predict. A seed determines the sequence, so that both sides of a comparison do the same I/O.
//!
//! * I1. A block index is below `blocks`, an offset below `base + blocks * bs`.

use sheave_base::rng::{Rng, scale};

use crate::rw::Rw;

/// The next I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Index of the block within the pattern's part of the device.
    pub block: u64,
    /// True for a write, false for a read.
    pub write: bool,
}

/// An endless sequence of blocks over one part of a device.
#[derive(Clone, Debug)]
pub struct Pattern {
    base: u64,
    bs: u64,
    blocks: u64,
    random: bool,
    /// A step reads if the low 32 bits of its random number are below this number: never with 0, always with 2^32.
    read_below: u64,
    /// Current position in the sequence. A loop may keep it in registers for a batch.
    pub at: Cursor,
}

/// A position in the sequence of a [`Pattern`].
#[derive(Clone, Debug)]
pub struct Cursor {
    rng: Rng,
    next: u64,
}

impl Pattern {
    /// Makes a pattern over `blocks` blocks of `bs` bytes that start at byte `base`; `mix` is the percentage of reads.
    pub fn new(rw: Rw, mix: u8, base: u64, bs: u32, blocks: u64, seed: u64) -> Self {
        debug_assert!(blocks > 0, "the plan refuses a device without a single block");
        let read_below = match (rw.reads(), rw.writes()) {
            (true, false) => 1 << 32,
            (false, _) => 0,
            (true, true) => (u64::from(mix) << 32) / 100,
        };
        let at = Cursor { rng: Rng::new(seed), next: 0 };
        Self { base, bs: u64::from(bs), blocks, random: rw.random(), read_below, at }
    }

    /// Returns the number of blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Returns the next step and advances.
    #[inline]
    pub fn step(&mut self) -> Step {
        let mut at = self.at.clone();
        let step = self.step_from(&mut at);
        self.at = at;
        step
    }

    /// Returns the step at position `at` and advances `at`.
    #[inline]
    pub fn step_from(&self, at: &mut Cursor) -> Step {
        if self.random {
            let bits = at.rng.draw();
            // The index comes from the high bits, the direction from the low ones.
            let write = (bits & 0xFFFF_FFFF) >= self.read_below;
            return Step { block: scale(bits, self.blocks), write };
        }
        let block = at.next;
        at.next = if block + 1 == self.blocks { 0 } else { block + 1 };
        Step { block, write: self.read_below == 0 }
    }

    /// Returns the offset of a block on the device, in bytes.
    #[inline]
    pub fn offset(&self, block: u64) -> u64 {
        self.base + block * self.bs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_blocks_stay_inside_and_cover_everything() {
        let mut pattern = Pattern::new(Rw::Randread, 50, 8192, 512, 10, 7);
        let mut seen = [0u32; 10];
        for _ in 0..10_000 {
            let step = pattern.step();
            assert!(!step.write);
            assert_eq!(pattern.offset(step.block), 8192 + step.block * 512);
            seen[step.block as usize] += 1;
        }
        assert!(seen.iter().all(|&count| (800..1200).contains(&count)), "uneven: {seen:?}");
    }

    #[test]
    fn sequential_wraps() {
        let mut pattern = Pattern::new(Rw::Write, 50, 0, 4096, 3, 0);
        let blocks: Vec<u64> = (0..7).map(|_| pattern.step().block).collect();
        assert_eq!(blocks, [0, 1, 2, 0, 1, 2, 0]);
        assert!(pattern.step().write);
    }

    #[test]
    fn mix_is_the_share_of_reads() {
        for (mix, low, high) in [(0, 0, 0), (30, 2800, 3200), (100, 10_000, 10_000)] {
            let mut pattern = Pattern::new(Rw::Randrw, mix, 0, 512, 1 << 30, 3);
            let reads = (0..10_000).filter(|_| !pattern.step().write).count();
            assert!((low..=high).contains(&reads), "mix {mix}: {reads} reads in 10000");
        }
    }

    #[test]
    fn direction_does_not_follow_the_block() {
        let mut pattern = Pattern::new(Rw::Randrw, 50, 0, 512, 2, 3);
        let mut table = [[0u32; 2]; 2];
        for _ in 0..10_000 {
            let step = pattern.step();
            table[step.block as usize][usize::from(step.write)] += 1;
        }
        assert!(table.iter().flatten().all(|&count| count > 2_200), "{table:?}");
    }

    #[test]
    fn a_seed_repeats_and_seeds_differ() {
        let run = |seed| -> Vec<u64> {
            let mut pattern = Pattern::new(Rw::Randread, 50, 0, 512, 1 << 40, seed);
            (0..64).map(|_| pattern.step().block).collect()
        };
        assert_eq!(run(5), run(5));
        assert_ne!(run(5), run(6));
    }
}
