//! Number of times that a thread has given up its CPU to wait.
//!
//! Owns nothing. `rustix` has no wrapper for the call. Called by threads that check afterwards if a call of foreign
//! code has slept: the scheduler sends no notification at the time.
#![allow(unsafe_code)] // The call has no wrapper.

/// Returns the number of voluntary context switches of the calling thread since it began: it slept, or waited for
/// something. Preemption does not count. Returns 0 if the kernel does not count them.
#[must_use]
pub fn voluntary_switches() -> u64 {
    // SAFETY: a struct of plain numbers, for which zeros are a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel fills the struct, which lives until the call returns.
    let res = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    if res == 0 { usage.ru_nvcsw as u64 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_counts_and_computing_does_not() {
        let slept = || {
            let before = voluntary_switches();
            std::thread::sleep(std::time::Duration::from_millis(1));
            voluntary_switches() - before
        };
        assert!(slept() > 0);
        let before = voluntary_switches();
        let sum: u64 = (0..100_000_u64).map(std::hint::black_box).sum();
        assert_eq!((voluntary_switches() - before, sum), (0, 4_999_950_000));
    }
}
