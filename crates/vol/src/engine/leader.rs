//! Who leads a commit, and who waits for it.
//!
//! Owns the numbers of commits, so that who asks gets the result of one that began after it asked. Does not own what a
//! commit does.
//!
//! Called by [`commit`](super::commit).

use sheave_base::status::Status;
use sheave_base::sync::{Condvar, Mutex, MutexGuard};
use sheave_base::wait;

#[derive(Debug, Default)]
struct Progress {
    running: bool,
    started: u64,
    done: u64,
    /// The last commit that failed, and how.
    failed: Option<(u64, Status)>,
}

/// Who leads, who waits.
#[derive(Debug, Default)]
pub(crate) struct Commits {
    progress: Mutex<Progress>,
    ended: Condvar,
}

/// Leads without committing; gives that up when dropped, also by a panic.
struct Leading<'a>(&'a Commits);

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        if let Ok(mut progress) = self.0.progress.lock() {
            progress.running = false;
        }
        self.0.ended.notify_all();
    }
}

impl Commits {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().expect("invariant: no panic under this lock")
    }

    /// The result of a commit that begins after this call: this thread's own, which is `lead`, or one that somebody
    /// else leads. True if it was this thread's own.
    pub(super) fn commit(&self, lead: impl FnOnce() -> Result<(), Status>) -> (Result<(), Status>, bool) {
        let mut progress = self.lock();
        let wanted = progress.started + 1;
        while progress.running && progress.done < wanted {
            progress = wait::wait_on(&self.ended, &self.progress, progress, None);
        }
        if progress.done >= wanted {
            return (progress.result(wanted), false);
        }
        progress.running = true;
        progress.started += 1;
        let number = progress.started;
        drop(progress);
        let result = lead();
        let mut progress = self.lock();
        progress.running = false;
        progress.done = number;
        if let Err(status) = result {
            progress.failed = Some((number, status));
        }
        drop(progress);
        self.ended.notify_all();
        (result, true)
    }

    /// Does something while no commit is under way. All who commit wait meanwhile.
    pub(super) fn hold_off<T>(&self, job: impl FnOnce() -> T) -> T {
        let mut progress = self.lock();
        while progress.running {
            progress = wait::wait_on(&self.ended, &self.progress, progress, None);
        }
        progress.running = true;
        drop(progress);
        let _leading = Leading(self);
        job()
    }
}

impl Progress {
    /// How the commits from number `wanted` on went.
    fn result(&self, wanted: u64) -> Result<(), Status> {
        match self.failed {
            Some((number, status)) if number >= wanted => Err(status),
            _ => Ok(()),
        }
    }
}
