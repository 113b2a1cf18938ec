//! Fuzzes the check of a damaged pool: it ends without a panic, and a pool that it has repaired is clean.
#![no_main]

use sheave_fuzz::image::{Memory, damaged};
use sheave_vol::{CheckOptions, PoolError, check};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let memory: Memory = damaged(data);
    match check(&memory, &CheckOptions::default().repair(true)) {
        Ok(report) => assert!(report.repaired || report.is_clean() || !report.is_repairable()),
        Err(PoolError::Full { .. }) => {}
        Err(error) => panic!("{error}"),
    }
});
