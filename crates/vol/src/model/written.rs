//! First writes of blocks, racing with lookups that overwrite them.

use sheave_base::sync::{Arc, Mutex, thread};
use sheave_iomap::MappingKind;
use sheave_iomap::mapping::MapFlags;

use super::explore;
use crate::format::BLOCK_SHIFT;
use crate::state::alloc::Units;
use crate::state::extent_map::tree::Tree;
use crate::state::extent_map::{Entry, ExtentMap, Geometry, Top};

/// V2 and V3 of the contract: until a commit contains the first write of a block, a lookup for overwriting it returns
/// `DIRTY`, since more than the data must be made durable. Runs with written bits in the entries (64 KiB units), and
/// beside them (128 KiB units).
#[test]
fn model_overwriting_a_new_block_returns_dirty() {
    for unit_shift in [16, 17] {
        explore(move || {
            let map = Arc::new(ExtentMap::new(Geometry::new(unit_shift)));
            let mut free = Units::new(2);
            assert!(free.fix(0));
            let tree = Mutex::new(Tree::new(Arc::clone(&map), free));
            let top = Arc::new(Top::new());
            top.open(1);
            {
                // The unit's first block is written and durable. First writes of its other blocks may follow.
                let mut tree = tree.lock().expect("no panic");
                let phys = tree.units.alloc().expect("there is one");
                let place = tree.own(&top, 0).expect("there is memory");
                tree.install(place, Entry::at(phys).with(Entry::HANDED));
                tree.set_bits(place, 0, 1, true);
            }
            let overwriter = {
                let (map, top) = (Arc::clone(&map), Arc::clone(&top));
                thread::spawn(move || {
                    for _ in 0..2 {
                        let mapping = map.lookup_write(&top, 1 << BLOCK_SHIFT, 1 << BLOCK_SHIFT);
                        if let Some(mapping) = mapping.filter(|mapping| mapping.kind == MappingKind::Mapped) {
                            assert!(mapping.flags.any(MapFlags::DIRTY), "FUA alone would be enough");
                        }
                    }
                })
            };
            let mut tree = tree.lock().expect("no panic");
            let place = tree.own(&top, 0).expect("there is memory");
            let entry = tree.entry(place).with(Entry::LISTED | Entry::DIRTY);
            tree.write_blocks(place, entry, 1, 1);
            drop(tree);
            overwriter.join().expect("no panic");
        });
    }
}
