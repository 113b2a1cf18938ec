//! The design of the experiment: its arms by index, and the claim of the mailing-list thread.

use std::time::Duration;

use sheave::RingBuilder;
use sheave_blk::plug::EachRead;

use crate::terms::{ArmInfo, Role};

/// Index of the arm in which each request keeps a stamp of its own.
pub const OWN: usize = 1;
/// Index of the arm that reads a clock like the kernel's `ktime_get`.
pub const KTIME: usize = 2;
/// Index of the arm with the published cached time.
pub const SEED: usize = 3;
/// Index of the arm with Sheave like it ships.
pub const AFTER: usize = 4;

pub static ARMS: [ArmInfo; 5] = [
    ArmInfo {
        name: "before",
        role: Role::Before,
        what: "The clock (rdtsc) is read for each request; all else is as in seed",
    },
    ArmInfo {
        name: "own stamps",
        role: Role::Other,
        what: "Each request also keeps what it read: requests are then gathered one by one, and added to the \
               statistics one by one",
    },
    ArmInfo {
        name: "ktime",
        role: Role::Other,
        what: "Before, with a clock that does what the kernel's does: CLOCK_MONOTONIC of the vDSO (ordered rdtsc, \
               sequence count, conversion)",
    },
    ArmInfo {
        name: "seed",
        role: Role::Seed,
        what: "One reading for a batch, until it is flushed, however old it gets",
    },
    ArmInfo {
        name: "after",
        role: Role::After,
        what: "Sheave: the same, and at every 16th request a reading older than 50 us is made anew; how old stamps \
               get by that is the sweep by the time for each request",
    },
];

/// Label of the row with the parameters of the published table.
pub const ROW: &str = "512 B, QD 128, batch 32";
/// Published gain in IOPS, in percent.
pub const CLAIMED: f64 = 6.0;
/// Published share of CPU time in `read_tsc` (before, after) and in `ktime_get` (before, after), in percent.
pub const SHARES: [(f64, f64); 2] = [(10.55, 0.67), (1.31, 0.09)];
/// Sets the stamp age and the extra readings of `arm` on the ring's builder.
pub fn aged(builder: RingBuilder, arm: usize) -> RingBuilder {
    match arm {
        AFTER => builder,
        OWN => builder.stamp_age(Duration::ZERO),
        SEED => builder.stamp_age(Duration::MAX),
        KTIME => builder.stamp_age(Duration::MAX).each_read(EachRead::System),
        _ => builder.stamp_age(Duration::MAX).each_read(EachRead::Coarse),
    }
}
