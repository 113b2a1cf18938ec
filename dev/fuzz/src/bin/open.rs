//! Fuzzes opening a damaged pool: the result is an error or a pool, never a panic. A pool that opens is clean after it
//! was closed.
#![no_main]

use sheave_fuzz::image::damaged;
use sheave_vol::{CheckOptions, OpenOptions, Pool, check_device};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let device = damaged(data).to_device();
    let Ok(pool) = Pool::open(&device, &OpenOptions::default()) else { return };
    let _ = (pool.info(), pool.volumes());
    if pool.close().is_ok() {
        check_device(&device, &CheckOptions::default()).expect("the check itself works");
    }
});
