//! Tests `sheave-lab` as a program: its JSON, its page, its refusals, and Ctrl-C. Built without `--cfg sheave_lab` it
//! prints how to build it.

use std::process::{Command, Output, Stdio};

/// Makes a command of the program, with arguments separated by blanks.
fn lab(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sheave-lab"));
    command.args(line.split_whitespace());
    command
}

/// Output of a finished run.
struct Said {
    /// Exit code, or -1 if a signal ended the run.
    code: i32,
    out: String,
    err: String,
}

impl Said {
    fn of(output: Output) -> Self {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        Self { code: output.status.code().unwrap_or(-1), out: text(&output.stdout), err: text(&output.stderr) }
    }
}

fn run(line: &str) -> Said {
    Said::of(lab(line).stdin(Stdio::null()).output().expect("the program starts"))
}

#[cfg(not(sheave_lab))]
#[test]
fn an_ordinary_build_has_no_lab_and_says_how_to_get_it() {
    let said = run("all --quick");
    assert_eq!((said.code, said.out.as_str()), (2, ""));
    assert!(said.err.contains("fix: ") && said.err.contains("`cargo xtask lab"), "{}", said.err);
}

#[cfg(sheave_lab)]
mod program;
