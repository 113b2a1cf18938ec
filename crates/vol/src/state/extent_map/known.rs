//! The leaves that a replay has changed, by their places in maps: the next record about one of them takes no walk.
//!
//! Owns what is remembered of them while a journal is replayed. A journal may name units of ten thousand volumes in
//! turn. The way from the number of a volume to its leaf then leads through a dozen lines of memory that are in no
//! cache, each of which says where the next one is. What is kept here is small enough for a cache, and leads to the
//! leaf at once; so the leaves of all records of a journal block can be asked for together.
//!
//! - K1: a leaf that is known is at that place of that volume's map, on a way that is the volume's alone and dirty. It
//!   is forgotten with its last parent, and all leaves of a volume when its map is shared or replaced.
//!
//! Memory: 512 KiB, and 16 bytes a leaf.
//!
//! Called by recovery, through [`replayed`](super::replayed).

/// Guesses, and turns: powers of two, and more than a journal changes leaves, and than a pool has volumes.
const SLOTS: usize = 1 << 16;

/// What is known.
#[derive(Debug)]
pub(crate) struct Known {
    /// The leaf of a place, by a hash of the place: of places with the same hash the last.
    guesses: Box<[u32]>,
    /// Where each leaf is, by its number: the proof of a guess.
    ways: Vec<Way>,
    /// How often all leaves of a volume were forgotten, by its number. Numbers that are far apart share a turn.
    turns: Box<[u32]>,
}

/// Where a leaf is. No volume has number 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Way {
    volume: u32,
    turn: u32,
    place: u64,
}

impl Known {
    pub(super) fn new() -> Known {
        let zeroed = || vec![0; SLOTS].into_boxed_slice();
        Known { guesses: zeroed(), ways: Vec::new(), turns: zeroed() }
    }

    #[inline]
    fn way(&self, volume: u32, place: u64) -> Way {
        Way { volume, turn: self.turns[volume as usize % SLOTS], place }
    }

    #[inline]
    pub(super) fn leaf(&self, volume: u32, place: u64) -> Option<u32> {
        let leaf = self.guesses[slot_of(volume, place)];
        (self.ways.get(leaf as usize) == Some(&self.way(volume, place))).then_some(leaf)
    }

    pub(super) fn learn(&mut self, volume: u32, place: u64, leaf: u32) {
        if self.ways.len() <= leaf as usize {
            self.ways.resize(leaf as usize + 1, Way::default());
        }
        self.ways[leaf as usize] = self.way(volume, place);
        self.guesses[slot_of(volume, place)] = leaf;
    }

    #[inline]
    pub(super) fn forget_leaf(&mut self, leaf: u32) {
        if let Some(way) = self.ways.get_mut(leaf as usize) {
            *way = Way::default();
        }
    }

    pub(super) fn forget_volume(&mut self, volume: u32) {
        let turn = &mut self.turns[volume as usize % SLOTS];
        *turn = turn.wrapping_add(1);
    }
}

/// Fibonacci hashing: neighbours do not meet.
#[inline]
fn slot_of(volume: u32, place: u64) -> usize {
    let key = place ^ u64::from(volume) << 34;
    (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - SLOTS.ilog2())) as usize
}

#[cfg(test)]
mod tests;
