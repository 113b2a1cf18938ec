//! Tests the program that simulates cache lines, started as the lab starts it.
#![cfg(sheave_lab)]

use std::process::{Command, Output};

fn lines(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sheave-lines")).args(args).output().expect("it starts")
}

/// One place of each experiment: rings with a pair of counters, and the pool.
#[cfg(sheave_mesi)]
#[test]
fn a_seed_repeats_to_the_digit() {
    for args in [["in-flight", "1", "4"], ["io-wq", "1", "16"]] {
        let first = lines(&args);
        assert!(first.status.success() && first.stdout.split(|&byte| byte == b'\t').count() == 15, "{first:?}");
        for _ in 0..3 {
            assert_eq!(lines(&args).stdout, first.stdout, "{args:?}");
        }
        assert_ne!(lines(&[args[0], "2", args[2]]).stdout, first.stdout, "another seed is another order");
    }
}

#[cfg(sheave_mesi)]
#[test]
fn what_cannot_be_simulated_is_refused() {
    for args in
        [&[][..], &["plug-clock"], &["in-flight", "x"], &["in-flight", "1", "1000"], &["in-flight", "1", "1", "1"]]
    {
        assert_eq!(lines(args).status.code(), Some(2), "{args:?}");
    }
}

#[cfg(not(sheave_mesi))]
#[test]
fn another_build_says_that_it_has_no_machine() {
    let output = lines(&["in-flight"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("fix: "), "{output:?}");
}
