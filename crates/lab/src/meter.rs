//! What a turn takes beside its I/O: time, CPU time and context switches of the whole process.
//!
//! The whole process, because the threads that an arm adds (workers, completers) are what it costs. Whoever shows
//! progress meanwhile is in it too, for all arms alike.
#![allow(unsafe_code)] // getrusage, which rustix does not have.

use std::time::Instant;

use crate::Turn;

/// A running meter.
#[derive(Debug)]
pub struct Meter {
    wall: Instant,
    usage: Usage,
}

impl Meter {
    /// Starts.
    pub fn start() -> Meter {
        Meter { usage: Usage::now(), wall: Instant::now() }
    }

    /// Adds what it took since the start to a turn, which may have parts that do not count between those that do.
    pub fn add(&self, turn: &mut Turn) {
        turn.wall_ns += self.wall.elapsed().as_nanos() as u64;
        let now = Usage::now();
        turn.cpu_ns += now.cpu_ns.saturating_sub(self.usage.cpu_ns);
        turn.context_switches += now.switches.saturating_sub(self.usage.switches);
    }
}

/// What the process has used so far, threads that have ended included.
#[derive(Clone, Copy, Debug)]
struct Usage {
    cpu_ns: u64,
    switches: u64,
}

impl Usage {
    fn now() -> Usage {
        // SAFETY: a `rusage` is numbers, for which zeroes are values.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to a `rusage` that is borrowed for the call alone. It cannot fail with RUSAGE_SELF.
        unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
        let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1_000;
        Usage {
            cpu_ns: ns(usage.ru_utime) + ns(usage.ru_stime),
            switches: usage.ru_nvcsw as u64 + usage.ru_nivcsw as u64,
        }
    }
}

#[cfg(test)]
mod tests;
