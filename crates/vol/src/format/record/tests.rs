//! Records: round trips, and refused content.

use proptest::prelude::*;

use super::*;
use crate::format::block::samples;
use crate::format::page::table::{Interim, Purpose};

fn geometry(unit_bytes: u32) -> Geometry {
    Geometry::new(unit_bytes, 1 << 20, 16)
}

fn round_trip(geometry: &Geometry, record: &Record) {
    let mut bytes = [0xAA; JOURNAL_PAYLOAD];
    let len = record.encode(geometry, &mut bytes).expect("there is room");
    assert_eq!(len, record.bytes(geometry));
    assert!(len.is_multiple_of(8), "records are aligned");
    assert_eq!(Record::decode(geometry, &bytes[..len]), Ok((record.clone(), len)));
    assert_eq!(Record::decode(geometry, &bytes), Ok((record.clone(), len)));
    assert_eq!(record.encode(geometry, &mut bytes[..len - 1]), None);
    for cut in 0..len {
        assert!(Record::decode(geometry, &bytes[..cut]).is_err(), "{record:?} cut at {cut}");
    }
}

/// Compares [`Record::decode_all`] with decoding one record at a time: same records, same error.
fn all_at_once(geometry: &Geometry, bytes: &[u8]) {
    let (mut one_by_one, mut rest) = (Vec::new(), bytes);
    let result = loop {
        match Record::decode(geometry, rest) {
            _ if rest.is_empty() => break Ok(()),
            Err(damage) => break Err(damage),
            Ok((record, len)) => {
                one_by_one.push(record);
                rest = &rest[len..];
            }
        }
    };
    let mut at_once = Vec::new();
    assert_eq!(Record::decode_all(geometry, bytes, &mut at_once), result);
    assert_eq!(at_once, one_by_one);
}

/// Tries each number of a record at its bounds and beyond them.
#[test]
fn records_are_decoded_at_once_as_they_are_one_by_one() {
    let units = [0, 1, MAX_VOLUME_UNITS - 1, MAX_VOLUME_UNITS, u64::MAX];
    let counts = [0, 1, MAX_VOLUME_UNITS, u64::MAX];
    let places = [0, 2, (1 << 20) - 1, 1 << 20, u64::MAX];
    let bits = [0, 1, 1 << 15, 1 << 16, u64::MAX];
    for unit_bytes in [4096, 65536, 1 << 18, 1 << 19] {
        let geometry = geometry(unit_bytes);
        let good = Record::Delete { volume: 3 };
        let check = |kind: u8, volume: u32, numbers: [u64; 3]| {
            for (name_len, len) in [(0, 32), (1, 32), (0, 24), (0, 40)] {
                let head = RecordHead { kind, name_len, len: len.into(), volume: volume.into() };
                let mut bytes = [0; 64];
                bytes[..8].copy_from_slice(head.as_bytes());
                for (to, number) in bytes[8..].chunks_exact_mut(8).zip(numbers) {
                    to.copy_from_slice(&number.to_le_bytes());
                }
                good.encode(&geometry, &mut bytes[32..]);
                [31, 32, 40].into_iter().for_each(|end| all_at_once(&geometry, &bytes[..end]));
            }
        };
        for unit in units {
            for volume in [0, 1] {
                for second in places.into_iter().chain(counts) {
                    bits.into_iter().for_each(|third| check(kinds::SET, volume, [unit, second, third]));
                    places.into_iter().for_each(|third| check(kinds::RUN, volume, [unit, second, third]));
                }
            }
        }
        (0..=16).for_each(|kind| check(kind, 1, [1, 2, 3]));
    }
}

