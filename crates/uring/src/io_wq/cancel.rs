//! Cancelling work, wherever it is.
//!
//! Owns the outcomes. The decision is one exchange on the item's state word (`item`), so it does not matter whether
//! the entry lies in a shard, in a hash's run or in a worker's batch, and no lock is taken. What is left of a
//! cancelled item is an entry that starts nothing; it goes when a worker comes past it, or when its shard is full.
//!
//! Invariant I1: a cancel has one outcome, and an item one end: `Queued` and it never runs and never comes back;
//! `Running` and its result comes as always; `NotFound` and its result has been handed over, or it never was queued.

/// What a cancel found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// It had not started: it will not run, and its slot is free.
    Queued,
    /// A worker runs it, and was asked to end early; its result comes as always (`-EALREADY` for the canceller).
    Running,
    /// Neither queued nor running (`-ENOENT`).
    NotFound,
}
