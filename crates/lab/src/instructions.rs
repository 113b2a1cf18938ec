//! Instructions per I/O of each arm, counted by valgrind: they repeat to the digit, also on a busy machine, so that two
//! cores can tell small effects from noise.
//!
//! An arm runs by itself (`sheave-lab run-arm`), N I/Os and 2 N; the difference by N is what one I/O takes, whatever
//! start and end do. Valgrind runs one thread at a time, so instructions say nothing about threads that wait for each
//! other: they are what the program executes, not how long it takes. So as many arms are counted at once as there are
//! CPUs, each on one of its own.
//!
//! The same runs count lines of 64 bytes that were not in a first-level cache of 32 KiB (valgrind's model of one, the
//! same on every machine), and tell which functions the instructions are in, so that a reader sees what differs
//! between two arms.

mod profile;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sheave_load::cpu;

use crate::LabError;
use crate::experiment::{Experiment, Lab};
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
pub fn count(lab: &Lab, experiment: &dyn Experiment, point: &Point) -> Result<Option<InstructionRow>, LabError> {
    let program = std::env::current_exe()
        .map_err(|err| LabError::run(format!("cannot find this program to run it under valgrind: {err}")))?;
    let counts = |arm: &usize| experiment.counts_instructions(*arm) && experiment.takes_part(*arm, point);
    let all = experiment.arms();
    let counted: Vec<usize> = (0..all.len()).filter(counts).collect();
    let args = |arm: usize, ios| arguments(experiment.id(), all[arm].name, point, ios);
    let of_arm = |arm: usize| -> Result<Option<profile::PerIo>, LabError> {
        let Some(short) = profile(&program, &args(arm, IOS), arm, lab)? else { return Ok(None) };
        let long = profile(&program, &args(arm, 2 * IOS), arm, lab)?;
        Ok(long.map(|long| long.per_io(&short, IOS)))
    };
    let (mut arms, mut commands) = (Vec::new(), vec![String::new(); all.len()]);
    arms.resize_with(all.len(), || None);
    for (arm, each) in beside_each_other(lab, &counted, of_arm)? {
        let Some(each) = each else { return Ok(None) };
        arms[arm] = Some(each);
        let options = profile::OPTIONS.join(" ");
        commands[arm] = format!("{VALGRIND} {options} sheave-lab {}", args(arm, IOS).join(" "));
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

/// Does `work` for each arm, on a thread for each CPU of the lab, which children of that thread do not leave.
fn beside_each_other<T: Send>(
    lab: &Lab,
    arms: &[usize],
    work: impl Fn(usize) -> Result<T, LabError> + Sync,
) -> Result<Vec<(usize, T)>, LabError> {
    let work = &work;
    let on = |nth: usize, cpu: usize| -> Result<Vec<(usize, T)>, LabError> {
        cpu::pin(cpu)?;
        arms.iter().skip(nth).step_by(lab.cpus.len()).map(|&arm| Ok((arm, work(arm)?))).collect()
    };
    let done: Vec<Result<Vec<(usize, T)>, LabError>> = std::thread::scope(|scope| {
        let on = &on;
        let threads: Vec<_> =
            lab.cpus.iter().enumerate().map(|(nth, &cpu)| scope.spawn(move || on(nth, cpu))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    });
    Ok(done.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
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

/// A whole run of an arm; `None` when it was stopped.
fn profile(program: &Path, args: &[String], arm: usize, lab: &Lab) -> Result<Option<Profile>, LabError> {
    let out = Out::new(arm);
    let mut command = Command::new(VALGRIND);
    command.args(profile::OPTIONS).arg(format!("--cachegrind-out-file={}", out.0.display())).arg(program).args(args);
    let failed = |why: String| {
        LabError::run(format!("counting instructions failed: {why}"))
            .fix("install valgrind, or go without (--instructions off)")
    };
    // Ctrl-C at a terminal reaches the child by itself; any other stop waits for its end, some seconds at most.
    let output = command.stdin(Stdio::null()).output().map_err(|err| failed(err.to_string()))?;
    if lab.stopped() {
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
    fn new(arm: usize) -> Out {
        Out(std::env::temp_dir().join(format!("sheave-lab.{}.{arm}.cachegrind", std::process::id())))
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
