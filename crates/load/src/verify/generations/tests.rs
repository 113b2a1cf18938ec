//! Tests of the generation map.

use super::*;

#[test]
fn one_io_a_block() {
    let mut map = Generations::new(100).expect("a hundred blocks fit");
    assert!(map.claim(65));
    assert!(!map.claim(65));
    assert!(map.claim(64));
    map.release(65, None);
    assert!(map.claim(65));
}

#[test]
fn writes_count_and_failures_are_remembered() {
    let mut map = Generations::new(2).expect("two blocks fit");
    assert_eq!(map.holds(1), Holds::Unwritten);
    assert!(map.claim(1));
    assert_eq!(map.next(1), 1);
    map.release(1, Some((1, true)));
    assert_eq!(map.holds(1), Holds::Generation(1));
    assert!(map.claim(1));
    map.release(1, Some((map.next(1), false)));
    assert_eq!(map.holds(1), Holds::Unknown);
    assert_eq!(map.known(), 0);
    assert!(map.claim(1));
    assert_eq!(map.next(1), 3);
    map.release(1, Some((3, true)));
    assert_eq!((map.holds(1), map.known()), (Holds::Generation(3), 1));
}

#[test]
fn generations_wrap_without_touching_zero_or_the_mark() {
    let mut map = Generations::new(1).expect("a block fits");
    assert!(map.claim(0));
    map.release(0, Some((COUNT, true)));
    assert_eq!(map.holds(0), Holds::Generation(COUNT));
    assert_eq!(map.next(0), 1);
}
