//! `sheave-sim`: the command line of the crash simulator, which `cargo xtask sim` runs.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use sheave_sim::broken::{Tally as Standings, explore_broken};
use sheave_sim::disk::{Errors, Lie};
use sheave_sim::explore::{Plan, Report, explore};
use sheave_sim::handover;
use sheave_sim::shrink::shrink;
use sheave_sim::writer;
use sheave_vol::Checksum;

const USAGE: &str =
    "usage: sheave-sim [--seed N] [--ops M] [--cuts K] [--points P] [--no-shrink] [--checksum] [--trace] [--tally]

  --seed N     this run, and only this one; without it, runs from seed 1 on until --points crashes are done
  --ops M      operations of a run (160)
  --cuts K     steps at which a run is cut (100)
  --points P   crashes in all (2,000)
  --no-shrink  a failure is told as it is, and not made small first
  --checksum   pools keep checksums of data; --no-checksum: none does; without either, every other pool does
  --errors N   of a thousand reads and of a thousand writes of the disk, N fail; --flush-errors N: of flushes
  --trace      a failure tells everything that happened before it
  --tally      tells at the end what the runs have met, and how often
  --handover K upgrades of a daemon, from seed 1 (or --seed) on, until K cuts are done

Of every 20th seed there are also runs on disks that break a promise: a flush that lies, a write that lands elsewhere.";

/// Number of seeds for each seed that also runs on disks that break a promise.
const BROKEN: u64 = 20;
/// Time limit for reducing a failure.
const SHRINK: Duration = Duration::from_secs(60);

