//! The completion queue entry: the kernel's `struct io_uring_cqe`, 16 bytes. For the lab also a count of completions
//! that did not come at once.

#[cfg(sheave_lab)]
use sheave_iomap::CompletionPlan;

/// Completion queue entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Cqe {
    /// Copied from the SQE.
    pub user_data: u64,
    /// Result: bytes or 0, or `-errno`.
    pub res: i32,
    /// `IORING_CQE_F_*` bits.
    pub flags: u32,
}

const _: () = assert!(size_of::<Cqe>() == 16);

/// Number of I/Os of a ring, since it was built, that did not complete where the device's completion was reaped: see
/// [`CompletionPlan`]. Only files with mappings and failed I/Os have such completions.
#[cfg(sheave_lab)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LateCompletions {
    /// Completed in the ring's task work: failed, or to be verified.
    pub in_task: u64,
    /// Completed by a worker: writes with work after the data, such as first writes and syncs.
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
