//! Superblocks: round trips, refused content, choice of the slot.

use proptest::prelude::*;

use super::*;
use crate::format::block::samples;

fn sealed(sb: &Superblock) -> (Block, u64) {
    let mut block = [0xAA; BLOCK];
    let at = sb.encode(&mut block);
    (block, at)
}

fn back(sb: &Superblock) -> Result<Superblock, Damage> {
    let (block, at) = sealed(sb);
    Superblock::decode(&block, at, sb.geometry().bytes())
}

#[test]
fn generations_alternate_between_the_slots() {
    let mut sb = samples::superblock(65536);
    assert_eq!((sb.generation, sb.slot()), (7, 4096));
    let (block, at) = sealed(&sb);
    assert_eq!(Superblock::decode(&block, at, 1 << 30), Ok(sb.clone()));
    assert_eq!(Superblock::decode(&block, 0, 1 << 30), Err(Damage::Misplaced { says: 4096 }));
    sb.generation = 8;
    assert_eq!(back(&sb), Ok(sb.clone()));
    assert_eq!(sb.slot(), 0);
}

/// Encodes inconsistent superblocks unchanged. Each is refused with the name of the wrong field.
#[test]
fn inconsistent_numbers_are_refused_by_name() {
    let good = samples::superblock(65536);
    let page = |address| PageRef { address, checksum: 1, second: 0 };
    type Change = (&'static str, Box<dyn Fn(&mut Superblock)>);
    let cases: Vec<Change> = vec![
        ("unit_bytes", Box::new(|sb| sb.unit_bytes = 65537)),
        ("unit_bytes", Box::new(|sb| sb.unit_bytes = 2048)),
        ("unit_bytes", Box::new(|sb| sb.unit_bytes = 2 << 20)),
        ("unit_bytes", Box::new(|sb| sb.unit_bytes = 0)),
        ("journal_blocks", Box::new(|sb| sb.journal_blocks = 15)),
        ("journal_blocks", Box::new(|sb| sb.journal_blocks = MAX_JOURNAL_BLOCKS + 1)),
        ("total_units", Box::new(|sb| sb.total_units = 1025)),
        ("total_units", Box::new(|sb| sb.total_units = u64::MAX)),
        ("total_units", Box::new(|sb| sb.total_units = 3)),
        ("incarnation", Box::new(|sb| sb.incarnation = 0)),
        ("next_volume", Box::new(|sb| sb.next_volume = 0)),
        ("volumes", Box::new(|sb| sb.volumes = MAX_VOLUMES + 1)),
        ("table", Box::new(|sb| sb.volumes = 0)),
        ("table", Box::new(|sb| sb.table = PageRef::NONE)),
        ("table", Box::new(move |sb| sb.table = page(700 * 65536 + 1))),
        ("table", Box::new(move |sb| sb.table = page(4096))),
        ("table", Box::new(move |sb| sb.table = page(1024 * 65536))),
        ("table_level", Box::new(|sb| sb.table_level = 5)),
        ("members", Box::new(|sb| sb.members.clear())),
        ("members", Box::new(|sb| sb.members.truncate(1))),
        ("member.start", Box::new(|sb| sb.members[1].0 += 65536)),
        ("member.len", Box::new(|sb| sb.members[1].1 -= 1)),
        ("labels", Box::new(|sb| sb.labels[2] = 1)),
        ("labels", Box::new(|sb| sb.labels[0] = 1)),
        ("pool", Box::new(|sb| sb.pool = [0; 16])),
    ];
    for (field, change) in cases {
        let mut sb = good.clone();
        change(&mut sb);
        let (block, at) = sealed(&sb);
        match Superblock::decode(&block, at, good.geometry().bytes()) {
            Err(Damage::Field { field: found, .. }) => assert_eq!(found, field),
            other => panic!("{field}: {other:?}"),
        }
    }
}

#[test]
fn unknown_features_are_refused_or_make_it_read_only() {
    let mut sb = samples::superblock(65536);
    sb.compat = 1 << 9;
    sb.ro_compat = 1 << 3;
    let read = back(&sb).expect("may be read");
    assert_eq!(read.unknown_ro_features(), 1 << 3);
    assert_eq!(read, sb);
    let (mut block, at) = sealed(&sb);
    block[HEADER + std::mem::offset_of!(SuperblockBody, incompat) + 1] = 0x80;
    let sum = checksum(&block);
    block[8..12].copy_from_slice(&sum.to_le_bytes());
    let refused = Superblock::decode(&block, at, 1 << 30);
    assert_eq!(refused, Err(Damage::Features { bits: 0x8000 }));
    assert!(refused.expect_err("refused").is_too_new());
    // Data checksums have a feature bit, a kind and a root. Each without the others is refused.
    let root = PageRef { address: 700 << 16, checksum: 5, second: 0 };
    let plain = samples::superblock(65536);
    let sums = Superblock { checksum: Checksum::Crc32c, sums: root, sums_level: 1, ..plain.clone() };
    assert_eq!(back(&sums), Ok(sums.clone()));
    assert!(back(&Superblock { sums: root, sums_level: 1, ..plain }).is_err());
    assert!(back(&Superblock { sums_level: 0, ..sums.clone() }).is_err());
    // Marks have their own feature bit, by which programs without marks refuse the pool.
    let marks = Superblock { marks: true, ..sums.clone() };
    assert_eq!(back(&marks), Ok(marks.clone()));
    let (block, _) = sealed(&marks);
    let at = HEADER + std::mem::offset_of!(SuperblockBody, incompat);
    assert_eq!(block[at..at + 4], (INCOMPAT_SUMS | INCOMPAT_MARKS | INCOMPAT_IDENTITIES).to_le_bytes());
    // Identities have their own feature bit too, in pools with and without checksums.
    for sb in [samples::superblock(65536), marks] {
        let older = Superblock { identities: false, ..sb };
        assert_eq!(back(&older), Ok(older.clone()));
        assert_eq!(u32::from(sealed(&older).0[at]) & INCOMPAT_IDENTITIES, 0);
    }
    assert!(back(&Superblock { sums: PageRef::NONE, ..sums }).is_err());
}

#[test]
fn marks_of_low_water_are_kept() {
    for low_water in [LowWater::Off, LowWater::Bytes(1), LowWater::Bytes(u64::MAX), LowWater::Percent(99)] {
        let sb = Superblock { low_water, ..samples::superblock(65536) };
        assert_eq!(back(&sb), Ok(sb.clone()));
    }
    let bad = Superblock { low_water: LowWater::Percent(100), ..samples::superblock(65536) };
    assert!(matches!(back(&bad), Err(Damage::Field { field: "low_water_percent", .. })));
}

#[test]
fn what_is_missing_is_told() {
    let sb = samples::superblock(65536);
    let unit = 65536u64;
    let told = |bytes: u64| sb.missing_from(bytes).map(|(what, _)| what);
    assert_eq!((told(1024 * unit), told(u64::MAX)), (None, None));
    let gone = "the pool has 2 members (0 to 1), and member 1 is missing: 33554432 bytes";
    assert_eq!(told(512 * unit).as_deref(), Some(gone));
    assert_eq!(told(512 * unit + 4096).as_deref(), Some(gone), "a piece of a unit is no member");
    let shrunk =
        "member 1 of the pool has shrunk, or is not the right one: it had 33554432 bytes, and 33488896 are there";
    assert_eq!(told(1023 * unit).as_deref(), Some(shrunk));
    assert!(told(511 * unit).is_some_and(|what| what.starts_with("member 0 of the pool has shrunk")));
    let single = Superblock { members: vec![(0, 1024 * unit)], labels: [0; MAX_MEMBERS], ..sb };
    let what = single.missing_from(unit).map(|(what, _)| what);
    assert!(what.is_some_and(|what| what.starts_with("the device of the pool has shrunk")));
}

#[test]
fn the_newer_slot_is_chosen_and_the_damaged_one_told() {
    let old = samples::superblock(65536);
    let new = Superblock { generation: 8, ..old.clone() };
    let other = Superblock { pool: [9; 16], ..new.clone() };
    let bad = Damage::Blank;
    assert_eq!(choose([Ok(new.clone()), Ok(old.clone())]), Ok((new.clone(), None)));
    assert_eq!(choose([Ok(new.clone()), Err(bad)]), Ok((new, Some((4096, bad)))));
    assert_eq!(choose([Err(bad), Ok(old.clone())]), Ok((old.clone(), Some((0, bad)))));
    assert_eq!(choose([Err(bad), Err(Damage::Alien)]), Err([bad, Damage::Alien]));
    assert_eq!(choose([Ok(other), Ok(old)]), Err([Damage::Foreign, Damage::Foreign]));
}

#[test]
fn geometry_of_all_unit_sizes() {
    for shift in 12..=20 {
        let g = Geometry::new(1 << shift, 1 << 20, 1000);
        assert!(g.leaf_entries * g.entry_words <= MAX_LEAF_WORDS);
        let bitmap = g.unit_blocks.div_ceil(8) * g.leaf_entries;
        assert!(HEADER + 8 * g.leaf_entries + bitmap <= BLOCK, "a leaf of units of {} fits", g.unit_bytes);
        assert!(g.first_unit * u64::from(g.unit_bytes) >= 8192 + 1000 * 4096);
        assert!((g.first_unit - 1) * u64::from(g.unit_bytes) < 8192 + 1000 * 4096);
        let level = g.root_level(MAX_VOLUME_UNITS);
        assert!(level <= MAX_LEVEL && g.units_below(level) >= MAX_VOLUME_UNITS);
        assert_eq!(g.root_level(1), 1);
        let one = g.units_below(1);
        assert_eq!((g.root_level(one), g.root_level(one + 1)), (1, 2));
        assert_eq!(g.full_word().count_ones() as usize * g.entry_words, g.unit_blocks);
    }
    assert_eq!(Geometry::new(65536, 100, 16).first_unit, 2);
}

proptest! {
    #[test]
    fn round_trip(
        generation: u64, shift in 12u32..=20, units in 70_000u64..1 << 30, journal in 16u32..=MAX_JOURNAL_BLOCKS,
        next_volume in 1u32.., incarnation in 1u64.., replay_seq: u64, sum: u32, clean: bool, created: u64,
        volumes in 0..=MAX_VOLUMES, level in 0u16..=4, page in 66_000u64..70_000, cut in 1u64..70_000,
    ) {
        let unit = 1u64 << shift;
        let sb = Superblock {
            generation, clean, next_volume, incarnation, replay_seq, created, volumes,
            unit_bytes: 1 << shift,
            total_units: units,
            journal_blocks: journal,
            table: match volumes {
                0 => PageRef::NONE,
                _ => PageRef { address: page * unit, checksum: sum, second: 0 },
            },
            table_level: if volumes == 0 { 0 } else { level },
            members: vec![(0, cut * unit), (cut * unit, (units - cut) * unit)],
            ..samples::superblock(65536)
        };
        prop_assert_eq!(back(&sb), Ok(sb.clone()));
        let (block, at) = sealed(&sb);
        prop_assert!(Superblock::decode(&block, at, units * unit - 1).is_err());
    }
}

/// The list of losses names every volume that may have lost data, whatever its length (V25).
#[test]
fn the_list_of_losses_never_leaves_one_out() {
    let base = samples::superblock(65536);
    for count in [0, 1, MAX_LOST as u32, MAX_LOST as u32 + 1, 3000] {
        let ids: Vec<u32> = (0..count).map(|at| 3 + at * 7).collect();
        let lost = Lost::default().with(ids.iter().rev().copied());
        assert_eq!(lost.is_empty(), count == 0);
        assert!(ids.iter().all(|id| lost.has(*id)), "{count}");
        assert_eq!((lost.has(0), lost.has(u32::MAX)), (count > MAX_LOST as u32, false));
        assert!(count > MAX_LOST as u32 || !lost.has(4), "no other, as long as there is room");
        let more = lost.with([4, u32::MAX].into_iter()).with(std::iter::empty());
        assert!(ids.iter().chain(&[4, u32::MAX]).all(|id| more.has(*id)));
        for lost in [lost, more] {
            let sb = Superblock { lost, ..base.clone() };
            assert_eq!(back(&sb), Ok(sb));
        }
    }
}

#[test]
fn a_list_of_losses_that_cannot_be_is_refused() {
    let sb = Superblock { lost: Lost { below: 0, volumes: vec![3, 9] }, ..samples::superblock(65536) };
    let (good, at) = sealed(&sb);
    let at_field = |field: usize| HEADER + field;
    let (below, count, list) = (
        at_field(std::mem::offset_of!(SuperblockBody, lost_below)),
        at_field(std::mem::offset_of!(SuperblockBody, lost_count)),
        at_field(std::mem::offset_of!(SuperblockBody, lost)),
    );
    for (byte, value) in [(below, 4), (count, 1), (count, 3), (count + 1, 2), (list, 9), (list, 0), (list + 8, 1)] {
        let mut block = good;
        block[byte] = value;
        let crc = checksum(&block);
        let place = std::mem::offset_of!(Header, checksum);
        block[place..place + 4].copy_from_slice(&crc.to_le_bytes());
        let refused = Superblock::decode(&block, at, sb.geometry().bytes());
        assert!(matches!(refused, Err(Damage::Field { .. })), "byte {byte}: {refused:?}");
    }
    let mut flags = good;
    flags[at_field(std::mem::offset_of!(SuperblockBody, incompat))] &= !(INCOMPAT_LOST as u8);
    let crc = checksum(&flags);
    let place = std::mem::offset_of!(Header, checksum);
    flags[place..place + 4].copy_from_slice(&crc.to_le_bytes());
    assert!(matches!(
        Superblock::decode(&flags, at, sb.geometry().bytes()),
        Err(Damage::Field { field: "lost_count", .. })
    ));
}
