//! Counts: instructions and system calls per I/O, CPU time of a waiting ring, duration of a build.
//!
//! Counts per I/O are differences between a long and a short run, divided by the difference of I/Os. So they do not
//! include the start and the end of the program.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use sheave_testkit::hot_loop::{self, CASES, Profile, Program, SHORT_LONG, arguments};
use sheave_testkit::tools;

use super::program::sheave;
use crate::cargo::{self, cargo};
use crate::{budgets, workspace};

/// The file of the cases with a file. The sections that measure times of `file:` have a larger file of their own.
pub(super) const IMAGE: &str = "target/counts.img";

/// File and size for the cases with a file.
const FILE: &str = "target/counts.img,size=64M";

/// Arguments of `sheave bench` for the runs under strace.
const SYSTEM_CALLS: &[&str] = &[
    "null:size=1T --rw randread --bs 512 --depth 128 --batch 32 --poll",
    "ram:size=64M --rw randread --bs 512 --depth 128 --batch 32 --poll",
    "file:target/counts.img,size=64M --rw randread --bs 4k --depth 1",
    "file:target/counts.img,size=64M --rw randread --bs 4k --depth 32 --batch 16",
];

/// Arguments of a ring that waits nearly all of the time, and the seconds of its run.
const IDLE: (&str, u64) = ("null:size=1T,latency=1s --depth 1 --batch 1 --runtime 10s", 10);

/// Aims for the instructions per I/O: the path in words, the aim, the name of the case, and the name of a case whose
/// instructions are subtracted.
pub const AIMS: &[(&str, u32, &str, &str)] = &[
    ("`null:`, 512 B, depth 128, batch 32, all statistics on", 178, "null-read-d128-b32", ""),
    ("tracing on, more than off", 25, "null-read-d128-b32-traced", "null-read-d128-b32"),
    ("`null:`, depth 1", 540, "null-read-d1", ""),
    ("a volume, more than its device", 45, "volume-read-d128-b32", "null-keep-read-d128-b32"),
    ("`ram:`, 512 B", 300, "ram-read-d128-b32", ""),
    ("sequential reads, merged in the plug", 300, "null-read-seq-d128-b32", ""),
    ("`file:`, user side, depth 32, a ring that sleeps", 300, "file-read-4k-d32-b32", ""),
    ("`file:`, depth 1, between two system calls", 1_000, "file-read-4k-d1", ""),
];

/// Returns the table of aims. Instructions above their aim are in bold.
pub fn aims() -> Result<String> {
    let mut lines = vec!["| way | aim | now | command |".to_owned(), "|---|---:|---:|---|".to_owned()];
    budgets::build(Profile::Release)?;
    for (what, aim, name, less) in AIMS {
        let mut now = case_per_io(name)?;
        let mut command = format!("`HL {}`", case_words(name)?);
        if !less.is_empty() {
            now -= case_per_io(less)?;
            command += &format!(", less `HL {}`", case_words(less)?);
        }
        let shown = if now > f64::from(*aim) { format!("**{now:.1}**") } else { format!("{now:.1}") };
        lines.push(format!("| {what} | {aim} | {shown} | {command} |"));
    }
    Ok(lines.join("\n"))
}

/// Returns the arguments with which a case of the budgets runs its program.
pub fn case_words(name: &str) -> Result<String> {
    let case = CASES.iter().find(|case| case.name == name).with_context(|| format!("no case {name}"))?;
    Ok(arguments(&case.on(FILE), "IOS").join(" "))
}

fn case_per_io(name: &str) -> Result<f64> {
    let case = CASES.iter().find(|case| case.name == name).with_context(|| format!("no case {name}"))?;
    per_io(&case.on(FILE))
}

fn per_io(words: &str) -> Result<f64> {
    // The first run is not counted, because it may create the file.
    instructions(words, 1_024)?;
    let (short, long) = SHORT_LONG;
    Ok(hot_loop::per_io(instructions(words, short)?, instructions(words, long)?))
}

/// Returns CPU, kernel and compiler in one line.
pub fn machine() -> Result<String> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")).and_then(|line| line.split_once(": "));
    let model = model.map_or("unknown CPU", |(_, name)| name.trim());
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let (rustc, ..) = cargo::capture({
        let mut rustc = Command::new("rustc");
        rustc.arg("--version");
        rustc
    })?;
    let virtual_machine = if cpuinfo.contains("hypervisor") { ", virtual machine" } else { "" };
    Ok(format!("{model}, {cpus} CPUs{virtual_machine}, Linux {}, {}.", kernel.trim(), rustc.trim()))
}

