//! The kiocb: one I/O on a file, from issue to completion.
//!
//! Owns the state that the engine keeps of the I/O: references, the first error, the plan. A kiocb lives in its ring's
//! request slot and has 32 bytes.
//!
//! Invariants:
//! - I1: `refs` is one for the submission while it lasts, and one for every bio in flight.
//! - I2: the first error is kept, later ones are dropped.

use sheave_base::status::Status;

use crate::completion_plan::CompletionPlan;

/// Flag: the I/O is a write.
pub const IOCB_WRITE: u16 = 1 << 0;
/// Flag: data must be durable on completion.
pub const IOCB_DSYNC: u16 = 1 << 1;
/// Flag: data and all metadata must be durable on completion.
pub const IOCB_SYNC: u16 = 1 << 2;
/// Flag: the I/O must fail with `Again` where it would block.
pub const IOCB_NOWAIT: u16 = 1 << 3;
/// Flag: the completion advances the file's position.
pub const IOCB_USE_POS: u16 = 1 << 5;
/// Flag: the file has work to do after the data is on the device: to convert extents, or to extend its size.
pub const IOCB_COMPLETION_WORK: u16 = 1 << 6;
/// Flag: a sync must follow the data.
pub const IOCB_NEED_SYNC: u16 = 1 << 7;
/// Flag: the I/O is counted in its file's grace, until its completion work is done.
pub const IOCB_COUNTED: u16 = 1 << 8;
/// Flag: the [phase](sheave_base::grace::Phase) of the grace in which the I/O is counted.
pub const IOCB_PHASE: u16 = 1 << 9;

/// Flag: the file processes the memory for its checksums when the data has been moved.
pub const IOCB_SUMMED: u16 = 1 << 10;

/// One I/O on a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kiocb {
    /// First byte of the range in the file.
    pub pos: u64,
    /// Bytes that the result reports on success: the requested length, cut at the end of the file.
    pub len: u32,
    /// `IOCB_*` bits.
    pub flags: u16,
    /// Number of references: the submission and the bios in flight (I1).
    pub refs: u16,
    /// The first error, or `Ok` (I2).
    pub status: Status,
    /// Place where the I/O completes.
    pub plan: CompletionPlan,
}

impl Kiocb {
    /// Returns a kiocb with the reference of its one bio, completing inline.
    #[inline(always)]
    #[must_use]
    pub fn started(pos: u64, len: u32, flags: u16) -> Kiocb {
        Kiocb { pos, len, flags, refs: 1, status: Status::Ok, plan: CompletionPlan::Inline }
    }

    /// Returns the result in the convention of CQEs: bytes, or `-errno`.
    #[inline]
    #[must_use]
    pub fn result(&self) -> i32 {
        if self.status.is_ok() { self.len as i32 } else { self.status.result() }
    }

    /// Records an error, unless there is one already (I2), and demotes the plan to `Task` at least.
    #[cold]
    pub fn fail(&mut self, status: Status) {
        if self.status.is_ok() {
            self.status = status;
        }
        self.plan = self.plan.demote(CompletionPlan::Task);
    }

    #[inline]
    #[must_use]
    pub fn is_write(&self) -> bool {
        self.flags & IOCB_WRITE != 0
    }
}
