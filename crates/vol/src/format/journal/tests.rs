//! The journal: commits, the ring, and the result of a scan for each way in which a journal can end.

use sheave_base::rng::Rng;

use super::*;
use crate::format::block::samples::{self, POOL};
use crate::format::record::MAX_ENTRY_WORDS;

const N: u64 = 32;

/// A journal in memory, with a superblock that replays from block 40.
struct Bench {
    sb: Superblock,
    bytes: Vec<u8>,
    next: u64,
}

impl Bench {
    fn new() -> Bench {
        let sb = samples::superblock(65536);
        Bench { next: sb.replay_seq, bytes: vec![0; N as usize * BLOCK], sb }
    }

    /// Commits records that fill `blocks` blocks. Their unit numbers ascend.
    fn commit(&mut self, blocks: u64) {
        let geometry = self.sb.geometry();
        let mut commit = Commit::with_capacity(1);
        let mut unit = self.next * 1000;
        while commit.blocks() < blocks {
            commit.push(&geometry, &Record::Set { volume: 1, unit, phys: 0, written: [0; MAX_ENTRY_WORDS] });
            unit += 1;
        }
        let ring = Ring::of(&self.sb);
        commit.seal(&ring, self.next);
        for (address, bytes) in commit.pieces(&ring, self.next) {
            let at = (address - JOURNAL_START) as usize;
            self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        }
        self.next += commit.blocks();
    }

    fn block(&mut self, seq: u64) -> &mut [u8] {
        let at = (seq % N) as usize * BLOCK;
        &mut self.bytes[at..at + BLOCK]
    }

    fn scan(&self) -> Result<(Scan, usize), Lost> {
        let mut count = 0;
        let scan = scan(&self.bytes, &self.sb, &mut |_| count += 1)?;
        Ok((scan, count))
    }
}

#[test]
fn commits_come_back_in_order_across_the_end_of_the_ring() {
    let mut bench = Bench::new();
    (0..6).for_each(|at| bench.commit(1 + at % 3 * 4));
    assert!(bench.next > 64, "the run has wrapped");
    let mut units = Vec::new();
    let scan = scan(&bench.bytes, &bench.sb, &mut |record| match record {
        Record::Set { unit, .. } => units.push(*unit),
        other => panic!("{other:?}"),
    })
    .expect("intact");
    assert_eq!(scan, Scan { next_seq: bench.next, highest_seq: bench.next - 1, torn: None });
    assert!(units.is_sorted() && units[0] == 40_000, "{}", units[0]);
}

#[test]
fn a_full_ring_is_replayed_whole() {
    let mut bench = Bench::new();
    bench.commit(N);
    assert_eq!(Ring::of(&bench.sb).free(bench.next, bench.sb.replay_seq), 0);
    let (scan, count) = bench.scan().expect("intact");
    assert_eq!(scan.next_seq, 40 + N);
    assert!(count as u64 > N);
}

#[test]
fn an_empty_journal_has_nothing_to_replay() {
    let bench = Bench::new();
    assert_eq!(bench.scan(), Ok((Scan { next_seq: 40, highest_seq: 0, torn: None }, 0)));
}

#[test]
fn older_blocks_end_the_run() {
    let mut bench = Bench::new();
    bench.next = 20;
    (0..5).for_each(|_| bench.commit(4));
    bench.next = 40;
    bench.commit(3);
    let (scan, _) = bench.scan().expect("intact");
    assert_eq!((scan.next_seq, scan.torn), (43, None));
}

#[test]
fn the_last_commit_may_be_torn_anywhere() {
    for torn in 44..48 {
        let mut bench = Bench::new();
        bench.commit(4);
        bench.commit(4);
        bench.block(torn)[700..].fill(0x5A);
        let (scan, count) = bench.scan().expect("a crash can leave this");
        assert_eq!(scan.next_seq, 44, "none of it counts");
        let mut whole = Bench::new();
        whole.commit(4);
        assert_eq!(count, whole.scan().expect("intact").1, "nor do its first blocks");
        assert!(matches!(scan.torn, Some(Damage::Checksum { .. })), "{scan:?}");
    }
}

