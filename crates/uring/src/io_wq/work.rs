//! Work as the pool sees it: what it must know of an item to place it, and nothing of what the item does.
//!
//! Owns [`WorkFlags`], read once when the item is queued and carried in the queue's [`WorkEntry`] from then on, and the
//! contract between a pool and whoever queues work: [`Source`] and [`Ends`].
//!
//! Invariants:
//! - I1: hashed work is bound work that may block. So one account knows all there is of a hash.
//! - I2: an entry is eight bytes and names one use of a slot: client, slot and generation. An entry whose item was
//!   cancelled names nothing any more, wherever it still lies.

use sheave_iomap::completion_plan::MayBlock;

use crate::work_done::WorkDone;

/// Slots of one client at most.
pub const MAX_SLOTS: u32 = 1 << SLOT_BITS;
/// Clients of one pool at most.
pub const MAX_CLIENTS: u32 = 1 << CLIENT_BITS;
/// Hash values are folded into this many buckets, as in the kernel: two hashes in one bucket are never run at once.
pub const HASH_BUCKETS: u32 = 64;

const SLOT_BITS: u32 = 20;
const CLIENT_BITS: u32 = 12;
/// Bits of a generation.
pub(super) const GENERATION_BITS: u32 = 24;

const MAY_BLOCK: u8 = 1 << 0;
const UNBOUND: u8 = 1 << 1;

/// How an item ends that was cancelled before it ran because the pool shuts down.
pub const CANCELLED: WorkDone = WorkDone::Result(-125);

/// What kind of work an item is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkFlags {
    bits: u8,
    hash: Option<u32>,
}

impl WorkFlags {
    /// Ends by itself and soon, on files and memory: the bound account.
    pub const BOUND: WorkFlags = WorkFlags { bits: MAY_BLOCK, hash: None };
    /// May take for ever (sockets, pipes, other machines): the unbound account.
    pub const UNBOUND: WorkFlags = WorkFlags { bits: MAY_BLOCK | UNBOUND, hash: None };
    /// Bound, and never blocks: run in batches with its like.
    pub const SHORT: WorkFlags = WorkFlags { bits: 0, hash: None };

    /// Bound work that runs in order with, and never beside, work of the same hash.
    #[must_use]
    pub const fn hashed(hash: u32) -> WorkFlags {
        WorkFlags { bits: MAY_BLOCK, hash: Some(hash) }
    }

    /// The bucket of a hash.
    pub(super) fn bucket(self) -> Option<u32> {
        // Neighbouring numbers (inodes, file descriptors) must not share a bucket: the high bits of a multiplication
        // by 2^32 over the golden ratio spread them.
        self.hash.map(|hash| hash.wrapping_mul(0x9E37_79B9) >> (u32::BITS - HASH_BUCKETS.ilog2()))
    }

    /// 0 is the bound account, 1 the unbound.
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

/// Who queues work: it is called back on workers.
pub trait Source: Send + Sync + 'static {
    /// What a worker keeps from item to item for clients of this kind. It never leaves the worker's thread.
    type Context: Default;

    /// Runs an item that may block. A panic ends the item with `-EIO`.
    fn run(&self, context: &mut Self::Context, slot: u32, section: &Section<'_>) -> WorkDone;

    /// Runs items that are short ([`WorkFlags::SHORT`]), at most 64 of them, and tells how each has ended, in whatever
    /// order. A panic ends those that have not ended with `-EIO`.
    fn run_short(&self, context: &mut Self::Context, slots: &[u32], ends: &mut impl Ends);

    /// These items have ended, in these ways; each item comes here exactly once unless it was cancelled. The slots can
    /// be queued again. One call a batch: the place for the one wake-up.
    fn finish(&self, done: &[(u32, WorkDone)]);

    /// The item ends, and nobody has run it: there was no thread, or what ran the items before it has panicked. What
    /// the source keeps for it is let go of, before the slot is used again.
    fn not_run(&self, _slot: u32) {}

    /// A worker was wanted and no thread could be had: whoever waits for an item is to
    /// [try again](super::Submitter::retry) soon.
    fn starved(&self) {}

    /// The worker is about to sleep, or to serve another client: lets go of what it kept of this one.
    fn rest(_: &mut Self::Context) {}
}

/// Where a source says that short items have ended.
pub trait Ends {
    /// The item at this place of the list has ended. Once an item.
    fn end(&mut self, at: usize, how: WorkDone);

    /// All others have ended, in this way.
    fn end_rest(&mut self, how: WorkDone);

    /// Waits, for what was begun for the items that have not ended: the worker is replaced meanwhile if work is queued,
    /// and what has ended is told first.
    fn blocking(&mut self, wait: impl FnOnce());
}

/// Where an item that may block runs: on a worker, which is replaced if it does.
#[derive(Debug)]
pub struct Section<'a> {
    pub(super) token: &'a MayBlock<'a>,
}

impl Section<'_> {
    /// For calls that need it.
    #[must_use]
    pub fn token(&self) -> &MayBlock<'_> {
        self.token
    }

    /// Whether somebody wants the item to end early.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.token.is_cancelled()
    }
}
