//! Pages: round trips for all unit sizes, stale and misplaced pages, refused content.

use proptest::prelude::*;

use super::index::{Sink, build_upper};
use super::*;
use crate::format::block::samples::{self, POOL};
use crate::format::superblock::Geometry;
use crate::format::{BLOCK, INDEX_CHILDREN, MAX_LEAF_ENTRIES, MAX_LEAF_WORDS};

fn geometry(shift: u32) -> Geometry {
    Geometry::new(1 << shift, 1 << 20, 16)
}

fn decode_leaf(block: &Block, g: &Geometry, e: &Expect) -> Result<(Vec<u64>, Vec<u64>), Damage> {
    let (mut entries, mut written) = ([7; MAX_LEAF_ENTRIES], [7; MAX_LEAF_WORDS]);
    leaf::decode(block, g, e, &mut entries, &mut written)?;
    Ok((entries[..g.leaf_entries].to_vec(), written[..g.leaf_entries * g.entry_words].to_vec()))
}

#[test]
fn an_old_page_at_the_right_place_is_stale() {
    let g = geometry(16);
    let mut old = [0; BLOCK];
    let mut new = [0; BLOCK];
    let place = samples::place(50 << 20, 3, 1);
    let earlier = PagePlace { generation: 5, ..place };
    leaf::encode(&mut old, &g, &earlier, &[900], &[1]);
    let page = leaf::encode(&mut new, &g, &place, &[900], &[1]);
    let expect = samples::expect(page, 3);
    assert!(decode_leaf(&new, &g, &expect).is_ok());
    assert_eq!(decode_leaf(&old, &g, &expect), Err(Damage::Stale { generation: 5 }));
    let misplaced = Expect { page: PageRef { address: 51 << 20, ..page }, ..expect };
    assert_eq!(decode_leaf(&new, &g, &misplaced), Err(Damage::Misplaced { says: 50 << 20 }));
    let wrong_index = Expect { index: 4, ..expect };
    assert!(matches!(decode_leaf(&new, &g, &wrong_index), Err(Damage::Field { field: "index", .. })));
    let before = Expect { generation: 6, ..expect };
    assert!(matches!(decode_leaf(&new, &g, &before), Err(Damage::Field { field: "generation", .. })));
}

#[test]
fn entries_without_written_blocks_are_not_stored() {
    let g = geometry(16);
    let mut block = [0; BLOCK];
    let page = leaf::encode(&mut block, &g, &samples::place(1 << 20, 0, 1), &[900, 901, 0, 902], &[1, 0, 5, 0xFFFF]);
    let (entries, written) = decode_leaf(&block, &g, &samples::expect(page, 0)).expect("valid");
    assert_eq!(entries[..5], [900, 0, 0, 902, 0]);
    assert_eq!(written[..5], [1, 0, 0, 0xFFFF, 0]);
}

#[test]
fn references_out_of_bounds_are_refused_though_sealed() {
    let g = geometry(16);
    let mut block = [0; BLOCK];
    let place = samples::place(1 << 20, 0, 1);
    for phys in [1, 1 << 20, 1 << 40, u64::MAX] {
        let page = leaf::encode(&mut block, &g, &place, &[phys], &[1]);
        let refused = decode_leaf(&block, &g, &samples::expect(page, 0));
        assert!(matches!(refused, Err(Damage::Field { field: "entry", .. })), "{refused:?}");
    }
    for address in [4096, 3, g.bytes(), u64::MAX - 4095] {
        let page = index::encode(&mut block, &place, 1, &[PageRef { address, checksum: 0, second: 0 }]);
        let mut children = [PageRef::NONE; INDEX_CHILDREN];
        let refused = index::decode(&block, &g, &samples::expect(page, 0), 1, &mut children);
        assert!(matches!(refused, Err(Damage::Field { field: "child", .. })), "{refused:?}");
    }
    let page = index::encode(&mut block, &place, 5, &[]);
    let mut children = [PageRef::NONE; INDEX_CHILDREN];
    assert!(index::decode(&block, &g, &samples::expect(page, 0), 5, &mut children).is_err());
}

#[test]
fn a_member_in_the_wrong_place_is_told() {
    let mut sb = samples::superblock(65536);
    let unit = 65536;
    sb.members = vec![(0, 400 * unit), (400 * unit, 300 * unit), (700 * unit, 324 * unit)];
    let mut one = [0; BLOCK];
    let mut two = [0; BLOCK];
    assert_eq!(label::encode(&mut one, &sb, 1), 400 * unit);
    assert_eq!(label::encode(&mut two, &sb, 2), 700 * unit);
    assert_eq!(label::verify(&one, &sb, 1), Ok(()));
    assert_eq!(label::verify(&two, &sb, 2), Ok(()));
    assert_eq!(label::verify(&two, &sb, 1), Err(Damage::Misplaced { says: 700 * unit }));
    let other = crate::format::superblock::Superblock { pool: [3; 16], ..sb.clone() };
    assert_eq!(label::verify(&one, &other, 1), Err(Damage::Foreign));
    sb.members[1].1 -= unit;
    assert!(matches!(label::verify(&one, &sb, 1), Err(Damage::Field { field: "len", .. })));
}

