//! Files: what a ring does I/O on.
//!
//! Owns the [`File`] trait and [`RawFile`], a device as a file from end to end. Volumes implement the trait; they know
//! no ring, and rings know no volume.
//!
//! Invariant I1: a method without a [`MayBlock`] token never blocks; what would, answers `Status::Again`.

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

/// Data of a write is on the device; the file finishes what belongs to it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct WriteDone<'a> {
    /// First byte written.
    pub pos: u64,
    /// Bytes written.
    pub len: u64,
    /// How the data got there; after an error the file undoes what it prepared.
    pub status: Status,
    /// The mappings that the write used, in order: what [`File::map`] answered, the last cut to what was written.
    /// Nobody else can have got their space meanwhile, for the write is counted in the file's [`Grace`].
    pub pieces: &'a [Mapping],
}

impl<'a> WriteDone<'a> {
    /// A write of `len` bytes at `pos`.
    #[must_use]
    pub fn new(pos: u64, len: u64, status: Status, pieces: &'a [Mapping]) -> WriteDone<'a> {
        WriteDone { pos, len, status, pieces }
    }
}

/// The data of an I/O on mappings with [`MapFlags::SUMMED`](crate::mapping::MapFlags::SUMMED) has been moved.
#[derive(Debug)]
#[non_exhaustive]
pub struct SummedDone<'a> {
    /// Whether it was written.
    pub write: bool,
    /// First byte.
    pub pos: u64,
    /// Bytes.
    pub len: u64,
    /// How it went; only of writes does the file hear when it failed, for what is on the device is unknown then.
    pub status: Status,
    /// The mappings that were used, in order.
    pub pieces: &'a [Mapping],
    /// The memory of all of it: what was written, or what was read.
    pub memory: IoMemory<'a>,
}

impl<'a> SummedDone<'a> {
    /// What `write` says of the write was done with this memory.
    #[must_use]
    pub fn of_write(write: WriteDone<'a>, memory: IoMemory<'a>) -> SummedDone<'a> {
        let WriteDone { pos, len, status, pieces } = write;
        SummedDone { write: true, pos, len, status, pieces, memory }
    }

    /// `len` bytes at `pos` were read into this memory.
    #[must_use]
    pub fn of_read(pos: u64, len: u64, pieces: &'a [Mapping], memory: IoMemory<'a>) -> SummedDone<'a> {
        SummedDone { write: false, pos, len, status: Status::Ok, pieces, memory }
    }
}

/// What the ranges have in common that [`File::map_plain`] looks up.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PlainRanges {
    /// Bytes of each.
    pub len: u64,
    /// A bit that is not set here is set in none of their positions.
    pub bits: u64,
    /// What they are looked up for.
    pub intent: Intent,
}

impl PlainRanges {
    /// Ranges of `len` bytes at these positions.
    #[must_use]
    pub fn new(at: &[u64], len: u64, intent: Intent) -> PlainRanges {
        PlainRanges { len, bits: at.iter().fold(0, |bits, pos| bits | pos), intent }
    }

    /// Whether none goes beyond the block of its own length that it begins in.
    #[inline(always)]
    #[must_use]
    pub fn are_blocks(&self) -> bool {
        self.len.is_power_of_two() && self.bits & (self.len - 1) == 0
    }
}

/// What [`File::fallocate`] does to a range. Both leave zeroes behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FallocateMode {
    /// Gives the space back.
    PunchHole,
    /// Makes it read as zeroes; the file may keep the space or not.
    ZeroRange,
}

/// Something with bytes on one device.
///
/// What a ring does with a file whose bytes are mapped, and on which thread:
///
/// | call | thread | when |
/// |---|---|---|
/// | `map` | the ring's | for each I/O, inside a section of [`File::grace`], then again after `map_blocking` |
/// | `map_blocking` | a worker for work that may wait for long | `map` said `Again`; several of one file at a time |
/// | `begin_write`, `abort_write` | the ring's | around the submission of each bio of a write on summed mappings |
/// | `end_summed` | the ring's | after the data of an I/O on summed mappings |
/// | `end_summed_blocking` | a worker | `end_summed` said `Again` |
/// | `end_write` | a worker | after the data of a write with completion work; one at a time of a ring and file |
/// | `sync` | a worker | one at a time of a ring and file, for all the writes and FSYNCs that wait for one |
/// | `fallocate` | a worker for work that may wait for long | for each FALLOCATE |
///
/// `map_blocking` and `fallocate` may wait for a grace, for space, for other writes to end: nothing that ends a write
/// or a sync waits behind them. `end_write`, `end_summed_blocking` and `sync` may wait for the device and for each
/// other; the first two must not wait for a grace, nor for another write: the I/O that is being ended is counted.
///
/// A call that panics fails the I/O that it was for, with EIO, and no other; the ring goes on.
///
/// Order on completion of a write: `end_summed` -> `end_write` -> the grace's count is dropped -> position -> `sync`
/// -> result.
pub trait File: Debug + Send + Sync {
    /// The device that mappings point into.
    fn device(&self) -> &Device;

    /// Size in bytes, now.
    fn size_bytes(&self) -> u64;

