//! Tests that a smoke fails for the wrong exit code, for missing words and for a panic.

use super::*;

const SH: &str = "/bin/sh";

fn smoke(args: &'static [&'static str], exit: Exit, says: &'static [&'static str]) -> Result<()> {
    check(Path::new(SH), &Smoke { args, exit, says })
}

#[test]
fn the_right_exit_code_and_words_pass() {
    assert!(smoke(&["-c", "echo sheave 0.1"], Exit::Success, &["sheave 0."]).is_ok());
    assert!(smoke(&["-c", "echo no such file >&2; exit 2"], Exit::Failure, &["no such file"]).is_ok());
    assert!(smoke(&["-c", "echo fix; exit 1"], Exit::Any, &["fix"]).is_ok());
}

#[test]
fn each_wrong_answer_fails() {
    assert!(smoke(&["-c", "exit 1"], Exit::Success, &[]).is_err(), "must succeed");
    assert!(smoke(&["-c", "exit 0"], Exit::Failure, &[]).is_err(), "must fail");
    assert!(smoke(&["-c", "echo a"], Exit::Success, &["b"]).is_err(), "lacks words");
    assert!(smoke(&["-c", "echo why; exit 1"], Exit::Failure, &["why"]).is_err(), "a reason belongs on standard error");
    assert!(smoke(&["-c", "echo thread x panicked at y >&2; exit 101"], Exit::Failure, &["y"]).is_err(), "a panic");
}
