//! Work as the pool sees it: the properties of an item that decide where it is queued, not what it does.
//!
//! Owns [`WorkFlags`], read once when the item is queued and carried in the queue's [`WorkEntry`] from then on, and the
//! contract between a pool and its clients: [`Source`] and [`Ends`].
//!
//! Invariants:
//! - I1: hashed work is bound work that may block. So all items of a hash are in one account.
//! - I2: an entry is eight bytes and names one use of a slot: client, slot and generation. The entry of a cancelled
//!   item names no item any more, wherever it is stored.

use sheave_iomap::completion_plan::MayBlock;

use crate::work_done::WorkDone;

/// Maximum number of slots of one client.
pub const MAX_SLOTS: u32 = 1 << SLOT_BITS;
/// Maximum number of clients of one pool.
pub const MAX_CLIENTS: u32 = 1 << CLIENT_BITS;
/// Number of buckets that hash values are folded into, as in the kernel. Items of two hashes in one bucket never run at
/// the same time.
pub const HASH_BUCKETS: u32 = 64;

const SLOT_BITS: u32 = 20;
const CLIENT_BITS: u32 = 12;
pub(super) const GENERATION_BITS: u32 = 24;

const MAY_BLOCK: u8 = 1 << 0;
const UNBOUND: u8 = 1 << 1;

/// Result of an item that did not run because the pool was shut down: `-ECANCELED`.
pub const CANCELLED: WorkDone = WorkDone::Result(-125);

/// Kind of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkFlags {
    bits: u8,
    hash: Option<u32>,
}

impl WorkFlags {
    /// Bound account: ends by itself and soon (files and memory), but may block.
    pub const BOUND: WorkFlags = WorkFlags { bits: MAY_BLOCK, hash: None };
    /// Unbound account: may take for ever (sockets, pipes, other machines).
    pub const UNBOUND: WorkFlags = WorkFlags { bits: MAY_BLOCK | UNBOUND, hash: None };
    /// Bound account, never blocks: run in batches.
    pub const SHORT: WorkFlags = WorkFlags { bits: 0, hash: None };

    /// Bound work that runs in order with, and never at the same time as, other work of the same hash.
    #[must_use]
    pub const fn hashed(hash: u32) -> WorkFlags {
        WorkFlags { bits: MAY_BLOCK, hash: Some(hash) }
    }

    /// Returns the bucket of the hash, if the work is hashed.
    pub(super) fn bucket(self) -> Option<u32> {
        // Neighbouring numbers (inodes, file descriptors) must not share a bucket: the high bits of a multiplication
        // by 2^32 over the golden ratio spread them.
        self.hash.map(|hash| hash.wrapping_mul(0x9E37_79B9) >> (u32::BITS - HASH_BUCKETS.ilog2()))
    }

    /// Returns the account's number: 0 bound, 1 unbound.
    pub(super) fn acct(self) -> usize {
        usize::from(self.bits & UNBOUND != 0)
    }
}

/// An item in a queue (I2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WorkEntry(u64);

impl WorkEntry {
    pub(super) fn new(client: u32, slot: u32, generation: u32, flags: WorkFlags) -> WorkEntry {
        debug_assert!(slot < MAX_SLOTS && client < MAX_CLIENTS && generation >> GENERATION_BITS == 0);
        let place = u64::from(slot) | u64::from(client) << SLOT_BITS;
        WorkEntry(place | u64::from(generation) << 32 | u64::from(flags.bits) << (32 + GENERATION_BITS))
    }

    pub(super) fn slot(self) -> u32 {
        self.0 as u32 & (MAX_SLOTS - 1)
    }

    pub(super) fn client(self) -> u32 {
        self.0 as u32 >> SLOT_BITS
    }

    pub(super) fn generation(self) -> u32 {
        (self.0 >> 32) as u32 & ((1 << GENERATION_BITS) - 1)
    }

    pub(super) fn may_block(self) -> bool {
        self.bits() & MAY_BLOCK != 0
    }

    pub(super) fn is_unbound(self) -> bool {
        self.bits() & UNBOUND != 0
    }

    fn bits(self) -> u8 {
        (self.0 >> (32 + GENERATION_BITS)) as u8
    }
}

/// A client's side of the pool: runs its items. Called on workers.
pub trait Source: Send + Sync + 'static {
    /// State that a worker keeps between items of clients of this type. It never leaves the worker's thread.
    type Context: Default;

    /// Runs an item that may block. A panic ends the item with `-EIO`.
    fn run(&self, context: &mut Self::Context, slot: u32, section: &Section<'_>) -> WorkDone;

    /// Runs up to 64 short items ([`WorkFlags::SHORT`]) and reports the end of each to `ends`, in any order. A panic
    /// ends the items that have not ended with `-EIO`.
    fn run_short(&self, context: &mut Self::Context, slots: &[u32], ends: &mut impl Ends);

    /// Delivers results as (slot, result), once per item unless it was cancelled. The slots may be queued again. Called
    /// once per batch, so that a batch needs one wake-up.
    fn finish(&self, done: &[(u32, WorkDone)]);

    /// Called for an item that ends without having run: no thread could be created, the pool was shut down, or an
    /// earlier item of its batch panicked. The source drops the item's data before the slot is used again.
    fn not_run(&self, _slot: u32) {}

    /// Called when a needed thread could not be created: a client that waits for an item should
    /// [retry](super::Submitter::retry) soon.
    fn starved(&self) {}

    /// Called before the worker sleeps or serves another client: drops the state that it kept for this one.
    fn rest(_: &mut Self::Context) {}
}

/// Receives the ends of short items.
pub trait Ends {
    /// Ends the item at index `at` of the slots. Called at most once per item.
    fn end(&mut self, at: usize, how: WorkDone);

    /// Ends all items that have not ended, with the same result.
    fn end_rest(&mut self, how: WorkDone);

    /// Runs `wait`, which may block until started items have ended. Delivers the results so far first; if work is
    /// queued, another worker takes over meanwhile.
    fn blocking(&mut self, wait: impl FnOnce());
}

/// Context of an item that may block: the worker is replaced while the item blocks.
#[derive(Debug)]
pub struct Section<'a> {
    pub(super) token: &'a MayBlock<'a>,
}

impl Section<'_> {
    /// Returns the permission to block, which blocking calls require.
    #[must_use]
    pub fn token(&self) -> &MayBlock<'_> {
        self.token
    }

    /// Returns true if the item was requested to end early.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.token.is_cancelled()
    }
}
