//! Measures time, CPU time and context switches of the whole process during a turn.
//!
//! The whole process is measured, because the threads that an arm adds (workers, completers) are part of its cost. A
//! thread that shows progress meanwhile is included too, for all arms alike.
#![allow(unsafe_code)] // getrusage, which rustix does not have.

use std::time::Instant;

use crate::Turn;

#[derive(Debug)]
pub struct Meter {
    wall: Instant,
    usage: Usage,
}

impl Meter {
    pub fn start() -> Meter {
        Meter { usage: Usage::now(), wall: Instant::now() }
    }

    /// Adds the use since the start to a turn. Several meters may add to one turn, with unmeasured parts between them.
    pub fn add(&self, turn: &mut Turn) {
        turn.wall_ns += self.wall.elapsed().as_nanos() as u64;
        let now = Usage::now();
        turn.cpu_ns += now.cpu_ns.saturating_sub(self.usage.cpu_ns);
        turn.context_switches += now.switches.saturating_sub(self.usage.switches);
    }
}

/// Use of the process so far, ended threads included.
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
