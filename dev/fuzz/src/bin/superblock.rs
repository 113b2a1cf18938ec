//! Fuzzes the superblock: one that can be decoded is consistent, and encodes to the same bytes.
#![no_main]

use sheave_vol::format::{SUPERBLOCKS, kind};
use sheave_vol::superblock::Superblock;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    for address in SUPERBLOCKS {
        let sealed = sheave_fuzz::sealed(data, kind::SUPERBLOCK, address);
        for block in [sheave_fuzz::block(data), sealed] {
            if let Ok(sb) = Superblock::decode(&block, address, 1 << 50) {
                let mut again = [0; 4096];
                assert_eq!(sb.encode(&mut again), address);
                assert!(again == block, "one encoding for one superblock");
                assert!(sb.geometry().first_unit < sb.total_units);
            }
        }
    }
});
