//! The bitmap on one thread.
use super::*;
#[test]
fn takes_lowest_and_gives_back() {
    let map = Sbitmap::new(70);
    let mut hint = 0;
    assert_eq!(map.get_batch(&mut hint, 3), Some((0, 0b111)));
    map.clear_batch(0, 0b010);
    assert_eq!(map.busy(0), 0b101);
    assert_eq!(map.get_batch(&mut hint, 100), Some((0, !0b101)));
    assert_eq!(map.get_batch(&mut hint, 100), Some((64, 0b11_1111)));
    assert_eq!(map.get(&mut hint), None);
    assert_eq!(map.weight(), 70);
}
