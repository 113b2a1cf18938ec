//! Fuzzes the check of a damaged pool: it ends, it does not panic, and what it repairs is clean.
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
