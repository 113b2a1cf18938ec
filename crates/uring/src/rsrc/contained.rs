//! A file whose panics end in its own calls: the I/O in question fails, and the ring goes on.
//!
//! Owns the way of a ring, and of its workers, to a [`File`] that is more than a device.
//!
//! Invariants:
//! - P1: no panic of the file leaves a call, so no batch of the ring is torn by one.
//! - P2: an answer in the place of one that did not come fails the I/O that asked, or lets a later call of it fail. It
//!   is never one from which data, or the end of the file, could be concluded.

use sheave_base::grace::Grace;
use sheave_base::status::Status;
use sheave_base::sync::Arc;
use sheave_blk::Device;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::mapping::{Intent, Mapping};
use sheave_iomap::{FallocateMode, File, PlainRanges, SummedDone, WriteDone};

/// A file whose panics end here.
#[derive(Debug)]
pub(crate) struct Contained {
    file: Arc<dyn File>,
    device: Device,
}

/// What a call gives, or this when it panics.
#[cfg(not(shuttle))]
#[inline(always)]
fn or_else<R>(call: impl FnOnce() -> R, otherwise: impl FnOnce() -> R) -> R {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)) {
        Ok(result) => result,
        Err(panic) => {
            sheave_base::panics::discard(panic);
            otherwise()
        }
    }
}

/// The model checker speaks through panics.
#[cfg(shuttle)]
fn or_else<R>(call: impl FnOnce() -> R, _: impl FnOnce() -> R) -> R {
    call()
}

/// What a call gives, or that it has failed.
#[inline(always)]
fn or_failed<R>(call: impl FnOnce() -> Result<R, Status>) -> Result<R, Status> {
    or_else(call, || Err(Status::IoErr))
}

impl Contained {
    /// The file as a ring may have it. What panics in here is the caller's to hear of: nothing is attached yet.
    pub(crate) fn around(file: Arc<dyn File>) -> Arc<dyn File> {
        if file.is_identity() {
            // Of a device from end to end nothing is asked in the middle of I/O.
            return file;
        }
        let device = file.device().clone();
        Arc::new(Contained { file, device })
    }
}

impl File for Contained {
    fn device(&self) -> &Device {
        &self.device
    }

    fn size_bytes(&self) -> u64 {
        // P2: no end of the file, so that its mapping is asked for.
        or_else(|| self.file.size_bytes(), || i64::MAX as u64)
    }

    fn max_bytes(&self) -> Option<u64> {
        or_else(|| self.file.max_bytes(), || None)
    }

    fn block_bytes(&self) -> u32 {
        self.file.block_bytes()
    }

    fn is_read_only(&self) -> bool {
        self.file.is_read_only()
    }

    fn is_identity(&self) -> bool {
        false
    }

    fn grace(&self) -> Option<&Arc<Grace>> {
        self.file.grace()
    }

    #[inline]
    fn map(&self, pos: u64, len: u64, intent: Intent) -> Result<Mapping, Status> {
        or_failed(|| self.file.map(pos, len, intent))
    }

    #[inline]
    fn map_plain(&self, at: &mut [u64], ranges: &PlainRanges) -> usize {
        or_else(|| self.file.map_plain(at, ranges), || 0)
    }

    fn map_blocking(&self, pos: u64, len: u64, intent: Intent, token: &MayBlock) -> Result<Mapping, Status> {
        or_failed(|| self.file.map_blocking(pos, len, intent, token))
    }

    fn begin_write(&self, piece: &Mapping) {
        or_else(|| self.file.begin_write(piece), || ());
    }

    fn abort_write(&self, piece: &Mapping) {
        or_else(|| self.file.abort_write(piece), || ());
    }

    fn end_summed(&self, done: &SummedDone<'_>) -> Result<(), Status> {
        or_failed(|| self.file.end_summed(done))
    }

    fn end_summed_blocking(&self, done: &SummedDone<'_>, token: &MayBlock) -> Result<(), Status> {
        or_failed(|| self.file.end_summed_blocking(done, token))
    }

    fn end_write(&self, done: WriteDone<'_>, token: &MayBlock) -> Result<(), Status> {
        or_failed(|| self.file.end_write(done, token))
    }

    fn needs_sync(&self) -> bool {
        or_else(|| self.file.needs_sync(), || true)
    }

    fn sync(&self, token: &MayBlock) -> Option<Result<(), Status>> {
        or_else(|| self.file.sync(token), || Some(Err(Status::IoErr)))
    }

    fn fallocate(&self, mode: FallocateMode, pos: u64, len: u64, token: &MayBlock) -> Result<(), Status> {
        or_failed(|| self.file.fallocate(mode, pos, len, token))
    }
}
