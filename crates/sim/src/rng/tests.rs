//! The sequence is its seed's and nobody else's.

use super::*;

#[test]
fn a_seed_has_one_sequence() {
    let draw = |mut rng: Rng| (0..8).map(|_| rng.draw()).collect::<Vec<_>>();
    assert_eq!(draw(Rng::new(7)), draw(Rng::new(7)));
    assert_ne!(draw(Rng::new(7)), draw(Rng::new(8)));
    let base = Rng::new(7);
    assert_eq!(draw(base.fork(1)), draw(base.fork(1)));
    assert_ne!(draw(base.fork(1)), draw(base.fork(2)));
}

#[test]
fn bounds_hold_and_are_reached() {
    let mut rng = Rng::new(1);
    let mut seen = [false; 5];
    for _ in 0..200 {
        seen[rng.between(0, 4) as usize] = true;
    }
    assert_eq!(seen, [true; 5]);
    assert_eq!(rng.below(0), 0);
    assert!(!(0..100).any(|_| rng.percent(0)));
    assert!((0..100).all(|_| rng.percent(100)));
}

#[test]
fn a_shuffle_keeps_everything() {
    let mut all: Vec<u32> = (0..50).collect();
    Rng::new(3).shuffle(&mut all);
    assert_ne!(all, (0..50).collect::<Vec<_>>());
    all.sort_unstable();
    assert_eq!(all, (0..50).collect::<Vec<_>>());
}
