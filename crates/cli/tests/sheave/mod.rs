//! Runs the binary for the tests beside it, and reads its JSON.

#![allow(dead_code)] // Each test program uses its own part.

use std::process::{Command, Output};

use serde_json::Value;

/// The binary with arguments separated by blanks.
pub fn sheave(line: &str) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("sheave"));
    command.args(line.split_whitespace());
    command
}

/// What a finished run said.
pub struct Said {
    /// Exit code; -1 when a signal ended it.
    pub code: i32,
    /// Its stdout.
    pub out: String,
    /// Its stderr.
    pub err: String,
}

impl Said {
    /// Of a finished process.
    pub fn of(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Its stdout as exactly one JSON object.
    pub fn json(&self) -> Value {
        match serde_json::from_str(&self.out) {
            Ok(Value::Object(object)) => Value::Object(object),
            other => panic!("not one JSON object: {other:?}\nstdout: {}\nstderr: {}", self.out, self.err),
        }
    }
}

/// Runs to the end.
pub fn run(line: &str) -> Said {
    Said::of(sheave(line).output().expect("the binary runs"))
}

/// True when this machine has no io_uring, so that `file:` cannot be tested.
pub fn no_io_uring() -> bool {
    let said = run("doctor --json");
    let missing = said.json()["checks"]
        .as_array()
        .is_some_and(|checks| checks.iter().any(|check| check["name"] == "io_uring" && check["status"] == "fail"));
    if missing {
        sheave_testkit::skip("the kernel forbids io_uring here: `sheave doctor` tells why");
    }
    missing
}
