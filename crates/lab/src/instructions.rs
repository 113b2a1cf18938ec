//! Instructions per I/O of each arm, counted by valgrind: they repeat to the digit, also on a busy machine, so that two
//! cores can tell small effects from noise.
//!
//! An arm runs by itself (`sheave-lab run-arm`), N I/Os and 2 N; the difference by N is what one I/O takes, whatever
//! start and end do. Valgrind runs one thread at a time, so instructions say nothing about threads that wait for each
//! other: they are what the program executes, not how long it takes.
//!
//! The same runs count lines of 64 bytes that were not in a first-level cache of 32 KiB (valgrind's model of one, the
//! same on every machine), and tell which functions the instructions are in, so that a reader sees what differs
//! between two arms.

mod profile;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use sheave_base::sync::atomic::{AtomicBool, Ordering};

use crate::LabError;
use crate::experiment::Experiment;
use crate::point::Point;
use crate::report::{FunctionRow, InstructionRow};
use profile::Profile;

/// The program that counts.
const VALGRIND: &str = "valgrind";
/// I/Os of the short run; the long one has twice as many.
const IOS: u64 = 32_000;
/// A function is listed when two arms differ in it by so many instructions an I/O.
const LISTED: f64 = 0.5;

/// Whether valgrind is there.
pub fn available() -> bool {
    let found = Command::new(VALGRIND).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    found.is_ok_and(|status| status.success())
}

/// Counts for each arm; `None` when it was stopped.
pub fn count(
    experiment: &dyn Experiment,
    point: &Point,
    stop: &Arc<AtomicBool>,
) -> Result<Option<InstructionRow>, LabError> {
    let program = std::env::current_exe()
        .map_err(|err| LabError::run(format!("cannot find this program to run it under valgrind: {err}")))?;
    let (mut arms, mut commands) = (Vec::new(), Vec::new());
    for (index, arm) in experiment.arms().iter().enumerate() {
        if !experiment.counts_instructions(index) || !experiment.takes_part(index, point) {
            arms.push(None);
            commands.push(String::new());
            continue;
        }
        let args = |ios| arguments(experiment.id(), arm.name, point, ios);
        let short = profile(&program, &args(IOS), stop)?;
        let long = if short.is_some() { profile(&program, &args(2 * IOS), stop)? } else { None };
        let (Some(short), Some(long)) = (short, long) else { return Ok(None) };
        arms.push(Some(long.per_io(&short, IOS)));
        let options = profile::OPTIONS.join(" ");
        commands.push(format!("{VALGRIND} {options} sheave-lab {}", args(IOS).join(" ")));
    }
    let per_io: Vec<Option<f64>> = arms.iter().map(|arm| arm.as_ref().map(|arm| arm.instructions)).collect();
    let way = experiment.ways(point, &per_io);
    Ok(Some(InstructionRow {
        point: point.clone(),
        lines_per_io: arms.iter().map(|arm| arm.as_ref().map(|arm| arm.lines)).collect(),
        functions: functions(&arms),
        per_io,
        way,
        commands,
    }))
}

/// The functions in which arms differ, those in which they differ most first.
fn functions(arms: &[Option<profile::PerIo>]) -> Vec<FunctionRow> {
    let mut names: Vec<&String> = arms.iter().flatten().flat_map(|arm| arm.functions.keys()).collect();
    names.sort();
    names.dedup();
    let row = |name: &String| FunctionRow {
        name: name.clone(),
        per_io: arms.iter().map(|arm| Some(arm.as_ref()?.functions.get(name).copied().unwrap_or(0.0))).collect(),
    };
    let mut rows: Vec<FunctionRow> = names.into_iter().map(row).filter(|row| row.spread() >= LISTED).collect();
    rows.sort_by(|a, b| b.spread().total_cmp(&a.spread()));
    rows
}

fn arguments(id: &str, arm: &str, point: &Point, ios: u64) -> Vec<String> {
    let arm = arm.replace(' ', "-");
    ["run-arm", id, &arm, "--point", &point.to_string(), "--ios", &ios.to_string()].map(String::from).to_vec()
}

/// A whole run; `None` when it was stopped.
fn profile(program: &Path, args: &[String], stop: &Arc<AtomicBool>) -> Result<Option<Profile>, LabError> {
    let out = Out::new();
    let mut command = Command::new(VALGRIND);
    command.args(profile::OPTIONS).arg(format!("--cachegrind-out-file={}", out.0.display())).arg(program).args(args);
    let failed = |why: String| {
        LabError::run(format!("counting instructions failed: {why}"))
            .fix("install valgrind, or go without (--instructions off)")
    };
    // Ctrl-C at a terminal reaches the child by itself; any other stop waits for its end, some seconds at most.
    let output = command.stdin(Stdio::null()).output().map_err(|err| failed(err.to_string()))?;
    // Relaxed: the flag carries nothing but itself.
    if stop.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let (said, ended) = (String::from_utf8_lossy(&output.stderr), output.status);
    let profile = std::fs::read_to_string(&out.0).ok().and_then(|text| Profile::of(&text));
    match profile {
        Some(profile) if ended.success() => Ok(Some(profile)),
        _ => Err(failed(format!("`sheave-lab {}` ended with {ended}: {}", args.join(" "), said.trim()))),
    }
}

/// The file that valgrind writes, which goes when it was read.
struct Out(PathBuf);

impl Out {
    fn new() -> Out {
        Out(std::env::temp_dir().join(format!("sheave-lab.{}.cachegrind", std::process::id())))
    }
}

impl Drop for Out {
    fn drop(&mut self) {
        // Where nothing was written there is nothing to remove.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests;
