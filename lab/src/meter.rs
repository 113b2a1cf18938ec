//! Measures time, CPU time and context switches of the whole process during a turn.
//!
//! The whole process is measured, because the threads that an arm adds (workers, completers) use CPU time for it. A
//! thread that shows progress meanwhile is included too, in all arms alike.
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

    /// Adds the use since the start of this meter to a turn. Several meters may add to one turn, with unmeasured parts
    /// between them.
    pub fn add(&self, turn: &mut Turn) {
        turn.wall_ns += self.wall.elapsed().as_nanos() as u64;
        let now = Usage::now();
        turn.cpu_ns += now.cpu_ns.saturating_sub(self.usage.cpu_ns);
        turn.context_switches += now.switches.saturating_sub(self.usage.switches);
    }
}

/// Use of the process so far, including threads that have ended.
#[derive(Clone, Copy, Debug)]
struct Usage {
    cpu_ns: u64,
    switches: u64,
}

impl Usage {
    fn now() -> Usage {
        // SAFETY: a `rusage` has only numbers, for which zeroes are valid values.
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
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn sleeps_of_other_threads_are_switches() {
        let meter = Meter::start();
        let sleeper = std::thread::spawn(|| {
            for _ in 0..20 {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        sleeper.join().expect("it only sleeps");
        let mut turn = Turn::default();
        meter.add(&mut turn);
        assert!(turn.context_switches >= 20, "{turn:?}");
        assert!(turn.wall_ns >= 20_000_000, "{turn:?}");
    }

    #[test]
    fn work_is_cpu_time() {
        let mut turn = Turn::default();
        while turn.cpu_ns < 10_000_000 {
            assert!(turn.wall_ns < 60_000_000_000, "CPU time stands still");
            let meter = Meter::start();
            let _ = std::hint::black_box((0..100_000u64).map(std::hint::black_box).sum::<u64>());
            meter.add(&mut turn);
        }
        assert!(turn.wall_ns > 0);
    }
}
