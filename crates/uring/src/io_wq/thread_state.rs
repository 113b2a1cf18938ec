//! Kernel state of a worker's thread: its CPU affinity, and if it computes or sleeps.
//!
//! Owns the system calls for both. None is on the path of a short item: affinity is set once per thread, and the state
//! is read by a standby that suspects a blocked worker.

/// Returns the calling thread's id.
#[cfg(not(shuttle))]
pub(super) fn me() -> u32 {
    std::thread_local! {
        static ME: u32 = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    }
    ME.with(|me| *me)
}

/// Returns true if the thread computes or waits for a CPU to do so. It is not blocked then, and another worker would
/// only take CPU time from it. A thread whose state cannot be read counts as blocked.
#[cfg(not(shuttle))]
pub(super) fn computes(thread: u32) -> bool {
    let Ok(stat) = std::fs::read(format!("/proc/self/task/{thread}/stat")) else { return false };
    // The state follows the name, which is in parentheses and may hold any byte.
    let state = stat.iter().rposition(|&byte| byte == b')').and_then(|at| stat.get(at + 2));
    state == Some(&b'R')
}

/// Returns the number of voluntary context switches of the calling thread.
#[cfg(not(shuttle))]
pub(super) fn switches() -> u64 {
    sheave_base::switches::voluntary_switches()
}

/// Returns true if an item that took `cycles` was long enough to have slept.
#[cfg(not(shuttle))]
#[inline]
pub(super) fn may_have_slept(cycles: u64, overdue: u64) -> bool {
    // A counter that ran backwards gives a huge difference, which proves nothing.
    cycles >= overdue && cycles < 1 << 62
}

/// Returns the CPUs of the process: those of its first thread. The calling thread may be bound to one CPU, and its
/// affinity would be inherited by the threads it creates.
#[cfg(not(shuttle))]
fn of_process() -> Option<rustix::thread::CpuSet> {
    rustix::thread::sched_getaffinity(Some(rustix::process::getpid())).ok()
}

/// Returns the number of CPUs that the process may use.
#[cfg(not(shuttle))]
pub(super) fn cpus_of_process() -> usize {
    of_process().map_or(1, |set| set.count().max(1) as usize)
}

/// Binds `thread`, or the calling thread, to `cpus`; an empty list means all CPUs of the process.
#[cfg(not(shuttle))]
pub(super) fn settle(thread: Option<u32>, cpus: &[usize]) {
    let mut set = rustix::thread::CpuSet::new();
    for &cpu in cpus.iter().filter(|&&cpu| cpu < rustix::thread::CpuSet::MAX_CPU) {
        set.set(cpu);
    }
    if cpus.is_empty() {
        let Some(all) = of_process() else { return };
        set = all;
    }
    // The list was checked when it was set. If a CPU has gone offline since, the call fails and the affinity stays.
    let thread = thread.and_then(|thread| rustix::process::Pid::from_raw(thread as i32));
    let _ = rustix::thread::sched_setaffinity(thread, &set);
}

/// Returns the CPU that runs this thread. The thread may have moved before the caller uses the number.
#[cfg(not(any(shuttle, sheave_mesi)))]
#[inline]
pub(super) fn cpu() -> u32 {
    rustix::thread::sched_getcpu() as u32
}

/// A model, and the simulation of cache lines, give each thread a CPU of its own.
#[cfg(any(shuttle, sheave_mesi))]
pub(super) fn cpu() -> u32 {
    NO_CPU
}

/// Placeholder that is not the number of any CPU.
pub(super) const NO_CPU: u32 = u32::MAX;

/// In a model a thread has no id, never computes, and runs where the checker lets it.
#[cfg(shuttle)]
pub(super) fn me() -> u32 {
    0
}

#[cfg(shuttle)]
pub(super) fn computes(_: u32) -> bool {
    false
}

/// A model has no context switches to count.
#[cfg(shuttle)]
pub(super) fn switches() -> u64 {
    0
}

/// In a model any item may have slept.
#[cfg(shuttle)]
pub(super) fn may_have_slept(_: u64, _: u64) -> bool {
    true
}

#[cfg(shuttle)]
pub(super) fn cpus_of_process() -> usize {
    2
}

#[cfg(shuttle)]
pub(super) fn settle(_: Option<u32>, _: &[usize]) {}

/// Returns the first of `cpus` that the process may not use.
#[cfg(not(shuttle))]
pub(super) fn forbidden_cpu(cpus: &[usize]) -> Option<usize> {
    let allowed = of_process()?;
    cpus.iter().copied().find(|&cpu| cpu >= rustix::thread::CpuSet::MAX_CPU || !allowed.is_set(cpu))
}

#[cfg(shuttle)]
pub(super) fn forbidden_cpu(_: &[usize]) -> Option<usize> {
    None
}
