//! What a pool is made with, and how it is opened.
//!
//! Owns the options that callers fill in, with their defaults.

use std::time::Duration;

use crate::format::page::table::Interim;
use crate::format::settings::{Checksum, LowWater};

/// How long I/O that is waited for may take, unless told.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// How long a region of checksums that nobody writes to stays open at most, unless told.
const LONGEST_IDLE: Duration = Duration::from_secs(30);
/// The default of [`OpenOptions::owner_every`]. It bounds the time in which two owners can harm each other; the look at
/// the superblocks that ends this time is a read of 8 KiB.
const OWNER_EVERY: Duration = Duration::from_secs(1);

/// What a pool is made with.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CreateOptions {
    /// Allocation unit: a power of two, 4 KiB to 1 MiB.
    pub unit_bytes: u64,
    /// Bytes of the journal; `None`: by the size of the pool.
    pub journal_bytes: Option<u64>,
    /// Checksums of data.
    pub checksum: Checksum,
    /// Free space below which the pool is low; [`Pool::set_low_water`](crate::Pool::set_low_water) changes it later.
    pub low_water: LowWater,
    /// Give what becomes free back to the device below, in the background;
    /// [`Pool::set_discard`](crate::Pool::set_discard) changes it later.
    pub discard: bool,
    /// Identity; `None`: a random one.
    pub uuid: Option<[u8; 16]>,
    /// Overwrite a pool that is there.
    pub overwrite: bool,
    /// Copies of each page of metadata, 1 or 2: with two of them, which lie on different members where there are any, a
    /// page that is damaged or cannot be read costs nothing. `None`: two in a pool of more than one member, else one.
    /// Cannot be changed later.
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

/// What a snapshot or a clone is, beside a copy of its source.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CopyOptions {
    /// When it was taken, seconds since 1970; `None`: now. For what was made equal to a snapshot of another pool, and
    /// keeps the time of that.
    pub created: Option<u64>,
    /// Its identity; `None`: one of its own. For what was made equal to a snapshot of another pool: copies are told
    /// from other snapshots of that name by it. Not all zero. A pool that [lacks identities](crate::PoolInfo::upgrades)
    /// keeps none.
    pub identity: Option<[u8; 16]>,
    /// The volume that it counts as made of, if that is of the same family; `None`: its source.
    pub origin: Option<String>,
    /// It goes again. A pool that [lacks identities](crate::PoolInfo::upgrades) does not keep that.
    pub interim: Option<Interim>,
}

sheave_base::setters!(CopyOptions {
    created: Option<u64>,
    identity: Option<[u8; 16]>,
    origin: Option<String>,
    interim: Option<Interim>,
});

/// What happens to a write when the pool is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenFull {
    /// It fails with ENOSPC.
    Error,
    /// It waits for space, this long at most, then fails.
    Pause(Duration),
}

/// How a pool is opened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OpenOptions {
    /// Write nothing at all: what the journal has to replay is replayed in memory.
    pub read_only: bool,
    /// Open read-only what does not open otherwise: a member whose label is damaged is believed to be the one, and a
    /// journal is replayed up to what is damaged in it. What is not certain then is told by
    /// [`PoolInfo::unsure`](crate::PoolInfo::unsure).
    pub rescue: bool,
    /// What happens to a write when the pool is full.
    pub when_full: WhenFull,
    /// How long what waits for I/O to a volume waits at most (snapshots, rollbacks, holes, first writes to parts of
    /// blocks); then it fails, and says whose I/O has not ended.
    pub longest_wait: Duration,
    /// With checksums: most bytes of data in regions that are open, whose data is believed as it lies there after a
    /// crash. Fewer are less that may rot unnoticed, and more writes that wait for a commit before they begin. At least
    /// 64 regions of 4 MiB may be open, at most 2,048.
    pub open_bytes: u64,
    /// With checksums: how long a region stays open at most after the last write to it has ended. A thread of the
    /// pool's own sees to it, with a checkpoint when there is something to close. Shorter is less that may rot
    /// unnoticed, and more writes that wait for a commit before they begin. [`Duration::MAX`]: no thread, and nothing
    /// but other checkpoints and [`Pool::close_idle`](crate::Pool::close_idle) closes a region. I/O of the pool that
    /// nobody reaps, and blocks that the device cannot read, keep regions open for longer.
    pub longest_idle: Duration,
    /// A thread of the pool's own gives back what becomes free, if the pool is set to. Without it nothing does but
    /// [`Pool::discard_freed`](crate::Pool::discard_freed), and closing.
    pub discard_thread: bool,
    /// How long commits and writes to new space go on before the superblocks are read again, to see that nobody else
    /// has opened the pool for writing by a way that no claim knows of. Checkpoints always look.
    pub owner_every: Duration,
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
        }
    }
}
