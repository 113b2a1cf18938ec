//! Tests of the patterns: bounds, evenness, repeatability.

use super::*;

#[test]
fn random_blocks_stay_inside_and_cover_everything() {
    let mut pattern = Pattern::new(Rw::Randread, 50, 8192, 512, 10, 7);
    let mut seen = [0u32; 10];
    for _ in 0..10_000 {
        let step = pattern.step();
        assert!(!step.write);
        assert_eq!(pattern.offset(step.block), 8192 + step.block * 512);
        seen[step.block as usize] += 1;
    }
    assert!(seen.iter().all(|&count| (800..1200).contains(&count)), "uneven: {seen:?}");
}

#[test]
fn sequential_wraps() {
    let mut pattern = Pattern::new(Rw::Write, 50, 0, 4096, 3, 0);
    let blocks: Vec<u64> = (0..7).map(|_| pattern.step().block).collect();
    assert_eq!(blocks, [0, 1, 2, 0, 1, 2, 0]);
    assert!(pattern.step().write);
}

#[test]
fn mix_is_the_share_of_reads() {
    for (mix, low, high) in [(0, 0, 0), (30, 2800, 3200), (100, 10_000, 10_000)] {
        let mut pattern = Pattern::new(Rw::Randrw, mix, 0, 512, 1 << 30, 3);
        let reads = (0..10_000).filter(|_| !pattern.step().write).count();
        assert!((low..=high).contains(&reads), "mix {mix}: {reads} reads in 10000");
    }
}

#[test]
fn direction_does_not_follow_the_block() {
    let mut pattern = Pattern::new(Rw::Randrw, 50, 0, 512, 2, 3);
    let mut table = [[0u32; 2]; 2];
    for _ in 0..10_000 {
        let step = pattern.step();
        table[step.block as usize][usize::from(step.write)] += 1;
    }
    assert!(table.iter().flatten().all(|&count| count > 2_200), "{table:?}");
}

#[test]
fn a_seed_repeats_and_seeds_differ() {
    let run = |seed| -> Vec<u64> {
        let mut pattern = Pattern::new(Rw::Randread, 50, 0, 512, 1 << 40, seed);
        (0..64).map(|_| pattern.step().block).collect()
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}
