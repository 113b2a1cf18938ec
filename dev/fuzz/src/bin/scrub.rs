//! Fuzzes the use of damaged pools whose checksums are right. Opening, reading, copying, scrubbing and closing must end
//! without a panic. A pool that the check finds clean must open whole, scrub clean, and be clean after it was closed.
//! (The check reads no data. Only the scrub can find that a map names units whose data does not match their checksums.)
#![no_main]

use std::ops::ControlFlow;

use sheave_fuzz::image::damaged;
use sheave_vol::{CheckOptions, Finding, FindingKind, OpenOptions, Pool, ScrubOptions, check, check_device};

/// Number of bytes of each volume that are read.
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
    let scrubbed = scrubbed.map(|report| report.findings).map_err(|error| error.to_string());
    let is_about_data = |finding: &Finding| finding.kind == FindingKind::Data && data.len() > 1;
    let whole = scrubbed.as_ref().is_ok_and(|findings| findings.iter().all(is_about_data));
    assert!(whole || !clean, "the check finds nothing: {scrubbed:?}");
    let _ = (pool.snapshot("a", "one-more"), pool.delete("b"), pool.delete("a"));
    if pool.close().is_ok() {
        let report = check_device(&device, &CheckOptions::default()).expect("the check itself works");
        assert!(!clean || report.is_clean(), "{:?}", report.findings);
    }
});
