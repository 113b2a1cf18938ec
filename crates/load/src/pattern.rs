//! Which block comes next, and whether it is read or written.
//!
//! Runs once an I/O in the measured loop, so: no division, no memory, no branch that is hard to predict.
//! A seed makes one sequence of blocks, so that both sides of a comparison do the same I/O.
//!
//! * I1. A block index is below `blocks`, an offset below `base + blocks * bs`.

use sheave_base::rng::{Rng, scale};

use crate::rw::Rw;

/// The I/O to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Index of the block within the pattern's part of the device.
    pub block: u64,
    /// Write it, or else read it.
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
    /// Where the sequence is. A loop may keep it in registers for a batch.
    pub at: Cursor,
}

/// A place in the sequence of a [`Pattern`].
#[derive(Clone, Debug)]
pub struct Cursor {
    rng: Rng,
    next: u64,
}

impl Pattern {
    /// A pattern over `blocks` blocks of `bs` bytes that start at byte `base`; `mix` is the share of reads in percent.
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

    /// How many blocks there are.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The next step.
    #[inline]
    pub fn step(&mut self) -> Step {
        let mut at = self.at.clone();
        let step = self.step_from(&mut at);
        self.at = at;
        step
    }

    /// The step after a place in the sequence.
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

    /// Where a block lies on the device, in bytes.
    #[inline]
    pub fn offset(&self, block: u64) -> u64 {
        self.base + block * self.bs
    }
}

#[cfg(test)]
mod tests;
