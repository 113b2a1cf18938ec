//! Fuzzes what is done to damaged pools whose checksums are right: opening, looking, copying, scrubbing and closing end
//! without a panic; and what the check finds clean opens whole, scrubs clean, and is clean when it is closed.
#![no_main]

use std::ops::ControlFlow;

use sheave_fuzz::image::damaged;
use sheave_vol::{CheckOptions, OpenOptions, Pool, ScrubOptions, check, check_device};

/// Bytes of each volume that are looked at.
const LOOK: u64 = 64 << 20;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let memory = damaged(data);
    let clean = check(&memory, &CheckOptions::default()).is_ok_and(|report| report.is_clean());
    let device = memory.to_device();
    let pool = match Pool::open(&device, &OpenOptions::default()) {
        Ok(pool) => pool,
        Err(error) => return assert!(!clean, "the check finds nothing: {error}"),
    };
    let whole = pool.info().damaged.is_empty();
    assert!(whole || !clean, "the check finds nothing");
    for info in pool.volumes() {
        if let Ok(volume) = pool.open_volume(&info.name) {
            let last = info.size_bytes.saturating_sub(LOOK);
            let _ = (volume.extents(0, LOOK), volume.extents(last, LOOK));
        }
    }
    let scrubbed = pool.scrub(&ScrubOptions::default(), &mut |_| ControlFlow::Continue(()));
    assert!(!clean || scrubbed.is_ok_and(|report| report.is_clean()), "the check finds nothing");
    let _ = (pool.snapshot("a", "one-more"), pool.delete("b"), pool.delete("a"));
    if pool.close().is_ok() {
        let report = check_device(&device, &CheckOptions::default()).expect("the check itself works");
        assert!(!clean || report.is_clean(), "{:?}", report.findings);
    }
});
