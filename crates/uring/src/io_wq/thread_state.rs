//! What the kernel knows of a worker's thread: where it may run, and whether it computes or sleeps.
//!
//! Owns two questions to the kernel. Neither is asked on the way of an item: the first once a thread, the second by
//! a standby that suspects a worker to be blocked.

/// The calling thread's id.
#[cfg(not(shuttle))]
pub(super) fn me() -> u32 {
    std::thread_local! {
        static ME: u32 = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    }
    ME.with(|me| *me)
}

/// Whether the thread computes, or waits for a CPU to do so: then it is not blocked, and another would only take its
/// CPU away. When nobody can tell, it is taken for blocked.
#[cfg(not(shuttle))]
pub(super) fn computes(thread: u32) -> bool {
    let Ok(stat) = std::fs::read(format!("/proc/self/task/{thread}/stat")) else { return false };
    // The state follows the name, which is in parentheses and may hold any byte.
    let state = stat.iter().rposition(|&byte| byte == b')').and_then(|at| stat.get(at + 2));
    state == Some(&b'R')
}

/// Times that the calling thread has given up its CPU to wait for something.
#[cfg(not(shuttle))]
pub(super) fn switches() -> u64 {
    sheave_base::switches::voluntary_switches()
}

/// Whether an item that took so many cycles was long enough for a sleep.
#[cfg(not(shuttle))]
#[inline]
pub(super) fn may_have_slept(cycles: u64, overdue: u64) -> bool {
    // A counter that ran backwards says nothing.
    cycles >= overdue && cycles < 1 << 62
}

/// The CPUs of the process: those of its first thread. A ring's thread may be bound to one of them, and whatever it
/// starts would be too.
#[cfg(not(shuttle))]
fn of_process() -> Option<rustix::thread::CpuSet> {
    rustix::thread::sched_getaffinity(Some(rustix::process::getpid())).ok()
}

/// How many CPUs the process may use.
#[cfg(not(shuttle))]
pub(super) fn cpus_of_process() -> usize {
    of_process().map_or(1, |set| set.count().max(1) as usize)
}

/// Binds a thread, or the calling one, to CPUs; none means all of the process.
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
    // The list was checked when it was set; a CPU that went offline since leaves the thread where it may run.
    let thread = thread.and_then(|thread| rustix::process::Pid::from_raw(thread as i32));
    let _ = rustix::thread::sched_setaffinity(thread, &set);
}

/// The CPU that runs this thread now: it may be another already when the caller looks at the answer.
#[cfg(not(any(shuttle, sheave_mesi)))]
#[inline]
pub(super) fn cpu() -> u32 {
    rustix::thread::sched_getcpu() as u32
}

/// In a model every thread has a CPU of its own, and so it has in the simulation of cache lines.
#[cfg(any(shuttle, sheave_mesi))]
pub(super) fn cpu() -> u32 {
    NO_CPU
}

/// No CPU's number.
pub(super) const NO_CPU: u32 = u32::MAX;

/// In a model a thread has no id, computes never, and runs where the checker lets it.
#[cfg(shuttle)]
pub(super) fn me() -> u32 {
    0
}

/// See above.
#[cfg(shuttle)]
pub(super) fn computes(_: u32) -> bool {
    false
}

/// In a model nobody counts.
#[cfg(shuttle)]
pub(super) fn switches() -> u64 {
    0
}

/// In a model any item may have slept.
#[cfg(shuttle)]
pub(super) fn may_have_slept(_: u64, _: u64) -> bool {
    true
}

/// See above.
#[cfg(shuttle)]
pub(super) fn cpus_of_process() -> usize {
    2
}

/// See above.
#[cfg(shuttle)]
pub(super) fn settle(_: Option<u32>, _: &[usize]) {}

/// The first of these CPUs that the process may not use.
#[cfg(not(shuttle))]
pub(super) fn forbidden_cpu(cpus: &[usize]) -> Option<usize> {
    let allowed = of_process()?;
    cpus.iter().copied().find(|&cpu| cpu >= rustix::thread::CpuSet::MAX_CPU || !allowed.is_set(cpu))
}

/// See above.
#[cfg(shuttle)]
pub(super) fn forbidden_cpu(_: &[usize]) -> Option<usize> {
    None
}
