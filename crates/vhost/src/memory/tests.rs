//! Tests of mappings and lookups.

use proptest::prelude::*;
use rustix::io::pwrite;

use super::*;
use crate::rig::{GUEST, REGION, USER, memfd, memory, spec};

fn region(guest: u64, size: u64, user: u64, offset: u64, file: u64) -> Result<GuestMemory, Broken> {
    GuestMemory::default().added(RegionSpec { guest, size, user, offset }, Arc::new(memfd(file)))
}

#[test]
fn a_region_that_cannot_be_is_refused() {
    assert_eq!(region(GUEST, 0, USER, 0, 4096).err(), Some(Broken::RegionEmpty { guest: GUEST }));
    let wraps = Some(Broken::RegionWraps { guest: GUEST });
    assert_eq!(region(GUEST, 4096, u64::MAX - 4095, 0, 4096).err(), wraps);
    assert_eq!(region(GUEST, 4096, USER, u64::MAX - 100, 4096).err(), wraps);
    assert_eq!(region(GUEST, u64::MAX - GUEST, 0, 0, 4096).err(), wraps);
    assert!(matches!(region(u64::MAX - 4095, 4096, USER, 0, 4096), Err(Broken::RegionWraps { .. })));
    let short = |needed| Some(Broken::FileTooShort { size: 4096, needed });
    assert_eq!(region(GUEST, 8192, USER, 0, 4096).err(), short(8192));
    assert_eq!(region(GUEST, 4096, USER, 4096, 4096).err(), short(8192));
    assert_eq!(region(GUEST, i64::MAX as u64, USER, 0, 4096).err(), short(i64::MAX as u64));
    assert!(region(GUEST, 4096, USER, 0, 4096).is_ok());
    let pipe = rustix::pipe::pipe().expect("a pipe").0;
    let spec = RegionSpec { guest: GUEST, size: 4096, user: USER, offset: 0 };
    assert_eq!(Region::new(spec, Arc::new(pipe)).err(), Some(Broken::NotMemory));
}

#[test]
fn regions_that_overlap_are_refused() {
    let first = memory(1);
    let add = |guest, user| {
        let spec = RegionSpec { guest, size: REGION, user, offset: 0 };
        first.added(spec, Arc::new(memfd(REGION))).err()
    };
    let far = USER + 16 * REGION;
    assert!(matches!(add(GUEST + REGION - 1, far), Some(Broken::RegionOverlaps { .. })));
    assert!(matches!(add(GUEST - REGION + 1, far), Some(Broken::RegionOverlaps { .. })));
    assert!(matches!(add(GUEST, far), Some(Broken::RegionOverlaps { .. })));
    assert!(matches!(add(GUEST + REGION, USER + 1), Some(Broken::RegionOverlaps { .. })));
    assert_eq!(add(GUEST + REGION, USER + REGION), None);
}

#[test]
fn more_regions_than_the_limit_are_refused() {
    let full = memory(MAX_REGIONS as u64);
    let one_more = full.added(spec(MAX_REGIONS as u64), Arc::new(memfd(REGION))).err();
    assert_eq!(one_more, Some(Broken::TooManyRegions { count: MAX_REGIONS + 1 }));
    let all = (0..=MAX_REGIONS as u64).map(|index| (spec(index), Arc::new(memfd(REGION)))).collect();
    let all = GuestMemory::default().replaced(all).err();
    assert_eq!(all, Some(Broken::TooManyRegions { count: MAX_REGIONS + 1 }));
}

#[test]
fn a_region_is_removed_by_its_addresses_and_size() {
    let memory = memory(3);
    let less = memory.removed(RegionSpec { offset: 77, ..spec(1) }).expect("the offset is not looked at");
    assert_eq!(less.regions().iter().map(|region| region.spec()).collect::<Vec<_>>(), [spec(0), spec(2)]);
    assert!(Arc::ptr_eq(&less.regions()[0], &memory.regions()[0]));
    for wrong in [RegionSpec { user: 1, ..spec(1) }, RegionSpec { size: 1, ..spec(1) }, spec(3)] {
        assert_eq!(memory.removed(wrong).err(), Some(Broken::NoSuchRegion { guest: wrong.guest }));
    }
}

#[test]
fn a_region_that_comes_again_keeps_its_mapping() {
    let old = memory(2);
    let again = |region: usize| (old.regions()[region].spec(), old.regions()[region].file().clone());
    let other_file = (spec(0), Arc::new(memfd(REGION)));
    let new = old.replaced(vec![again(1), other_file]).expect("regions");
    assert!(Arc::ptr_eq(&new.regions()[1], &old.regions()[1]));
    assert!(!Arc::ptr_eq(&new.regions()[0], &old.regions()[0]));
    // A duplicate of the descriptor is the same file.
    let duplicate = Arc::new(old.regions()[0].file().try_clone().expect("dup"));
    let new = old.replaced(vec![(spec(0), duplicate)]).expect("regions");
    assert!(Arc::ptr_eq(&new.regions()[0], &old.regions()[0]));
}

