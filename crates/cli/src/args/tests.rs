//! Tests of the argument parsers.

use std::time::Duration;

use clap::CommandFactory;

use super::*;

#[test]
fn clap_accepts_the_definition() {
    Cli::command().debug_assert();
}

#[test]
fn sizes() {
    assert_eq!(value::block_size("4k"), Ok(4096));
    assert!(value::block_size("1000").is_err());
    assert!(value::block_size("32M").is_err());
    assert!(value::size("0").is_err());
    assert!(value::size("4q").is_err());
}

#[test]
fn durations() {
    assert_eq!(value::duration("1.5"), Ok(Duration::from_millis(1500)));
    assert_eq!(value::duration("200ms"), Ok(Duration::from_millis(200)));
    assert!(value::duration("0").is_err());
    assert!(value::duration("-1").is_err());
    assert!(value::duration("nan").is_err());
}

#[test]
fn ages_of_stamps() {
    assert_eq!(value::stamp_age("20us"), Ok(Duration::from_micros(20)));
    assert_eq!(value::stamp_age("0"), Ok(Duration::ZERO));
    assert_eq!(value::stamp_age("unbounded"), Ok(Duration::MAX));
    assert!(value::stamp_age("old").is_err());
}

#[test]
fn counts() {
    assert_eq!(value::count("50k"), Ok(50_000));
    assert_eq!(value::count("1.5M"), Ok(1_500_000));
    assert!(value::count("0").is_err());
    assert!(value::count("99999999999G").is_err());
    assert!(value::count("1e300").is_err());
    assert!(value::count("k").is_err());
    assert!(value::count("µ").is_err());
}

#[test]
fn cpu_lists() {
    assert_eq!(value::cpu_list("0-2,5"), Ok(value::CpuList(vec![0, 1, 2, 5])));
    assert!(value::cpu_list("3-1").is_err());
    assert!(value::cpu_list("").is_err());
    assert!(value::cpu_list("0-99999999").is_err());
}

#[test]
fn switches_read_with_and_without_a_value() {
    let parse = |line: &str| match Cli::try_parse_from(line.split_whitespace()).map(|cli| cli.command) {
        Ok(Command::Bench(args)) => args,
        other => panic!("{line}: {other:?}"),
    };
    assert!(!parse("sheave bench null:").poll.is_on());
    assert!(parse("sheave bench --poll null:").poll.is_on());
    assert!(!parse("sheave bench --fixed-buffers=off null:").fixed_buffers.is_on());
    assert!(!parse("sheave bench null: --stats off").stats.is_on());
}
