//! Runs other programs, cargo above all: from the repository's root, with the output passing by.
//!
//! Owns the choice between cargo-nextest (if it is there) and plain cargo test. Called by every command.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use sheave_testkit::skip::SKIP_LOG_ENV;

use crate::counts::Counts;
use crate::failures::Failures;
use crate::workspace;

/// cargo with these arguments, in the root of the repository.
pub fn cargo<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(args: I) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(workspace::root()).env(SKIP_LOG_ENV, workspace::skip_log());
    // That of xtask, which cargo has set: crates that look at it would be built anew for each way cargo is called.
    command.env_remove("CARGO_MANIFEST_DIR");
    // What these commands build is built whole: for incremental builds the compiler would write 10 GB, and take longer.
    command.env("CARGO_INCREMENTAL", "0");
    command
}

/// Has a command of cargo build the crates of the workspace with a compiler of `xtask/rustc`: a wrapper around rustc
/// that cargo calls for these crates only, so that third-party crates are built once for all wrappers. Those for a
/// model checker and for the lab add `--cfg NAME`; `tests` does not optimize tests.
pub fn with_compiler(mut command: Command, name: &str) -> Command {
    let wrapper = workspace::root().join("xtask/rustc").join(name).with_extension("sh");
    command.env("RUSTC_WORKSPACE_WRAPPER", wrapper);
    command
}

/// Whether `cargo nextest` works here.
pub fn has_nextest() -> bool {
    succeeds(cargo(["nextest", "--version"]))
}

/// How many tests run at once: more than there are CPUs, for many tests wait for a device, a timer or a process.
pub fn test_threads() -> String {
    (2 * std::thread::available_parallelism().map_or(1, usize::from)).to_string()
}

/// Whether the command runs and succeeds; its output is nobody's business.
pub fn succeeds(mut command: Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::null()).status().is_ok_and(|s| s.success())
}

/// Runs the command; its output goes where ours goes.
pub fn run(mut command: Command) -> Result<()> {
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("starting {}", show(&command)))?;
    if !status.success() {
        bail!("{} failed ({status})", show(&command));
    }
    Ok(())
}

/// Runs a test command; its output goes where ours goes, and the tests that it sums up are added to `counts`.
pub fn run_tests(command: Command, counts: &mut Counts) -> Result<()> {
    run_tests_seen(command, counts, |_| ())
}

/// [`run_tests`], with each line shown to `see` too.
pub fn run_tests_seen(mut command: Command, counts: &mut Counts, mut see: impl FnMut(&str)) -> Result<()> {
    let shown = show(&command);
    let (reader, writer) = std::io::pipe()?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn().with_context(|| format!("starting {shown}"))?;
    drop(command); // its ends of the pipe: the reader sees the end when the child's are closed too
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

/// Runs the command and returns what it wrote to standard output and standard error, and whether it succeeded.
pub fn capture(mut command: Command) -> Result<(String, String, bool)> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("starting {}", show(&command)))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((text(&output.stdout), text(&output.stderr), output.status.success()))
}

/// The command line as one would type it.
pub fn show(command: &Command) -> String {
    let program = command.get_program().to_string_lossy();
    let program = program.rsplit('/').next().unwrap_or_default().to_owned();
    command.get_args().fold(program, |line, arg| line + " " + &arg.to_string_lossy())
}
