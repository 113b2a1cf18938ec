//! The sequence depends on its seed alone, bounds hold, and every value is about equally frequent.

use super::*;

fn drawn(mut rng: Rng) -> [u64; 4] {
    std::array::from_fn(|_| rng.draw())
}

/// I1: a change of these numbers breaks every recorded seed.
#[test]
fn the_sequence_of_a_seed_never_changes() {
    assert_eq!(
        drawn(Rng::new(0)),
        [0x7950_d340_a3b9_a42d, 0xbe1a_7908_2232_3877, 0xdc88_64b5_8f7f_72c8, 0x0214_fc0b_8ac2_229e]
    );
    assert_eq!(
        drawn(Rng::new(7)),
        [0x9fa5_d83a_a608_d7e3, 0xb81a_6182_57c6_d911, 0x419d_04c2_24c9_23ea, 0xe277_680a_1f0f_2a5e]
    );
    assert_eq!(
        drawn(Rng::new(7).fork(1)),
        [0xb27b_6b28_e866_a2ae, 0x781d_b4ea_bfc3_000b, 0xdafc_871a_7161_8086, 0x2f61_1bf1_8bfd_6266]
    );
}

#[test]
fn a_seed_has_one_sequence_and_so_has_a_fork() {
    assert_ne!(drawn(Rng::new(7)), drawn(Rng::new(8)));
    let base = Rng::new(7);
    assert_eq!(drawn(base.fork(1)), drawn(base.fork(1)));
    assert_ne!(drawn(base.fork(1)), drawn(base.fork(2)));
    assert_ne!(drawn(base.fork(1)), drawn(base));
}

#[test]
fn sequences_of_neighbouring_seeds_do_not_overlap() {
    let mut all: Vec<u64> = (0..64).flat_map(|seed| (0..64).scan(Rng::new(seed), |rng, _| Some(rng.draw()))).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 64 * 64);
}

#[test]
fn bounds_hold_and_are_reached() {
    let mut rng = Rng::new(1);
    let mut seen = [false; 5];
    for _ in 0..200 {
        seen[rng.between(3, 7) as usize - 3] = true;
    }
    assert_eq!(seen, [true; 5]);
    assert_eq!((rng.below(0), rng.below(1)), (0, 0));
    assert!(!(0..100).any(|_| rng.percent(0)));
    assert!((0..100).all(|_| rng.percent(100)));
    assert_eq!((scale(0, 10), scale(u64::MAX, 10), scale(u64::MAX, u64::MAX)), (0, 9, u64::MAX - 1));
}

#[test]
fn every_bit_and_every_value_comes_as_often_as_it_should() {
    const DRAWS: u32 = 40_000;
    let mut rng = Rng::new(3);
    let (mut ones, mut values) = ([0u32; 64], [0u32; 10]);
    for _ in 0..DRAWS {
        let bits = rng.draw();
        ones.iter_mut().enumerate().for_each(|(at, ones)| *ones += (bits >> at & 1) as u32);
        values[rng.below(10) as usize] += 1;
    }
    // Six standard deviations: 600 of 20,000, and 360 of 4,000.
    assert!(ones.iter().all(|ones| ones.abs_diff(DRAWS / 2) < 600), "{ones:?}");
    assert!(values.iter().all(|seen| seen.abs_diff(DRAWS / 10) < 360), "{values:?}");
}

#[test]
fn a_shuffle_keeps_everything() {
    let mut all: Vec<u32> = (0..50).collect();
    Rng::new(3).shuffle(&mut all);
    assert_ne!(all, (0..50).collect::<Vec<_>>());
    all.sort_unstable();
    assert_eq!(all, (0..50).collect::<Vec<_>>());
}

#[test]
fn bytes_are_those_of_the_words() {
    let mut bytes = [0; 11];
    Rng::new(5).fill(&mut bytes);
    let [first, second, ..] = drawn(Rng::new(5));
    assert_eq!(
        (bytes[..8].to_vec(), bytes[8..].to_vec()),
        (first.to_le_bytes().to_vec(), second.to_le_bytes()[..3].to_vec())
    );
}
