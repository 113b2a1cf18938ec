//! Number of writes of each block in one thread's part, and the blocks in flight.
//!
//! Memory: four bytes and one bit per block, for at most [`MAX_BLOCKS`] over all threads (the command refuses more).
//!
//! * I1. A block has at most one I/O in flight, so that the content that a read must return is known when it starts.
//! * I2. The generation increases with each write that starts, whether it succeeds or not. After a failed write the
//!   content of the block is unknown until a later write succeeds.

use crate::error::LoadError;

/// Largest number of blocks of a verified run, of all its threads together. At four bytes each they take 1 GiB of
/// memory.
pub const MAX_BLOCKS: u64 = 256 << 20;

/// Expected content of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// This run has not written the block.
    Unwritten,
    /// The last write was acknowledged, with this generation.
    Generation(u32),
    /// The last write failed.
    Unknown,
}

const FAILED: u32 = 1 << 31;
const COUNT: u32 = FAILED - 1;

/// Generations of the blocks `0..blocks`.
pub struct Generations {
    last: Vec<u32>,
    busy: Vec<u64>,
}

impl Generations {
    /// Makes the generations of `blocks` blocks, none of which is written or in flight.
    pub fn new(blocks: u64) -> Result<Self, LoadError> {
        let no_memory = |_| {
            LoadError::run(format!("no memory for the generations of {blocks} blocks"))
                .fix("use a smaller --range or a larger --bs")
        };
        let count =
            usize::try_from(blocks).map_err(|_| LoadError::usage("more blocks than this machine can address"))?;
        let (mut last, mut busy) = (Vec::new(), Vec::new());
        last.try_reserve_exact(count).map_err(no_memory)?;
        busy.try_reserve_exact(count.div_ceil(64)).map_err(no_memory)?;
        last.resize(count, 0);
        busy.resize(count.div_ceil(64), 0);
        Ok(Self { last, busy })
    }

    /// Returns the expected content of a block.
    pub fn holds(&self, block: u64) -> Holds {
        match self.last[block as usize] {
            0 => Holds::Unwritten,
            last if last & FAILED != 0 => Holds::Unknown,
            last => Holds::Generation(last),
        }
    }

    /// Claims a block for one I/O. Returns false if the block has an I/O in flight already (I1).
    pub fn claim(&mut self, block: u64) -> bool {
        let (word, bit) = ((block / 64) as usize, 1u64 << (block % 64));
        let free = self.busy[word] & bit == 0;
        self.busy[word] |= bit;
        free
    }

    /// Returns the generation of a write that starts now on a claimed block.
    pub fn next(&self, block: u64) -> u32 {
        // After 2^31 writes of one block the count starts again, far from the generations still in use.
        (self.last[block as usize] & COUNT) % COUNT + 1
    }

    /// Ends the I/O on a block. After a write, `written` has its generation and true if the write succeeded.
    pub fn release(&mut self, block: u64, written: Option<(u32, bool)>) {
        if let Some((generation, succeeded)) = written {
            self.last[block as usize] = if succeeded { generation } else { generation | FAILED };
        }
        let (word, bit) = ((block / 64) as usize, 1u64 << (block % 64));
        debug_assert!(self.busy[word] & bit != 0, "I1: block {block} was not in flight");
        self.busy[word] &= !bit;
    }

    /// Returns the number of blocks with a known generation.
    pub fn known(&self) -> u64 {
        (0..self.last.len() as u64).filter(|&block| matches!(self.holds(block), Holds::Generation(_))).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_io_a_block() {
        let mut map = Generations::new(100).expect("a hundred blocks fit");
        assert!(map.claim(65));
        assert!(!map.claim(65));
        assert!(map.claim(64));
        map.release(65, None);
        assert!(map.claim(65));
    }

    #[test]
    fn writes_count_and_failures_are_remembered() {
        let mut map = Generations::new(2).expect("two blocks fit");
        assert_eq!(map.holds(1), Holds::Unwritten);
        assert!(map.claim(1));
        assert_eq!(map.next(1), 1);
        map.release(1, Some((1, true)));
        assert_eq!(map.holds(1), Holds::Generation(1));
        assert!(map.claim(1));
        map.release(1, Some((map.next(1), false)));
        assert_eq!(map.holds(1), Holds::Unknown);
        assert_eq!(map.known(), 0);
        assert!(map.claim(1));
        assert_eq!(map.next(1), 3);
        map.release(1, Some((3, true)));
        assert_eq!((map.holds(1), map.known()), (Holds::Generation(3), 1));
    }

    #[test]
    fn generations_wrap_without_touching_zero_or_the_mark() {
        let mut map = Generations::new(1).expect("a block fits");
        assert!(map.claim(0));
        map.release(0, Some((COUNT, true)));
        assert_eq!(map.holds(0), Holds::Generation(COUNT));
        assert_eq!(map.next(0), 1);
    }
}
