//! Checksums in memory: places, flags, the algorithm.

use super::*;

#[test]
fn every_block_has_a_place_of_its_own() {
    for shift in 12..=20 {
        let geometry = Geometry::new(1 << shift, 1 << 20, 16);
        let sums = Sums::new(&geometry);
        let units = geometry.region_units() * 3;
        let blocks = units << (shift - 12);
        (0..3).for_each(|region| assert!(sums.arena.make(region)));
        (0..blocks).for_each(|block| sums.set(block, block as u32 + 1));
        assert!((0..blocks).all(|block| sums.get(block) == Some(block as u32 + 1)), "{shift}");
        assert_eq!(sums.region_at((units << shift) - 1), 2);
        assert!(!sums.is_open(0) && !sums.take_dirty(1), "flags are beside them");
    }
}

#[test]
fn the_checksum_is_crc32c() {
    assert_eq!(crc(b"123456789"), 0xE306_9283);
}

#[test]
fn marks_are_taken_once() {
    let sums = Sums::new(&Geometry::new(1 << 16, 1 << 20, 16));
    sums.mark_dirty(7);
    assert!(!sums.take_dirty(7), "nobody has made the region");
    assert!(sums.arena.make(7));
    sums.set_open(7, true);
    sums.mark_dirty(7);
    assert!(sums.take_dirty(7) && !sums.take_dirty(7));
    let addr = (7 * sums.region_units) << 16;
    assert!(sums.is_open(addr) && !sums.is_open(addr - 1));
    sums.set_open(7, false);
    assert!(!sums.is_open(addr));
}
