//! Tests of the names of failed tests, on output as the two runners print it.

use super::*;

fn read(output: &str) -> String {
    let mut failures = Failures::default();
    output.lines().for_each(|line| failures.read_line(line));
    failures.to_string()
}

#[test]
fn cargo_test() {
    let output = "running 2 tests\n..\nfailures:\n\n---- pool::tests::opens stdout ----\n\n\
        thread 'pool::tests::opens' (7) panicked at crates/vol/src/pool/tests.rs:3:5:\n\
        assertion `left == right` failed: a size\n  left: 1\n right: 2\nnote: run with `RUST_BACKTRACE=1`\n\n\
        ---- quiet stdout ----\nError: \"no space\"\n\nfailures:\n    pool::tests::opens\n    quiet\n\n\
        test result: FAILED. 0 passed; 2 failed; 0 ignored";
    let expected = "\n  pool::tests::opens: crates/vol/src/pool/tests.rs:3:5: assertion `left == right` failed: a size\
        \n  quiet: no panic was printed";
    assert_eq!(read(output), expected);
}

#[test]
fn nextest_names_a_failure_twice() {
    let output = "        FAIL [   0.004s] (1/3) sheave-vol pool::tests::opens\n  stderr ───\n\n\
        thread 'pool::tests::opens' (7) panicked at src/lib.rs:3:5:\n\nno pool\n\
        \u{1b}[31;1m     TIMEOUT\u{1b}[0m [ 120.0s] sheave-sim rot\n     Summary [ 0.1s] 3 tests run: 1 passed\n\
        \x20       FAIL [   0.004s] (1/3) sheave-vol pool::tests::opens";
    let expected = "\n  sheave-vol pool::tests::opens: src/lib.rs:3:5: no pool\n  sheave-sim rot: no panic was printed";
    assert_eq!(read(output), expected);
}

#[test]
fn a_panic_that_a_test_expects_is_nobodys_failure() {
    assert_eq!(read("thread 'x' panicked at a.rs:1:1:\nexpected\ntest result: ok. 1 passed; 0 failed"), "");
}

#[test]
fn sanitizers() {
    let output = "==7==ERROR: AddressSanitizer: heap-use-after-free on address 0x50 at pc 0x55\n#0 0x55";
    assert_eq!(read(output), "\n  a sanitizer: AddressSanitizer: heap-use-after-free on address 0x50 at pc 0x55");
}

#[test]
fn many_failures_do_not_fill_the_summary() {
    let output: String = (0..25).map(|n| format!("---- test_{n} stdout ----\n")).collect();
    assert!(read(&output).ends_with("and 5 others"));
}
