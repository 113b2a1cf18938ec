//! Files: the objects that a ring does I/O on.
//!
//! Owns the [`File`] trait and [`RawFile`], a whole device as a file. Volumes implement the trait. Volumes do not
//! depend on rings, nor rings on volumes.
//!
//! Invariant I1: a method without a [`MayBlock`] token never blocks. Where it would have to block, it returns
//! `Status::Again`.

use std::fmt::Debug;

use sheave_base::beside::Activities;
use sheave_base::grace::Grace;
use sheave_base::status::Status;
use sheave_base::sync::Arc;
use sheave_blk::Device;

use crate::completion_plan::MayBlock;
use crate::io_memory::IoMemory;
use crate::io_stats::IoGroup;
use crate::mapping::{Intent, Mapping, MappingKind};
use crate::slow::SlowIo;

/// A write whose data is on the device, for the file to finish.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct WriteDone<'a> {
    /// First byte written.
    pub pos: u64,
    /// Bytes written.
    pub len: u64,
    /// Status of the data transfer. After an error the file undoes the preparations for the write.
    pub status: Status,
    /// The mappings that the write used, in order, as [`File::map`] returned them, the last cut to the bytes that were
    /// written. Their space cannot have been given to anyone else meanwhile, because the write is counted in the file's
    /// [`Grace`].
    pub pieces: &'a [Mapping],
}

impl<'a> WriteDone<'a> {
    /// Describes a write of `len` bytes at `pos`.
    #[must_use]
    pub fn new(pos: u64, len: u64, status: Status, pieces: &'a [Mapping]) -> WriteDone<'a> {
        WriteDone { pos, len, status, pieces }
    }
}

/// An I/O on mappings with [`MapFlags::SUMMED`](crate::mapping::MapFlags::SUMMED) whose data has been moved.
#[derive(Debug)]
#[non_exhaustive]
pub struct SummedDone<'a> {
    /// True for a write, false for a read.
    pub write: bool,
    /// First byte of the range in the file.
    pub pos: u64,
    /// Bytes moved.
    pub len: u64,
    /// Status of the transfer. A failed write is reported too, because the content of its range on the device is
    /// unknown. A failed read is not reported.
    pub status: Status,
    /// The mappings that the I/O used, in order.
    pub pieces: &'a [Mapping],
    /// The memory of the whole I/O: the data that was written, or that was read.
    pub memory: IoMemory<'a>,
}

impl<'a> SummedDone<'a> {
    /// Describes the write `write`, whose data came from `memory`.
    #[must_use]
    pub fn of_write(write: WriteDone<'a>, memory: IoMemory<'a>) -> SummedDone<'a> {
        let WriteDone { pos, len, status, pieces } = write;
        SummedDone { write: true, pos, len, status, pieces, memory }
    }

    /// Describes a read of `len` bytes at `pos` into `memory`.
    #[must_use]
    pub fn of_read(pos: u64, len: u64, pieces: &'a [Mapping], memory: IoMemory<'a>) -> SummedDone<'a> {
        SummedDone { write: false, pos, len, status: Status::Ok, pieces, memory }
    }
}

/// Common properties of the ranges that [`File::map_plain`] looks up.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PlainRanges {
    /// Bytes of each range.
    pub len: u64,
    /// Union of the bits of all positions, or a superset of it.
    pub bits: u64,
    /// Purpose of the lookup.
    pub intent: Intent,
}

impl PlainRanges {
    /// Describes ranges of `len` bytes at the positions `at`.
    #[must_use]
    pub fn new(at: &[u64], len: u64, intent: Intent) -> PlainRanges {
        PlainRanges { len, bits: at.iter().fold(0, |bits, pos| bits | pos), intent }
    }

    /// Returns true if `len` is a power of two and each range is aligned to it.
    #[inline(always)]
    #[must_use]
    pub fn are_blocks(&self) -> bool {
        self.len.is_power_of_two() && self.bits & (self.len - 1) == 0
    }
}

