//! Instructions per I/O of each arm, counted by valgrind: they repeat to the digit, also on a busy machine, so that two
//! cores can tell small effects from noise.
//!
//! An arm runs by itself (`sheave-lab run-arm`), N I/Os and 2 N; the difference by N is what one I/O takes, whatever
//! start and end do. Valgrind runs one thread at a time, so instructions say nothing about threads that wait for each
//! other: they are what the program executes, not how long it takes.

mod cachegrind;

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use sheave_base::sync::atomic::{AtomicBool, Ordering};

use crate::LabError;
use crate::experiment::Experiment;
use crate::point::Point;
use crate::report::InstructionRow;
use cachegrind::{WORDS, refs};

/// I/Os of the short run; the long one has twice as many.
const IOS: u64 = 32_000;

/// Whether valgrind is there.
pub fn available() -> bool {
    let found = Command::new(WORDS[0]).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
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
    let (mut per_io, mut commands) = (Vec::new(), Vec::new());
    for (index, arm) in experiment.arms().iter().enumerate() {
        if !experiment.counts_instructions(index) {
            per_io.push(None);
            commands.push(String::new());
            continue;
        }
        let args = |ios| arguments(experiment.id(), arm.name, point, ios);
        let short = instructions(&program, &args(IOS), stop)?;
        let long = if short.is_some() { instructions(&program, &args(2 * IOS), stop)? } else { None };
        let (Some(short), Some(long)) = (short, long) else { return Ok(None) };
        per_io.push(Some((long as f64 - short as f64) / IOS as f64));
        commands.push(format!("{} sheave-lab {}", WORDS.join(" "), args(IOS).join(" ")));
    }
    Ok(Some(InstructionRow { point: point.clone(), per_io, commands }))
}

fn arguments(id: &str, arm: &str, point: &Point, ios: u64) -> Vec<String> {
    let arm = arm.replace(' ', "-");
    ["run-arm", id, &arm, "--point", &point.to_string(), "--ios", &ios.to_string()].map(String::from).to_vec()
}

/// Instructions of a whole run; `None` when it was stopped.
fn instructions(program: &Path, args: &[String], stop: &Arc<AtomicBool>) -> Result<Option<u64>, LabError> {
    let mut command = cachegrind::command(Path::new(WORDS[0]));
    command.arg(program).args(args);
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
    match refs(&said) {
        Some(count) if ended.success() => Ok(Some(count)),
        _ => Err(failed(format!("`sheave-lab {}` ended with {ended}: {}", args.join(" "), said.trim()))),
    }
}

#[cfg(test)]
mod tests;