#[test]
fn an_offset_that_is_no_page_boundary_is_mapped_too() {
    let file = memfd(3 * 4096);
    pwrite(&file, b"here", 4096 + 100).expect("pwrite");
    let spec = RegionSpec { guest: GUEST, size: 4096, user: USER, offset: 4096 + 100 };
    let memory = GuestMemory::default().added(spec, Arc::new(file)).expect("a region");
    let span = memory.find(GUEST, 4, &mut 0).expect("mapped");
    let mut bytes = [0; 4];
    memory.copy_from(&[span], &mut bytes).expect("mapped");
    assert_eq!(&bytes, b"here");
    assert_eq!(memory.regions()[0].iovec().1, 4096);
}

#[test]
fn spans_are_copied_and_zeroed_across_their_borders() {
    let memory = memory(2);
    let mut hint = 0;
    let spans = [
        memory.find(GUEST + 10, 3, &mut hint).expect("mapped"),
        memory.find(GUEST + REGION - 2, 9, &mut hint).expect("mapped"),
        memory.find(GUEST + REGION, 7, &mut hint).expect("mapped"),
    ];
    assert_eq!(spans.map(|span| span.len()), [3, 2, 7]);
    assert_eq!(memory.copy_to(&spans, b"0123456789"), Ok(10));
    let mut bytes = [0; 20];
    assert_eq!(memory.copy_from(&spans, &mut bytes), Ok(12));
    assert_eq!(&bytes[..12], b"0123456789\0\0");
    memory.zero(&spans[..2]).expect("mapped");
    assert_eq!(memory.copy_from(&spans, &mut bytes[..7]), Ok(7));
    assert_eq!(&bytes[..7], b"\0\0\0\0\x0056");
}

#[test]
fn a_span_of_memory_that_is_gone_gives_no_access() {
    let memory = memory(2);
    let span = memory.find(GUEST + REGION, 16, &mut 0).expect("mapped");
    assert!(memory.place(span).is_ok());
    let less = memory.removed(spec(1)).expect("a region");
    assert_eq!(less.place(span).err(), Some(Broken::SpanGone));
    let beyond = Span { addr: span.addr, len: REGION as usize + 1 };
    assert_eq!(memory.place(beyond).err(), Some(Broken::SpanGone));
    assert_eq!(memory.place(Span { addr: span.addr, len: usize::MAX }).err(), Some(Broken::SpanGone));
}

#[test]
#[should_panic(expected = "an access beyond a place")]
fn an_access_beyond_a_place_panics() {
    let memory = memory(1);
    let place = memory.place(memory.find(GUEST, 8, &mut 0).expect("mapped")).expect("mapped");
    place.store_u64(8, 1, Ordering::Relaxed);
}

#[test]
#[should_panic(expected = "an access that is not aligned")]
fn an_access_that_is_not_aligned_panics() {
    let memory = memory(1);
    let place = memory.place(memory.find(GUEST, 16, &mut 0).expect("mapped")).expect("mapped");
    place.store_u64(4, 1, Ordering::Relaxed);
}

proptest! {
    #[test]
    fn a_lookup_finds_what_a_search_of_all_regions_finds(
        at in GUEST - 10..GUEST + 4 * REGION + 10, len in 1..3 * REGION as u32, hint in 0..5usize, many: bool,
    ) {
        // Regions 0, 1 and 3: two that are adjacent, a gap, and one alone; and perhaps so many that a search pays.
        let file = Arc::new(memfd(REGION));
        let indexes = [0, 1, 3].into_iter().chain(if many { 10..20 } else { 0..0 });
        let regions = indexes.map(|index| (spec(index), file.clone()));
        let memory = GuestMemory::default().replaced(regions.collect()).expect("regions");
        let mut after = hint;
        let found = memory.find(at, len, &mut after);
        let region = memory.regions().iter().position(|region| {
            (region.spec().guest..region.spec().guest + REGION).contains(&at)
        });
        match region {
            None => prop_assert_eq!(found, Err(Broken::NotMapped { guest: at, len })),
            Some(index) => {
                let found = found.expect("in a region");
                let (base, size) = memory.regions()[index].iovec();
                let offset = found.iovec().0 as usize - base as usize;
                prop_assert_eq!(offset as u64, at - memory.regions()[index].spec().guest);
                prop_assert_eq!(found.len(), (len as usize).min(size - offset));
                prop_assert!(!many || after == index, "the hint is kept");
                prop_assert!(memory.place(found).is_ok());
            }
        }
    }
}