/// Change that [`File::fallocate`] makes to a range. Both leave zeroes behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FallocateMode {
    /// Frees the space of the range.
    PunchHole,
    /// Makes the range read as zeroes; the file may keep the space or not.
    ZeroRange,
}

/// A sequence of bytes on one device.
///
/// Calls that a ring makes on a file with mappings, and their threads:
///
/// | call | thread | when |
/// |---|---|---|
/// | `map` | the ring's | for each I/O, inside a section of [`File::grace`], then again after `map_blocking` |
/// | `map_blocking` | a worker for work that may wait for long | `map` returned `Again`; several of a file at a time |
/// | `begin_write`, `abort_write` | the ring's | around the submission of each bio of a write on summed mappings |
/// | `end_summed` | the ring's | after the data of an I/O on summed mappings |
/// | `end_summed_blocking` | a worker | `end_summed` returned `Again` |
/// | `end_write` | a worker | after the data of a write with completion work; one at a time of a ring and file |
/// | `sync` | a worker | one at a time of a ring and file, for all the writes and FSYNCs that wait for one |
/// | `fallocate` | a worker for work that may wait for long | for each FALLOCATE |
///
/// `map_blocking` and `fallocate` may wait for a grace, for space, or for other writes to end: no step that ends a
/// write or a sync is queued behind them. `end_write`, `end_summed_blocking` and `sync` may wait for the device and for
/// each other. `end_write` and `end_summed_blocking` must not wait for a grace, nor for another write, because the I/O
/// that they end is still counted.
///
/// A call that panics fails its own I/O with EIO and no other; the ring continues.
///
/// Order on completion of a write: `end_summed` -> `end_write` -> the grace's count is dropped -> position -> `sync`
/// -> result.
pub trait File: Debug + Send + Sync {
    /// Returns the device that mappings point into.
    fn device(&self) -> &Device;

    /// Returns the current size in bytes.
    fn size_bytes(&self) -> u64;

    /// Returns the size up to which writes beyond the end currently extend the file. A write across that size is cut
    /// there, and a write that begins at or behind it gets `EFBIG`. Returns `None` if the file has a fixed end. Writes
    /// across that end are cut, and writes that begin there get `ENOSPC`, as on a block device.
    ///
    /// A file that grows maps the range behind its size as new space for writers. Only [`File::end_write`] raises the
    /// size, when the data is on the device, and only for writes that succeeded.
    fn max_bytes(&self) -> Option<u64> {
        None
    }

    /// Returns the bytes of the smallest addressable block, a power of two and a multiple of the device's; fixed while
    /// the file is attached. A ring refuses to attach a file with another value.
    fn block_bytes(&self) -> u32 {
        self.device().limits().logical_block
    }

    /// Returns true if writes are refused; fixed while the file is attached.
    fn is_read_only(&self) -> bool {
        self.device().capabilities().read_only
    }

    /// Returns true if every byte has the same position on the device as in the file, and writes need no completion
    /// work: then the engine requests no mapping.
    fn is_identity(&self) -> bool {
        false
    }

    /// Returns the grace in which I/O to this file's mappings is counted, for files that reuse space. Files whose
    /// mappings never change have none.
    fn grace(&self) -> Option<&Arc<Grace>> {
        None
    }

    /// Returns the group in which the rings count the I/O on this file, for files that have statistics.
    fn io_group(&self) -> Option<&Arc<IoGroup>> {
        None
    }

    /// Returns the record of background activities that may slow I/O on this file, for files that keep one.
    fn beside(&self) -> Option<&Activities> {
        None
    }

    /// Replaces device positions in `ios` by positions in the file, for the I/Os that belong to this file and whose
    /// place in it is known. For reports: may take long.
    fn locate(&self, _ios: &mut [SlowIo]) {}

    /// Returns the mapping of the bytes from `pos` on; it starts at `pos` and covers at least one byte, at most `len`.
    /// `Status::Again` means that the lookup needs blocking work: then a worker calls [`File::map_blocking`], and the
    /// ring calls `map` again. May be called twice for a range before its I/O, or without any I/O following.
    fn map(&self, pos: u64, len: u64, intent: Intent) -> Result<Mapping, Status>;

