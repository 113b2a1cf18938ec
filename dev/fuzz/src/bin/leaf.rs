//! Fuzzes leaf pages, for all unit sizes.
#![no_main]

use sheave_vol::format::{MAX_LEAF_ENTRIES, MAX_LEAF_WORDS, kind};
use sheave_vol::page::leaf;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let geometry = sheave_fuzz::geometry(data);
    let data = data.get(1..).unwrap_or_default();
    for block in [sheave_fuzz::block(data), sheave_fuzz::sealed(data, kind::LEAF, sheave_fuzz::ADDRESS)] {
        let (mut entries, mut written) = ([0; MAX_LEAF_ENTRIES], [0; MAX_LEAF_WORDS]);
        let expect = sheave_fuzz::expect(&block);
        if leaf::decode(&block, &geometry, &expect, &mut entries, &mut written).is_ok() {
            let used = entries[..geometry.leaf_entries].iter().filter(|phys| **phys != 0);
            assert!(used.clone().all(|&phys| geometry.is_unit(phys)));
        }
    }
});
