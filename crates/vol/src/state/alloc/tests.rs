//! Owners of units, counts of units, and the reserve.

use super::*;

fn sum(units: &Units) -> u64 {
    let counts = units.counts();
    counts.free + counts.data + counts.meta + counts.limbo + counts.fixed
}

#[test]
fn allocations_follow_each_other_and_stop_at_the_reserve() {
    let mut units = Units::new(100);
    assert!(units.fix(0) && !units.fix(0));
    units.reserve = 9;
    let got: Vec<u64> = std::iter::from_fn(|| units.alloc()).collect();
    assert_eq!(got, (1..91).collect::<Vec<_>>());
    assert_eq!((units.available(), units.counts().free, sum(&units)), (0, 9, 100));
    let meta: Vec<u64> = std::iter::from_fn(|| units.alloc_meta()).collect();
    assert_eq!(meta.len(), 9, "metadata has the reserve");
    assert!(units.alloc().is_none() && sum(&units) == 100);
}

#[test]
fn a_unit_is_free_after_its_last_owner_and_limbo() {
    let mut units = Units::new(4);
    let unit = units.alloc().expect("free");
    assert!(units.get(unit));
    assert!(!units.put(unit) && units.owners(unit) == 1);
    assert!(units.put(unit) && units.counts().limbo == 1);
    assert!(!units.get(unit), "nobody gets what is in limbo");
    let others: Vec<u64> = std::iter::from_fn(|| units.alloc()).collect();
    assert!(others.len() == 3 && !others.contains(&unit));
    units.release(unit);
    assert_eq!((units.alloc(), sum(&units)), (Some(unit), 4));
}

#[test]
fn grown_units_are_free() {
    let mut units = Units::new(2);
    while units.alloc().is_some() {}
    units.grow(200);
    assert_eq!((units.alloc(), units.counts().free, sum(&units)), (Some(2), 197, 200));
}
