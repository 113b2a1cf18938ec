//! Fuzzes index pages: no reference leaves the pool.
#![no_main]

use sheave_vol::format::{INDEX_CHILDREN, kind};
use sheave_vol::page::{PageRef, index};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let geometry = sheave_fuzz::geometry(data);
    let data = data.get(1..).unwrap_or_default();
    for block in [sheave_fuzz::block(data), sheave_fuzz::sealed(data, kind::INDEX, sheave_fuzz::ADDRESS)] {
        for level in 0..6 {
            let mut children = [PageRef::NONE; INDEX_CHILDREN];
            if index::decode(&block, &geometry, &sheave_fuzz::expect(&block), level, &mut children).is_ok() {
                assert!(children.iter().all(|child| child.address < geometry.bytes()));
            }
        }
    }
});
