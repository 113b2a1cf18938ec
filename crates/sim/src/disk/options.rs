//! What a simulated disk is like, and how often something fails on it.

use sheave_blk::bio::Op;

use super::Lie;

/// What a simulated disk is like.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// Decides in which order requests end, and what a discard leaves.
    pub seed: u64,
    /// Smallest addressable unit.
    pub logical_block: u32,
    /// A write can be made durable by itself.
    pub fua: bool,
    /// Polls that a request waits at most.
    pub max_delay: u64,
    /// Of a hundred requests, those that are held for long, while everything else goes on
    /// ([`SimDisk::hold`](super::SimDisk::hold)).
    pub slow: u64,
    /// Errors, while requests are [held](super::SimDisk::hold).
    pub errors: Errors,
    /// Of a hundred polls by a call of [`Threads`](crate::threads::Threads), those that let others go on before.
    pub pauses: u64,
    /// A file in a file system that is full: of a hundred requests that find no room, so many make some free.
    pub host: Option<u64>,
    /// Of a hundred crashes, those after which the file is copied without its blank pages to a file system that is
    /// full, where others take what is given back while the pool is opened.
    pub copied: u64,
    /// A promise that it breaks.
    pub lie: Option<Lie>,
    /// Disks that it is made of, end to end, each with a cache of its own.
    pub members: u64,
    /// Bytes of the journal of the pool that it is for.
    pub journal: u64,
    /// Bytes at the end of the image that are another disk, which a pool may get as a member.
    pub spare: u64,
}

/// Of a thousand requests of a kind, those that fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Errors {
    /// Reads.
    pub read: u64,
    /// Writes, discards and write-zeroes: they are done, or not.
    pub write: u64,
    /// Flushes: what they were to make durable is forgotten by the cache, though readers see it until the power goes,
    /// and the next flush ends well.
    pub flush: u64,
    /// Writes into the pool's journal, beside those that fail among all writes.
    pub journal: u64,
}

/// How many requests have failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// Reads.
    pub reads: u64,
    /// Writes, discards and write-zeroes, but for writes with FUA.
    pub writes: u64,
    /// Flushes, which forgot what they were to make durable; and writes with FUA, which owners of a device hear of as
    /// of flushes.
    pub flushes: u64,
    /// Writes for which the file system had no room.
    pub refused: u64,
    /// Writes that landed in another place.
    pub misdirected: u64,
}

impl Failures {
    /// Those of another disk too.
    pub fn add(&mut self, other: &Failures) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.flushes += other.flushes;
        self.refused += other.refused;
        self.misdirected += other.misdirected;
    }

    pub(super) fn count(&mut self, op: Op, fua: bool) {
        match op {
            Op::Read => self.reads += 1,
            Op::Flush => self.flushes += 1,
            _ if fua => self.flushes += 1,
            _ => self.writes += 1,
        }
    }
}

impl Errors {
    /// Whether there are any.
    #[must_use]
    pub fn any(&self) -> bool {
        *self != Errors::default()
    }

    /// `in_journal`: the request is for the pool's journal.
    pub(super) fn chance(&self, op: Op, in_journal: bool) -> u64 {
        match op {
            Op::Read => self.read,
            Op::Flush => self.flush,
            Op::Write if in_journal => self.write + self.journal,
            _ => self.write,
        }
    }
}

impl Default for DiskOptions {
    fn default() -> Self {
        DiskOptions {
            seed: 0,
            logical_block: 512,
            fua: true,
            max_delay: 3,
            slow: 0,
            errors: Errors::default(),
            pauses: 100,
            host: None,
            copied: 0,
            lie: None,
            members: 1,
            journal: 0,
            spare: 0,
        }
    }
}
