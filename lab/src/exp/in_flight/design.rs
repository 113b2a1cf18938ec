//! The design of the experiment: its arms by index, and the two kinds of point.

use std::sync::Arc;

use sheave_load::Rw;

use crate::Point;
use crate::counters::{Counters, Way};
use crate::terms::{ArmInfo, Role};

/// Index of the arm with one pair of counters for all threads.
pub const BEFORE: usize = 0;
/// Index of the arm with a pair of counters for each thread.
pub const PER_THREAD: usize = 1;
/// Index of the arm with Sheave like it ships.
pub const AFTER: usize = 3;

pub static ARMS: [ArmInfo; 6] = [
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
    ArmInfo {
        name: "per thread, jiffy",
        role: Role::Other,
        what: "As per thread, and the reader is in the path: who starts or ends the first I/O of a jiffy sums up, as \
               the kernel did for the time that a device is busy",
    },
    ArmInfo {
        name: "tags, jiffy",
        role: Role::Other,
        what: "As after, and the same reader in the path walks the busy tags, as the thread's second patch has it",
    },
];

/// Index of the arm with counters per thread and the reader in the I/O path.
pub const PER_THREAD_JIFFY: usize = 4;
/// Index of the arm with tags and the reader in the I/O path.
pub const TAGS_JIFFY: usize = 5;
/// Arms without a reader in the I/O path. Most sweeps measure only these.
pub const WITHOUT_READER: [usize; 4] = [BEFORE, PER_THREAD, 2, AFTER];

/// Counters of each arm, by index.
pub const WAYS: [Way; 6] = [Way::Pair, Way::PerThread, Way::PerNode, Way::Tags, Way::PerThread, Way::Tags];

/// Makes the counters of an arm.
pub fn counters(arm: usize) -> Arc<Counters> {
    let way = WAYS[arm.min(TAGS_JIFFY)];
    if arm >= PER_THREAD_JIFFY { Counters::read_in_path(way) } else { Counters::new(way) }
}

/// Returns a point of random reads of 512 B, one at a time in each thread. The device ends them during the submit.
pub fn one_by_one(threads: u32) -> Point {
    Point { bs: 512, batch: 1, depth: 1, threads, rw: Rw::Randread, ..Point::default() }
}

/// Returns a point of the same reads in batches of 32.
pub fn in_batches(threads: u32) -> Point {
    Point { batch: 32, depth: 128, ..one_by_one(threads) }
}
