//! CPUs and CPU time: placement of threads, and the cost of a run without that of its progress display.

use std::sync::Arc;
use std::time::Instant;

use rustix::thread::CpuSet;
use rustix::time::{ClockId, clock_gettime};
use sheave_base::sync::atomic::{AtomicU64, Ordering};

use crate::error::LoadError;

/// Returns the CPUs that this process may run on, ascending.
pub fn allowed() -> Vec<usize> {
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect(),
        Err(_) => vec![0],
    }
}

/// Pins the calling thread to one CPU.
pub fn pin(cpu: usize) -> Result<(), LoadError> {
    let mut set = CpuSet::new();
    if cpu < CpuSet::MAX_CPU {
        set.set(cpu);
    }
    rustix::thread::sched_setaffinity(None, &set).map_err(|err| {
        LoadError::run(format!("cannot run on CPU {cpu}: {err}"))
            .fix(format!("choose --cpu from {:?}, or use --pin=off", allowed()))
    })
}

/// Pins the calling thread to `cpus`; an empty list changes nothing.
pub fn pin_to(cpus: &[usize]) -> rustix::io::Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU) {
        set.set(cpu);
    }
    if cpus.is_empty() { Ok(()) } else { rustix::thread::sched_setaffinity(None, &set) }
}

/// CPU time of the whole process except the thread that shows progress.
///
/// It covers the whole process because a driver may have threads of its own, and the kernel may run parts of an I/O on
/// worker threads that it charges to the process.
#[derive(Clone, Default)]
pub struct CpuMeter {
    reporter_ns: Arc<AtomicU64>,
}

impl CpuMeter {
    /// Records the CPU time of the progress thread. That thread calls this at each of its ticks.
    pub fn note_reporter(&self) {
        // Relaxed: a figure by itself, at most one tick old.
        self.reporter_ns.store(nanoseconds(ClockId::ThreadCPUTime), Ordering::Relaxed);
    }

    fn now_ns(&self) -> u64 {
        // Relaxed: as in `note_reporter`.
        nanoseconds(ClockId::ProcessCPUTime).saturating_sub(self.reporter_ns.load(Ordering::Relaxed))
    }

    /// Starts a stopwatch for wall time and CPU time.
    pub fn start(&self) -> Watch {
        Watch { meter: self.clone(), wall: Instant::now(), cpu_ns: self.now_ns() }
    }
}

pub struct Watch {
    meter: CpuMeter,
    wall: Instant,
    cpu_ns: u64,
}

/// Reading of a [`Watch`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Spent {
    pub wall_ns: u64,
    pub cpu_ns: u64,
}

impl Watch {
    /// Returns the time since the start.
    pub fn spent(&self) -> Spent {
        Spent {
            wall_ns: self.wall.elapsed().as_nanos() as u64,
            cpu_ns: self.meter.now_ns().saturating_sub(self.cpu_ns),
        }
    }
}

impl std::ops::AddAssign for Spent {
    fn add_assign(&mut self, other: Self) {
        self.wall_ns += other.wall_ns;
        self.cpu_ns += other.cpu_ns;
    }
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
