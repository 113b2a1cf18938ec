//! Cache of the leaves that a replay has changed, by their places in maps. Further records about these leaves need no
//! walk.
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
/// Length of `guesses` and of `turns`. It is a power of two, larger than the number of leaves that a journal changes,
/// and than the number of volumes of a pool.
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
    /// collide share one count; the only effect is extra walks.
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

    /// Returns true if `leaf` is at that place.
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

    /// Records if an entry of a leaf has a unit.
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
mod tests {
    use sheave_base::rng::Rng;

    use crate::format::block::samples;
    use crate::format::page::PageRef;
    use crate::format::record::Record;
    use crate::format::superblock::Superblock;
    use crate::state::State;

    /// First units of the leaves that records name: three leaves of one slot, and one leaf of another.
    const PLACES: [u64; 4] = [0, 256, 512, 65_536];
    const VOLUMES: u64 = 5;

    /// Makes a random journal record. Volumes and leaves are few, so that records meet.
    fn record(rng: &mut Rng, made: &mut u64) -> Record {
        let volume = 1 + rng.below(VOLUMES) as u32;
        let leaf = PLACES[rng.below(4) as usize];
        let unit = leaf + rng.below(4);
        *made += 1;
        let (size, max_size, name) = (1 << 40, 1 << 40, format!("v{made}"));
        match rng.below(40) {
            0..20 => {
                Record::Set { volume, unit, phys: 100 + rng.below(900), written: [1 + rng.below(0xFFFF), 0, 0, 0] }
            }
            20..24 => Record::Run { volume, unit, count: 1 + rng.below(5), phys: 0 },
            24..26 => Record::Run { volume, unit: leaf, count: 256, phys: 0 },
            26 => Record::Run { volume, unit: rng.below(300), count: 1 + rng.below(1000), phys: 0 },
            27 => Record::Set { volume, unit, phys: 0, written: [0; 4] },
            28 => Record::Run { volume, unit, count: 3, phys: 1000 },
            29..31 => Record::Create { volume, grows: false, size, max_size, created: 0, name },
            31..34 => {
                let source = 1 + rng.below(VOLUMES) as u32;
                Record::Copy { volume, source, snapshot: false, grows: false, size, max_size, created: 0, name }
            }
            34..36 => Record::Rollback { volume, source: 1 + (u64::from(volume) % VOLUMES) as u32 },
            36 => Record::Resize { volume, size: rng.below(600) << 16 },
            37 => Record::Resize { volume, size },
            _ => Record::Delete { volume },
        }
    }

    fn superblock() -> Superblock {
        let (total_units, members) = (4096, vec![(0, 4096 << 16)]);
        let mut sb =
            Superblock { total_units, members, table: PageRef::NONE, volumes: 0, ..samples::superblock(1 << 16) };
        sb.labels[1] = 0;
        sb
    }

    /// Entries and written blocks of the units that records name; `None` without the volume.
    fn says(state: &State, volume: u32) -> Option<Vec<(u64, bool, u64)>> {
        let vol = state.table.get(volume)?;
        let of_leaf = |leaf: u64| (leaf..leaf + 16).chain([leaf + 255]);
        let entries = PLACES.into_iter().flat_map(of_leaf).map(|unit| state.tree.map.find(&vol.core.top, unit).entry);
        Some(entries.map(|entry| (entry.phys(), entry.is_alloc(), entry.bits())).collect())
    }

    #[test]
    fn replay_with_leaf_cache_equals_replay_without() {
        for seed in sheave_testkit::seeds(20) {
            let mut rng = Rng::new(seed);
            let [mut walks, mut knows] = [(); 2].map(|()| State::new(superblock()));
            [&mut walks, &mut knows].into_iter().for_each(|state| state.tree.counts_later = true);
            knows.tree.begin_to_know();
            let mut made = 0;
            // Prefetches a few records at a time, as recovery does.
            let mut together = 0;
            let mut chunk: Vec<Record> = Vec::new();
            let mut asked = knows.tree.ask_for(&chunk);
            let mut at_once = 0;
            for step in 0..3000 {
                if together == chunk.len() {
                    chunk = (0..rng.between(1, 40)).map(|_| record(&mut rng, &mut made)).collect();
                    (together, asked) = (0, knows.tree.ask_for(&chunk));
                }
                let record = &chunk[together];
                let set = knows.tree.replay_at(&asked, together, record);
                at_once += u64::from(set.is_some());
                let known = if set.is_some() { Ok(()) } else { knows.apply(record) };
                assert_eq!(walks.apply(record), known, "seed {seed}, step {step}: {record:?}");
                together += 1;
                for volume in 1..=VOLUMES as u32 {
                    assert_eq!(says(&walks, volume), says(&knows, volume), "seed {seed}, step {step}: {record:?}");
                    // K1
                    for unit in PLACES {
                        let Some(place) = knows.tree.known(volume, unit) else { continue };
                        let vol = knows.table.get(volume).expect("only leaves of volumes are known");
                        let (core, dirty) = (sheave_base::sync::Arc::clone(&vol.core), vol.dirty);
                        assert_eq!(knows.tree.own_way(&core.top, unit), Some(place), "seed {seed}, step {step}");
                        assert!(dirty && knows.tree.leaves.is_dirty(place.leaf), "seed {seed}, step {step}");
                    }
                }
                let counts = |state: &State| {
                    let (tree, leaves) = (&state.tree, &state.tree.leaves);
                    [
                        tree.dirty_nodes(),
                        tree.cost,
                        state.table.upper_due(),
                        leaves.total_used(),
                        leaves.total_written(),
                    ]
                };
                assert_eq!(counts(&walks), counts(&knows), "seed {seed}, step {step}: {record:?}");
            }
            assert!(knows.tree.walked < walks.tree.walked * 2 / 3, "it knew many");
            assert!(at_once > 50, "{at_once} records of units whose places were asked for");
        }
    }
}
