//! The pools of io-wq side by side: each earlier arm, the pool as it is, and a ring that uses it, for each number of
//! workers.
//!
//! Owns the order and the medians; each figure is one of `sheave bench wq:`. All arms take their turn before the next
//! round, so a machine that slows down slows all of them.
//!
//! ```sh
//! cargo bench -p sheave-cli --bench io_wq
//! cargo bench -p sheave-cli --bench io_wq -- --hashed 50 --work spin:200
//! ```

use std::process::{Command, exit};

use serde_json::Value;

const ARMS: [&str; 5] = ["one-list", "flags-once", "sharded", "stealing", "ring"];
const WORKERS: [&str; 5] = ["1", "2", "4", "16", "64"];
const ROUNDS: usize = 5;
/// What is shown: the name in the JSON, the heading, and what to divide by.
const COLUMNS: [(&str, &str, f64); 8] = [
    ("iops", "M items/s", 1e6),
    ("start_p50_ns", "start p50 us", 1e3),
    ("start_p99_ns", "start p99 us", 1e3),
    ("lock_hold_ns_per_io", "held ns", 1.0),
    ("lock_wait_ns_per_io", "waited ns", 1.0),
    ("lock_wait_percent_of_cpu", "waited %", 1.0),
    ("context_switches_per_io", "switches", 1.0),
    ("workers_created", "made", 1.0),
];

fn main() {
    // Cargo adds `--bench`; everything else is for `sheave bench`.
    let more: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    println!("{:>10} {:>7}{}", "arm", "workers", COLUMNS.map(|(_, heading, _)| format!(" {heading:>12}")).concat());
    for workers in WORKERS {
        let mut turns: [Vec<Value>; ARMS.len()] = Default::default();
        for _ in 0..ROUNDS {
            for (arm, turns) in ARMS.iter().zip(&mut turns) {
                turns.push(turn(arm, workers, &more));
            }
        }
        for (arm, turns) in ARMS.iter().zip(&turns) {
            let figures = COLUMNS.map(|(name, _, unit)| format!(" {:>12.3}", median(turns, name) / unit));
            println!("{arm:>10} {workers:>7}{}", figures.concat());
        }
    }
}

/// One run of an arm.
fn turn(arm: &str, workers: &str, more: &[String]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sheave"));
    command.args(["bench", "wq:", "--depth", "128", "--batch", "32", "--runtime", "300ms", "--progress", "none"]);
    command.args(["--json", "--arm", arm, "--workers", workers]).args(more);
    let output = command.output().unwrap_or_else(|error| fail(&format!("the command does not start: {error}")));
    match serde_json::from_slice(&output.stdout) {
        Ok(report) if output.status.success() => report,
        _ => fail(&String::from_utf8_lossy(&output.stderr)),
    }
}

fn fail(why: &str) -> ! {
    eprintln!("io_wq: {why}");
    exit(1);
}

fn median(turns: &[Value], name: &str) -> f64 {
    let mut figures: Vec<f64> = turns.iter().filter_map(|turn| turn[name].as_f64()).collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}