    /// Looks up many ranges within the file quickly. Replaces the positions in `at` by positions on the device, up to
    /// the first range that is not plain, and returns the number replaced. A range is plain if [`File::map`] would
    /// return it as one mapping, written, with no flag but [`MapFlags::DIRTY`](crate::mapping::MapFlags::DIRTY).
    /// Changes nothing but `at`. A file without a fast lookup returns 0, and the engine then calls `map` for each
    /// range.
    fn map_plain(&self, _at: &mut [u64], _: &PlainRanges) -> usize {
        0
    }

    /// Does the work of [`File::map`] where blocking is allowed; `map` succeeds afterwards. Called outside of a section
    /// of the grace, so the returned mapping must not be used for I/O: the ring only checks that there is one. A long
    /// wait polls [`MayBlock::is_cancelled`] now and then, and gives up with `Status::Canceled`.
    ///
    /// `Status::Again` is no failure: the request is issued again, and is passed here again if `map` still returns
    /// `Again`. A file must therefore wait for a grace in short steps: where workers have no threads of their own, the
    /// I/O that it waits for can only end between two calls.
    fn map_blocking(&self, pos: u64, len: u64, intent: Intent, _: &MayBlock) -> Result<Mapping, Status> {
        self.map(pos, len, intent)
    }

    /// Called before a bio of a write to `piece`, a mapping with `MapFlags::SUMMED`, is sent. [`File::end_summed`] or
    /// [`File::abort_write`] follows.
    fn begin_write(&self, _piece: &Mapping) {}

    /// Called after [`File::begin_write`] if the bio could not be sent.
    fn abort_write(&self, _piece: &Mapping) {}

    /// Called when the data of an I/O on summed mappings has been moved: stores the checksums of a write, verifies
    /// those of a read. `Status::Again` means that this needs blocking work: then a worker calls
    /// [`File::end_summed_blocking`].
    fn end_summed(&self, _done: &SummedDone<'_>) -> Result<(), Status> {
        Ok(())
    }

    /// Does the work of [`File::end_summed`] where blocking is allowed. May read again into the memory of a read. After
    /// `Status::Again`, which means that a write to the same place is under way, the ring issues the whole read again.
    fn end_summed_blocking(&self, done: &SummedDone<'_>, _: &MayBlock) -> Result<(), Status> {
        self.end_summed(done)
    }

    /// Does the completion work of a write: converts unwritten extents, adopts copied blocks, extends the size.
    fn end_write(&self, done: WriteDone<'_>, _: &MayBlock) -> Result<(), Status> {
        if done.status.is_ok() { Ok(()) } else { Err(done.status) }
    }

    /// Returns true if the file itself has something to make durable now. If it returns false, a sync needs only a
    /// flush of the device, which the ring sends without a worker.
    fn needs_sync(&self) -> bool {
        true
    }

    /// Makes all earlier writes durable, metadata included. Returns `None` if only a flush of the device is needed, or
    /// is still left to do; the caller then sends it.
    fn sync(&self, _: &MayBlock) -> Option<Result<(), Status>> {
        None
    }

    /// Changes the space of a range within the file, in whole blocks of the device. After `Status::Again` the ring
    /// calls again, as with [`File::map_blocking`].
    fn fallocate(&self, _mode: FallocateMode, _pos: u64, _len: u64, _: &MayBlock) -> Result<(), Status> {
        Err(Status::NotSupp)
    }
}

/// A device as a file: the identity mapping.
#[derive(Clone, Debug)]
pub struct RawFile {
    device: Device,
    io: Arc<IoGroup>,
}

impl RawFile {
    /// Makes a file of the whole device.
    #[must_use]
    pub fn new(device: Device) -> RawFile {
        RawFile { device, io: Arc::default() }
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

    fn io_group(&self) -> Option<&Arc<IoGroup>> {
        Some(&self.io)
    }

    fn map(&self, pos: u64, len: u64, _: Intent) -> Result<Mapping, Status> {
        Ok(Mapping::new(MappingKind::Mapped, pos, len, pos))
    }
}