#[test]
fn one_of_each_kind() {
    for unit in [4096, 65536, 1 << 19, 1 << 20] {
        let geometry = geometry(unit);
        samples::records(geometry.entry_words).iter().for_each(|record| round_trip(&geometry, record));
    }
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let g = geometry(65536);
    let mut written = [0; MAX_ENTRY_WORDS];
    written[0] = 1 << 16;
    let none = [0; MAX_ENTRY_WORDS];
    let one = [1, 0, 0, 0];
    let name = || "n".to_owned();
    let cases = [
        ("written", Record::Set { volume: 1, unit: 0, phys: 5, written }),
        ("written", Record::Set { volume: 1, unit: 0, phys: 5, written: none }),
        ("entry", Record::Set { volume: 1, unit: 0, phys: 1, written: one }),
        ("entry", Record::Set { volume: 1, unit: 0, phys: 1 << 20, written: one }),
        ("record.unit", Record::Set { volume: 1, unit: MAX_VOLUME_UNITS, phys: 0, written: none }),
        ("record.volume", Record::Set { volume: 0, unit: 0, phys: 0, written: none }),
        ("record.count", Record::Run { volume: 1, unit: 0, count: 0, phys: 0 }),
        ("record.count", Record::Run { volume: 1, unit: 1, count: u64::MAX, phys: 0 }),
        ("record.count", Record::Run { volume: 1, unit: 1, count: MAX_VOLUME_UNITS, phys: 0 }),
        ("record.phys", Record::Run { volume: 1, unit: 0, count: 2, phys: (1 << 20) - 1 }),
        ("record.phys", Record::Run { volume: 1, unit: 0, count: 1, phys: 1 }),
        ("record.size", Record::Resize { volume: 1, size: u64::MAX }),
        ("record.size", Record::Limit { volume: 1, max_size: u64::MAX }),
        ("record.size", Record::Limit { volume: 1, max_size: 4096 + 512 }),
        ("record.size", Record::Create { volume: 1, grows: false, size: 2, max_size: 1, created: 0, name: name() }),
        ("record.size", Record::Create { volume: 1, grows: true, size: 2, max_size: 4096, created: 0, name: name() }),
        ("record.name", Record::Rename { volume: 1, name: "a\nb".into() }),
        ("record.name_len", Record::Rename { volume: 1, name: String::new() }),
        ("record.count", Record::Mark { bad: true, first: 1600, count: 0 }),
        ("record.count", Record::Mark { bad: true, first: 1600, count: MAX_MARKS + 1 }),
        ("record.first", Record::Mark { bad: true, first: 0, count: 1 }),
        ("record.first", Record::Mark { bad: false, first: (16 << 20) - 1, count: 2 }),
        ("record.first", Record::Mark { bad: false, first: u64::MAX, count: 2 }),
        ("identity", Record::Identity { volume: 1, identity: [0; 16] }),
        ("record.volume", Record::Interim { volume: 0, interim: None }),
        ("record.source", Record::Rollback { volume: 1, source: 0 }),
        ("record.source", Record::Rollback { volume: 1, source: 1 }),
        (
            "record.source",
            Record::Copy {
                volume: 2,
                source: 2,
                snapshot: false,
                grows: false,
                size: 0,
                max_size: 0,
                created: 0,
                name: name(),
            },
        ),
    ];
    for (field, record) in cases {
        let mut bytes = [0; 512];
        let len = record.encode(&g, &mut bytes).expect("there is room");
        match Record::decode(&g, &bytes[..len]) {
            Err(Damage::Field { field: found, .. }) => assert_eq!(found, field, "{record:?}"),
            other => panic!("{record:?}: {other:?}"),
        }
    }
    let unknown = [77, 0, 8, 0, 1, 0, 0, 0];
    assert_eq!(Record::decode(&g, &unknown), Err(Damage::field("record.kind", 77u8, "is no kind of record")));
}

fn name() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9äß@._-]{1,100}"
}

fn any_record(words: usize) -> impl Strategy<Value = Record> {
    let id = 1u32..;
    let word = 1u64..0x1_0000;
    prop_oneof![
        (id.clone(), 0..MAX_VOLUME_UNITS, 2u64..1 << 20, proptest::collection::vec(word, words)).prop_map(
            move |(volume, unit, phys, bits)| {
                let mut written = [0; MAX_ENTRY_WORDS];
                written[..words].copy_from_slice(&bits);
                Record::Set { volume, unit, phys, written }
            }
        ),
        (id.clone(), 0u64..1 << 33, 1u64..1 << 19, 2u64..1 << 19).prop_map(|(volume, unit, count, phys)| Record::Run {
            volume,
            unit,
            count,
            phys
        }),
        (2u32.., any::<bool>(), 0u64..1 << 46, any::<u64>(), name()).prop_map(
            |(volume, snapshot, size, created, name)| {
                let grows = size % 4096 == 0;
                Record::Copy { volume, source: volume / 2, snapshot, grows, size, max_size: size, created, name }
            }
        ),
        (id.clone(), 0u64..1 << 45, any::<u64>(), name()).prop_map(|(volume, size, created, name)| Record::Create {
            volume,
            grows: size % 4096 == 0,
            size,
            max_size: size * 2,
            created,
            name
        }),
        (id.clone(), name()).prop_map(|(volume, name)| Record::Rename { volume, name }),
        (id.clone(), 0u64..1 << 46).prop_map(|(volume, size)| Record::Resize { volume, size }),
        (id.clone(), 0u64..1 << 34).prop_map(|(volume, blocks)| Record::Limit { volume, max_size: blocks << 12 }),
        (any::<bool>(), 600u64..1 << 20, 1..=MAX_MARKS).prop_map(|(bad, first, count)| Record::Mark {
            bad,
            first,
            count
        }),
        (id.clone(), 1u128..).prop_map(|(volume, bits)| Record::Identity { volume, identity: bits.to_le_bytes() }),
        (id.clone(), any::<bool>(), any::<u32>()).prop_map(|(volume, some, owner)| Record::Interim {
            volume,
            interim: some.then_some(Interim { purpose: Purpose::ImportDiff, owner }),
        }),
        id.prop_map(|volume| Record::Delete { volume }),
    ]
}

proptest! {
    #[test]
    fn any_round_trips(small in any_record(1), large in any_record(4)) {
        round_trip(&geometry(65536), &small);
        round_trip(&geometry(1 << 20), &large);
    }

    #[test]
    fn garbage_never_panics(
        bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 0u8..17, words in 0u16..30,
    ) {
        let mut bytes = bytes;
        for fix in [false, true] {
            if fix && bytes.len() >= 8 {
                bytes[0] = kind;
                bytes[2..4].copy_from_slice(&(words * 8).to_le_bytes());
            }
            for unit in [4096, 65536, 1 << 19] {
                all_at_once(&geometry(unit), &bytes);
            }
            if let Ok((record, len)) = Record::decode(&geometry(65536), &bytes) {
                let mut again = vec![0; len];
                prop_assert_eq!(record.encode(&geometry(65536), &mut again), Some(len));
                prop_assert_eq!(&again[..], &bytes[..len], "one encoding for one record");
            }
        }
    }
}
