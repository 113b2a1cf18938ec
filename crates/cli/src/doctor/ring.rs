//! Checks of the kernel and its io_uring, with the reason if it is forbidden.
//!
//! `sheave serve` needs io_uring. `file:` devices work without it, but use more CPU time; `null:` and `ram:` do not use
//! it.

use std::fs;

use super::check::Check;
use sheave_blk::driver::Engine;
use sheave_drivers::host::usual_engine;
use sheave_load::kernel::{Probe, probe};

/// Oldest kernel whose io_uring can be used for `file:`.
const OLDEST: (u32, u32) = (5, 11);
/// First kernel with single-issuer rings and deferred task work.
const GOOD: (u32, u32) = (6, 1);

/// Runs the checks of this module.
pub fn checks() -> Vec<Check> {
    vec![kernel(), ring(), engine()]
}

/// Checks which engine `file:` devices use by default on this machine.
fn engine() -> Check {
    const NAME: &str = "file: engine";
    match usual_engine() {
        Engine::Sync => Check::warn(
            NAME,
            "sync: system calls that wait, on threads, for there is no io_uring",
            "as for io_uring; without it all but `sheave serve` works, at more CPU time an I/O",
        ),
        _ => Check::ok(NAME, "uring"),
    }
}

fn kernel() -> Check {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    judge_kernel(&release)
}

/// Judges a kernel release such as `6.18.44-generic`.
pub(super) fn judge_kernel(release: &str) -> Check {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
        return Check::warn("kernel", format!("{release} (not understood)"), "run Linux 6.1 or newer");
    };
    match (major, minor) {
        version if version < OLDEST => Check::warn(
            "kernel",
            format!("{release}, too old for the io_uring that Sheave needs"),
            "run Linux 6.1 or newer",
        ),
        version if version < GOOD => Check::warn(
            "kernel",
            format!("{release}, without deferred task work"),
            "run Linux 6.1 or newer: fewer interruptions and less CPU time an I/O",
        ),
        _ => Check::ok("kernel", release),
    }
}

/// Sets up a plain ring, and then one with the features that `file:` uses.
fn ring() -> Check {
    const NAME: &str = "io_uring";
    if let Err(err) = probe(Probe::Plain) {
        return refused(NAME, &err);
    }
    match probe(Probe::Modern) {
        Ok(()) => Check::ok(NAME, "allowed; single issuer and deferred task work work"),
        Err(err) => Check::warn(
            NAME,
            format!("allowed, but without deferred task work ({err})"),
            "run Linux 6.1 or newer: fewer interruptions and less CPU time an I/O",
        ),
    }
}

/// Determines why a ring cannot be set up.
fn refused(name: &'static str, err: &std::io::Error) -> Check {
    let facts = Facts {
        errno: err.raw_os_error().unwrap_or(0),
        disabled: fs::read_to_string("/proc/sys/kernel/io_uring_disabled")
            .ok()
            .and_then(|text| text.trim().parse().ok()),
        group: fs::read_to_string("/proc/sys/kernel/io_uring_group").ok().and_then(|text| text.trim().parse().ok()),
        seccomp: fs::read_to_string("/proc/self/status").ok().is_some_and(|status| filtered(&status)),
    };
    facts.judge(name, err)
}

/// Facts about a refusal.
pub(super) struct Facts {
    /// Error number of io_uring_setup.
    pub errno: i32,
    /// The sysctl kernel.io_uring_disabled.
    pub disabled: Option<u32>,
    /// The sysctl kernel.io_uring_group.
    pub group: Option<i64>,
    /// True if the process has a seccomp filter.
    pub seccomp: bool,
}

impl Facts {
    /// Determines what forbids io_uring and how the user can change that.
    pub(super) fn judge(&self, name: &'static str, err: &std::io::Error) -> Check {
        let sysctl_fix = "sysctl -w kernel.io_uring_disabled=0 (as root, on the host)";
        let seccomp = || {
            Check::warn(
                name,
                format!("forbidden by a seccomp filter, as container runtimes set one ({err})"),
                "allow io_uring_setup, io_uring_enter and io_uring_register in the profile \
                 (docker run --security-opt seccomp=PROFILE.json)",
            )
        };
        match (self.errno, self.disabled) {
            (libc::EPERM, Some(2)) => {
                Check::warn(name, "forbidden for everybody: kernel.io_uring_disabled is 2", sysctl_fix)
            }
            (libc::EPERM, Some(1)) => {
                let fix = match self.group {
                    Some(group) if group >= 0 => format!("join group {group} (kernel.io_uring_group), or {sysctl_fix}"),
                    _ => sysctl_fix.to_owned(),
                };
                Check::warn(name, "forbidden without CAP_SYS_ADMIN: kernel.io_uring_disabled is 1", fix)
            }
            (libc::EPERM | libc::EACCES | libc::ENOSYS, _) if self.seccomp => seccomp(),
            (libc::ENOSYS, _) => Check::warn(
                name,
                "the kernel has none (ENOSYS)",
                "use a kernel with CONFIG_IO_URING, not older than 5.11; gVisor has none",
            ),
            (libc::EPERM | libc::EACCES, _) => Check::warn(
                name,
                format!("forbidden ({err}), probably by a security module"),
                "look for the denial in dmesg or the audit log, and allow io_uring in its policy",
            ),
            (libc::ENOMEM, _) => Check::warn(
                name,
                format!("no memory for a ring ({err})"),
                "raise the memlock limit (ulimit -l) or the memory limit of the cgroup",
            ),
            (libc::EMFILE | libc::ENFILE, _) => Check::fail(
                name,
                format!("no descriptor left for a ring ({err})"),
                "raise the limit of open files (ulimit -n)",
            ),
            (libc::EOPNOTSUPP, _) => Check::warn(
                name,
                format!("not to be had in this sandbox ({err})"),
                "allow io_uring_setup, io_uring_enter and io_uring_register in it",
            ),
            _ => Check::warn(name, format!("a ring cannot be set up ({err})"), "look at dmesg"),
        }
    }
}

/// Returns true if /proc/self/status shows a seccomp filter (mode 2).
pub(super) fn filtered(status: &str) -> bool {
    status.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() == "2"))
}
