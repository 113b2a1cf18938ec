//! Pages and their units, with one copy and with two.

use super::*;

/// Reference to a page of a pool with one copy.
fn at(address: u64) -> PageRef {
    PageRef { address, checksum: 1, second: 0 }
}

/// Pages of a pool with two copies and units of 64 KiB. The members begin at these units.
fn paired(members: &[u64]) -> Pages {
    Pages { partners: Some(BTreeMap::new()), members: members.to_vec(), ..Pages::new(16) }
}

#[test]
fn the_second_copy_lies_on_another_member_and_goes_with_the_first() {
    let mut units = Units::new(96);
    let mut pages = paired(&[0, 32, 64]);
    let member = |unit: u64| unit / 32;
    let taken = pages.take(100, &mut units).expect("there is room");
    assert_eq!((units.counts().meta, pages.used), (14, 100), "two units for each 16 pages");
    for (at, second) in taken.iter().zip(pages.seconds_of(&taken)) {
        assert!(units.is_meta(u64::from(second)));
        assert_ne!(member(at >> 16), member(u64::from(second)), "unit {} and {second}", at >> 16);
    }
    pages.put(&taken, &mut units);
    assert_eq!((pages.used, units.counts().meta, units.counts().free), (0, 0, 96));
}

#[test]
fn on_one_device_the_second_copy_is_half_of_it_away() {
    let mut units = Units::new(64);
    let mut pages = paired(&[0]);
    let taken = pages.take(16, &mut units).expect("there is room");
    let (unit, second) = (taken[0] >> 16, u64::from(pages.seconds_of(&taken)[0]));
    assert_eq!(second, (unit + 32) % 64);
}

#[test]
fn a_pool_has_as_many_pages_as_pairs_of_units() {
    for free in [7, 8] {
        let mut units = Units::new(free);
        // The last free units are all on one member: a pair there is better than no page.
        let mut pages = paired(&[0, 2]);
        assert_eq!(pages.available(&units), free / 2 * 16);
        assert!(pages.take(free / 2 * 16 + 1, &mut units).is_none());
        assert!(pages.take(free / 2 * 16, &mut units).is_some(), "{free} units");
        assert_eq!(units.counts().free, free % 2);
    }
}

#[test]
fn recovery_claims_the_second_copies_too() {
    let mut units = Units::new(16);
    let mut pages = paired(&[0]);
    let page = |unit: u64, number: u64, second| PageRef { second, ..at((unit << 16) + (number << 12)) };
    assert!(pages.claim(page(5, 0, 9), &mut units) && pages.claim(page(5, 1, 9), &mut units));
    assert_eq!((units.counts().meta, pages.used), (2, 2));
    assert!(!pages.claim(page(5, 2, 10), &mut units), "all pages of a unit have their copies in one");
    assert!(!pages.claim(page(6, 0, 9), &mut units), "a unit has the copies of one");
    assert!(!pages.claim(page(9, 0, 10), &mut units), "and no pages of its own");
    assert!(!units.claim_data(9), "nor data");
    let mut units = Units::new(16);
    assert!(units.claim_data(9) && !paired(&[0]).claim(page(5, 0, 9), &mut units), "data is no second copy");
}

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
        assert!(pages.claim(at(address), &mut units) && !pages.claim(at(address), &mut units), "a page has one place");
        assert!(!units.claim_data(5), "metadata is no data");
        assert!(units.claim_data(6) && !pages.claim(at(6 << unit_shift), &mut units), "data is no metadata");
        pages.put(&[address], &mut units);
        assert!(units.claim_data(5), "free again");
    }
}

/// Units that were written for metadata stay metadata, up to a bound.
#[test]
fn pages_with_space_stay_pages() {
    let mut units = Units::new(64);
    let mut pages = Pages::new(16);
    (pages.sparse, pages.keep) = (true, 40);
    let unit = units.alloc_meta().expect("there is room");
    assert_eq!((pages.stock(), pages.stocked_units()), (0, 0), "a unit counts when it was written");
    pages.add(MetaUnit { unit, second: None });
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
