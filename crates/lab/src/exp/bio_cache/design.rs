//! The design of the experiment: its arms by index, and the claim that it looks into.

use crate::terms::{ArmInfo, Role};

/// Index of the arm that has a lock around a pool.
pub const POOL: usize = 1;
/// Index of the arm that shows what the others' way to a store costs.
pub const HOOK: usize = 2;
/// Index of the cache as the thread had it.
pub const SEED: usize = 3;
/// Index of the product.
pub const AFTER: usize = 4;

pub static ARMS: [ArmInfo; 5] = [
    ArmInfo {
        name: "before",
        role: Role::Before,
        what: "No cache: the memory of each bio comes from the global allocator and goes back to it",
    },
    ArmInfo {
        name: "shared pool",
        role: Role::Other,
        what: "No cache: the memory of each bio comes from a pool that all rings share, under a lock",
    },
    ArmInfo {
        name: "hook",
        role: Role::Other,
        what: "No cache, and nothing behind it: what the first two pay for the way there, and not for memory",
    },
    ArmInfo {
        name: "seed",
        role: Role::Seed,
        what: "A cache of 512 and 64 more before the allocator, for polled I/O only",
    },
    ArmInfo { name: "after", role: Role::After, what: "Sheave: the ring's own cache, whoever completes" },
];

/// The label of the thread's row.
pub const ROW: &str = "512 B, QD 128, batch 32";
/// What the thread claims, in percent.
pub const CLAIMED: f64 = 9.8;
