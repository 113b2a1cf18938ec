//! Tests of the arithmetic of comparisons.

use super::*;

fn turn(ios: u64, wall_ns: u64, cpu_ns: u64) -> Turn {
    Turn { ios, spent: Spent { wall_ns, cpu_ns } }
}

#[test]
fn medians() {
    assert_eq!(median(vec![]), None);
    assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
    assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
}

#[test]
fn ratios_are_ours_by_theirs_and_medians_of_pairs() {
    let theirs = turn(1000, 1_000_000, 1_000_000);
    let pairs = [
        (turn(3000, 1_000_000, 1_500_000), theirs),
        // Disturbed: must not decide.
        (turn(100, 1_000_000, 9_000_000), theirs),
        (turn(2000, 1_000_000, 1_000_000), theirs),
    ];
    let comparison = Comparison::of("peer".into(), &pairs).expect("three pairs");
    assert!((comparison.ratio_iops - 2.0).abs() < 1e-9);
    assert!((comparison.ratio_cpu - 0.5).abs() < 1e-9);
    assert!((comparison.iops - 1e6).abs() < 1e-3);
    assert!((comparison.ratio_iops_range[0] - 0.1).abs() < 1e-9);
    assert!((comparison.ratio_iops_range[1] - 3.0).abs() < 1e-9);
    assert!(Comparison::of("peer".into(), &[]).is_none());
}

#[test]
fn the_kernel_does_nops_here() {
    let setup = Setup { file: None, depth: 8, batch: 4, bs: 512, poll: false, workers: None };
    let Ok(ring) = KernelRing::new(setup) else {
        sheave_testkit::skip("the kernel forbids io_uring here: `sheave doctor` tells why");
        return;
    };
    let mut looper = Looper::new(ring, 8, 4, 0, std::sync::Arc::new(Lane::default()));
    let until = Until {
        runtime: None,
        ios: 1001,
        stop: std::sync::Arc::new(sheave::base::sync::atomic::AtomicBool::new(false)),
    };
    let mut pattern = Pattern::new(sheave_load::Rw::Randread, 50, 0, 512, 100, 1);
    looper.run(&mut pattern, &until, &mut Unpaced).expect("NOPs do not fail");
    assert_eq!((looper.counts().ios, looper.counts().errors), (1001, 0));
}
