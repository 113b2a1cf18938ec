//! The leaves that a replay has changed, by their places in maps: the next record about one of them takes no walk.
//!
//! Owns what is remembered of them while a journal is replayed. A journal may name units of ten thousand volumes in
//! turn. The way from the number of a volume to its leaf then leads through a dozen lines of memory that are in no
//! cache, each of which says where the next one is. What is kept here is small enough for a cache, and leads to the
//! leaf at once; so the leaves of all records of a journal block can be asked for together.
//!
//! - K1: a leaf that is known is at that place of that volume's map, on a way that is the volume's alone and dirty. It
//!   is forgotten with its last parent, and all leaves of a volume when its map is shared or replaced.
//! - K2: of a leaf that is known it is known which entries have space: a discard looks at no others.
//!
//! Memory: 512 KiB, and 48 bytes a leaf.
//!
//! Called by recovery, through [`replayed`](super::replayed).

use crate::format::INDEX_CHILDREN;

/// Most entries of a leaf.
const LEAF_ENTRIES: usize = INDEX_CHILDREN;
/// Guesses, and turns: powers of two, and more than a journal changes leaves, and than a pool has volumes.
const SLOTS: usize = 1 << 16;

/// What is known.
#[derive(Debug)]
pub(crate) struct Known {
    /// The leaf of a place, by a hash of the place: of places with the same hash the last.
    guesses: Box<[u32]>,
    /// Where each leaf is, by its number: the proof of a guess.
    ways: Vec<Way>,
    /// Which of its entries have space, by its number.
    spaces: Vec<Space>,
    /// How often all leaves of a volume were forgotten, by its number. Numbers that are far apart share a turn.
    turns: Box<[u32]>,
    /// How often anything was forgotten.
    forgotten: u64,
}

/// Which entries of a leaf have space, a bit each (K2). Never in two lines of a cache.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(32))]
pub(super) struct Space(pub(super) [u64; LEAF_ENTRIES / 64]);

/// Where a leaf is. No volume has number 0.
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    volume: u32,
    turn: u32,
    place: u64,
}

impl Way {
    #[inline]
    fn leads(&self, volume: u32, turn: u32, place: u64) -> bool {
        (self.volume, self.turn, self.place) == (volume, turn, place)
    }
}

impl Known {
    pub(super) fn new() -> Known {
        let zeroed = || vec![0; SLOTS].into_boxed_slice();
        Known { guesses: zeroed(), ways: Vec::new(), spaces: Vec::new(), turns: zeroed(), forgotten: 0 }
    }

    #[inline]
    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    #[inline]
    fn turn(&self, volume: u32) -> u32 {
        self.turns[volume as usize % SLOTS]
    }

    #[inline]
    pub(super) fn leaf(&self, volume: u32, place: u64) -> Option<u32> {
        let leaf = self.guess(volume, place);
        self.is_right(leaf, volume, place).then_some(leaf)
    }

    /// The leaf that a place may have; 0 for none.
    #[inline]
    pub(super) fn guess(&self, volume: u32, place: u64) -> u32 {
        self.guesses[slot_of(volume, place)]
    }

    /// Whether a leaf is at that place.
    #[inline]
    pub(super) fn is_right(&self, leaf: u32, volume: u32, place: u64) -> bool {
        self.ways.get(leaf as usize).is_some_and(|way| way.leads(volume, self.turn(volume), place))
    }

    /// The first entries of a leaf that have space, a bit each: asked for before [`Known::set_space`].
    #[inline]
    pub(super) fn has_space(&self, leaf: u32) -> u64 {
        self.spaces.get(leaf as usize).map_or(0, |space| space.0[0])
    }

    /// `space`: which entries of the leaf have some, asked for when that is not known.
    pub(super) fn learn(&mut self, volume: u32, place: u64, leaf: u32, space: impl FnOnce() -> Space) {
        if self.ways.len() <= leaf as usize {
            self.ways.resize(leaf as usize + 1, Way::default());
            self.spaces.resize(leaf as usize + 1, Space::default());
        }
        let turn = self.turn(volume);
        let way = &mut self.ways[leaf as usize];
        if !way.leads(volume, turn, place) {
            *way = Way { volume, turn, place };
            self.spaces[leaf as usize] = space();
        }
        self.guesses[slot_of(volume, place)] = leaf;
    }

    /// An entry of a leaf has space from now on, or none.
    #[inline]
    pub(super) fn set_space(&mut self, leaf: u32, slot: usize, has: bool) {
        let Some(space) = self.spaces.get_mut(leaf as usize) else { return };
        let (word, bit) = (&mut space.0[slot / 64], 1 << (slot % 64));
        *word = if has { *word | bit } else { *word & !bit };
    }

    /// The entries from `first` to before `end` of a known leaf that have space.
    pub(super) fn space(&self, leaf: u32, first: usize, end: usize) -> Space {
        let mut space = self.spaces.get(leaf as usize).copied().unwrap_or_default();
        for (at, word) in space.0.iter_mut().enumerate() {
            let below = |slot: usize| match slot.saturating_sub(at * 64) {
                bits @ 0..64 => (1 << bits) - 1,
                _ => u64::MAX,
            };
            *word &= below(end) & !below(first);
        }
        space
    }

    #[inline]
    pub(super) fn forget_leaf(&mut self, leaf: u32) {
        if let Some(way) = self.ways.get_mut(leaf as usize) {
            *way = Way::default();
            self.forgotten += 1;
        }
    }

    pub(super) fn forget_volume(&mut self, volume: u32) {
        self.forgotten += 1;
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

#[cfg(all(test, not(shuttle)))]
mod tests;
