//! Tests of parsing the system's files.

use super::*;

#[test]
fn dates() {
    assert_eq!(utc(0), "1970-01-01 00:00 UTC");
    assert_eq!(utc(951_782_400), "2000-02-29 00:00 UTC");
    assert_eq!(utc(1_798_761_599), "2026-12-31 23:59 UTC");
}

#[test]
fn lists_of_cpus() {
    assert_eq!(["0", "0-3", "0-3,8", "", "x"].map(count_cpus), [1, 4, 5, 1, 1]);
}

#[test]
fn memory() {
    assert_eq!(memory_bytes("MemTotal:       16384 kB\nMemFree: 1 kB\n"), 16 << 20);
    assert_eq!(memory_bytes("nothing"), 0);
}

#[test]
fn this_machine_has_something_to_say() {
    let here = Machine::here();
    assert!(!here.cpu.is_empty() && here.cpus > 0 && here.memory_bytes > 0, "{here:?}");
    assert!(here.line().contains("CPUs"), "{}", here.line());
}
