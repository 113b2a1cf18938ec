//! Bits of entries and sizes of leaves.

use super::*;

#[test]
fn flags_and_place_do_not_touch() {
    let flags = Entry::PLAIN_FOR_WRITES | Entry::DIRTY | Entry::WRITERS | Entry::LISTED;
    assert_eq!(flags.count_ones(), 8);
    let entry = Entry::at(u64::MAX).with(flags);
    assert_eq!(entry.phys(), crate::format::MAX_POOL_UNITS - 1);
    let bits = entry.with_bits(0x8001);
    assert_eq!((bits.phys(), bits.bits(), entry.bits()), (entry.phys(), 0x8001, 0));
    assert!(bits.has(flags) && bits.with_bits(0) == entry && Entry::NONE.with_bits(u64::MAX).phys() == 0);
    assert!(entry.has(flags) && !entry.without(Entry::FULL).any(Entry::FULL));
    assert!(entry.same_place(Entry::at(u64::MAX)) && !entry.same_place(Entry::at(3)));
}

#[test]
fn a_leaf_fits_a_block() {
    for (unit_shift, entries) in [(12, 256), (16, 256), (17, 256), (18, 128), (19, 128), (20, 64)] {
        let geometry = Geometry::new(unit_shift);
        assert_eq!(geometry.leaf_entries(), entries, "units of 1 << {unit_shift}");
        let bytes = entries * 8 + (8 << geometry.bits_shift());
        assert!(bytes <= 4096 - 64, "{bytes} bytes");
    }
}
