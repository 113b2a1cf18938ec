//! What a pool is made with, and how it is opened.

use std::time::Duration;

/// Checksums of data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// None; metadata has its own always.
    #[default]
    None,
    /// CRC32C of every 4 KiB.
    Crc32c,
}

/// What a pool is made with.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// Allocation unit: a power of two, 4 KiB to 1 MiB.
    pub unit_bytes: u64,
    /// Bytes of the journal; `None`: by the size of the pool.
    pub journal_bytes: Option<u64>,
    /// Checksums of data.
    pub checksum: Checksum,
    /// Identity; `None`: a random one.
    pub uuid: Option<[u8; 16]>,
    /// Overwrite a pool that is there.
    pub overwrite: bool,
}

/// What happens to a write when the pool is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// It fails with ENOSPC.
    Error,
    /// It waits for space, this long at most, then fails.
    Pause(Duration),
}

/// How a pool is opened.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Change nothing, not even recover; refused when that is needed.
    pub read_only: bool,
    /// What happens to a write when the pool is full.
    pub when_full: WhenFull,
}

impl Default for CreateOptions {
    fn default() -> Self {
        CreateOptions { unit_bytes: 65536, journal_bytes: None, checksum: Checksum::None, uuid: None, overwrite: false }
    }
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions { read_only: false, when_full: WhenFull::Error }
    }
}
