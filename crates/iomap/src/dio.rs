//! The direct-I/O engine: one path for raw devices, volumes and every other [`File`](crate::File).
//!
//! Owns the result of issuing an I/O and the bio that it becomes. Does not own the memory of the kiocb, nor the choice
//! of the thread that runs deferred completions.
//!
//! | module | holds |
//! |---|---|
//! | [`open_file`] | a file as one ring has it |
//! | [`run`] | runs of plain I/Os: the fast path |
//! | [`mapped`] | the loop over mappings |
//! | `submission` | the checks that a direct I/O must pass, and the choice of its path |
//! | `completion` | the steps from the end of the bios to the result |
//!
//! An I/O over more pieces than there are free bios ends as a short read or write.
//!
//! Invariants:
//! - I1: a kiocb ends once: [`end_bio`] returns true when the last reference is dropped.
//! - I2: an error demotes the plan to `Task` at least, so that error handling never runs inside a reap. (A failed plain
//!   record of a [`run`] needs no error handling: only its result is left to post.)

mod completion;
pub mod mapped;
pub mod open_file;
pub mod run;
mod submission;

use sheave_base::status::Status;
use sheave_blk::bio::{BIO_FUA, Op};
use sheave_blk::ctx::BioSpec;

use crate::kiocb::IOCB_WRITE;

pub use completion::{
    Next, Synced, end_bio, end_summed, end_summed_blocking, end_write, next, start_sync, summed, sync, worked,
};
pub use mapped::Scratch;
pub use open_file::OpenFile;
pub use run::{Bounds, LOOK_AHEAD, MappedRun, Places, PlainRun, PlainWay};
pub use submission::{issue, issue_flush, issue_one};

/// Largest number of bytes of one I/O, as in the kernel: 2 GiB less a page.
pub const MAX_RW_COUNT: u32 = 0x7fff_f000;

/// Outcome of issuing an I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Issued {
    /// Bios are in flight; [`end_bio`] returns true when the last of them has ended.
    Queued,
    /// Ended at once, with this result: bytes, or `-errno`.
    Done(i32),
    /// No bio is free: issue the I/O again when some have ended.
    Again,
    /// The file must block to map the range: [`File::map_blocking`](crate::File::map_blocking) in a worker, then issue
    /// it again.
    Blocks,
}

#[inline]
fn error(status: Status) -> Issued {
    Issued::Done(status.result())
}

#[inline(always)]
fn bio_spec(bdev: u16, iocb_flags: u16, owner: u32, addr: u64, bytes: u32, fua: bool) -> BioSpec {
    let write = iocb_flags & IOCB_WRITE != 0;
    let flags = if write && fua { BIO_FUA } else { 0 };
    let op = if write { Op::Write } else { Op::Read };
    BioSpec { bdev, op, flags, sector: addr >> 9, bytes, owner }
}

#[cfg(test)]
mod tests;
