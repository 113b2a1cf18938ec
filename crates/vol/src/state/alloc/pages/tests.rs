//! Pages and their units.

use super::*;

#[test]
fn pages_come_back_as_units() {
    let mut units = Units::new(64);
    assert!(units.fix(0));
    let mut pages = Pages::new(16);
    let mut taken = pages.take(37, &mut units).expect("there is room");
    assert_eq!((taken.len(), pages.used, units.counts().meta), (37, 37, 3));
    taken.sort_unstable();
    taken.dedup();
    assert_eq!(taken.len(), 37, "each page once");
    pages.put(&taken, &mut units);
    assert_eq!((pages.used, units.counts().meta, units.counts().free), (0, 0, 63));
}

#[test]
fn more_than_there_is_takes_nothing() {
    let mut units = Units::new(3);
    let mut pages = Pages::new(16);
    assert!(pages.take(49, &mut units).is_none());
    assert_eq!((pages.used, units.counts().free), (0, 3));
    assert_eq!(pages.take(48, &mut units).map(|pages| pages.len()), Some(48), "the reserve is for this");
}

#[test]
fn recovery_claims_each_page_once() {
    for unit_shift in [12, 16, 20] {
        let mut units = Units::new(16);
        let mut pages = Pages::new(unit_shift);
        let address = 5u64 << unit_shift;
        assert!(pages.claim(address, &mut units) && !pages.claim(address, &mut units), "a page has one place");
        assert!(!units.claim_data(5), "metadata is no data");
        assert!(units.claim_data(6) && !pages.claim(6 << unit_shift, &mut units), "data is no metadata");
        pages.put(&[address], &mut units);
        assert!(units.claim_data(5), "free again");
    }
}

/// What metadata was given space for stays metadata, up to a bound.
#[test]
fn pages_with_space_stay_pages() {
    let mut units = Units::new(64);
    let mut pages = Pages::new(16);
    (pages.sparse, pages.keep) = (true, 40);
    let unit = units.alloc_meta().expect("there is room");
    assert_eq!((pages.stock(), pages.stocked_units()), (0, 0), "a unit counts when it was written");
    pages.add(unit);
    assert_eq!((pages.stock(), pages.stocked_units()), (16, 1));
    let taken = pages.take(70, &mut units).expect("there is room");
    assert_eq!((units.counts().meta, pages.stock()), (5, 10));
    pages.put(&taken, &mut units);
    assert_eq!((units.counts().meta, pages.stock(), pages.used), (3, 48, 0), "one unit less would be too few");
    pages.keep = 0;
    let taken = pages.take(1, &mut units).expect("there is room");
    pages.put(&taken, &mut units);
    assert_eq!((units.counts().meta, pages.stock()), (2, 32));
}
