//! Count and limit of the workers in all pools of the process.
//!
//! Each ring has its own pool unless it shares one. A number of threads that is right for one pool (sixty, asleep in
//! system calls) is wrong for hundreds of pools, so all pools together have a limit. The first worker of an account is
//! exempt: without it the account's work would never run.
//!
//! Owns the count.

use std::io;

use sheave_base::sync::atomic::{AtomicU32, Ordering};

/// Maximum number of workers in all pools of a process, not counting the exempt first worker of an account.
pub const PROCESS_WORKERS: u32 = 1024;

#[cfg(not(shuttle))]
static WORKERS: AtomicU32 = AtomicU32::new(0);

/// Counts one worker until dropped.
#[derive(Debug)]
pub(super) struct Counted;

impl Counted {
    /// Counts another worker. Fails at the limit unless the worker is the `first` of its account.
    #[cfg(not(shuttle))]
    pub(super) fn new(first: bool) -> io::Result<Counted> {
        Counted::in_count(&WORKERS, PROCESS_WORKERS, first)
    }

    /// A model counts nothing: a static would outlive its executions.
    #[cfg(shuttle)]
    pub(super) fn new(_: bool) -> io::Result<Counted> {
        Ok(Counted)
    }

    #[cfg_attr(shuttle, allow(dead_code))]
    fn in_count(count: &AtomicU32, most: u32, first: bool) -> io::Result<Counted> {
        // Relaxed: a count that publishes no other data.
        let before = count.fetch_add(1, Ordering::Relaxed);
        if before >= most && !first {
            // Relaxed: as above.
            count.fetch_sub(1, Ordering::Relaxed);
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        Ok(Counted)
    }
}

#[cfg(not(shuttle))]
impl Drop for Counted {
    fn drop(&mut self) {
        // Relaxed: as above.
        WORKERS.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn beyond_the_bound_only_the_first_of_an_account_is_made() {
        let count = AtomicU32::new(0);
        let made = |first| Counted::in_count(&count, 2, first).map(std::mem::forget).is_ok();
        assert_eq!([made(false), made(false), made(false), made(true), made(false)], [true, true, false, true, false]);
        assert_eq!(count.load(Ordering::Relaxed), 3, "who is refused is not counted");
    }
}
