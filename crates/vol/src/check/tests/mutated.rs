//! Valid images with damage that no checksum shows: a block is changed and sealed again, and so is everything that
//! refers to it. The check must end without a panic. If it repairs the pool, the pool must be clean, which `check`
//! itself verifies.

use sheave_base::rng::Rng;

use super::disk::{Disk, Pool, pool};
use super::sums::summed;
use super::*;
use crate::format::block::identify;

/// Returns a random place below `end`.
fn below(rng: &mut Rng, end: usize) -> usize {
    rng.below(end as u64) as usize
}

fn sum_of(disk: &Disk, at: u64) -> u32 {
    let mut sum = 0;
    disk.change(at, |block| sum = u32::from_le_bytes([block[8], block[9], block[10], block[11]]));
    sum
}

/// Changes a block, seals it, and updates every reference to it, up to the superblocks.
fn change_and_seal(disk: &Disk, all: &[u64], at: u64, change: &mut dyn FnMut(&mut Block)) {
    let old = sum_of(disk, at);
    disk.change(at, |block| {
        change(block);
        let sum = crate::format::checksum(block);
        block[8..12].copy_from_slice(&sum.to_le_bytes());
    });
    let new = sum_of(disk, at);
    let mut before = at.to_le_bytes().to_vec();
    before.extend_from_slice(&old.to_le_bytes());
    for &parent in all.iter().filter(|&&parent| parent != at) {
        let mut found = None;
        disk.change(parent, |block| found = block.windows(12).position(|bytes| bytes == before));
        if let Some(place) = found {
            change_and_seal(disk, all, parent, &mut |block| {
                block[place + 8..place + 12].copy_from_slice(&new.to_le_bytes());
            });
        }
    }
}

fn mutate(rng: &mut Rng, block: &mut Block) {
    for _ in 0..=below(rng, 3) {
        // The header except its checksum, then mostly the first entries.
        let at = match below(rng, 4) {
            0 => 12 + below(rng, 52),
            1 | 2 => 64 + below(rng, 200),
            _ => 64 + below(rng, BLOCK - 64),
        };
        match below(rng, 5) {
            0 => block[at] = 0,
            1 => block[at] ^= 1 << below(rng, 8),
            2 => block[at] = rng.draw() as u8,
            3 => {
                // Copies one part of the block over another: entries that occur twice.
                let from = 64 + 8 * below(rng, 40);
                let to = 64 + 8 * below(rng, 40);
                let len = 8 * (1 + below(rng, 4));
                block.copy_within(from..from + len, to);
            }
            _ => {
                let at = at.min(BLOCK - 8);
                block[at..at + 8].copy_from_slice(&rng.below(2000).to_le_bytes());
            }
        }
    }
}

#[test]
fn sealed_damage_never_panics_and_repairs_are_clean() {
    let pools = [pool(), summed()].map(|Pool { disk, mut pages, sb, journal }| {
        let ring = |seq: &u64| JOURNAL_START + seq % u64::from(sb.journal_blocks) * BLOCK_BYTES;
        pages.extend(journal.iter().map(ring));
        pages.extend([0, 4096, sb.members[1].0]);
        (disk, pages)
    });
    let (mut clean, mut repaired, mut refused) = (0, 0, 0);
    for seed in sheave_testkit::seeds(600) {
        let mut rng = Rng::new(seed);
        let (good, all) = &pools[(seed % 2) as usize];
        let disk = good.clone();
        for _ in 0..=below(&mut rng, 3) {
            let at = all[below(&mut rng, all.len())];
            change_and_seal(&disk, all, at, &mut |block| mutate(&mut rng, block));
        }
        let run = || check(&disk, &CheckOptions { repair: true });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        let result = result.unwrap_or_else(|_| panic!("SHEAVE_SEED={seed}: the check panicked"));
        match result {
            Ok(report) if report.is_clean() => clean += 1,
            Ok(report) if report.repaired => repaired += 1,
            Ok(report) => {
                assert!(!report.is_repairable(), "SHEAVE_SEED={seed}: {report:#?}");
                refused += 1;
            }
            Err(PoolError::Full { .. }) => refused += 1,
            Err(error) => panic!("SHEAVE_SEED={seed}: {error}"),
        }
    }
    if std::env::var_os(sheave_testkit::SEED_ENV).is_none() {
        assert!(clean > 0 && repaired > 0 && refused > 0, "each way is taken: {clean} {repaired} {refused}");
    }
}

#[test]
fn resealing_keeps_the_pool_readable() {
    // The test above would prove nothing if the references were not mended.
    let Pool { disk, pages, .. } = pool();
    let mut all = pages.clone();
    all.extend([0, 4096]);
    for &page in &pages {
        // `owner` is not compared with anything in a map.
        let mut head = None;
        disk.change(page, |block| head = identify(block).ok());
        let (head, _) = head.expect("a page");
        if head.owner != 0 {
            change_and_seal(&disk, &all, page, &mut |block| block[56] = 77);
        }
    }
    assert_eq!(report(&disk).findings, []);
}
