//! The tables of files and buffers alone. `crates/uring/tests/resources.rs` tests them in a ring.

use super::*;

fn table(ranges: &[(u64, u64)]) -> BufTable {
    let mut table = BufTable::default();
    table.resize(ranges.len());
    for (index, &(base, len)) in ranges.iter().enumerate() {
        table.replace(index as u16, Some((base, len, None)), 0, false);
    }
    table
}

#[test]
fn a_range_lies_within_a_buffer_or_not() {
    let table = table(&[(0x1000, 0x1000), (u64::MAX - 0xfff, 0xfff)]);
    for (index, addr, len, within) in [
        (0, 0x1000, 0x1000, true),
        (0, 0x1000, 0, true),
        (0, 0x1fff, 1, true),
        (0, 0x2000, 0, true),
        (0, 0xfff, 1, false),
        (0, 0x1fff, 2, false),
        (0, 0x2001, 0, false),
        (0, 0x1000, 0x1001, false),
        (0, 0x1800, u64::MAX, false),
        (0, u64::MAX, 1, false),
        (1, u64::MAX - 0xfff, 0xfff, true),
        (1, u64::MAX - 1, 2, false),
        (2, 0x1000, 1, false),
        (u16::MAX, 0, 0, false),
    ] {
        assert_eq!(table.covers(index, addr, len), within, "buffer {index}: {addr:#x} + {len:#x}");
        if len > 0 {
            assert_eq!(table.covers_some(index, addr, len), within, "buffer {index}: {addr:#x} + {len:#x}");
        }
    }
}

#[test]
fn covers_follows_removed_and_added_buffers() {
    let mut table = table(&[(0x1000, 0x1000), (0x4000, 0x1000)]);
    let covers = |table: &BufTable, addr| (table.base(0), table.covers_some(0, addr, 1), table.covers(0, addr, 1));
    assert_eq!(covers(&table, 0x1000), (0x1000, true, true));
    table.replace(0, Some((0x8000, 0x10, None)), 0, false);
    assert_eq!(covers(&table, 0x1000), (0x8000, false, false));
    assert_eq!(covers(&table, 0x800f), (0x8000, true, true));
    table.replace(0, None, 0, false);
    assert_eq!(covers(&table, 0x800f), (0, false, false));
    assert_eq!(covers(&table, 0), (0, false, false));
    assert!(table.covers_some(1, 0x4000, 1));
    table.resize(1);
    assert_eq!((table.base(1), table.covers_some(1, 0x4000, 1), table.covers(1, 0x4000, 1)), (0, false, false));
}

#[test]
fn a_request_that_ends_releases_its_own_buffer_and_not_the_one_before_it() {
    // Two adjacent buffers, both replaced while in use.
    let mut table = table(&[(0x1000, 0x1000), (0x2000, 0x1000)]);
    table.replace(0, None, 1, false);
    table.replace(1, None, 2, false);
    let users = |table: &BufTable| {
        let mut all: Vec<_> = table.retired.iter().map(|old| (old.buf.base, old.slots)).collect();
        all.sort_unstable();
        all
    };
    table.put_retired(0x2000);
    assert_eq!(users(&table), [(0x1000, 1), (0x2000, 1)], "the first byte of the second is not the end of the first");
    table.put_retired(0x2fff);
    assert_eq!(users(&table), [(0x1000, 1)]);
    table.put_retired(0x1000);
    assert_eq!(users(&table), []);
}

#[test]
fn a_replaced_buffer_stays_until_neither_slots_nor_records_use_it() {
    let mut table = table(&[(0x1000, 0x1000), (0x2000, 0x1000), (0x3000, 0x1000)]);
    table.replace(0, None, 1, true);
    table.replace(1, None, 0, true);
    table.replace(2, None, 1, false);
    let left = |table: &BufTable| {
        let mut all: Vec<_> = table.retired.iter().map(|old| (old.buf.base, old.slots)).collect();
        all.sort_unstable();
        all
    };
    assert!(table.wants_sweep());
    table.sweep(|_, _| true);
    table.put_retired(0x1000);
    assert_eq!(left(&table), [(0x1000, 0), (0x2000, 0), (0x3000, 1)], "records use the first");
    table.sweep(|base, len| (base, len) == (0x1000, 0x1000));
    assert_eq!(left(&table), [(0x1000, 0), (0x3000, 1)]);
    table.sweep(|_, _| false);
    assert_eq!(left(&table), [(0x3000, 1)], "a slot uses the last");
    assert!(!table.wants_sweep());
    table.put_retired(0x3fff);
    assert_eq!(left(&table), []);
}
