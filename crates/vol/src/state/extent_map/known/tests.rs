//! A replay with the leaf cache gives the same maps as one without it.

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
        0..20 => Record::Set { volume, unit, phys: 100 + rng.below(900), written: [1 + rng.below(0xFFFF), 0, 0, 0] },
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
    let mut sb = Superblock { total_units, members, table: PageRef::NONE, volumes: 0, ..samples::superblock(1 << 16) };
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
fn a_replay_that_knows_leaves_makes_the_maps_of_one_that_walks() {
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
                [tree.dirty_nodes(), tree.cost, state.table.upper_due(), leaves.total_used(), leaves.total_written()]
            };
            assert_eq!(counts(&walks), counts(&knows), "seed {seed}, step {step}: {record:?}");
        }
        assert!(knows.tree.walked < walks.tree.walked * 2 / 3, "it knew many");
        assert!(at_once > 50, "{at_once} records of units whose places were asked for");
    }
}
