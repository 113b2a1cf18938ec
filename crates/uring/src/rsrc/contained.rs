//! A wrapper that stops the panics of a file: the I/O that called it fails, and the ring continues.
//!
//! Owns the calls of a ring, and of its workers, to each [`File`] that a program brings.
//!
//! Invariants:
//! - P1: once the file is attached, no panic leaves a call of it, nor its drop. A panic therefore never interrupts a
//!   batch of the ring.
//! - P2: the substitute for a missing result fails the I/O that called, or makes a later call for it fail. It never
//!   looks like data or like the end of the file.
//! - P3: a value that a ring or a worker relies on from then on (the device, whether the file is its device from end to
//!   end) is read once for all of them, so no two of them see different values.

use sheave_base::beside::Activities;
use sheave_base::grace::Grace;
use sheave_base::status::Status;
use sheave_base::sync::Arc;
use sheave_blk::Device;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::io_stats::IoGroup;
use sheave_iomap::mapping::{Intent, Mapping};
use sheave_iomap::{FallocateMode, File, PlainRanges, SummedDone, WriteDone};

/// A file with its panics contained.
#[derive(Debug)]
pub(crate) struct Contained {
    /// `None` during the drop.
    file: Option<Arc<dyn File>>,
    device: Device,
    identity: bool,
    read_only: bool,
    block_bytes: u32,
    grace: Option<Arc<Grace>>,
    group: Option<Arc<IoGroup>>,
}

/// Returns the result of `call`, or of `otherwise` if `call` panics.
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

/// Lets panics pass: the model checker reports by panics.
#[cfg(shuttle)]
fn or_else<R>(call: impl FnOnce() -> R, _: impl FnOnce() -> R) -> R {
    call()
}

impl Contained {
    /// Wraps `file`. Panics in here reach the caller: nothing is attached yet.
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

    /// Calls the file. Returns the result of `otherwise` if the call panics.
    #[inline(always)]
    fn ask<R>(&self, call: impl FnOnce(&dyn File) -> R, otherwise: impl FnOnce() -> R) -> R {
        match &self.file {
            Some(file) => or_else(|| call(&**file), otherwise),
            None => otherwise(),
        }
    }

    /// Calls the file. A panic counts as an I/O error.
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
        // P2: reports no end of the file, so the I/O reaches its mapping, which can fail.
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
