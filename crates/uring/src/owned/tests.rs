//! Keys are allocated and freed; rows of SQEs end where keys and other user data meet.

use super::{Detail, KeyRows, OwnedTable};
use crate::io_buf::Memory;

fn put(table: &mut OwnedTable, sq_at: u32, user_data: u64) -> u32 {
    let memory = Memory::new(vec![user_data as u8]);
    table.put(sq_at, user_data, memory).unwrap_or_else(|back| table.put_in_new_place(sq_at, user_data, back)) as u32
}

fn byte(memory: Memory) -> u8 {
    Memory::into_value::<Vec<u8>>(Some(memory)).expect("what was put")[0]
}

fn end(table: &mut OwnedTable, key: u32) -> (u64, Option<u8>) {
    let (user_data, memory) = table.end(key);
    (user_data, memory.map(byte))
}

#[test]
fn a_key_is_used_again_when_its_operation_was_read() {
    let mut table = OwnedTable::default();
    assert!(table.is_unused());
    let (a, b) = (put(&mut table, 0, 10), put(&mut table, 1, 11));
    assert_ne!(a, b);
    assert_eq!(end(&mut table, b), (11, Some(11)));
    assert_eq!(put(&mut table, 2, 12), b);
    assert_eq!((table.user_data(a), table.user_data(b)), (10, 12));
    assert_eq!(end(&mut table, a), (10, Some(10)));
    assert_eq!(end(&mut table, b), (12, Some(12)));
    let (first, second, third) = (put(&mut table, 3, 1), put(&mut table, 4, 2), put(&mut table, 5, 3));
    assert_eq!((first, second), (b, a), "the place that was freed last is in the cache");
    assert!(![a, b].contains(&third));
    assert!(!table.is_unused());
}

#[test]
fn what_is_explained_is_told_with_its_operation_alone() {
    let mut table = OwnedTable::default();
    let detail = Detail { block_shift: 9, memory_shift: 2 };
    for expected in [detail, Detail::default()] {
        let (first, other) = (put(&mut table, 0, 1), put(&mut table, 1, 2));
        if expected == detail {
            table.explain(first, detail);
        }
        for (key, user_data, expected) in [(other, 2, Detail::default()), (first, 1, expected)] {
            let (told, memory, detail) = table.end_failed(key);
            assert_eq!((told, memory.map(byte), detail), (user_data, Some(user_data as u8), expected));
        }
    }
}

/// Adds and takes entries at random, some at a time, across the wrap of positions. Each look must agree with a list of
/// all entries, also after rows that were taken without another look.
#[test]
fn rows_end_where_keys_end() {
    let mut rng = sheave_base::rng::Rng::new(1);
    for _ in 0..400 {
        let mut rows = KeyRows::default();
        let often = rng.below(9);
        let has_key: Vec<bool> = (0..100).map(|_| rng.below(8) < often).collect();
        let (start, batch) = (u32::MAX - 50, rng.between(1, 100) as usize);
        let at = |index: usize| start.wrapping_add(index as u32);
        let (mut head, mut filled) = (0, 0);
        while head < has_key.len() {
            while filled < has_key.len() && filled < head + batch {
                let alike = has_key[filled..].iter().take_while(|has| **has == has_key[filled]).count();
                let many = alike.min(rng.between(1, 5) as usize).min(head + batch - filled);
                if has_key[filled] {
                    rows.add(at(filled), many as u32);
                }
                filled += many;
            }
            let most = rng.between(1, (filled - head) as u64) as usize;
            let alike = has_key[head..head + most].iter().take_while(|has| **has == has_key[head]).count();
            assert_eq!(rows.look(at(head), most as u32), (alike as u32, has_key[head]), "{head} {has_key:?}");
            if has_key[head] && rng.percent(20) {
                rows.took(at(head));
                head += 1;
            } else {
                head += rng.between(1, alike as u64) as usize;
            }
        }
        assert_eq!(rows.look(at(100), 7), (7, false));
        rows.add(at(103), 1);
        assert_eq!((rows.look(at(100), 7), rows.look(at(103), 7)), ((3, false), (1, true)));
        rows.took(at(103));
        assert!(!rows.look(at(103), 7).1, "it has its key no more");
    }
}
