//! Keys come and go; rows of SQEs end where it changes whose user data is a key.

use super::{Detail, OwnedTable};
use crate::io_buf::Memory;

fn put(table: &mut OwnedTable, sq_at: u32, user_data: u64) -> u32 {
    table.put(sq_at, user_data, Memory::new(vec![user_data as u8])) as u32
}

fn byte(memory: Memory) -> u8 {
    memory.into_value::<Vec<u8>>().expect("what was put")[0]
}

#[test]
fn a_key_is_used_again_when_its_operation_was_read() {
    let mut table = OwnedTable::new(8);
    assert!(table.is_unused());
    let (a, b) = (put(&mut table, 0, 10), put(&mut table, 1, 11));
    assert_ne!(a, b);
    assert_eq!(table.posted(b, 7), 11);
    assert_eq!(table.read(7, false).0.map(byte), Some(11));
    assert!(table.read(7, false).0.is_none(), "it was read");
    assert_eq!(put(&mut table, 2, 12), b);
    assert_eq!((table.user_data(a), table.user_data(b)), (10, 12));
    assert_eq!(table.end(a).map(byte), Some(10));
    assert_eq!(table.end(b).map(byte), Some(12));
    assert!(!table.is_unused());
}

#[test]
fn what_is_explained_is_told_with_its_operation_alone() {
    let mut table = OwnedTable::new(8);
    let detail = Detail { block_shift: 9, memory_shift: 2 };
    for expected in [detail, Detail::default()] {
        let (first, other) = (put(&mut table, 0, 1), put(&mut table, 1, 2));
        if expected == detail {
            table.explain(first, detail);
        }
        table.posted(first, 3);
        table.posted(other, 4);
        assert_eq!(table.read(4, true).1, Detail::default());
        assert_eq!(table.read(3, true).1, expected);
    }
}

#[test]
fn rows_end_where_ownership_changes() {
    let mut rng = sheave_base::rng::Rng::new(1);
    for _ in 0..200 {
        let mut table = OwnedTable::new(1);
        let often = rng.below(9);
        let owned: Vec<bool> = (0..100).map(|_| rng.below(8) < often).collect();
        let (start, batch) = (u32::MAX - 50, rng.between(1, 100) as usize);
        let (mut head, mut filled) = (0, 0);
        // Some are pushed, then some are taken, and so on.
        while head < owned.len() {
            while filled < owned.len() && filled < head + batch {
                if owned[filled] {
                    put(&mut table, start.wrapping_add(filled as u32), 0);
                }
                filled += 1;
            }
            let most = rng.between(1, (filled - head) as u64) as usize;
            let at = start.wrapping_add(head as u32);
            let alike = owned[head..head + most].iter().take_while(|is| **is == owned[head]).count() as u32;
            assert_eq!(table.row(at, most as u32), (alike, owned[head]), "{head} {owned:?}");
            if rng.percent(30) {
                assert_eq!(table.take_from_sq(at), owned[head]);
                head += 1;
                continue;
            }
            if owned[head] {
                table.left_sq(at, alike);
            }
            head += alike as usize;
        }
        assert_eq!(table.row(start.wrapping_add(100), 7), (7, false));
    }
}
