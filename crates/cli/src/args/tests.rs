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
fn ages_of_stamps() {
    assert_eq!(value::stamp_age("20us"), Ok(Duration::from_micros(20)));
    assert_eq!(value::stamp_age("0"), Ok(Duration::ZERO));
    assert_eq!(value::stamp_age("unbounded"), Ok(Duration::MAX));
    assert!(value::stamp_age("old").is_err());
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
