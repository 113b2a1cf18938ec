//! `cargo xtask stress`: repeats the tests with new seeds until the time is up or a test fails.
//!
//! Owns the rounds. Each round sets `SHEAVE_ROUND` to a number that was never used before, which gives every randomized
//! test new seeds (`sheave_testkit::seeds`), and raises the number of cases of property tests.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use sheave_testkit::ROUND_ENV;

use crate::cargo::{self, cargo};
use crate::counts::Counts;

const USAGE: &str = "usage: cargo xtask stress [--minutes N] [-p CRATE]... [FILTER]";

/// Number of cases of each property test in a round. An ordinary run has 256.
const PROPTEST_CASES: &str = "2048";

const DEFAULT_MINUTES: u64 = 10;

pub fn main(args: &[String]) -> Result<()> {
    let (time, rest) = parse(args)?;
    let first = SystemTime::now().duration_since(UNIX_EPOCH).context("a clock before 1970")?.as_secs();
    let started = Instant::now();
    let mut counts = Counts::default();
    for round in first.. {
        println!("\n=== round {} ({ROUND_ENV}={round})", round - first + 1);
        let mut tests = cargo(["test", "--quiet", "--lib", "--bins", "--tests"]);
        if !rest.iter().any(|arg| arg == "-p") {
            tests.args(["--workspace", "--exclude", "xtask", "--exclude", "sheave-testkit"]);
        }
        tests.args(rest).env(ROUND_ENV, round.to_string()).env("PROPTEST_CASES", PROPTEST_CASES);
        let result = cargo::run_tests(tests, &mut counts);
        if let Err(error) = result {
            println!("{counts}");
            bail!("round {round}: {error:#}\nreproduce it with the seed above, or with {ROUND_ENV}={round} cargo test");
        }
        if started.elapsed() >= time {
            break;
        }
    }
    println!("{counts}");
    Ok(())
}

fn parse(args: &[String]) -> Result<(Duration, &[String])> {
    let (minutes, rest) = match args {
        [flag, minutes, rest @ ..] if flag == "--minutes" => (minutes.parse().context(USAGE)?, rest),
        _ => (DEFAULT_MINUTES, args),
    };
    if rest.first().is_some_and(|arg| arg.starts_with('-') && arg != "-p") {
        bail!(USAGE);
    }
    Ok((Duration::from_secs(minutes * 60), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> Option<(u64, Vec<String>)> {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        parse(&args).ok().map(|(time, rest)| (time.as_secs(), rest.to_vec()))
    }

    #[test]
    fn minutes_come_first_and_the_rest_goes_to_cargo() {
        assert_eq!(parsed(&[]), Some((600, vec![])));
        assert_eq!(parsed(&["--minutes", "3", "-p", "x"]), Some((180, vec!["-p".into(), "x".into()])));
        assert_eq!(parsed(&["model_"]), Some((600, vec!["model_".into()])));
        assert_eq!(parsed(&["--minutes", "many"]), None);
        assert_eq!(parsed(&["--help"]), None);
    }
}
