//! Instructions per I/O of each arm, counted by valgrind. The counts repeat exactly, even on a busy machine, so that
//! they show small effects that times on two cores would hide in noise.
//!
//! An arm runs in a process of its own (`sheave-lab run-arm`) for N I/Os and for 2 N. The difference divided by N is
//! the figure per I/O, without start and end of the program. Valgrind runs one thread at a time, so instructions show
//! the executed code, and neither how long it takes nor how long threads wait for each other. As many arms are counted
//! at once as there are CPUs, each on a CPU of its own.
//!
//! The same runs count two more things: the lines of 64 bytes that were not in a first-level cache of 32 KiB
//! (valgrind's model of a cache, the same on every machine), and the instructions of each function, which show where
//! two arms differ.

mod profile;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sheave_load::cpu;

use crate::LabError;
use crate::experiment::{Experiment, Lab};
use crate::point::Point;
use crate::report::{FunctionRow, InstructionRow};
use profile::Profile;

const VALGRIND: &str = "valgrind";
/// Number of I/Os of the short run. The long run has twice as many.
const IOS: u64 = 32_000;
/// Smallest difference of two arms, in instructions per I/O, with which a function is listed.
const LISTED: f64 = 0.5;

/// Returns true if valgrind can be run.
pub fn available() -> bool {
    let found = Command::new(VALGRIND).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    found.is_ok_and(|status| status.success())
}

/// Counts the instructions of each arm. Returns `None` if the run was stopped.
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

/// Calls `work` for each arm, on one pinned thread for each CPU of the lab. Child processes inherit the CPU.
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

/// Returns the functions in which arms differ, sorted by the size of the difference, largest first.
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

/// Profiles a run of an arm. Returns `None` if the lab was stopped.
fn profile(program: &Path, args: &[String], arm: usize, lab: &Lab) -> Result<Option<Profile>, LabError> {
    let out = Out::new(arm);
    let mut command = Command::new(VALGRIND);
    command.args(profile::OPTIONS).arg(format!("--cachegrind-out-file={}", out.0.display())).arg(program).args(args);
    let failed = |why: String| {
        LabError::run(format!("counting instructions failed: {why}"))
            .fix("install valgrind, or go without (--instructions off)")
    };
    // Ctrl-C at a terminal reaches the child by itself. Any other stop waits for the child's end, some seconds at most.
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

/// The file that valgrind writes. Removed when dropped.
struct Out(PathBuf);

impl Out {
    fn new(arm: usize) -> Out {
        Out(std::env::temp_dir().join(format!("sheave-lab.{}.{arm}.cachegrind", std::process::id())))
    }
}

impl Drop for Out {
    fn drop(&mut self) {
        // Valgrind may have failed before it wrote the file.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests;
