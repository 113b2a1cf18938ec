//! Compares maps with a plain map of units.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Op {
    Set(u64, u64, u64),
    Clear(u64, u64),
    Truncate(u64),
    Snapshot,
}

/// Returns the units in three leaves of two nodes.
fn unit() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..300, 65_530u64..65_560]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (unit(), 0u64..50, 0u64..0x1_0000).prop_map(|(unit, phys, bits)| Op::Set(unit, phys, bits)),
        2 => (unit(), 1u64..70_000).prop_map(|(unit, count)| Op::Clear(unit, count)),
        1 => (unit(), 0u64..65_536).prop_map(|(unit, bytes)| Op::Truncate(unit * 65_536 + bytes)),
        1 => Just(Op::Snapshot),
    ]
}

fn flat(map: &Map) -> BTreeMap<u64, (u64, u64)> {
    let mut all = BTreeMap::new();
    for (number, node) in &map.nodes {
        assert!(!node.is_empty(), "M2");
        for (slot, leaf) in node.leaves.iter().enumerate() {
            let Some(leaf) = leaf else { continue };
            assert!(!leaf.is_empty(), "M2");
            let first = (number * 256 + slot as u64) * 256;
            for (unit, (&phys, &bits)) in (first..).zip(leaf.entries.iter().zip(&leaf.written)) {
                assert_eq!(phys == 0, bits == 0, "M2");
                if phys != 0 {
                    all.insert(unit, (phys, bits));
                }
            }
        }
    }
    all
}

proptest! {
    #[test]
    fn maps_match_a_plain_model(ops in proptest::collection::vec(op(), 1..60)) {
        let geometry = Geometry::new(65_536, 1 << 20, 16);
        let mut map = Map::default();
        let mut oracle: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        let mut frozen = Vec::new();
        for op in ops {
            match op {
                Op::Set(unit, phys, bits) => {
                    map.set(&geometry, unit, phys, &[bits]);
                    if phys == 0 || bits == 0 { oracle.remove(&unit); } else { oracle.insert(unit, (phys, bits)); }
                }
                Op::Clear(unit, count) => {
                    let any = map.clear(&geometry, unit, unit + count);
                    let had = oracle.len();
                    oracle.retain(|at, _| *at < unit || *at >= unit + count);
                    prop_assert_eq!(any, oracle.len() < had);
                }
                Op::Truncate(size) => {
                    let before = oracle.clone();
                    let any = map.truncate(&geometry, size);
                    oracle.retain(|unit, entry| {
                        let inside = size.saturating_sub(unit * 65_536).div_ceil(4096).min(16);
                        entry.1 &= (1u64 << inside) - 1;
                        entry.1 != 0
                    });
                    prop_assert_eq!(any, before != oracle);
                }
                Op::Snapshot => frozen.push((map.clone(), oracle.clone())),
            }
            prop_assert_eq!(&flat(&map), &oracle);
        }
        for (map, oracle) in frozen {
            prop_assert_eq!(flat(&map), oracle, "a copy does not change");
        }
    }
}
