//! Maps against a plain model, step by step.

use std::collections::BTreeMap;

use proptest::prelude::*;
use sheave_base::rng::Rng;
use sheave_base::sync::Arc;
use sheave_iomap::PlainRanges;
use sheave_iomap::mapping::Intent;

use super::tree::Tree;
use super::*;
use crate::state::alloc::Units;

/// Maps of two volumes, and their model: unit -> pool unit, written blocks.
struct Pair {
    tree: Tree,
    tops: Vec<Top>,
    plain: Vec<BTreeMap<u64, (u64, Vec<bool>)>>,
}

/// Number of places in the shortcut table.
const PLACES: u64 = 1 << 12;

/// Number of units of a volume: several slots of the top.
const UNITS: u64 = 200_000;

impl Pair {
    fn new(unit_shift: u32) -> Pair {
        let map = Arc::new(ExtentMap::new(Geometry::new(unit_shift)));
        let tops = vec![Top::new(), Top::new()];
        tops.iter().for_each(|top| top.open(PLACES));
        let mut units = Units::new(4000);
        assert!(units.fix(0));
        Pair { tree: Tree::new(map, units), tops, plain: vec![BTreeMap::new(); 2] }
    }

    fn blocks(&self) -> usize {
        self.tree.map.geometry.blocks() as usize
    }

    /// Makes a unit exclusive to the volume, and writes blocks of it.
    fn write(&mut self, volume: usize, unit: u64, first: usize, count: usize) {
        let top = &self.tops[volume];
        let place = self.tree.own(top, unit).expect("there is memory");
        let entry = self.tree.entry(place);
        if !entry.is_alloc() {
            let Some(phys) = self.tree.units.alloc() else { return };
            self.tree.install(place, Entry::at(phys));
        } else if entry.is_shared() && self.tree.units.owners(entry.phys()) > 1 {
            let Some(phys) = self.tree.units.alloc() else { return };
            self.tree.replace(top, place, Entry::at(phys).with(entry.0 & Entry::FULL));
        }
        self.tree.set_bits(place, first as u32, count as u32, true);
        let full = if self.tree.written(place).0 { Entry::FULL } else { 0 };
        self.tree.store(place, self.tree.entry(place).with(full | Entry::OWN));
        let phys = self.tree.entry(place).phys();
        let blocks = self.blocks();
        let plain = self.plain[volume].entry(unit).or_insert((phys, vec![false; blocks]));
        plain.0 = phys;
        plain.1[first..first + count].fill(true);
    }

    fn unmap(&mut self, volume: usize, unit: u64) {
        let top = &self.tops[volume];
        if !self.tree.map.find(top, unit).entry.is_alloc() {
            assert!(!self.plain[volume].contains_key(&unit));
            return;
        }
        let place = self.tree.own(top, unit).expect("there is memory");
        self.tree.unmap(top, place);
        self.tree.prune(top, unit);
        self.plain[volume].remove(&unit);
    }

    /// Makes volume 1 a copy of volume 0.
    fn copy(&mut self) {
        let slots = UNITS.div_ceil(1 << self.tree.map.geometry.slot_shift()) + 1;
        (0..slots).for_each(|slot| self.tree.drop_slot(&self.tops[1], slot as u32));
        let (from, to) = self.tops.split_at(1);
        self.tree.share(&from[0], &to[0], slots).expect("there is memory");
        self.plain[1] = self.plain[0].clone();
    }

    /// Frees all released units and nodes.
    fn commit(&mut self) {
        for mut freed in std::mem::take(&mut self.tree.freed).into_freed() {
            while !freed.is_empty() {
                self.tree.reclaim(&mut freed, 3);
            }
        }
    }

    /// Sums of the leaves' counts of entries and written blocks.
    fn leaf_sums(&self, volume: usize) -> (u64, u64) {
        let leaf_units = self.tree.map.geometry.leaf_entries() as u64;
        let leaves = (0..UNITS + 600).step_by(leaf_units as usize);
        let leaves = leaves.map(|unit| self.tree.map.find(&self.tops[volume], unit).leaf).filter(|leaf| *leaf != 0);
        leaves
            .map(|leaf| self.tree.leaves.node(leaf))
            .fold((0, 0), |sum, node| (sum.0 + u64::from(node.used), sum.1 + u64::from(node.written)))
    }

