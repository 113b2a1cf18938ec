//! What commits that fail have met, counted in debug builds.
//!
//! Owns the counts. They tell whether random runs come where much was once wrong: into the time between a commit that
//! failed and the next one, while a copy is under way.
//!
//! Called under the pool's lock.

/// How often commits have failed, and what came before the next one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Met {
    /// Commits of records that failed and had units.
    pub(crate) failed: u64,
    /// Of those, the ones beside a copy or a rollback that was not durable.
    pub(crate) beside_copy: u64,
    /// Of those, the ones after which a volume got a way of its own before the next commit took anything.
    pub(crate) window: u64,
    /// Such a commit has failed, and nothing has happened since.
    open: bool,
}

impl Met {
    /// A commit of records has failed, which had units.
    pub(crate) fn failed(&mut self, beside_copy: bool) {
        self.failed += 1;
        self.beside_copy += u64::from(beside_copy);
        self.open = beside_copy;
    }

    /// A commit takes what waits.
    pub(crate) fn taken(&mut self) {
        self.open = false;
    }

    /// A way of a volume was made, copied or found unshared.
    pub(crate) fn owned(&mut self) {
        self.window += u64::from(std::mem::take(&mut self.open));
    }
}
