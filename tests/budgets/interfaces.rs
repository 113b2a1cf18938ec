//! Cost of the safe interfaces of a ring relative to the raw one: the instructions of `examples/interfaces.rs`, the
//! same loop through each of them.
//!
//! The bound is relative to the raw loop on `ram:`, counted in the same run: changes that affect both equally are the
//! concern of the budgets, not of this test.

use std::path::Path;

use sheave_testkit::hot_loop::Profile;

use crate::{build, cachegrind, skip_here};

const SPEC: &str = "ram:size=64M";

/// Largest number of instructions of an interface at a depth, in percent of the raw loop.
const MOST: [(&str, &str, f64); 4] =
    [("32", "owned", 120.0), ("32", "fixed", 110.0), ("1", "owned", 120.0), ("1", "fixed", 110.0)];

/// Number of reads of a short run, and of a long run.
const SHORT_LONG: (u64, u64) = (12_800, 64_000);

#[test]
fn the_safe_interfaces_cost_little_more_than_the_raw_one() {
    if skip_here() {
        return;
    }
    let Some(valgrind) = sheave_testkit::require("valgrind") else { return };
    let program = build(Profile::Release).join("examples/interfaces");
    for (depth, interface, most) in MOST {
        let raw = per_io(&valgrind, &program, "raw", depth);
        let share = per_io(&valgrind, &program, interface, depth) / raw * 100.0;
        assert!(share <= most, "{interface} at depth {depth}: {share:.1} % of the raw loop's {raw:.0}; may be {most}");
    }
}

/// Returns the instructions of one read.
fn per_io(valgrind: &Path, program: &Path, interface: &str, depth: &str) -> f64 {
    let count = |ios: u64| {
        let mut command = cachegrind::command(valgrind);
        let output = command.arg(program).args([interface, SPEC, depth, &ios.to_string()]).output();
        let said = String::from_utf8_lossy(&output.expect("valgrind starts").stderr).into_owned();
        cachegrind::refs(&said).unwrap_or_else(|| panic!("valgrind gave no count of instructions:\n{said}")) as f64
    };
    let (short, long) = SHORT_LONG;
    (count(long) - count(short)) / (long - short) as f64
}