    fn compare(&self, volume: usize, unit: u64) {
        let (map, top) = (&self.tree.map, &self.tops[volume]);
        let geometry = &map.geometry;
        let plain = self.plain[volume].get(&unit);
        for block in 0..self.blocks() {
            let pos = (unit << geometry.unit_shift) + ((block as u64) << BLOCK_SHIFT);
            let read = map.lookup_read(top, pos, 4096).expect("nobody else is here");
            let want =
                plain.map(|(phys, written)| ((phys << geometry.unit_shift) + ((block as u64) << 12), written[block]));
            match (read.kind, want) {
                (MappingKind::Hole, None) => {}
                (MappingKind::Mapped, Some((addr, true))) => assert_eq!(read.addr, addr),
                (MappingKind::Unwritten, Some((addr, false))) => assert_eq!(read.addr, addr),
                (kind, want) => panic!("unit {unit} block {block}: {kind:?}, not {want:?}"),
            }
            let write = map.lookup_write(top, pos, 4096);
            if let Some(write) = write {
                let owners = self.tree.units.owners(write.addr >> geometry.unit_shift);
                assert_eq!((write.addr, owners), (read.addr, 1), "a shared unit is never handed to a writer");
            }
        }
        self.compare_many(volume, unit);
        let long = map.lookup_read(top, unit << geometry.unit_shift, 64 << geometry.unit_shift).expect("as above");
        let units = long.len.div_ceil(geometry.unit_bytes());
        for (n, unit) in (unit..unit + units).enumerate().filter(|_| long.kind != MappingKind::Unwritten) {
            let at = (long.addr >> geometry.unit_shift) + n as u64;
            let same = self.plain[volume].get(&unit).map(|plain| plain.0) == Some(at).filter(|_| long.addr != 0);
            assert!(same, "unit {unit} in one piece with those before it");
        }
    }
}

impl Pair {
    /// Looks up all blocks of a unit at once: all of them or none are plain.
    fn compare_many(&self, volume: usize, unit: u64) {
        let (map, top) = (&self.tree.map, &self.tops[volume]);
        let shift = map.geometry.unit_shift;
        let at: Vec<u64> = (0..self.blocks() as u64).map(|block| (unit << shift) + (block << BLOCK_SHIFT)).collect();
        let full = self.plain[volume].get(&unit).filter(|plain| plain.1.iter().all(|written| *written));
        // No lookup beyond the shortcut table is plain.
        let full = full.filter(|_| unit >> map.geometry.leaf_shift < PLACES);
        let (mut read, mut written) = (at.clone(), at.clone());
        let many = many_of(map, top, &mut read, false);
        assert_eq!(many, full.map_or(0, |_| at.len()));
        let want = at.iter().map(|pos| full.map_or(*pos, |plain| (plain.0 << shift) + (pos & ((1 << shift) - 1))));
        assert!(read.iter().copied().eq(want), "unit {unit}");
        match many_of(map, top, &mut written, true) {
            0 => assert_eq!(written, at),
            many => {
                assert_eq!((many, &written), (at.len(), &read));
                let owners = self.tree.units.owners(written[0] >> shift);
                assert_eq!(owners, 1, "a shared unit is never handed to a writer");
            }
        }
        if full.is_some() {
            // A range that begins in the unit and ends behind it is not plain, which ends the batch.
            let mut long = [at[0], at[at.len() - 1] + 512, at[0]];
            assert_eq!(many_of(map, top, &mut long, false), 1);
            assert_eq!(long[1..], [at[at.len() - 1] + 512, at[0]]);
        }
    }
}

/// Looks up several blocks at once. Returns the number that are plain.
fn many_of(map: &ExtentMap, top: &Top, at: &mut [u64], write: bool) -> usize {
    let ranges = PlainRanges::new(at, 4096, if write { Intent::Write } else { Intent::Read });
    map.lookup_many(top, at, &ranges)
}

fn step(pair: &mut Pair, kind: u8, volume: bool, place: u64, count: u64) {
    let volume = usize::from(volume);
    // Some units are neighbours, some are in leaves and index nodes of their own.
    let unit = if place & 1 == 0 { place % 600 } else { place % UNITS };
    let blocks = pair.blocks() as u64;
    let first = place / 3 % blocks;
    let count = (1 + count % blocks).min(blocks - first);
    match kind % 16 {
        0..6 => pair.write(volume, unit, first as usize, count as usize),
        6..9 => pair.write(volume, unit, 0, blocks as usize),
        9..12 => pair.unmap(volume, unit),
        12 => pair.copy(),
        13 => pair.commit(),
        _ => {}
    }
    pair.compare(0, unit);
    pair.compare(1, unit);
}

