//! Fuzzes pages of the volume table.
#![no_main]

use sheave_vol::format::kind;
use sheave_vol::page::table;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let geometry = sheave_fuzz::geometry(data);
    let data = data.get(1..).unwrap_or_default();
    for block in [sheave_fuzz::block(data), sheave_fuzz::sealed(data, kind::TABLE, sheave_fuzz::ADDRESS)] {
        let mut volumes = Vec::new();
        if table::decode(&block, &geometry, &sheave_fuzz::expect(&block), &mut volumes).is_ok() {
            assert!(!volumes.is_empty() && volumes.iter().all(|volume| table::is_name(&volume.name)));
        }
    }
});
