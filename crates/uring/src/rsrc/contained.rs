//! A file whose panics end in its own calls: the I/O in question fails, and the ring goes on.
//!
//! Owns the way of a ring, and of its workers, to each [`File`] that a program brings.
//!
//! Invariants:
//! - P1: no panic of the file leaves a call once it is attached, and none leaves its end, so no batch of the ring is
//!   torn by one.
//! - P2: an answer in the place of one that did not come fails the I/O that asked, or lets a later call of it fail. It
//!   is never one from which data, or the end of the file, could be concluded.
//! - P3: what a ring, or a worker, asks once and relies on from then on (the device, whether the file is its device
//!   from end to end) is asked once for all of them, so that no two of them go by different answers.

use sheave_base::beside::Activities;
use sheave_base::grace::Grace;
use sheave_base::status::Status;
use sheave_base::sync::Arc;
use sheave_blk::Device;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::io_stats::IoGroup;
use sheave_iomap::mapping::{Intent, Mapping};
use sheave_iomap::{FallocateMode, File, PlainRanges, SummedDone, WriteDone};

/// A file whose panics end here.
#[derive(Debug)]
pub(crate) struct Contained {
    /// `None` while it is dropped.
    file: Option<Arc<dyn File>>,
    device: Device,
    identity: bool,
    read_only: bool,
    block_bytes: u32,
    grace: Option<Arc<Grace>>,
    group: Option<Arc<IoGroup>>,
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

impl Contained {
    /// The file as a ring may have it. What panics in here is the caller's to hear of: nothing is attached yet.
    pub(crate) fn around(file: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(Contained {
            device: file.device().clone(),
            identity: file.is_identity(),
            read_only: file.is_read_only(),
            block_bytes: file.block_bytes(),
            grace: file.grace().cloned(),
            group: file.io_group().cloned(),
            file: Some(file),
        })
    }

    /// What a call of the file gives, or this when it panics.
    #[inline(always)]
    fn ask<R>(&self, call: impl FnOnce(&dyn File) -> R, otherwise: impl FnOnce() -> R) -> R {
        match &self.file {
            Some(file) => or_else(|| call(&**file), otherwise),
            None => otherwise(),
        }
    }

    /// What a call of the file gives, or that it has failed.
    #[inline(always)]
    fn attempt<R>(&self, call: impl FnOnce(&dyn File) -> Result<R, Status>) -> Result<R, Status> {
        self.ask(call, || Err(Status::IoErr))
    }
}

impl Drop for Contained {
    fn drop(&mut self) {
        let file = self.file.take();
        or_else(|| drop(file), || ());
    }
}

impl File for Contained {
    fn device(&self) -> &Device {
        &self.device
    }

    fn size_bytes(&self) -> u64 {
        // P2: no end of the file, so that its mapping is asked for.
        self.ask(|file| file.size_bytes(), || i64::MAX as u64)
    }

    fn max_bytes(&self) -> Option<u64> {
        self.ask(|file| file.max_bytes(), || None)
    }

    fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn is_identity(&self) -> bool {
        self.identity
    }

    fn grace(&self) -> Option<&Arc<Grace>> {
        self.grace.as_ref()
    }

    fn io_group(&self) -> Option<&Arc<IoGroup>> {
        self.group.as_ref()
    }

    fn beside(&self) -> Option<&Activities> {
        or_else(|| self.file.as_ref().and_then(|file| file.beside()), || None)
    }

    #[inline]
    fn map(&self, pos: u64, len: u64, intent: Intent) -> Result<Mapping, Status> {
        self.attempt(|file| file.map(pos, len, intent))
    }

    #[inline]
    fn map_plain(&self, at: &mut [u64], ranges: &PlainRanges) -> usize {
        self.ask(|file| file.map_plain(at, ranges), || 0)
    }

    fn map_blocking(&self, pos: u64, len: u64, intent: Intent, token: &MayBlock) -> Result<Mapping, Status> {
        self.attempt(|file| file.map_blocking(pos, len, intent, token))
    }

    fn begin_write(&self, piece: &Mapping) {
        self.ask(|file| file.begin_write(piece), || ());
    }

    fn abort_write(&self, piece: &Mapping) {
        self.ask(|file| file.abort_write(piece), || ());
    }

    fn end_summed(&self, done: &SummedDone<'_>) -> Result<(), Status> {
        self.attempt(|file| file.end_summed(done))
    }

    fn end_summed_blocking(&self, done: &SummedDone<'_>, token: &MayBlock) -> Result<(), Status> {
        self.attempt(|file| file.end_summed_blocking(done, token))
    }

    fn end_write(&self, done: WriteDone<'_>, token: &MayBlock) -> Result<(), Status> {
        self.attempt(|file| file.end_write(done, token))
    }

    fn needs_sync(&self) -> bool {
        self.ask(|file| file.needs_sync(), || true)
    }

    fn sync(&self, token: &MayBlock) -> Option<Result<(), Status>> {
        self.ask(|file| file.sync(token), || Some(Err(Status::IoErr)))
    }

    fn fallocate(&self, mode: FallocateMode, pos: u64, len: u64, token: &MayBlock) -> Result<(), Status> {
        self.attempt(|file| file.fallocate(mode, pos, len, token))
    }
}
