//! Counters of failed commits and their circumstances, in debug builds.
//!
//! Owns the counters. They show whether random test runs reach a situation that once had many bugs: a commit has failed
//! while a copy is in progress, and the next commit has not begun.
//!
//! Called under the pool's lock.

/// Failed commits, and events between each of them and the next commit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Met {
    /// Number of failed commits of records that had units.
    pub(crate) failed: u64,
    /// Number of these commits that failed during a copy or a rollback that was not durable.
    pub(crate) beside_copy: u64,
    /// Number of commits in `beside_copy` after which a volume got an exclusive path before the next commit took
    /// changes.
    pub(crate) window: u64,
    /// True if the last failed commit is in `beside_copy`, no later commit has taken changes, and no path has become
    /// exclusive.
    open: bool,
}

impl Met {
    /// Called when a commit of records that had units has failed.
    pub(crate) fn failed(&mut self, beside_copy: bool) {
        self.failed += 1;
        self.beside_copy += u64::from(beside_copy);
        self.open = beside_copy;
    }

    /// Called when a commit takes the waiting changes.
    pub(crate) fn taken(&mut self) {
        self.open = false;
    }

    /// Called when a path of a volume was made, copied or found unshared.
    pub(crate) fn owned(&mut self) {
        self.window += u64::from(std::mem::take(&mut self.open));
    }
}
