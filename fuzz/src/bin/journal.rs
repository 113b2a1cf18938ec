//! Fuzzes the scan of a whole journal: blocks of the fuzzer's bytes, each sealed in its place.
#![no_main]

use sheave_vol::Checksum;
use sheave_vol::format::{BLOCK, JOURNAL_START, kind};
use sheave_vol::journal::scan;
use sheave_vol::page::PageRef;
use sheave_vol::superblock::Superblock;

const BLOCKS: usize = 16;

fn superblock(replay_seq: u64) -> Superblock {
    Superblock {
        pool: sheave_fuzz::POOL,
        generation: 4,
        compat: 0,
        ro_compat: 0,
        clean: false,
        unit_bytes: 65536,
        checksum: Checksum::None,
        marks: false,
        total_units: 1024,
        journal_blocks: BLOCKS as u32,
        next_volume: 9,
        incarnation: 1,
        replay_seq,
        table: PageRef::NONE,
        table_level: 0,
        volumes: 0,
        created: 0,
        members: vec![(0, 1024 * 65536)],
        labels: [0; sheave_vol::format::MAX_MEMBERS],
        sums: PageRef::NONE,
        sums_level: 0,
        low_water: sheave_vol::LowWater::Off,
        lost: Default::default(),
    }
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let sb = superblock(u64::from(data.first().copied().unwrap_or(0)));
    let mut bytes = vec![0; BLOCKS * BLOCK];
    // Short pieces, so that many blocks fit what the fuzzer likes to make.
    let pieces = data.get(1..).unwrap_or_default().chunks(160);
    for ((block, piece), at) in bytes.chunks_mut(BLOCK).zip(pieces).zip((JOURNAL_START..).step_by(BLOCK)) {
        block.copy_from_slice(&sheave_fuzz::sealed(piece, kind::JOURNAL, at));
    }
    let mut records = 0;
    let found = scan(&bytes, &sb, &mut |_| records += 1);
    assert!(records <= BLOCKS * BLOCK / 8);
    if let Ok(found) = found {
        assert!(found.next_seq >= sb.replay_seq && found.next_seq - sb.replay_seq <= BLOCKS as u64);
    }
});
