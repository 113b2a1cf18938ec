//! Tests of the verdicts of checks. The probes themselves depend on the machine.

use super::machine::{judge_clock, judge_membarrier, judge_memlock};
use super::ring::{Facts, filtered, judge_kernel};
use super::*;

fn refusal(errno: i32, disabled: Option<u32>, group: Option<i64>, seccomp: bool) -> Check {
    let facts = Facts { errno, disabled, group, seccomp };
    facts.judge("io_uring", &std::io::Error::from_raw_os_error(errno))
}

#[test]
fn kernels() {
    assert_eq!(judge_kernel("6.18.44-generic").status, Verdict::Ok);
    assert_eq!(judge_kernel("6.0.0").status, Verdict::Warn);
    assert_eq!(judge_kernel("5.15.0-91").status, Verdict::Warn);
    assert_eq!(judge_kernel("5.4").status, Verdict::Warn);
    assert_eq!(judge_kernel("newest").status, Verdict::Warn);
}

#[test]
fn every_refusal_names_who_and_how() {
    let cases = [
        (refusal(libc::EPERM, Some(2), Some(-1), false), "io_uring_disabled is 2", "sysctl -w"),
        (refusal(libc::EPERM, Some(1), Some(-1), false), "CAP_SYS_ADMIN", "sysctl -w"),
        (refusal(libc::EPERM, Some(1), Some(1001), false), "CAP_SYS_ADMIN", "join group 1001"),
        (refusal(libc::EPERM, Some(0), Some(-1), true), "seccomp", "profile"),
        (refusal(libc::ENOSYS, None, None, true), "seccomp", "profile"),
        (refusal(libc::ENOSYS, None, None, false), "ENOSYS", "CONFIG_IO_URING"),
        (refusal(libc::EACCES, Some(0), None, false), "security module", "audit"),
        (refusal(libc::ENOMEM, Some(0), None, false), "no memory", "memlock"),
        (refusal(libc::EMFILE, Some(0), None, false), "descriptor", "ulimit -n"),
        (refusal(libc::EOPNOTSUPP, Some(0), None, false), "sandbox", "io_uring_enter"),
        (refusal(libc::EINVAL, Some(0), None, false), "cannot be set up", "dmesg"),
    ];
    for (n, (check, found, fix)) in cases.into_iter().enumerate() {
        // Devices work without io_uring, but nothing works without descriptors.
        assert_eq!(check.status, if n == 8 { Verdict::Fail } else { Verdict::Warn }, "{check:?}");
        assert!(check.found.contains(found), "{check:?}");
        assert!(check.fix.as_ref().is_some_and(|text| text.contains(fix) && !text.contains('\n')), "{check:?}");
    }
}

#[test]
fn seccomp_modes() {
    assert!(filtered("Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n"));
    assert!(!filtered("Seccomp:\t0\n"));
    assert!(!filtered(""));
}

#[test]
fn limits_and_clocks() {
    assert_eq!(judge_memlock(None, false).status, Verdict::Ok);
    assert_eq!(judge_memlock(Some(8 << 20), false).status, Verdict::Warn);
    assert_eq!(judge_memlock(Some(8 << 20), true).status, Verdict::Ok);
    assert_eq!(judge_clock("tsc", true).status, Verdict::Ok);
    assert_eq!(judge_clock("hpet", false).status, Verdict::Warn);
    assert_eq!(judge_membarrier(true).status, Verdict::Ok);
    assert_eq!(judge_membarrier(false).status, Verdict::Warn);
    assert!(super::machine::checks().iter().any(|check| check.name == "membarrier"));
}

#[test]
fn the_worst_verdict_counts() {
    let checks = [Check::ok("a", ""), Check::warn("b", "", "x")];
    assert_eq!(worst(&checks), Verdict::Warn);
    assert_eq!(worst(&checks[..1]), Verdict::Ok);
    assert!(table(&checks, false).contains("fix: x"));
}
