//! Runs other programs, mostly cargo, in the repository's root and with their output passed through.
//!
//! Owns the choice between cargo-nextest, if it is installed, and plain cargo test. Called by every command.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use sheave_testkit::skip::SKIP_LOG_ENV;

use crate::counts::Counts;
use crate::failures::Failures;
use crate::workspace;

/// Makes a cargo command that runs in the root of the repository.
pub fn cargo<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(args: I) -> Command {
    let mut command = sheave_testkit::cargo::cargo();
    command.args(args).current_dir(workspace::root()).env(SKIP_LOG_ENV, workspace::skip_log());
    // These builds are made from scratch; an incremental build would write 10 GB and take longer.
    command.env("CARGO_INCREMENTAL", "0");
    command
}

/// Makes a cargo command that compiles the crates of the workspace with a wrapper of `dev/xtask/rustc` around rustc.
/// Cargo calls the wrapper only for these crates, so that third-party crates are built once for all wrappers. The
/// wrappers for a model checker and for the lab add `--cfg NAME`; `tests` turns off the optimization of tests.
pub fn with_compiler(mut command: Command, name: &str) -> Command {
    let wrapper = workspace::root().join("dev/xtask/rustc").join(name).with_extension("sh");
    command.env("RUSTC_WORKSPACE_WRAPPER", wrapper);
    command
}

/// Returns true if `cargo nextest` is installed.
pub fn has_nextest() -> bool {
    succeeds(cargo(["nextest", "--version"]))
}

/// Returns the number of tests to run at once: two per CPU, because many tests wait for a device, a timer or a process.
pub fn test_threads() -> String {
    (2 * std::thread::available_parallelism().map_or(1, usize::from)).to_string()
}

/// Runs the command without output. Returns true if it starts and succeeds.
pub fn succeeds(mut command: Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::null()).status().is_ok_and(|s| s.success())
}

/// Runs the command, with its output passed through.
pub fn run(mut command: Command) -> Result<()> {
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("starting {}", show(&command)))?;
    if !status.success() {
        bail!("{} failed ({status})", show(&command));
    }
    Ok(())
}

/// Runs a test command with its output passed through, and adds the tests of its summary to `counts`.
pub fn run_tests(command: Command, counts: &mut Counts) -> Result<()> {
    run_tests_seen(command, counts, |_| ())
}

/// Same as [`run_tests`], and passes each line to `see`.
pub fn run_tests_seen(mut command: Command, counts: &mut Counts, mut see: impl FnMut(&str)) -> Result<()> {
    let shown = show(&command);
    let (reader, writer) = std::io::pipe()?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn().with_context(|| format!("starting {shown}"))?;
    drop(command); // it holds ends of the pipe, with which the reader would never see its end
    let mut reader = BufReader::new(reader);
    let mut screen = std::io::stdout().lock();
    let (mut line, mut failures) = (Vec::new(), Failures::default());
    while reader.read_until(b'\n', &mut line)? > 0 {
        screen.write_all(&line)?;
        let text = String::from_utf8_lossy(&line);
        counts.read_line(text.trim_end());
        failures.read_line(&text);
        see(text.trim_end());
        line.clear();
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("{shown} failed ({status}){failures}");
    }
    Ok(())
}

/// Runs the command. Returns its standard output, its standard error, and true if it succeeded.
pub fn capture(mut command: Command) -> Result<(String, String, bool)> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("starting {}", show(&command)))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((text(&output.stdout), text(&output.stderr), output.status.success()))
}

/// Formats the command line as a user would type it.
pub fn show(command: &Command) -> String {
    let program = command.get_program().to_string_lossy();
    let program = program.rsplit('/').next().unwrap_or_default().to_owned();
    command.get_args().fold(program, |line, arg| line + " " + &arg.to_string_lossy())
}
