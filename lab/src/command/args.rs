//! The command line for clap: names, defaults, help texts and the parsers of single values.
//!
//! Combinations of values are checked by the code that runs the command.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use sheave_load::value;

use crate::{LabError, Point, exp};

pub mod wq;

pub use wq::WqArgs;

const EXAMPLES: &str = "\
Each experiment runs the same stack with one thing changed: without the mechanism (before), as
the thread on the mailing list had it (seed), as Sheave has it (after). Arms take turns; a change
pairs turns of the same round and comes with its 95 % interval. How to read it: docs/internals/lab.md

Examples:
  sheave-lab all --quick
        all five in under two minutes
  sheave-lab all --html lab.html
        everything, with the sweeps and the plots, in less than half an hour; one page to look at or to show
  sheave-lab bio-cache --sweep batch
        the thread's table, and how the change depends on the batch
  sheave-lab dio-completion --json > dio.json
  sheave-lab --from dio.json --html dio.html
        the page of a run that was made before
  sheave-lab plug-clock --point bs=512,batch=8,depth=128 --rounds 11 --turn 1s
        one point alone, longer; each row of a report has the command that repeats it
  sheave-lab dio-completion --job jobs/dio-completion-polled.fio
        the fio job of the thread, done by every arm
  sheave-lab wq --depth 128 --batch 32 --workers 2 --compare kernel
        the worker pool by itself, as you want it, beside the kernel's; sheave-lab wq --help

Exit code: 0 done, also when a claim does not hold here; 1 a check or an arm failed; 2 the
command line makes no sense.";

/// Five ideas that Sheave is built on, measured before and after, beside the published figures.
#[derive(Debug, Clone, Parser)]
#[command(name = "sheave-lab", version, propagate_version = true, max_term_width = 100, after_help = EXAMPLES,
          arg_required_else_help = true, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true,
          disable_help_subcommand = true)]
pub struct LabArgs {
    /// A measurement other than an experiment.
    #[command(subcommand)]
    pub command: Option<LabCommand>,

    /// The experiment to run.
    #[arg(value_name = "EXPERIMENT", value_parser = experiments(), required_unless_present = "from")]
    pub experiment: Option<String>,

    /// Measure fewer points in shorter turns, in under two minutes. Shows that all five work, and claims nothing.
    #[arg(long, help_heading = "How much")]
    pub quick: bool,

    /// Number of rounds. Every arm has one turn a round. 6 or more are rounded up, so that each arm has each place
    /// in a round equally often [default: 10, with --quick 3].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000), help_heading = "How much")]
    pub rounds: Option<u32>,

    /// Time of a turn [default: 60ms, with --quick 50ms].
    #[arg(long, value_name = "TIME", value_parser = value::duration, help_heading = "How much")]
    pub turn: Option<Duration>,

    /// Sweeps beside the published table: all, none, or one by its name.
    #[arg(long, value_name = "NAME", default_value = "all", help_heading = "How much")]
    pub sweep: String,

    /// Count instructions per I/O, which needs valgrind [default: auto, when it is there and not with --quick].
    #[arg(
        long,
        value_enum,
        value_name = "ON|OFF|AUTO",
        default_value = "auto",
        hide_default_value = true,
        hide_possible_values = true,
        help_heading = "How much"
    )]
    pub instructions: Instructions,

    /// Measure this point alone, as bs=512,batch=32,depth=128,threads=1,rw=randread.
    #[arg(long, value_name = "NAME=VALUE,...", value_parser = point, help_heading = "How much")]
    pub point: Option<Point>,

    /// Measure the point alone that this fio job file describes (docs/reference/jobs.md).
    #[arg(long, value_name = "FILE", conflicts_with = "point", help_heading = "How much")]
    pub job: Option<PathBuf>,

    /// Give the job file to the real fio too, which reads or WRITES the file or device that the job names.
    #[arg(long, requires = "job", help_heading = "How much")]
    pub fio: bool,

    /// CPUs to place threads on, in order, such as 1 or 0-3 [default: those of the process, the last first].
    #[arg(long, value_name = "LIST", value_parser = value::cpu_list, help_heading = "How much")]
    pub cpu: Option<value::CpuList>,

    /// Print every check and the whole verdict, not only its first words.
    #[arg(long, help_heading = "Output")]
    pub long: bool,

    /// Print one JSON object to stdout instead of the tables.
    #[arg(long, help_heading = "Output")]
    pub json: bool,

    /// Write a page with the plots: one file that needs no network.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub html: Option<PathBuf>,

    /// Write the report as JSON to a file, for --from.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub save: Option<PathBuf>,

    /// Measure nothing: write --html and --markdown of a report that --save or --json wrote.
    #[arg(long, value_name = "FILE", conflicts_with_all = OF_A_RUN, help_heading = "Output")]
    pub from: Option<PathBuf>,

    /// Write the figures as tables of Markdown, as docs/internals/lab.md has them.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub markdown: Option<PathBuf>,
}

/// Options that affect a measurement, and so are refused together with --from.
const OF_A_RUN: [&str; 12] =
    ["experiment", "quick", "rounds", "turn", "sweep", "instructions", "point", "job", "fio", "cpu", "save", "json"];

/// Commands that run no experiment.
#[derive(Debug, Clone, Subcommand)]
pub enum LabCommand {
    /// Measure the cost of work done by workers, in the pool that rings use, in earlier pools, or in the kernel.
    Wq(WqArgs),
    /// Run one arm by itself, for tools that count what a process does.
    #[command(hide = true)]
    RunArm(RunArmArgs),
}

/// Arguments of `run-arm`: arm, point and length.
#[derive(Debug, Clone, Args)]
pub struct RunArmArgs {
    /// The experiment.
    pub experiment: String,
    /// The arm, with `-` for spaces.
    pub arm: String,
    /// The parameters.
    #[arg(long, value_name = "NAME=VALUE,...", value_parser = point)]
    pub point: Point,
    /// Number of I/Os.
    #[arg(long, value_name = "COUNT", value_parser = value::count)]
    pub ios: u64,
}

/// Counting of instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Instructions {
    /// Count instructions, and fail without valgrind.
    On,
    /// Do not count.
    Off,
    /// Count if valgrind is installed and --quick is not given.
    Auto,
}

fn experiments() -> PossibleValuesParser {
    let each = exp::ALL.iter().map(|experiment| PossibleValue::new(experiment.id()).help(experiment.title()));
    PossibleValuesParser::new(each.chain([PossibleValue::new("all").help("All of them")]))
}

fn point(text: &str) -> Result<Point, String> {
    text.parse().map_err(|err: LabError| err.to_string())
}

#[cfg(test)]
mod tests;
