//! `sheave-lab EXPERIMENT`: runs experiments, shows their progress, and writes JSON and the page.
//!
//! Owns the side of the terminal: progress, Ctrl-C, files and the exit code. A claim that does not hold is a result,
//! not a failure. A check that fails is a failure.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use sheave_load::value::CpuList;
use sheave_load::{cpu, output, signals};

use super::args::{Instructions, LabArgs, RunArmArgs};
use super::job;
use super::shown::Shown;
use crate::report::LabReport;
use crate::run::{self, Plan, Sweeps};
use crate::turns::Pace;
use crate::{Lab, LabError, Scale, exp, instructions, stored};

/// Renders a report as the text of a file.
type Render = fn(&LabReport) -> Result<String, LabError>;

/// Runs experiments, or renders the pages of a stored report.
pub fn run(args: &LabArgs) -> Result<ExitCode, LabError> {
    if let Some(path) = &args.from {
        return again(args, path);
    }
    let lab = lab(args)?;
    let plan = plan(args)?;
    // The files are created before the run, so that a bad path fails now and not after half an hour.
    let files = files(args)?;
    let outcome = beside(|| {
        let mut shown = Shown::new(args.json, args.long);
        let outcome = run::run(&plan, &lab, &mut shown);
        shown.finish();
        outcome
    });
    let report = outcome?;
    write_all(files, &report)?;
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

/// Renders the pages of a stored report.
fn again(args: &LabArgs, path: &Path) -> Result<ExitCode, LabError> {
    let cannot_read = |err: &dyn std::fmt::Display| {
        LabError::usage(format!("cannot read {}: {err}", path.display())).fix("name a file that --save or --json wrote")
    };
    if args.html.is_none() && args.markdown.is_none() {
        return Err(
            LabError::usage("--from makes pages, and none is asked for").fix("add --html FILE or --markdown FILE")
        );
    }
    let text = std::fs::read_to_string(path).map_err(|err| cannot_read(&err))?;
    let report = stored::read(text).map_err(|err| cannot_read(&err.cause))?;
    write_all(files(args)?, &report)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs one arm by itself, for valgrind and similar tools.
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

/// Runs `work`, which pins its thread, on a thread of its own. The first thread must stay unpinned, because pools take
/// the CPUs of their workers from it.
fn beside<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let done = std::thread::scope(|scope| scope.spawn(work).join());
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Checks the combination of arguments and makes the plan.
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
    let pace = if args.quick { Pace::QUICK } else { Pace::FULL };
    Ok(Plan {
        experiments: experiments.collect(),
        pace: Pace { rounds: args.rounds.unwrap_or(pace.rounds), turn: args.turn.unwrap_or(pace.turn) },
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

/// Returns the options with which the command must be called again to measure one row like this run does.
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

/// Returns the command line quoted for a shell, without the names of output files, which do not affect the measurement.
fn command() -> String {
    let plain = |word: &str| word.chars().all(|c| c.is_ascii_alphanumeric() || "-_=.,:/+%#".contains(c));
    let quoted = |word: String| {
        if plain(&word) && !word.is_empty() { word } else { format!("'{}'", word.replace('\'', r"'\''")) }
    };
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    let words = measuring(words).map(quoted);
    ["sheave-lab".to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(" ")
}

/// Removes the options that name a file to write from a command line.
fn measuring(words: impl Iterator<Item = String>) -> impl Iterator<Item = String> {
    const FILES: [&str; 3] = ["--html", "--markdown", "--save"];
    let mut is_file = false;
    words.filter(move |word| {
        let (named, option) = (is_file, word.split('=').next().unwrap_or(word));
        is_file = FILES.contains(&word.as_str());
        !named && !FILES.contains(&option)
    })
}

/// Returns the CPUs to place threads on: the named ones, or all allowed ones. The latter are listed from the last down,
/// because interrupts and other programs prefer the first.
fn cpus(named: Option<&CpuList>) -> Result<Vec<usize>, LabError> {
    match named {
        Some(named) => Ok(named.allowed()?.to_vec()),
        None => Ok(cpu::allowed().into_iter().rev().collect()),
    }
}

/// Creates the requested files, each with the function that renders its text.
fn files(args: &LabArgs) -> Result<Vec<(File, &Path, Render)>, LabError> {
    let asked: [(&Option<PathBuf>, Render); 3] = [
        (&args.html, |report| Ok(crate::html::page(report))),
        (&args.markdown, |report| Ok(crate::markdown::page(report))),
        (&args.save, stored::text),
    ];
    let asked = asked.into_iter().filter_map(|(path, render)| Some((path.as_deref()?, render)));
    asked.map(|(path, render)| Ok((create(path)?, path, render))).collect()
}

fn write_all(files: Vec<(File, &Path, Render)>, report: &LabReport) -> Result<(), LabError> {
    files.into_iter().try_for_each(|(file, path, render)| write_page(file, path, &render(report)?))
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

#[cfg(test)]
mod tests {
    use super::measuring;

    #[test]
    fn a_report_has_the_command_without_the_files_that_it_is_written_to() {
        let of = |line: &str| measuring(line.split(' ').map(str::to_owned)).collect::<Vec<_>>().join(" ");
        assert_eq!(of("all --html /a/b.html --rounds 6 --markdown=x --save y --json"), "all --rounds 6 --json");
        assert_eq!(of("--save a bio-cache --sweep none --html=x"), "bio-cache --sweep none");
    }
}
