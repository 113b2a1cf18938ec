//! A pool.
#![allow(unused_variables)]

use std::sync::Arc;
use std::time::Duration;

use sheave_blk::Device;

use crate::{PoolError, PoolInfo, Volume, VolumeInfo};

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

/// An opened pool. Clones are the same pool; it closes with the last of them and of its volumes.
#[derive(Clone, Debug)]
pub struct Pool {
    inner: Arc<()>,
}

impl Pool {
    /// Formats the device.
    pub fn create(device: &Device, options: &CreateOptions) -> Result<(), PoolError> {
        unimplemented!()
    }
    /// Opens the pool on the device, recovering what a crash left.
    pub fn open(device: &Device, options: &OpenOptions) -> Result<Pool, PoolError> {
        unimplemented!()
    }
    /// What it is and how full. Walks nothing.
    pub fn info(&self) -> PoolInfo {
        unimplemented!()
    }
    /// All volumes and snapshots, by name.
    pub fn volumes(&self) -> Vec<VolumeInfo> {
        unimplemented!()
    }
    /// One of them.
    pub fn volume_info(&self, name: &str) -> Result<VolumeInfo, PoolError> {
        unimplemented!()
    }
    /// A new, empty volume. Durable when this returns, as every change below.
    pub fn create_volume(&self, name: &str, size_bytes: u64) -> Result<Volume, PoolError> {
        unimplemented!()
    }
    /// Opens a volume or snapshot; all openings are the same object.
    pub fn open_volume(&self, name: &str) -> Result<Volume, PoolError> {
        unimplemented!()
    }
    /// Freezes the state of a volume (or snapshot) under a new name, read-only. What was completed before the call is in
    /// it, and nothing submitted after it.
    pub fn snapshot(&self, source: &str, name: &str) -> Result<VolumeInfo, PoolError> {
        unimplemented!()
    }
    /// A writable volume with the content of a snapshot (or of a volume, as of now).
    pub fn clone_volume(&self, source: &str, name: &str) -> Result<VolumeInfo, PoolError> {
        unimplemented!()
    }
    /// Makes the volume what the snapshot is. The volume must not be open elsewhere in I/O.
    pub fn rollback(&self, volume: &str, snapshot: &str) -> Result<(), PoolError> {
        unimplemented!()
    }
    /// Gives it another name.
    pub fn rename(&self, name: &str, new_name: &str) -> Result<(), PoolError> {
        unimplemented!()
    }
    /// Changes the size of a volume, also while it is used. Shrinking frees what is cut off.
    pub fn resize(&self, name: &str, size_bytes: u64) -> Result<(), PoolError> {
        unimplemented!()
    }
    /// Deletes a volume or snapshot; refused while it is open. Works in a full pool. Clones of it stay.
    pub fn delete(&self, name: &str) -> Result<(), PoolError> {
        unimplemented!()
    }
    /// Makes everything completed so far durable, data and metadata.
    pub fn sync(&self) -> Result<(), PoolError> {
        unimplemented!()
    }
    /// Takes in what the device has grown by. The new size in bytes.
    pub fn grow(&self) -> Result<u64, PoolError> {
        unimplemented!()
    }
    /// Writes a checkpoint and closes, so that opening needs no recovery; an error if volumes are still in use. Dropping
    /// a pool without it is a crash that loses nothing that was flushed.
    pub fn close(self) -> Result<(), PoolError> {
        unimplemented!()
    }
}
