//! Options of a simulated disk, and rates of its failures.

use sheave_blk::bio::Op;

use super::Lie;

#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// Decides the order in which requests end, and the contents that a discard leaves.
    pub seed: u64,
    pub logical_block: u32,
    /// True if the disk supports FUA.
    pub fua: bool,
    /// Largest number of polls for which a request waits.
    pub max_delay: u64,
    /// Percentage of requests that are held for long, while everything else goes on
    /// ([`SimDisk::hold`](super::SimDisk::hold)).
    pub slow: u64,
    /// Rates of errors. They apply while [`SimDisk::hold`](super::SimDisk::hold) is on.
    pub errors: Errors,
    /// Percentage of polls by a call of [`Threads`](crate::threads::Threads) at which other calls run first.
    pub pauses: u64,
    /// Set if the disk is a file in a full file system: the percentage of refused requests after which some space is
    /// freed.
    pub host: Option<u64>,
    /// Percentage of crashes after which the file is copied without its blank pages to a full file system. While the
    /// pool on the copy is opened, other users of that file system take all space that the pool gives back.
    pub copied: u64,
    pub lie: Option<Lie>,
    /// Number of members that form the disk, end to end. Each has a cache of its own.
    pub members: u64,
    /// Size in bytes of the journal of the pool on this disk.
    pub journal: u64,
    /// Number of bytes at the end of the image that form another disk, which the pool may get as a member.
    pub spare: u64,
}

/// Failures per thousand requests of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Errors {
    pub read: u64,
    /// Rate of writes, discards and write-zeroes that fail. Each of them may take effect all the same.
    pub write: u64,
    /// Rate of flushes that fail. The cache drops what a failed flush was to make durable, although readers see that
    /// data until the power goes. The next flush succeeds.
    pub flush: u64,
    /// Rate of writes into the pool's journal that fail, in addition to `write`.
    pub journal: u64,
}

/// Numbers of failed requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    pub reads: u64,
    /// Number of failed writes, discards and write-zeroes, without writes with FUA.
    pub writes: u64,
    /// Number of failed flushes and of failed writes with FUA, because the block layer reports both to the device's
    /// owner as a failed flush.
    pub flushes: u64,
    /// Number of writes for which the file system had no room.
    pub refused: u64,
    /// Number of writes that landed elsewhere.
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

    /// Returns the rate for a request; `in_journal` is true for a request to the pool's journal.
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
