//! Fuzzes the scan of a whole journal. The blocks have the fuzzer's bytes, and each is sealed at its address.
#![no_main]

use sheave_vol::format::{BLOCK, JOURNAL_START, kind};
use sheave_vol::journal::scan;

const BLOCKS: usize = 16;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let sb = sheave_fuzz::superblock(u64::from(data.first().copied().unwrap_or(0)), BLOCKS as u32, 1);
    let mut bytes = vec![0; BLOCKS * BLOCK];
    // Short pieces, so that inputs of the usual length fill many blocks.
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
