//! The completion queue entry: the kernel's `struct io_uring_cqe`, 16 bytes. For the lab also how many completions did
//! not come at once.

#[cfg(sheave_lab)]
use sheave_iomap::CompletionPlan;

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
