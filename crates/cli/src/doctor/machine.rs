//! Checks of limits, CPUs, clock source and membarrier.

use std::fs;

use rustix::process::{Resource, getrlimit};
use sheave_base::asymmetric::other_side_pays;
use sheave_base::units::fmt_bytes;

use super::check::Check;

/// Sufficient limit of locked memory, in bytes. Registered buffers need it: this is enough for a few rings with deep
/// queues.
const GOOD_MEMLOCK: u64 = 64 << 20;
/// Sufficient limit of descriptors. A ring needs one, a device one or two, an export one per client.
const GOOD_NOFILE: u64 = 1024;

/// Runs the checks of this module.
pub fn checks() -> Vec<Check> {
    vec![memlock(), nofile(), cpus(), clock(), judge_membarrier(other_side_pays())]
}

fn memlock() -> Check {
    let limit = getrlimit(Resource::Memlock).current;
    judge_memlock(limit, ignores_memlock())
}

/// Judges the soft limit of locked memory; `None` means unlimited.
pub(super) fn judge_memlock(limit: Option<u64>, ignored: bool) -> Check {
    const NAME: &str = "memlock";
    match limit {
        None => Check::ok(NAME, "unlimited"),
        Some(bytes) if ignored => Check::ok(NAME, format!("{}, but not enforced on this process", fmt_bytes(bytes))),
        Some(bytes) if bytes >= GOOD_MEMLOCK => Check::ok(NAME, fmt_bytes(bytes)),
        Some(bytes) => Check::warn(
            NAME,
            format!("{}: buffers beyond that cannot be registered and cost more an I/O", fmt_bytes(bytes)),
            "ulimit -l unlimited, LimitMEMLOCK=infinity in the systemd unit, or docker run --ulimit memlock=-1",
        ),
    }
}

/// Returns true if the process has CAP_IPC_LOCK (bit 14 of the effective capabilities), which lifts the limit.
fn ignores_memlock() -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).is_some_and(|bits| bits >> CAP_IPC_LOCK & 1 == 1)
}

fn nofile() -> Check {
    const NAME: &str = "open files";
    match getrlimit(Resource::Nofile).current {
        Some(limit) if limit < GOOD_NOFILE => Check::warn(
            NAME,
            format!("at most {limit}"),
            "ulimit -n 65536, LimitNOFILE=65536 in the systemd unit, or docker run --ulimit nofile=65536",
        ),
        Some(limit) => Check::ok(NAME, format!("at most {limit}")),
        None => Check::ok(NAME, "unlimited"),
    }
}

fn cpus() -> Check {
    const NAME: &str = "CPUs";
    let allowed = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    match allowed {
        1 => Check::warn(
            NAME,
            "1: polling and other work share it",
            "give the machine, container or taskset a second CPU, or do not poll",
        ),
        more => Check::ok(NAME, format!("{more} that this process may use")),
    }
}

fn clock() -> Check {
    let source = fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    judge_clock(
        source.as_deref().map(str::trim).unwrap_or("unknown"),
        sheave_base::clock::Clock::real().is_cycle_counter(),
    )
}

/// Judges the kernel's clock source, and if the cycle counter is read directly.
pub(super) fn judge_clock(source: &str, cycle_counter: bool) -> Check {
    const NAME: &str = "clock";
    let ours = if cycle_counter { "statistics read the cycle counter" } else { "statistics ask the system" };
    match source {
        "tsc" | "arch_sys_counter" | "kvm-clock" => Check::ok(NAME, format!("{source}; {ours}")),
        _ => Check::warn(
            NAME,
            format!("{source}: reading the time may cost a system call; {ours}"),
            "boot with clocksource=tsc tsc=reliable if the processor has an invariant TSC (constant_tsc nonstop_tsc)",
        ),
    }
}

/// Judges if freezing a device can use membarrier, which runs a barrier on all processors.
pub(super) fn judge_membarrier(works: bool) -> Check {
    const NAME: &str = "membarrier";
    if works {
        return Check::ok(NAME, "a freeze pays for the barrier, and no I/O does");
    }
    Check::warn(
        NAME,
        "refused: each call into a driver pays for a full barrier",
        "allow membarrier(2) in the seccomp profile of the container, or the kernel needs CONFIG_MEMBARRIER",
    )
}