/// Returns the table of counts.
pub fn table() -> Result<String> {
    let mut lines = vec!["| what | value | command |".to_owned(), "|---|---:|---|".to_owned()];
    budgets::build(Profile::Release)?;
    for case in CASES.iter().filter(|case| case.program == Program::HotLoop) {
        let words = case.on(FILE);
        let value = per_io(&words)?;
        let under = "valgrind --tool=cachegrind --cache-sim=no target/release/examples/hot_loop";
        let words = arguments(&words, "IOS").join(" ");
        lines.push(format!("| instructions an I/O | {value:.0} | `{under} {words}` |"));
    }
    for row in SYSTEM_CALLS {
        // The first run is not counted, because it may create the file.
        system_calls(row, 1_000)?;
        // The difference of two runs may be just below zero. Rounding would print it as -0.0; adding 0.0 removes the
        // sign.
        let (short, long) = SHORT_LONG;
        let value = hot_loop::per_io(system_calls(row, short)?, system_calls(row, long)?);
        let value = (value * 1000.0).round() / 1000.0 + 0.0;
        lines.push(format!("| system calls an I/O | {value:.3} | `strace -f -c sheave bench {row}` |"));
    }
    let (row, seconds) = IDLE;
    let percent = idle(row)?.as_secs_f64() / seconds as f64 * 100.0;
    lines.push(format!(
        "| CPU of a ring that waits, % of a core, start and end included | {percent:.1} | `sheave bench {row}` |"
    ));
    Ok(lines.join("\n"))
}

fn instructions(words: &str, ios: u64) -> Result<u64> {
    let mut command = Command::new(tool("valgrind")?);
    command.args(["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]);
    command.arg(workspace::target_dir().join("release/examples/hot_loop")).current_dir(workspace::root());
    command.args(arguments(words, &ios.to_string()));
    let (_, errors, success) = cargo::capture(command)?;
    ensure!(success, "valgrind failed:\n{errors}");
    parse_instructions(&errors).with_context(|| format!("valgrind gave no count:\n{errors}"))
}

/// Parses `==12== I refs: 44,389,419`.
pub fn parse_instructions(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.contains("refs:"))?;
    line.rsplit(' ').next()?.replace(',', "").parse().ok()
}

fn system_calls(row: &str, ios: u64) -> Result<u64> {
    let out = workspace::root().join("target/strace.txt");
    let mut command = Command::new(tool("strace")?);
    command.args(["-f", "-c", "-o"]).arg(&out);
    let (_, errors, success) = cargo::capture(wrap(command, row, ios))?;
    ensure!(success, "strace failed:\n{errors}");
    let text = fs::read_to_string(&out).context("reading what strace counted")?;
    let _ = fs::remove_file(&out);
    parse_calls(&text).with_context(|| format!("strace gave no total:\n{text}"))
}

/// Parses `100.00 0.003443 23 148 1 total`.
pub fn parse_calls(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.trim_end().ends_with(" total"))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

fn tool(name: &str) -> Result<std::path::PathBuf> {
    let cure = || tools::lookup(name).map_or_else(|| "install it".into(), |tool| tool.cure());
    tools::find(name).with_context(|| format!("{name} is missing: {}", cure()))
}

/// Appends `sheave bench` with a number of I/Os to a command that runs it.
fn wrap(mut command: Command, row: &str, ios: u64) -> Command {
    let sheave = sheave(row);
    command.current_dir(workspace::root()).arg(sheave.get_program()).args(sheave.get_args());
    command.args(["--ios", &ios.to_string(), "--progress", "none"]);
    command
}

/// Returns the CPU time of a whole run.
fn idle(row: &str) -> Result<Duration> {
    let before = children()?;
    let mut command = sheave(row);
    command.args(["--progress", "none"]);
    let (_, errors, success) = cargo::capture(command)?;
    ensure!(success, "the idle run failed:\n{errors}");
    Ok(children()?.saturating_sub(before))
}

/// Returns the CPU time of ended child processes, in steps of 10 ms.
fn children() -> Result<Duration> {
    let stat = fs::read_to_string("/proc/self/stat").context("reading /proc/self/stat")?;
    parse_children(&stat).context("/proc/self/stat has other fields than expected")
}

/// Parses fields 16 and 17 (see proc(5)). They are counted from the end of the name, which may contain any character.
pub fn parse_children(stat: &str) -> Option<Duration> {
    let (_, fields) = stat.rsplit_once(')')?;
    let field = |at: usize| fields.split_whitespace().nth(at)?.parse::<u64>().ok();
    Some(Duration::from_millis((field(13)? + field(14)?) * 10))
}

/// Returns the table of build times.
pub fn build() -> Result<String> {
    let dir = workspace::target_dir().join("bench-build");
    let _ = fs::remove_dir_all(&dir);
    let mut lines = vec!["| what | seconds | command |".to_owned(), "|---|---:|---|".to_owned()];
    let commands: &[(&str, &[&str])] = &[
        ("the library and the command, as users build them", &["build", "--release"]),
        ("the whole workspace, for development", &["build", "--workspace"]),
    ];
    for (what, args) in commands {
        let mut command = cargo(["--quiet"]);
        command.args(*args).env("CARGO_TARGET_DIR", &dir).env("CARGO_INCREMENTAL", "0");
        let start = Instant::now();
        if let Err(error) = cargo::run(command) {
            bail!("{error:#}");
        }
        let seconds = start.elapsed().as_secs_f64();
        lines.push(format!("| {what} | {seconds:.0} | `cargo {}` into an empty target directory |", args.join(" ")));
        let _ = fs::remove_dir_all(&dir);
    }
    Ok(lines.join("\n"))
}
