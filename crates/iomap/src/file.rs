//! Files: what a ring does I/O on.
//!
//! Owns the [`File`] trait and [`RawFile`], a device as a file from end to end. Volumes implement the trait; they know
//! no ring, and rings know no volume.
//!
//! Invariant I1: a method without a [`MayBlock`] token never blocks; what would, answers `Status::Again`.

use std::fmt::Debug;

use sheave_base::status::Status;
use sheave_blk::Device;

use crate::completion_plan::MayBlock;
use crate::mapping::{Intent, Mapping, MappingKind};

/// Data of a write is on the device; the file finishes what belongs to it.
#[derive(Clone, Copy, Debug)]
pub struct WriteDone {
    /// First byte written.
    pub pos: u64,
    /// Bytes written.
    pub len: u64,
    /// How the data got there; after an error the file undoes what it prepared.
    pub status: Status,
}

/// Something with bytes on one device.
pub trait File: Debug + Send + Sync {
    /// The device that mappings point into.
    fn device(&self) -> &Device;

    /// Size in bytes, now.
    fn size_bytes(&self) -> u64;

    /// Whether every byte lies on the device where it lies in the file, and writes need no completion work: then the
    /// engine asks for no mapping.
    fn is_identity(&self) -> bool {
        false
    }

    /// Where the bytes from `pos` on lie; the mapping starts at `pos` and covers at least one byte, at most `len`.
    /// `Status::Again` when the answer needs blocking work: then a worker calls [`File::map_blocking`], and `map` is
    /// asked again.
    fn map(&self, pos: u64, len: u64, intent: Intent) -> Result<Mapping, Status>;

    /// The same where blocking is allowed; afterwards [`File::map`] knows the answer.
    fn map_blocking(&self, pos: u64, len: u64, intent: Intent, _: &MayBlock) -> Result<Mapping, Status> {
        self.map(pos, len, intent)
    }

    /// Completion work of a write: converts unwritten extents, adopts copied blocks, extends the size.
    fn end_write(&self, done: WriteDone, _: &MayBlock) -> Result<(), Status> {
        if done.status.is_ok() { Ok(()) } else { Err(done.status) }
    }

    /// Makes what was written before durable, metadata included. `None`: a flush of the device is all that is needed
    /// (or left to do), and the caller sends it.
    fn sync(&self, _: &MayBlock) -> Option<Result<(), Status>> {
        None
    }
}

/// A device as a file: the identity mapping.
#[derive(Clone, Debug)]
pub struct RawFile {
    device: Device,
}

impl RawFile {
    /// The whole device.
    #[must_use]
    pub fn new(device: Device) -> RawFile {
        RawFile { device }
    }
}

impl File for RawFile {
    fn device(&self) -> &Device {
        &self.device
    }

    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn is_identity(&self) -> bool {
        true
    }

    fn map(&self, pos: u64, len: u64, _: Intent) -> Result<Mapping, Status> {
        Ok(Mapping { offset: pos, len, addr: pos, kind: MappingKind::Mapped, flags: 0 })
    }
}