    /// The size up to which writes beyond the end make the file larger, now. What lies beyond it is cut off a write,
    /// and one that begins there gets `EFBIG`. `None`: the file ends where it ends; writes across its end are cut
    /// there, and those that begin there get `ENOSPC`, as on a block device.
    ///
    /// Such a file maps for writers what lies beyond its size, as new space. [`File::end_write`] raises the size, and
    /// nothing else does: when the data is on the device, and only by writes that succeeded.
    fn max_bytes(&self) -> Option<u64> {
        None
    }

    /// Bytes of the smallest addressable block, a power of two and a multiple of the device's; fixed while the file is
    /// attached. A ring attaches no file with another.
    fn block_bytes(&self) -> u32 {
        self.device().limits().logical_block
    }

    /// Whether writes are refused; fixed while the file is attached.
    fn is_read_only(&self) -> bool {
        self.device().capabilities().read_only
    }

    /// Whether every byte lies on the device where it lies in the file, and writes need no completion work: then the
    /// engine asks for no mapping.
    fn is_identity(&self) -> bool {
        false
    }

    /// The grace in which I/O to this file's mappings is counted; for files that use space again. Files whose mappings
    /// stay for ever have none.
    fn grace(&self) -> Option<&Arc<Grace>> {
        None
    }

    /// Where its rings count the I/O on it, for files that have statistics.
    fn io_group(&self) -> Option<&Arc<IoGroup>> {
        None
    }

    /// What is done beside I/O on this file that may make it slow, for files that say so.
    fn beside(&self) -> Option<&Activities> {
        None
    }

    /// Puts where slow I/Os lie in this file in the place of where they lie on its device, of those that are its own,
    /// as far as that is known. For reports: it may take long.
    fn locate(&self, _ios: &mut [SlowIo]) {}

    /// Where the bytes from `pos` on lie; the mapping starts at `pos` and covers at least one byte, at most `len`.
    /// `Status::Again` when the answer needs blocking work: then a worker calls [`File::map_blocking`], and `map` is
    /// asked again. It may be asked for a range twice before the I/O, or without any.
    fn map(&self, pos: u64, len: u64, intent: Intent) -> Result<Mapping, Status>;

    /// A quick look at many ranges within the file: puts in the place of each position in `at` the first byte on the
    /// device, as far as the ranges are plain, and says how many were. Plain is what [`File::map`] would map as a
    /// whole, as written, with no flag but [`MapFlags::DIRTY`](crate::mapping::MapFlags::DIRTY). Changes nothing but
    /// `at`; a file that does not know at once says 0, and is asked for one range after the other.
    fn map_plain(&self, _at: &mut [u64], _: &PlainRanges) -> usize {
        0
    }

    /// [`File::map`] where blocking is allowed; afterwards it knows the answer. Called outside of a section, so
    /// its own answer serves to see that there is one. What waits for long asks [`MayBlock::is_cancelled`] now and
    /// then, and gives up with `Status::Canceled`.
    ///
    /// `Status::Again` is no failure: the request is issued again, and comes back here if `map` still does not know. So
    /// a file waits for a grace in short looks: where workers have no threads of their own, the I/O that it waits for
    /// can only end in between.
    fn map_blocking(&self, pos: u64, len: u64, intent: Intent, _: &MayBlock) -> Result<Mapping, Status> {
        self.map(pos, len, intent)
    }

    /// A bio of a write to this mapping, which has `MapFlags::SUMMED`, is about to be sent. [`File::end_summed`]
    /// follows, or [`File::abort_write`].
    fn begin_write(&self, _piece: &Mapping) {}

    /// The bio could not be sent.
    fn abort_write(&self, _piece: &Mapping) {}

    /// The data of an I/O on summed mappings has been moved: keeps the checksums of what was written, verifies what was
    /// read. `Status::Again` when that takes blocking work: then a worker calls [`File::end_summed_blocking`].
    fn end_summed(&self, _done: &SummedDone<'_>) -> Result<(), Status> {
        Ok(())
    }

    /// [`File::end_summed`] where blocking is allowed. May read again into the memory of a read; `Status::Again` has
    /// the whole read issued again, for a write to the same place is under way.
    fn end_summed_blocking(&self, done: &SummedDone<'_>, _: &MayBlock) -> Result<(), Status> {
        self.end_summed(done)
    }

    /// Completion work of a write: converts unwritten extents, adopts copied blocks, extends the size.
    fn end_write(&self, done: WriteDone<'_>, _: &MayBlock) -> Result<(), Status> {
        if done.status.is_ok() { Ok(()) } else { Err(done.status) }
    }

    /// Whether the file itself has something to make durable, now. False: a flush of the device is all that a sync
    /// needs, and the ring sends it without a worker.
    fn needs_sync(&self) -> bool {
        true
    }

    /// Makes what was written before durable, metadata included. `None`: a flush of the device is all that is needed
    /// (or left to do), and the caller sends it.
    fn sync(&self, _: &MayBlock) -> Option<Result<(), Status>> {
        None
    }

    /// FALLOCATE of a range within the file, in whole blocks of the device. After `Status::Again` it is called once
    /// more, as [`File::map_blocking`] is.
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
    /// The whole device.
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
