//! Runs the binary for the tests beside it, and reads its JSON.

use std::process::{Command, Output};

use serde_json::Value;

/// The binary with arguments separated by blanks.
pub fn sheave(line: &str) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("sheave"));
    command.args(line.split_whitespace());
    // No server of another test, or of this machine, is asked; and none has a control socket.
    command.env("SHEAVE_RUNTIME_DIR", "");
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

/// True when this machine has no io_uring, so that nothing can be served.
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

/// A directory for the files of one test, gone with it. On a file system with holes and direct I/O, as far as there is
/// one.
pub struct Dir(tempfile::TempDir);

impl Dir {
    /// An empty one.
    pub fn new() -> Self {
        Self(tempfile::tempdir_in("/var/tmp").expect("a directory"))
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    /// The binary, to be run in it.
    pub fn command(&self, line: &str) -> Command {
        let mut command = sheave(line);
        command.current_dir(self.0.path());
        command
    }

    /// Runs to the end, without anything to read.
    pub fn run(&self, line: &str) -> Said {
        Said::of(self.command(line).stdin(std::process::Stdio::null()).output().expect("the binary runs"))
    }

    /// Runs a command to its end, which must be success.
    #[track_caller]
    pub fn ok(&self, line: &str) -> Said {
        let said = self.run(line);
        assert_eq!(said.code, 0, "{line}\n{}{}", said.out, said.err);
        said
    }

    /// A line of shell, where `$SHEAVE` is the binary.
    pub fn shell(&self, line: &str) -> Said {
        let mut command = Command::new("sh");
        command.args(["-c", line]).env("SHEAVE", assert_cmd::cargo::cargo_bin!("sheave"));
        command.env("SHEAVE_RUNTIME_DIR", "");
        Said::of(command.current_dir(self.0.path()).output().expect("the shell runs"))
    }
}
