//! The design of the experiment: its arms by index, and the claim that it looks into.

use crate::terms::{ArmInfo, Role};
use crate::{LabError, Point};

/// Index of the arm whose bios come from the global allocator.
pub const MALLOC: usize = 1;
/// Index of the arm that shows what the others' way to a store costs.
pub const HOOK: usize = 2;
/// Index of the cache per CPU that the review proposed.
pub const PER_CPU: usize = 3;
/// Index of the cache as the thread had it.
pub const SEED: usize = 4;
/// Index of the product.
pub const AFTER: usize = 5;
/// Index of the product as it ships, which asks for a bio only where one is needed.
pub const NO_BIO: usize = 6;

pub static ARMS: [ArmInfo; 7] = [
    ArmInfo {
        name: "before",
        role: Role::Before,
        what: "No cache: each bio's memory comes from a slab of the thread, of a bio's size, with a mempool's reserve \
               behind it, as the kernel had it",
    },
    ArmInfo {
        name: "malloc",
        role: Role::Other,
        what: "No cache: the memory of each bio comes from the C library's malloc and goes back to it",
    },
    ArmInfo {
        name: "hook",
        role: Role::Other,
        what: "No cache, and nothing behind it: the way there, which is taken out of every other arm that takes it",
    },
    ArmInfo {
        name: "per cpu",
        role: Role::Other,
        what: "What the review proposed: a cache on the bio set for each CPU, before the slab, opt-in for polled I/O",
    },
    ArmInfo {
        name: "seed",
        role: Role::Seed,
        what: "What the thread had: a cache of 512 and 64 more on the ring, before the slab, for polled I/O",
    },
    ArmInfo {
        name: "after",
        role: Role::After,
        what: "Sheave: the ring's own cache, whoever completes; it has to take a bio for each I/O, as the others do",
    },
    ArmInfo {
        name: "no bio",
        role: Role::Other,
        what: "Sheave as it ships: a plain read is a record of the block layer from SQE to CQE, and takes no bio",
    },
];

/// Whether an arm takes the way to a store, whose cost is this experiment's and no allocator's, for every I/O.
pub fn takes_the_way(arm: usize, ends: Ends) -> bool {
    match arm {
        AFTER | HOOK | NO_BIO => false,
        // What is polled stays in the cache before the store.
        SEED => ends != Ends::Polled,
        _ => true,
    }
}

/// Who ends the I/O of a point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ends {
    /// The ring's thread, which polls.
    Polled,
    /// The ring's thread, which does not: `submit` ends what is ready too.
    Unpolled,
    /// Another thread, as an interrupt would.
    Thread,
}

impl Ends {
    /// Of a point.
    pub fn of(point: &Point) -> Result<Ends, LabError> {
        match point.text("ends").unwrap_or("polled") {
            "polled" => Ok(Ends::Polled),
            "unpolled" => Ok(Ends::Unpolled),
            "thread" => Ok(Ends::Thread),
            other => Err(LabError::usage(format!("ends={other} in the point {point}"))
                .fix("ends= is polled, unpolled or thread")),
        }
    }

    /// The spec of the device that ends it so.
    pub fn device(self) -> &'static str {
        if self == Ends::Thread { "null:size=1T,complete=thread" } else { "null:size=1T" }
    }
}

/// The label of the thread's row.
pub const ROW: &str = "512 B, QD 128, batch 32";
/// What the thread claims, in percent.
pub const CLAIMED: f64 = 9.8;
/// More in flight at once than the bounded caches hold: what they prune.
pub const DEEP: u32 = 1024;
