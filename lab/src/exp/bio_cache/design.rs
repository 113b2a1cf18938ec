//! The design of the experiment: its arms by index, and the claim of the mailing-list thread.

use crate::terms::{ArmInfo, Role};
use crate::{LabError, Point};

/// Index of the arm whose bios come from the global allocator.
pub const MALLOC: usize = 1;
/// Index of the arm that calls a store which does nothing, to measure the cost of the call.
pub const HOOK: usize = 2;
/// Index of the arm with the cache per CPU that the review of the patches proposed.
pub const PER_CPU: usize = 3;
/// Index of the arm with the cache as published.
pub const SEED: usize = 4;
/// Index of the arm with Sheave's own cache, set up so that each I/O takes a bio.
pub const AFTER: usize = 5;
/// Index of the arm with Sheave like it ships, which takes a bio only where an I/O needs one.
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

/// Returns true if `arm` calls a store for every I/O. The time of that call is due to the experiment, not to the
/// allocator.
pub fn takes_the_way(arm: usize, ends: Ends) -> bool {
    match arm {
        AFTER | HOOK | NO_BIO => false,
        // A polled bio stays in the cache in front of the store.
        SEED => ends != Ends::Polled,
        _ => true,
    }
}

/// The context that ends the I/O of a point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ends {
    /// The ring's thread, by polling.
    Polled,
    /// The ring's thread without polling: `submit` ends I/O that is ready.
    Unpolled,
    /// Another thread, which stands for an interrupt.
    Thread,
}

impl Ends {
    /// Parses the parameter `ends` of a point.
    pub fn of(point: &Point) -> Result<Ends, LabError> {
        match point.text("ends").unwrap_or("polled") {
            "polled" => Ok(Ends::Polled),
            "unpolled" => Ok(Ends::Unpolled),
            "thread" => Ok(Ends::Thread),
            other => Err(LabError::usage(format!("ends={other} in the point {point}"))
                .fix("ends= is polled, unpolled or thread")),
        }
    }

    /// Returns the spec of a device whose I/O ends in this context.
    pub fn device(self) -> &'static str {
        if self == Ends::Thread { "null:size=1T,complete=thread" } else { "null:size=1T" }
    }
}

/// Label of the row with the parameters of the published table.
pub const ROW: &str = "512 B, QD 128, batch 32";
/// Published gain in IOPS, in percent.
pub const CLAIMED: f64 = 9.8;
/// Queue depth above the size of the bounded caches, so that they must give bios back.
pub const DEEP: u32 = 1024;