struct Args {
    /// Run as the process that a test kills, on this device.
    write: Option<String>,
    /// Create the pool first.
    format: bool,
    from: u32,
    seed: Option<u64>,
    ops: usize,
    cuts: usize,
    points: u64,
    shrink: bool,
    trace: bool,
    tally: bool,
    checksum: Option<bool>,
    errors: Errors,
    /// Number of cuts of upgrades, in place of runs of a pool.
    handover: Option<u64>,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match parse(&args) {
        Ok(Args { write: Some(spec), format, seed, from, .. }) => write(&spec, format, seed.unwrap_or(1), from),
        Ok(Args { handover: Some(cuts), seed, .. }) => hand_over(seed.unwrap_or(1), cuts),
        Ok(args) => run(&args),
        Err(why) => {
            eprintln!("sheave-sim: {why}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn parse(words: &[String]) -> Result<Args, String> {
    let mut args = Args {
        write: None,
        format: false,
        from: 1,
        seed: None,
        ops: 160,
        cuts: 100,
        points: 2000,
        shrink: true,
        trace: false,
        tally: false,
        checksum: None,
        errors: Errors::default(),
        handover: None,
    };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--write" => args.write = words.next().cloned(),
            "--format" => args.format = true,
            _ => (),
        }
        if word == "--write" || word == "--format" {
            continue;
        }
        let mut number = || {
            let text = words.next().ok_or_else(|| format!("{word} wants a number"))?;
            text.replace([',', '_'], "").parse::<u64>().map_err(|_| format!("{word} {text}: not a number"))
        };
        match word.as_str() {
            "--seed" => args.seed = Some(number()?),
            "--from" => args.from = number()? as u32,
            "--ops" => args.ops = number()? as usize,
            "--cuts" => args.cuts = number()? as usize,
            "--points" => args.points = number()?,
            "--handover" => args.handover = Some(number()?),
            "--no-shrink" => args.shrink = false,
            "--trace" => args.trace = true,
            "--tally" => args.tally = true,
            "--checksum" => args.checksum = Some(true),
            "--no-checksum" => args.checksum = Some(false),
            "--errors" => {
                let number = number()?;
                args.errors = Errors { read: number, write: number, flush: 0, journal: 0 };
            }
            "--flush-errors" => args.errors.flush = number()?,
            other => return Err(format!("unknown argument {other}")),
        }
    }
    Ok(args)
}

fn hand_over(from: u64, cuts: u64) -> ExitCode {
    let (mut met, begun) = (handover::Met::default(), Instant::now());
    for seed in from.. {
        match handover::run(seed, None) {
            Ok(more) => met.add(&more),
            Err(why) => {
                eprintln!("sheave-sim: upgrade of seed {seed}: {why}");
                return ExitCode::FAILURE;
            }
        }
        if met.cuts >= cuts {
            println!("upgrades of seeds {from} to {seed}: {met:?} in {:.0} s", begun.elapsed().as_secs_f64());
            break;
        }
    }
    ExitCode::SUCCESS
}

fn write(spec: &str, format: bool, seed: u64, from: u32) -> ExitCode {
    let made = if format { writer::format(spec) } else { Ok(()) };
    match made.and_then(|()| writer::write_until_killed(spec, seed, from)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("sheave-sim: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the plan of a seed, changed by the options.
fn plan(args: &Args, seed: u64) -> Plan {
    let mut plan = Plan::new(seed, args.ops, args.cuts);
    match args.checksum {
        Some(true) => plan.setup = plan.setup.with_checksums(),
        Some(false) => plan.setup.checksum = Checksum::None,
        None => {}
    }
    if args.errors.any() {
        plan.setup = plan.setup.with_errors(args.errors);
    }
    plan
}

/// Explores a seed on disks that break a promise, one run for each. Returns an error for a forbidden outcome.
fn broken(args: &Args, seed: u64, standings: &mut Standings) -> Result<(), String> {
    let lies = [Lie::FlushDoesNothing, Lie::LateFlush, Lie::FuaIsVolatile, Lie::Misdirects];
    for lie in lies.into_iter().filter(|_| seed.is_multiple_of(BROKEN)) {
        let checksums = args.checksum.unwrap_or(seed.is_multiple_of(2 * BROKEN));
        standings.add(&explore_broken(seed, lie, checksums)?);
    }
    Ok(())
}

fn run(args: &Args) -> ExitCode {
    let started = Instant::now();
    let (mut total, mut standings) = (Report::default(), Standings::default());
    let first = args.seed.unwrap_or(1);
    for seed in first.. {
        let plan = plan(args, seed);
        match explore(&plan) {
            Ok(report) => {
                total.crashes += report.crashes;
                total.nested += report.nested;
                total.steps += report.steps;
                total.headless += report.headless;
                total.refused += report.refused;
                total.failures.add(&report.failures);
                total.tally.add(&report.tally);
                if args.seed.is_some() {
                    println!("trace {:016x}", report.trace);
                }
            }
            Err(failure) => {
                let failure = if args.shrink { shrink(&plan, failure, SHRINK) } else { failure };
                if args.trace {
                    failure.trace.iter().for_each(|line| println!("{line}"));
                }
                println!("{failure}");
                return ExitCode::FAILURE;
            }
        }
        if let Err(why) = broken(args, seed, &mut standings) {
            println!("on a disk that breaks a promise: {why}\nrepeat it with --seed {seed}");
            return ExitCode::FAILURE;
        }
        if args.seed.is_some() || total.crashes >= args.points {
            if args.tally {
                print!("{}", total.tally);
            }
            println!("on disks that break promises: {standings:?}");
            println!(
                "{} crashes ({} of them after or within another, {} left a commit without its head), {} disk steps, \
                 {} refusals of a full pool, \
                 failures of the disk: {} reads, {} writes, {} flushes, {} found its file system full, \
                 seeds {first} to {seed}, {:.1} s",
                total.crashes,
                total.nested,
                total.headless,
                total.steps,
                total.refused,
                total.failures.reads,
                total.failures.writes,
                total.failures.flushes,
                total.failures.refused,
                started.elapsed().as_secs_f64()
            );
            break;
        }
    }
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheave_sim::explore::Failure;

    /// The command that a failure prints gives the plan that failed, whatever options that plan was made with.
    #[test]
    fn a_failure_names_every_option_that_repeats_it() {
        let options = ["", "--checksum", "--no-checksum", "--errors 20", "--flush-errors 3 --no-checksum", "--ops 40"];
        for (seed, options) in (1..40).flat_map(|seed| options.map(|options| (seed, options))) {
            let words: Vec<String> = options.split_whitespace().map(str::to_string).collect();
            let args = parse(&words).expect("options of the program");
            let failed = plan(&args, seed);
            let (path, trace) = (Vec::new(), Vec::new());
            let failure = Failure { setup: failed.setup.clone(), cuts: failed.cuts, why: String::new(), path, trace };
            let said = failure.to_string();
            let typed = said.split("cargo xtask sim ").nth(1).expect("it names a command");
            let args = parse(&typed.split_whitespace().map(str::to_string).collect::<Vec<_>>()).expect("it is one");
            let again = plan(&args, args.seed.expect("it names the run"));
            let disk = |plan: &Plan| format!("{:?} {:?} {}", plan.setup, plan.nested, plan.cuts);
            assert_eq!(disk(&again), disk(&failed), "{options:?} of seed {seed}: {typed}");
        }
    }
}
