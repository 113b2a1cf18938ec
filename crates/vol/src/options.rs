//! Options for creating, copying into, and opening a pool.
//!
//! Owns the options that callers fill in, with their defaults.

use std::path::PathBuf;
use std::time::Duration;

use sheave_base::lasting::Lasting;
use sheave_base::sync::Arc;

use crate::format::page::table::Interim;
use crate::format::settings::{Checksum, LowWater};

/// Default of `OpenOptions::longest_wait`.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// Default of `OpenOptions::longest_idle`.
const LONGEST_IDLE: Duration = Duration::from_secs(30);
/// Default of [`OpenOptions::owner_every`]. Bounds the time in which two owners can harm each other; each check reads 8
/// KiB.
const OWNER_EVERY: Duration = Duration::from_secs(1);

/// Options for creating a pool.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CreateOptions {
    /// Allocation unit: a power of two, 4 KiB to 1 MiB.
    pub unit_bytes: u64,
    /// Bytes of the journal. `None` chooses them according to the size of the pool.
    pub journal_bytes: Option<u64>,
    /// Checksums of data.
    pub checksum: Checksum,
    /// Free space below which the pool is low; [`Pool::set_low_water`](crate::Pool::set_low_water) changes it later.
    pub low_water: LowWater,
    /// True to return the space of freed units to the device below, in the background.
    /// [`Pool::set_discard`](crate::Pool::set_discard) changes it later.
    pub discard: bool,
    /// Identity of the pool. `None` draws a random one.
    pub uuid: Option<[u8; 16]>,
    /// True to overwrite a pool that is already on the device.
    pub overwrite: bool,
    /// Number of copies of each page of metadata, 1 or 2. The second copies lie on another member if there is one. With
    /// two copies, a page that is damaged or cannot be read loses nothing. `None` makes two in a pool of more than one
    /// member, else one. Cannot be changed later.
    pub metadata_copies: Option<u8>,
}

sheave_base::setters!(CreateOptions {
    unit_bytes: u64,
    journal_bytes: Option<u64>,
    checksum: Checksum,
    low_water: LowWater,
    discard: bool,
    uuid: Option<[u8; 16]>,
    overwrite: bool,
    metadata_copies: Option<u8>,
});

/// Properties of a snapshot or clone, besides the content of its source.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CopyOptions {
    /// Time at which the copy was taken, in seconds since 1970; `None` means now. Set it for a copy of a snapshot of
    /// another pool, which keeps the time of that snapshot.
    pub created: Option<u64>,
    /// Identity; `None` makes a new one. Set it for a copy of a snapshot of another pool: the shared identity
    /// distinguishes the copy from other snapshots of the same name. Must not be all zero. A pool that [lacks
    /// identities](crate::PoolInfo::upgrades) stores none.
    pub identity: Option<[u8; 16]>,
    /// Name of the volume that counts as the copy's origin, if that volume is of the same family. `None` means the
    /// source.
    pub origin: Option<String>,
    /// Purpose after which the copy is deleted. A pool that [lacks identities](crate::PoolInfo::upgrades) does not
    /// store it.
    pub interim: Option<Interim>,
}

sheave_base::setters!(CopyOptions {
    created: Option<u64>,
    identity: Option<[u8; 16]>,
    origin: Option<String>,
    interim: Option<Interim>,
});

/// Behaviour of a write when the pool is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenFull {
    /// Fails with ENOSPC.
    Error,
    /// Waits for space for at most this time, then fails.
    Pause(Duration),
}

/// Options for opening a pool.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OpenOptions {
    /// True to write nothing at all: the journal is replayed in memory.
    pub read_only: bool,
    /// True to open read-only a pool that does not open otherwise: a member with a damaged label is accepted, and a
    /// journal is replayed up to its first damage. [`PoolInfo::unsure`](crate::PoolInfo::unsure) then lists what is not
    /// certain.
    pub rescue: bool,
    /// Behaviour of a write when the pool is full.
    pub when_full: WhenFull,
    /// Longest time that snapshots, rollbacks, holes and first writes to parts of blocks wait for I/O to a volume.
    /// After it they fail, and the error names the I/O that has not ended.
    pub longest_wait: Duration,
    /// Largest number of bytes of data in open regions of a pool with checksums. After a crash their data is accepted
    /// without a check. With a lower limit, less data can rot unnoticed, and more writes wait for a commit before they
    /// begin. At least 64 regions of 4 MiB may be open, and at most 2,048.
    pub open_bytes: u64,
    /// Longest time for which a region of a pool with checksums stays open after the last write to it has ended. A
    /// thread of the pool closes regions, with a checkpoint if there is something to close. With a shorter time, less
    /// data can rot unnoticed, and more writes wait for a commit before they begin. With [`Duration::MAX`] there is no
    /// thread: only other checkpoints and [`Pool::close_idle`](crate::Pool::close_idle) close a region. I/O of the pool
    /// that nobody reaps, and blocks that the device cannot read, keep regions open for longer.
    pub longest_idle: Duration,
    /// True to start a thread that discards units as they become free, if the pool is set to discard. Without the
    /// thread only [`Pool::discard_freed`](crate::Pool::discard_freed) and closing do that.
    pub discard_thread: bool,
    /// Interval after which commits and writes to new space read the superblocks again, to check that nobody else has
    /// opened the pool for writing on a path that no claim covers. Checkpoints always check.
    pub owner_every: Duration,
    /// Directory in which the pool keeps the changes that no commit has made durable yet, in a file of 4 MiB, so that
    /// acknowledged writes survive the death of this process. It must be the same one at each opening on this machine,
    /// and should be in memory, as `/run` is. `None`, the default: a write that was not flushed is lost with the
    /// process if its place had not been written before. [`PoolInfo::no_recent`](crate::PoolInfo::no_recent) tells
    /// whether the pool keeps them.
    pub runtime_dir: Option<PathBuf>,
    /// Memory in the place of that file ([`with_recent_memory`]).
    pub(crate) recent_memory: Option<Arc<Lasting>>,
}

/// Returns the options with memory in the place of the file of recent changes, for simulations of the end of a process.
#[must_use]
pub fn with_recent_memory(options: OpenOptions, memory: Option<Arc<Lasting>>) -> OpenOptions {
    OpenOptions { recent_memory: memory, ..options }
}

sheave_base::setters!(OpenOptions {
    read_only: bool,
    rescue: bool,
    when_full: WhenFull,
    longest_wait: Duration,
    open_bytes: u64,
    longest_idle: Duration,
    discard_thread: bool,
    owner_every: Duration,
    runtime_dir: Option<PathBuf>,
});

impl Default for CreateOptions {
    fn default() -> Self {
        CreateOptions {
            unit_bytes: 65536,
            journal_bytes: None,
            checksum: Checksum::None,
            low_water: LowWater::default(),
            discard: false,
            uuid: None,
            overwrite: false,
            metadata_copies: None,
        }
    }
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            read_only: false,
            rescue: false,
            when_full: WhenFull::Error,
            longest_wait: LONGEST_WAIT,
            open_bytes: u64::MAX,
            longest_idle: LONGEST_IDLE,
            discard_thread: true,
            owner_every: OWNER_EVERY,
            runtime_dir: None,
            recent_memory: None,
        }
    }
}
