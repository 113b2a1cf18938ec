//! The design of the experiment: its arms by index, and the two kinds of point.

use sheave_load::Rw;

use super::counters::Way;
use crate::Point;
use crate::terms::{ArmInfo, Role};

/// Index of the arm with one pair for all.
pub const BEFORE: usize = 0;
/// Index of the arm with a pair for each thread.
pub const PER_THREAD: usize = 1;
/// Index of the product.
pub const AFTER: usize = 3;

/// The arms.
pub static ARMS: [ArmInfo; 4] = [
    ArmInfo {
        name: "before",
        role: Role::Before,
        what: "One pair of atomic counters for all: two atomic additions to one shared cache line an I/O",
    },
    ArmInfo {
        name: "per thread",
        role: Role::Seed,
        what: "The thread's per-CPU counter: a pair for each thread, which stays on its CPU, on a cache line of its \
               own; a reader sums up all 256 that may ever be",
    },
    ArmInfo {
        name: "4 per node",
        role: Role::Other,
        what: "Four pairs of atomic counters on four cache lines, of which each thread uses one",
    },
    ArmInfo { name: "after", role: Role::After, what: "Sheave: nothing is counted; a reader walks the busy tags" },
];

/// How each arm counts.
pub const WAYS: [Way; 4] = [Way::Pair, Way::PerThread, Way::PerNode, Way::Tags];

/// Random reads of 512 B, one at a time a thread, which the device ends where they are submitted.
pub fn one_by_one(threads: u32) -> Point {
    Point { bs: 512, batch: 1, depth: 1, threads, rw: Rw::Randread, ..Point::default() }
}

/// Random reads of 512 B in batches of 32, which the device ends where they are submitted.
pub fn in_batches(threads: u32) -> Point {
    Point { batch: 32, depth: 128, ..one_by_one(threads) }
}
