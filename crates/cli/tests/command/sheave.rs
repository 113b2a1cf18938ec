//! Helpers that run the binary `sheave` and parse its JSON.

use std::process::{Command, Output};

use serde_json::Value;

/// Returns a command that runs the binary. Its arguments are the words of `line`.
pub fn sheave(line: &str) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("sheave"));
    command.args(line.split_whitespace());
    // Without a runtime directory the binary finds no daemon of another test or of this machine, and a server makes no
    // control socket.
    command.env("SHEAVE_RUNTIME_DIR", "");
    command
}

/// Exit code and output of a run that has ended.
pub struct Said {
    /// Exit code, or -1 if a signal ended the process.
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Said {
    pub fn of(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Parses stdout. Panics if it is not exactly one JSON object.
    pub fn json(&self) -> Value {
        match serde_json::from_str(&self.out) {
            Ok(Value::Object(object)) => Value::Object(object),
            other => panic!("not one JSON object: {other:?}\nstdout: {}\nstderr: {}", self.out, self.err),
        }
    }
}

/// Runs the binary until it ends.
pub fn run(line: &str) -> Said {
    Said::of(sheave(line).output().expect("the binary runs"))
}

/// Returns true if this machine has no io_uring. `sheave serve` works only with io_uring.
pub fn no_io_uring() -> bool {
    let said = run("doctor --json");
    let missing = said.json()["checks"]
        .as_array()
        .is_some_and(|checks| checks.iter().any(|check| check["name"] == "file: engine" && check["status"] != "ok"));
    if missing {
        sheave_testkit::skip("the kernel forbids io_uring here: `sheave doctor` tells why");
    }
    missing
}

/// Directory for the files of one test, removed when the value is dropped. It lies in `/var/tmp`, because the file
/// system there usually has holes and direct I/O.
pub struct Dir(tempfile::TempDir);

impl Dir {
    /// Makes an empty directory.
    pub fn new() -> Self {
        Self(tempfile::tempdir_in("/var/tmp").expect("a directory"))
    }

    /// Returns the path of a file in the directory.
    pub fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    /// Returns a command that runs the binary in the directory.
    pub fn command(&self, line: &str) -> Command {
        let mut command = sheave(line);
        command.current_dir(self.0.path());
        command
    }

    /// Runs the binary in the directory until it ends, with an empty stdin.
    pub fn run(&self, line: &str) -> Said {
        Said::of(self.command(line).stdin(std::process::Stdio::null()).output().expect("the binary runs"))
    }

    /// Runs the binary in the directory. Panics if its exit code is not 0.
    #[track_caller]
    pub fn ok(&self, line: &str) -> Said {
        let said = self.run(line);
        assert_eq!(said.code, 0, "{line}\n{}{}", said.out, said.err);
        said
    }

    /// Runs a line of shell in the directory. `$SHEAVE` is the path of the binary.
    pub fn shell(&self, line: &str) -> Said {
        let mut command = Command::new("sh");
        command.args(["-c", line]).env("SHEAVE", assert_cmd::cargo::cargo_bin!("sheave"));
        command.env("SHEAVE_RUNTIME_DIR", "");
        Said::of(command.current_dir(self.0.path()).output().expect("the shell runs"))
    }
}
