//! Leadership of commits: one thread leads a commit, the others wait for its result.
//!
//! Owns the numbers of commits. With them a caller finds the result of a commit that began after its call. Does not own
//! the work of a commit.
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
    /// Number and error of the last commit that failed.
    failed: Option<(u64, Status)>,
}

/// The queue for the leadership of commits.
#[derive(Debug, Default)]
pub(crate) struct Commits {
    progress: Mutex<Progress>,
    ended: Condvar,
}

/// Leadership of a thread that makes no commit. Dropping it, also in a panic, ends the leadership.
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

    /// Returns the result of a commit that begins after this call, and a flag. The flag is true if this thread led that
    /// commit, by a call of `lead`, and false if another thread led it.
    pub(super) fn commit(&self, lead: impl FnOnce() -> Result<(), Status>) -> (Result<(), Status>, bool) {
        let mut progress = self.lock();
        // A commit that is running may have taken its changes before this call, so this caller needs the result of the
        // next one.
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

    /// Runs `job` while no commit is under way. Threads that want to commit wait meanwhile.
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
    /// Returns the error of the last failed commit if its number is `wanted` or higher.
    fn result(&self, wanted: u64) -> Result<(), Status> {
        match self.failed {
            Some((number, status)) if number >= wanted => Err(status),
            _ => Ok(()),
        }
    }
}
