//! The kiocb: one I/O on a file, from issue to completion.
//!
//! Owns the state that the engine keeps for it: references, the first error, the plan. A kiocb lives in its ring's
//! request slot; it is 32 bytes.
//!
//! Invariants:
//! - I1: `refs` is one for the submission while it lasts, and one for every bio in flight.
//! - I2: the first error wins.

use sheave_base::status::Status;

use crate::completion_plan::CompletionPlan;

/// Writes.
pub const IOCB_WRITE: u16 = 1 << 0;
/// Data must be durable on completion.
pub const IOCB_DSYNC: u16 = 1 << 1;
/// Data and all metadata must be durable on completion.
pub const IOCB_SYNC: u16 = 1 << 2;
/// What would block must say so instead.
pub const IOCB_NOWAIT: u16 = 1 << 3;
/// Advance the file's position on completion.
pub const IOCB_USE_POS: u16 = 1 << 5;
/// The file must convert or extend after the data is on the device.
pub const IOCB_COMPLETION_WORK: u16 = 1 << 6;
/// A sync must follow the data.
pub const IOCB_NEED_SYNC: u16 = 1 << 7;
/// It is counted in its file's grace, until its completion work is done.
pub const IOCB_COUNTED: u16 = 1 << 8;
/// The [phase](sheave_base::grace::Phase) in which it is counted.
pub const IOCB_PHASE: u16 = 1 << 9;

/// The file is to see the memory, for its checksums, when the data has been moved.
pub const IOCB_SUMMED: u16 = 1 << 10;

/// One I/O on a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kiocb {
    /// First byte.
    pub pos: u64,
    /// Bytes that the result reports on success: what was asked, cut to the end of the file.
    pub len: u32,
    /// `IOCB_*` bits.
    pub flags: u16,
    /// References (I1).
    pub refs: u16,
    /// The first error (I2).
    pub status: Status,
    /// Where it completes.
    pub plan: CompletionPlan,
}

impl Kiocb {
    /// A kiocb with the reference of its one bio, completing inline.
    #[inline(always)]
    #[must_use]
    pub fn started(pos: u64, len: u32, flags: u16) -> Kiocb {
        Kiocb { pos, len, flags, refs: 1, status: Status::Ok, plan: CompletionPlan::Inline }
    }

    /// The result in the convention of CQEs: bytes, or `-errno`.
    #[inline]
    #[must_use]
    pub fn result(&self) -> i32 {
        if self.status.is_ok() { self.len as i32 } else { self.status.result() }
    }

    /// Notes an error: the first one wins (I2), and the plan is `Task` at least.
    #[cold]
    pub fn fail(&mut self, status: Status) {
        if self.status.is_ok() {
            self.status = status;
        }
        self.plan = self.plan.demote(CompletionPlan::Task);
    }

    /// Whether it writes.
    #[inline]
    #[must_use]
    pub fn is_write(&self) -> bool {
        self.flags & IOCB_WRITE != 0
    }
}
