//! The sequence of blocks, each to be read or written.
//!
//! Runs once per I/O in the measured loop, so: no division, no allocation, no branch that is hard to predict. A seed
//! determines the sequence, so that both sides of a comparison do the same I/O.
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
    /// A step reads when the low 32 bits of its random number are below this: 0 never, 2^32 always.
    read_below: u64,
    /// Current place in the sequence. A loop may keep it in registers for a batch.
    pub at: Cursor,
}

/// A place in the sequence of a [`Pattern`].
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

    /// Returns the step at the place `at` and advances that.
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

    /// Returns the position of a block on the device in bytes.
    #[inline]
    pub fn offset(&self, block: u64) -> u64 {
        self.base + block * self.bs
    }
}

#[cfg(test)]
mod tests;