/// Checks that every used unit and node has an owner, and that all others are free.
fn adds_up(mut pair: Pair) {
    for volume in 0..2 {
        let units: Vec<u64> = pair.plain[volume].keys().copied().collect();
        units.iter().for_each(|unit| pair.compare(volume, *unit));
    }
    let mut owners: BTreeMap<u64, u16> = BTreeMap::new();
    pair.commit();
    pair.plain.iter().flat_map(|plain| plain.values()).for_each(|at| *owners.entry(at.0).or_default() += 1);
    let counts = pair.tree.units.counts();
    assert_eq!((counts.data, counts.limbo), (owners.len() as u64, 0));
    for volume in 0..2 {
        let written = pair.plain[volume].values().flat_map(|at| &at.1).filter(|block| **block).count();
        let (units, blocks) = pair.leaf_sums(volume);
        assert_eq!((units, blocks), (pair.plain[volume].len() as u64, written as u64), "leaves count what is in them");
        (0..40).for_each(|slot| pair.tree.drop_slot(&pair.tops[volume], slot));
        pair.commit();
    }
    let counts = pair.tree.units.counts();
    assert_eq!((counts.data, counts.free, pair.tree.index.live(), pair.tree.leaves.live()), (0, 3999, 0, 0));
    assert_eq!((pair.tree.dirty_nodes(), pair.tree.leaves.total_used()), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn maps_are_like_plain_ones(
        unit_shift in 12u32..=20,
        steps in prop::collection::vec((any::<u8>(), any::<bool>(), any::<u64>(), any::<u64>()), 1..150),
    ) {
        let mut pair = Pair::new(unit_shift);
        for (kind, volume, place, count) in steps {
            step(&mut pair, kind, volume, place, count);
        }
        adds_up(pair);
    }
}

#[test]
fn many_steps_of_each_size() {
    for seed in sheave_testkit::seeds(9) {
        let mut pair = Pair::new(12 + (seed % 9) as u32);
        let mut rng = Rng::new(seed);
        for _ in 0..3000 {
            step(&mut pair, rng.draw() as u8, rng.percent(50), rng.draw(), rng.draw());
        }
        adds_up(pair);
    }
}

#[test]
fn a_hole_without_a_leaf_extends_to_the_next_leaf() {
    let pair = Pair::new(16);
    let hole = pair.tree.map.lookup_read(&pair.tops[0], 5 << 20, 1 << 40).expect("nobody else is here");
    assert_eq!((hole.kind, hole.len), (MappingKind::Hole, 11 << 20), "to the end of the leaf");
    assert_eq!(pair.tree.map.lookup_write(&pair.tops[0], 0, 4096), None::<Mapping>);
}

/// A parent releases a shared node by copying it. The other parent changes that node in place only when the release has
/// passed the deferred-free queue.
#[test]
fn a_shared_node_is_copied_until_the_other_parents_release_has_passed() {
    let mut pair = Pair::new(16);
    pair.write(0, 5, 0, 1);
    pair.copy();
    let word = |pair: &Pair, volume: usize| id_of(pair.tops[volume].word(0).expect("made").load(Ordering::Relaxed));
    let (index, leaf) = (word(&pair, 0), pair.tree.map.find(&pair.tops[0], 5).leaf);
    pair.write(0, 5, 1, 1);
    assert_ne!(word(&pair, 0), index, "the first to write has copied the node");
    // A lookup of volume 0 may still be between the old node and a leaf, so volume 1 copies the node.
    pair.write(1, 6, 0, 1);
    assert_ne!(word(&pair, 1), index, "the old node is not changed under it");
    assert_ne!(pair.tree.map.find(&pair.tops[1], 5).leaf, leaf, "nor is the old leaf");
    pair.commit();
    assert_eq!((pair.tree.index.live(), pair.tree.leaves.live()), (2, 2), "both have let the old ones go");
    pair.compare(0, 5);
    pair.compare(1, 5);
    pair.compare(1, 6);
}

#[test]
fn a_node_that_has_one_parent_left_is_changed_in_place() {
    let mut pair = Pair::new(16);
    pair.write(0, 5, 0, 1);
    pair.copy();
    let leaf = pair.tree.map.find(&pair.tops[0], 5).leaf;
    pair.write(0, 5, 1, 1);
    pair.commit();
    pair.write(1, 6, 0, 1);
    assert_eq!(pair.tree.map.find(&pair.tops[1], 6).leaf, leaf);
    assert_eq!((pair.tree.index.live(), pair.tree.leaves.live()), (2, 2));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The used slots of a top against a plain set.
    #[test]
    fn used_slots_are_found_from_both_sides(
        steps in proptest::collection::vec((0u64..5000, any::<bool>()), 1..60),
        at in 0u64..5100,
    ) {
        let (top, mut plain) = (Top::new(), std::collections::BTreeSet::new());
        for (slot, used) in steps {
            prop_assert!(top.make(slot as u32));
            top.set_word(slot as u32, u64::from(used));
            if used { plain.insert(slot); } else { plain.remove(&slot); }
            prop_assert_eq!(top.used(), plain.len() as u64);
        }
        prop_assert_eq!(top.next_used(at, 5000), plain.range(at..5000.max(at)).next().copied());
        prop_assert_eq!(top.last_used(at), plain.range(..at).next_back().copied());
    }
}
