//! Tests of the parsers.

use std::time::Duration;

use super::*;

#[test]
fn durations() {
    assert_eq!(duration("1.5"), Ok(Duration::from_millis(1500)));
    assert_eq!(duration("200ms"), Ok(Duration::from_millis(200)));
    assert_eq!(duration("20"), Ok(Duration::from_secs(20)));
    assert_eq!(duration("1.5 s"), Ok(Duration::from_millis(1500)));
    assert!(duration("0").is_err());
    assert!(duration("-1").is_err());
    assert!(duration("nan").is_err());
}

#[test]
fn counts() {
    assert_eq!(count("50k"), Ok(50_000));
    assert_eq!(count("1.5M"), Ok(1_500_000));
    assert!(count("0").is_err());
    assert!(count("99999999999G").is_err());
    assert!(count("1e300").is_err());
    assert!(count("k").is_err());
    assert!(count("µ").is_err());
}

#[test]
fn cpu_lists() {
    assert_eq!(cpu_list("0-2,5"), Ok(CpuList(vec![0, 1, 2, 5])));
    assert!(cpu_list("3-1").is_err());
    assert!(cpu_list("").is_err());
    assert!(cpu_list("0-99999999").is_err());
}

#[test]
fn a_cpu_that_the_process_may_not_use_is_refused() {
    let allowed = CpuList(cpu::allowed());
    assert_eq!(allowed.allowed(), Ok(&allowed.0[..]));
    let refused = CpuList(vec![allowed.0[0], 4095]).allowed().expect_err("there are fewer");
    assert!(refused.usage && refused.cause.contains("CPU 4095"), "{refused}");
}