#[test]
fn a_damaged_block_before_the_last_commit_is_told() {
    for rotten in 40..44 {
        let mut bench = Bench::new();
        bench.commit(4);
        bench.commit(4);
        bench.block(rotten)[700] ^= 1;
        match bench.scan() {
            Err(Lost::Block { seq, at, damage: Damage::Checksum { .. } }) => {
                assert_eq!((seq, at), (rotten, JOURNAL_START + rotten % N * 4096));
            }
            other => panic!("block {rotten}: {other:?}"),
        }
        bench.block(rotten).fill(0);
        assert!(matches!(bench.scan(), Err(Lost::Block { damage: Damage::Blank, .. })), "a lost write");
    }
}

#[test]
fn a_stale_superblock_is_told() {
    // The ring has wrapped over the blocks that the superblock needs.
    let mut bench = Bench::new();
    (0..10).for_each(|_| bench.commit(4));
    assert_eq!(bench.scan(), Err(Lost::Overwritten { wanted: 40, found: 72 }));
    // The journal has blocks of a later opening.
    let mut bench = Bench::new();
    bench.commit(2);
    bench.sb.incarnation = 9;
    bench.commit(1);
    bench.sb.incarnation = 3;
    assert_eq!(bench.scan(), Err(Lost::Superblock { incarnation: 9 }));
    // The pool was closed, and a block follows the checkpoint.
    let mut bench = Bench::new();
    bench.commit(1);
    bench.sb.clean = true;
    assert_eq!(bench.scan(), Err(Lost::Clean { seq: 40 }));
}

#[test]
fn blocks_of_other_pools_and_earlier_openings_do_not_count() {
    let mut bench = Bench::new();
    bench.sb.incarnation = 2;
    bench.commit(5);
    bench.sb.incarnation = 3;
    assert_eq!(bench.scan().expect("old blocks").0, Scan { next_seq: 40, highest_seq: 44, torn: None });
    bench.sb.pool = [1; 16];
    assert_eq!(bench.scan().expect("another's blocks").0, Scan { next_seq: 40, highest_seq: 0, torn: None });
}

#[test]
fn an_intact_block_that_cannot_be_understood_is_told() {
    let mut bench = Bench::new();
    bench.commit(1);
    bench.block(40)[HEADER + 16] = 99;
    let sum = crate::format::checksum((&*bench.block(40)).try_into().expect("a block"));
    bench.block(40)[8..12].copy_from_slice(&sum.to_le_bytes());
    assert!(matches!(bench.scan(), Err(Lost::Record { seq: 40, at: 40_960, .. })), "{:?}", bench.scan());
}

#[test]
fn addresses_follow_the_sequence() {
    let ring = Ring { pool: POOL, incarnation: 1, blocks: 16 };
    assert_eq!(ring.address(0), 8192);
    assert_eq!(ring.address(15), 8192 + 15 * 4096);
    assert_eq!(ring.address(16), 8192);
    assert_eq!(ring.address(u64::MAX), 8192 + 15 * 4096);
    assert_eq!((ring.free(10, 10), ring.free(26, 10), ring.free(18, 10)), (16, 0, 8));
}

#[test]
fn a_scan_of_garbage_never_panics() {
    let mut bench = Bench::new();
    bench.commit(20);
    for seed in sheave_testkit::seeds(64) {
        let mut bytes = bench.bytes.clone();
        let mut rng = Rng::new(seed);
        for _ in 0..40 {
            let at = rng.below(bytes.len() as u64) as usize;
            bytes[at] = rng.draw() as u8;
            if rng.percent(50) {
                let start = at - at % BLOCK;
                let sum = crate::format::checksum(bytes[start..start + BLOCK].as_array().expect("a block"));
                bytes[start + 8..start + 12].copy_from_slice(&sum.to_le_bytes());
            }
        }
        let mut count = 0u64;
        let result = scan(&bytes, &bench.sb, &mut |_| count += 1);
        assert!(count < N * 600, "SHEAVE_SEED={seed}: {result:?}");
    }
}
