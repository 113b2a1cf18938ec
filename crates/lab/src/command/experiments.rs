//! `sheave-lab EXPERIMENT`: runs experiments, shows them while they run, writes JSON and the page.
//!
//! Owns what is the terminal's: progress, Ctrl-C, files and the exit code. A claim that does not hold is a result, not
//! a failure; a check that fails is one.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use sheave_load::value::CpuList;
use sheave_load::{cpu, output, signals};

use super::args::{Instructions, LabArgs, RunArmArgs};
use super::job;
use super::shown::Shown;
use crate::report::LabReport;
use crate::run::{self, Plan, Sweeps};
use crate::turns::Pace;
use crate::{Lab, LabError, Scale, exp, instructions};

/// Makes a page of a report.
type Render = fn(&LabReport) -> String;

/// Runs experiments.
pub fn run(args: &LabArgs) -> Result<ExitCode, LabError> {
    let lab = lab(args)?;
    let plan = plan(args)?;
    // Refused now, not after half an hour.
    let pages =
        [(args.html.as_deref(), crate::html::page as Render), (args.markdown.as_deref(), crate::markdown::page)];
    let mut files = Vec::new();
    for (path, render) in pages {
        if let Some(path) = path {
            files.push((create(path)?, path, render));
        }
    }
    let outcome = beside(|| {
        let mut shown = Shown::new(args.json, args.long);
        let outcome = run::run(&plan, &lab, &mut shown);
        shown.finish();
        outcome
    });
    let report = outcome?;
    for (file, path, render) in files {
        write_page(file, path, &render(&report))?;
    }
    match args.json {
        true => output::json(&report)?,
        false => output::text(&crate::table::closing(&report)),
    }
    if report.interrupted {
        eprintln!("sheave-lab: interrupted; the report has what was measured until then");
    }
    let failed = report.failed_checks();
    for (id, check) in &failed {
        eprintln!("sheave-lab: {id}: check failed: {} ({})", check.name, check.detail);
    }
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs one arm by itself, for valgrind and its like.
pub fn run_arm(all: &LabArgs, args: &RunArmArgs) -> Result<ExitCode, LabError> {
    let lab = lab(all)?;
    let turn = beside(|| run::run_arm(&lab, &args.experiment, &args.arm, &args.point, args.ios))?;
    output::text(&format!("{} I/Os in {:.3} ms\n", turn.ios, turn.wall_ns as f64 / 1e6));
    Ok(ExitCode::SUCCESS)
}

fn lab(args: &LabArgs) -> Result<Lab, LabError> {
    Ok(Lab {
        scale: if args.quick { Scale::Quick } else { Scale::Full },
        cpus: cpus(args.cpu.as_ref())?,
        stop: signals::stop_flag()?,
    })
}

/// Runs something that pins its thread beside the first thread: pools take the CPUs of their workers from that one.
fn beside<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let done = std::thread::scope(|scope| scope.spawn(work).join());
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The arguments judged together.
fn plan(args: &LabArgs) -> Result<Plan, LabError> {
    let name = args.experiment.as_deref().unwrap_or("all");
    let experiments = exp::ALL.iter().copied().filter(|experiment| name == "all" || experiment.id() == name);
    if name == "all" && (args.point.is_some() || args.job.is_some()) {
        let option = if args.job.is_some() { "--job" } else { "--point" };
        let what = LabError::usage(format!("{option} is a point of one experiment"));
        return Err(what.fix("name the experiment instead of all"));
    }
    let job = args.job.as_deref().map(|path| job::point(name, path)).transpose()?;
    let point = args.point.clone().or(job);
    let wanted = match args.instructions {
        Instructions::On => true,
        Instructions::Off => false,
        Instructions::Auto => !args.quick && point.is_none(),
    };
    let counts = wanted && instructions::available();
    if args.instructions == Instructions::On && !counts {
        return Err(LabError::run("there is no valgrind to count instructions with")
            .fix("install valgrind, or go without (--instructions off)"));
    }
    let (rounds, turn) = if args.quick { (3, 50) } else { (10, 80) };
    Ok(Plan {
        experiments: experiments.collect(),
        pace: Pace { rounds: args.rounds.unwrap_or(rounds), turn: args.turn.unwrap_or(Duration::from_millis(turn)) },
        sweeps: match args.sweep.as_str() {
            "all" => Sweeps::All,
            "none" => Sweeps::None,
            name => Sweeps::Named(name.into()),
        },
        instructions: counts,
        point,
        peer: args.job.clone().filter(|_| args.fio),
        command: command(),
        options: options(args),
    })
}

/// What a command needs to measure one row again as this run does.
fn options(args: &LabArgs) -> String {
    let mut options = String::new();
    if args.quick {
        options.push_str(" --quick");
    }
    if let Some(rounds) = args.rounds {
        options.push_str(&format!(" --rounds {rounds}"));
    }
    if let Some(turn) = args.turn {
        options.push_str(&format!(" --turn {}us", turn.as_micros()));
    }
    if let Some(CpuList(cpus)) = &args.cpu {
        let cpus: Vec<String> = cpus.iter().map(usize::to_string).collect();
        options.push_str(&format!(" --cpu {}", cpus.join(",")));
    }
    options
}

/// The command line as a shell takes it.
fn command() -> String {
    let plain = |word: &str| word.chars().all(|c| c.is_ascii_alphanumeric() || "-_=.,:/+%#".contains(c));
    let quoted = |word: String| {
        if plain(&word) && !word.is_empty() { word } else { format!("'{}'", word.replace('\'', r"'\''")) }
    };
    let words = std::env::args_os().skip(1).map(|word| quoted(word.to_string_lossy().into_owned()));
    ["sheave-lab".to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(" ")
}

/// The CPUs to place threads on: those named, else all that are allowed from the last down, since interrupts and other
/// programs prefer the first.
fn cpus(named: Option<&CpuList>) -> Result<Vec<usize>, LabError> {
    match named {
        Some(named) => Ok(named.allowed()?.to_vec()),
        None => Ok(cpu::allowed().into_iter().rev().collect()),
    }
}

fn create(path: &Path) -> Result<File, LabError> {
    File::create(path).map_err(|err| cannot_write(path, &err))
}

fn write_page(mut file: File, path: &Path, page: &str) -> Result<(), LabError> {
    file.write_all(page.as_bytes()).map_err(|err| cannot_write(path, &err))?;
    eprintln!("wrote {}", path.display());
    Ok(())
}

fn cannot_write(path: &Path, err: &std::io::Error) -> LabError {
    LabError::run(format!("cannot write {}: {err}", path.display())).fix("name a file that can be written")
}
