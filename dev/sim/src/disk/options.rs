//! Options of a simulated disk, and rates of its failures.

use sheave_blk::bio::Op;

use super::Lie;

#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// Decides the order in which requests end, and the contents that a discard leaves.
    pub seed: u64,
    pub logical_block: u32,
    /// FUA is supported.
    pub fua: bool,
    /// Largest number of polls for which a request waits.
    pub max_delay: u64,
    /// Percentage of requests that are held for long, while everything else goes on
    /// ([`SimDisk::hold`](super::SimDisk::hold)).
    pub slow: u64,
    /// Rates of errors, while requests are [held](super::SimDisk::hold).
    pub errors: Errors,
    /// Percentage of polls by a call of [`Threads`](crate::threads::Threads) that let other calls go on first.
    pub pauses: u64,
    /// The disk is a file in a full file system; the percentage of refused requests after which some space is freed.
    pub host: Option<u64>,
    /// Percentage of crashes after which the file is copied without its blank pages to a full file system, where others
    /// take what is given back while the pool is opened.
    pub copied: u64,
    pub lie: Option<Lie>,
    /// Number of disks that it is made of, end to end, each with a cache of its own.
    pub members: u64,
    /// Bytes of the journal of the pool on it.
    pub journal: u64,
    /// Bytes at the end of the image that form another disk, which a pool may get as a member.
    pub spare: u64,
}

/// Failures per thousand requests of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Errors {
    pub read: u64,
    /// Writes, discards and write-zeroes, each of which may take effect all the same.
    pub write: u64,
    /// Flushes. The cache drops what a failed flush was to make durable, though readers see it until the power goes,
    /// and the next flush succeeds.
    pub flush: u64,
    /// Writes into the pool's journal, in addition to `write`.
    pub journal: u64,
}

/// Numbers of failed requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    pub reads: u64,
    /// Writes, discards and write-zeroes, without writes with FUA.
    pub writes: u64,
    /// Flushes, and writes with FUA: the block layer reports the failure of either to the device's owner as one of a
    /// flush.
    pub flushes: u64,
    /// Writes for which the file system had no room.
    pub refused: u64,
    /// Writes that landed in another place.
    pub misdirected: u64,
}

impl Failures {
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
    #[must_use]
    pub fn any(&self) -> bool {
        *self != Errors::default()
    }

    /// Returns the rate for a request. `in_journal`: it is for the pool's journal.
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
