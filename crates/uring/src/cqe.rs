//! The completion queue entry: the kernel's `struct io_uring_cqe`, 16 bytes. For the lab also how many completions did
//! not come at once.

use sheave_base::buf::Buf;
use sheave_base::status::Errno;
#[cfg(sheave_lab)]
use sheave_iomap::CompletionPlan;

use crate::prep::Owned;

/// A CQE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Cqe {
    /// From the SQE.
    pub user_data: u64,
    /// Result: bytes or 0, or `-errno`.
    pub res: i32,
    /// `IORING_CQE_F_*` bits.
    pub flags: u32,
}

const _: () = assert!(size_of::<Cqe>() == 16);

/// How many I/Os of a ring did not complete where the device's completion was reaped, since the ring began: see
/// [`CompletionPlan`]. Only files with mappings have such, and I/O that failed.
#[cfg(sheave_lab)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LateCompletions {
    /// In the ring's task work: what failed, or is verified.
    pub in_task: u64,
    /// By a worker: writes with work to be done after the data, such as first writes and syncs.
    pub in_worker: u64,
}

#[cfg(sheave_lab)]
impl LateCompletions {
    pub(crate) fn count(&mut self, plan: CompletionPlan) {
        match plan {
            CompletionPlan::Inline | CompletionPlan::Task => self.in_task += 1,
            CompletionPlan::Worker => self.in_worker += 1,
        }
    }
}

/// A completion as [`Ring::completions`](crate::Ring::completions) gives it: the CQE, and the buffer that the
/// operation owned.
#[derive(Debug)]
pub struct Completion {
    /// From the operation.
    pub user_data: u64,
    /// Result: bytes or 0, or `-errno`.
    pub res: i32,
    /// `IORING_CQE_F_*` bits.
    pub flags: u32,
    pub(crate) owned: Option<Owned>,
}

impl Completion {
    /// The result as Rust has it.
    #[inline]
    pub fn result(&self) -> Result<u32, Errno> {
        if self.res >= 0 { Ok(self.res as u32) } else { Err(Errno(-self.res)) }
    }

    /// The buffer that the operation owned; the device touches it no more.
    #[inline]
    pub fn into_buf(self) -> Option<Buf> {
        match self.owned {
            Some(Owned::One(buf)) => Some(buf),
            _ => None,
        }
    }

    /// The buffers of a vectored operation.
    pub fn into_bufs(self) -> Vec<Buf> {
        match self.owned {
            Some(Owned::One(buf)) => vec![buf],
            Some(Owned::Many(bufs, _)) => bufs,
            _ => Vec::new(),
        }
    }
}