#[test]
fn the_table_takes_what_fits_and_names_what_cannot_be() {
    let g = Geometry::new(1 << 20, 1024, 32);
    let mut block = [0; BLOCK];
    let place = samples::place(1 << 26, 0, 0);
    let volumes: Vec<_> = (1..100).map(|id| samples::volume(id, &format!("volume-{id}"))).collect();
    let (page, count) = table::encode(&mut block, &place, &volumes);
    assert_eq!(count, 45, "64 or 72 bytes an entry with its name, 16 with an identity, 8 that is interim");
    let mut back = Vec::new();
    assert_eq!(table::decode(&block, &g, &samples::expect(page, 0), &mut back), Ok(count));
    assert_eq!(back, volumes[..count]);
    let refused = table::decode(&block, &g, &samples::expect(page, 0), &mut back);
    assert!(matches!(refused, Err(Damage::Field { field: "volume.id", .. })), "numbers only rise");
    type Change = (&'static str, fn(&mut table::VolumeEntry));
    let cases: [Change; 12] = [
        ("volume.id", |v| v.id = 0),
        ("volume.family", |v| v.family = 0),
        ("volume.family", |v| v.family = v.id + 1),
        ("volume.origin", |v| v.origin = v.id),
        ("volume.size", |v| v.size = v.max_size + 1),
        ("volume.max_size", |v| v.max_size = u64::MAX),
        ("volume.size", |v| (v.grows, v.size) = (true, 512)),
        ("volume.size", |v| (v.grows, v.max_size) = (true, (1 << 40) + 512)),
        ("volume.root_level", |v| v.root_level = 5),
        ("volume.root_level", |v| v.root_level = 0),
        ("volume.name_len", |v| v.name = "tab\t".into()),
        ("identity", |v| v.identity = Some([0; 16])),
    ];
    for (field, change) in cases {
        let mut volume = samples::volume(3, "v");
        change(&mut volume);
        let (page, _) = table::encode(&mut block, &place, &[volume]);
        match table::decode(&block, &g, &samples::expect(page, 0), &mut Vec::new()) {
            Err(Damage::Field { field: found, .. }) => assert_eq!(found, field),
            other => panic!("{field}: {other:?}"),
        }
    }
}

#[test]
fn marks_of_a_region_have_room_in_its_page_however_many() {
    use crate::format::{HEADER, MAX_SUMS};
    let numbers: sums::RegionSums = std::array::from_fn(|at| at as u32 + 7);
    for shift in [12, 16, 20] {
        let g = geometry(shift);
        let blocks = g.region_units() as usize * g.unit_blocks;
        let sets: [&dyn Fn(usize) -> bool; 4] =
            [&|_| false, &|_| true, &|at| at == 0 || at == blocks - 1, &|at| at % 7 == 3];
        for is_marked in sets {
            let mut marked = sums::Marked::default();
            (0..blocks).filter(|at| is_marked(*at)).for_each(|at| marked[at >> 6] |= 1 << (at & 63));
            let mut block = [0; BLOCK];
            let page = sums::encode(&mut block, &g, &samples::place(50 << 20, 3, 0), true, &numbers, &marked);
            let mut back = [0; MAX_SUMS];
            let found = sums::decode(&block, &g, &samples::expect(page, 3), &mut back).expect("valid");
            assert_eq!(found, sums::RegionState { open: true, marked });
            let wanted = |at: usize| if is_marked(at) { 0 } else { numbers[at] };
            assert!((0..blocks).all(|at| back[at] == wanted(at)), "the others keep their checksums");
        }
        // A list that descends, repeats a number, or leaves the region.
        for (first, next) in [(5, 5), (5, 4), (blocks as u32 + 1, 0), (5, blocks as u32 + 1), (u32::MAX, 0)] {
            let mut block = [0; BLOCK];
            let place = samples::place(50 << 20, 3, 0);
            let _ = sums::encode(&mut block, &g, &place, true, &numbers, &Default::default());
            block[HEADER + 4..HEADER + 8].copy_from_slice(&first.to_le_bytes());
            block[HEADER + 8 + 16..HEADER + 8 + 20].copy_from_slice(&next.to_le_bytes());
            let page = place.seal(&mut block, crate::format::kind::SUMS, 0, blocks);
            let refused = sums::decode(&block, &g, &samples::expect(page, 3), &mut [0; MAX_SUMS]);
            assert!(matches!(refused, Err(Damage::Field { field: "marked", .. })), "{first} {next}: {refused:?}");
        }
    }
}

struct Pages {
    next: u64,
    last: u64,
    pages: Vec<(u64, Block)>,
}

impl Sink for Pages {
    fn allocate(&mut self) -> Option<Spot> {
        self.next += 4096;
        (self.next <= self.last).then_some(Spot { address: self.next, second: 0 })
    }
    fn page(&mut self, address: u64, block: &Block) {
        self.pages.push((address, *block));
    }
}

#[test]
fn upper_levels_lead_to_every_page() {
    let g = geometry(16);
    for count in [1usize, 2, 256, 257, 70_000] {
        let below: Vec<PageRef> = (0..count as u32)
            .map(|at| if at % 7 == 3 { PageRef::NONE } else { PageRef { address: 1 << 20, checksum: at, second: 0 } })
            .collect();
        let mut sink = Pages { next: 2 << 20, last: u64::MAX, pages: Vec::new() };
        let place = samples::place(0, 0, 1);
        let (root, level) = build_upper(&mut sink, &place, 0, 1, &below).expect("there is room");
        assert_eq!(level, g.root_level((count * 256) as u64));
        let mut refs = vec![root];
        for level in (1..=level).rev() {
            let mut next = Vec::new();
            for (at, page) in refs.iter().enumerate() {
                let mut children = [PageRef::NONE; INDEX_CHILDREN];
                if !page.is_none() {
                    let (_, block) = sink.pages.iter().find(|(address, _)| *address == page.address).expect("written");
                    index::decode(block, &g, &samples::expect(*page, at as u64), level, &mut children).expect("valid");
                }
                next.extend_from_slice(&children);
            }
            refs = next;
        }
        assert_eq!(refs[..count], below);
        assert!(refs[count..].iter().all(PageRef::is_none));
    }
    let mut full = Pages { next: 0, last: 0, pages: Vec::new() };
    let one = [PageRef { address: 1 << 20, checksum: 1, second: 0 }];
    assert_eq!(build_upper(&mut full, &samples::place(0, 0, 1), 0, 1, &one), None);
    assert_eq!(build_upper(&mut full, &samples::place(0, 0, 1), 0, 0, &one), Some((one[0], 0)));
    assert_eq!(build_upper(&mut full, &samples::place(0, 0, 1), 0, 1, &[]), Some((PageRef::NONE, 0)));
    assert_eq!(POOL, samples::place(0, 0, 0).pool);
}

proptest! {
    #[test]
    fn leaves_round_trip(
        shift in 12u32..=20, index: u64, owner in 1u32..,
        content in proptest::collection::vec((20u64..1 << 20, any::<[u64; 4]>(), any::<bool>()), 256),
    ) {
        let g = geometry(shift);
        let mut entries = Vec::new();
        let mut written = Vec::new();
        for (phys, words, hole) in &content[..g.leaf_entries] {
            let words: Vec<u64> = words[..g.entry_words].iter().map(|word| word & g.full_word()).collect();
            let hole = *hole || words.iter().all(|&word| word == 0);
            entries.push(if hole { 0 } else { g.first_unit + phys % (g.total_units - g.first_unit) });
            written.extend(words.iter().map(|&word| if hole { 0 } else { word }));
        }
        let mut block = [0xEE; BLOCK];
        let place = PagePlace { pool: POOL, generation: 7, address: 77 << 12, second: 0, index, owner };
        let page = leaf::encode(&mut block, &g, &place, &entries, &written);
        let back = decode_leaf(&block, &g, &samples::expect(page, index));
        prop_assert_eq!(back, Ok((entries, written)));
    }

    #[test]
    fn tables_round_trip(names in proptest::collection::vec("[a-zä]{1,120}", 1..60)) {
        let g = Geometry::new(1 << 20, 1024, 32);
        let volumes: Vec<_> = (1..).zip(&names).map(|(id, name)| samples::volume(id * 3, name)).collect();
        let mut back = Vec::new();
        let mut rest = &volumes[..];
        let mut pages = 0;
        while !rest.is_empty() {
            let mut block = [0xEE; BLOCK];
            let place = PagePlace { index: pages, ..samples::place((100 + pages) << 20, 0, 0) };
            let (page, count) = table::encode(&mut block, &place, rest);
            prop_assert!(count > 0);
            table::decode(&block, &g, &samples::expect(page, pages), &mut back).expect("valid");
            rest = &rest[count..];
            pages += 1;
        }
        prop_assert_eq!(back, volumes);
    }
}
