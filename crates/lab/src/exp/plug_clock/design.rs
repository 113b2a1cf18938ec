//! The design of the experiment: its arms by index, and the claim that it looks into.

use std::time::Duration;

use sheave::RingBuilder;

use crate::terms::{ArmInfo, Role};

/// Index of the cached time as the thread had it.
pub const SEED: usize = 1;
/// Index of the product.
pub const AFTER: usize = 2;

pub static ARMS: [ArmInfo; 3] = [
    ArmInfo { name: "before", role: Role::Before, what: "Each request reads the clock" },
    ArmInfo {
        name: "seed",
        role: Role::Seed,
        what: "One reading for a batch, until it is flushed, however old it gets",
    },
    ArmInfo { name: "after", role: Role::After, what: "Sheave: the same, and no reading is used for long after 50 us" },
];

/// The label of the thread's row.
pub const ROW: &str = "512 B, QD 128, batch 32";
/// What the thread claims, in percent.
pub const CLAIMED: f64 = 6.0;
/// The ring of an arm.
pub fn aged(builder: RingBuilder, arm: usize) -> RingBuilder {
    match arm {
        AFTER => builder,
        SEED => builder.stamp_age(Duration::MAX),
        _ => builder.stamp_age(Duration::ZERO),
    }
}
