//! Cache of the leaves that a replay has changed, by their places in maps: further records about them need no walk.
//!
//! Owns the cache, which exists while a journal is replayed. A journal may name units of ten thousand volumes in turn,
//! and the path from a volume's number to a leaf is a chain of a dozen dependent cache misses. This cache is small and
//! leads to the leaf at once, so the leaves of all records of a journal block can be loaded together.
//!
//! - K1: a cached leaf is at its cached place in its volume's map, on a dirty path that is exclusive to the volume. The
//!   cache forgets a leaf that loses its last parent, and all leaves of a volume whose map is shared or replaced.
//! - K2: the cache has a bit for each entry of a leaf that has a unit, so a discard visits no other entries.
//!
//! Memory: 512 KiB, and 48 bytes per leaf.
//!
//! Called by recovery, through [`replayed`](super::replayed).

use crate::format::INDEX_CHILDREN;

const LEAF_ENTRIES: usize = INDEX_CHILDREN;
/// Length of `guesses` and of `turns`: a power of two, more than the leaves that a journal changes and the volumes of a
/// pool.
const SLOTS: usize = 1 << 16;

/// Leaf cache of a replay.
#[derive(Debug)]
pub(crate) struct Known {
    /// Leaf by the hash of its place; colliding places overwrite each other.
    guesses: Box<[u32]>,
    /// Place of each leaf, by its number: verifies a guess.
    ways: Vec<Way>,
    /// Allocated entries of each leaf, by its number.
    spaces: Vec<Space>,
    /// Number of times that the cache has forgotten all leaves of a volume, by volume number. Volume numbers that
    /// collide share one count, which only costs extra walks.
    turns: Box<[u32]>,
    /// Number of removals from the cache.
    forgotten: u64,
}

/// Bit per entry of a leaf: it has a unit (K2). Aligned so that no value spans two cache lines.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(32))]
pub(super) struct Space(pub(super) [u64; LEAF_ENTRIES / 64]);

/// Place of a leaf. Volume 0 does not exist, so the default matches nothing.
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

    /// Returns the leaf that may be at a place, 0 for none.
    #[inline]
    pub(super) fn guess(&self, volume: u32, place: u64) -> u32 {
        self.guesses[slot_of(volume, place)]
    }

    /// Returns whether `leaf` is at that place.
    #[inline]
    pub(super) fn is_right(&self, leaf: u32, volume: u32, place: u64) -> bool {
        self.ways.get(leaf as usize).is_some_and(|way| way.leads(volume, self.turn(volume), place))
    }

    /// Loads the first word of a leaf's bits. Called only to fetch the cache line before [`Known::set_space`].
    #[inline]
    pub(super) fn has_space(&self, leaf: u32) -> u64 {
        self.spaces.get(leaf as usize).map_or(0, |space| space.0[0])
    }

    /// Caches a leaf. Calls `space` for its allocated entries if they are not cached yet.
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

    /// Notes whether an entry of a leaf has a unit.
    #[inline]
    pub(super) fn set_space(&mut self, leaf: u32, slot: usize, has: bool) {
        let Some(space) = self.spaces.get_mut(leaf as usize) else { return };
        let (word, bit) = (&mut space.0[slot / 64], 1 << (slot % 64));
        *word = if has { *word | bit } else { *word & !bit };
    }

    /// Returns the allocated entries in `first..end` of a cached leaf.
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

/// Fibonacci hashing: neighbouring places do not collide.
#[inline]
fn slot_of(volume: u32, place: u64) -> usize {
    let key = place ^ u64::from(volume) << 34;
    (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - SLOTS.ilog2())) as usize
}

#[cfg(all(test, not(shuttle)))]
mod tests;
