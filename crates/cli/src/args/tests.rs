//! Tests of the parsers of arguments and of the help texts.

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

/// Splits a line of shell into words. Ends at a pipe, a second command or a comment.
fn words(line: &str) -> Vec<String> {
    let (mut all, mut word, mut quoted) = (Vec::new(), String::new(), false);
    for c in line.chars().chain([' ']) {
        match c {
            '\'' => quoted = !quoted,
            ' ' if !quoted => all.extend(Some(std::mem::take(&mut word)).filter(|word| !word.is_empty())),
            c => word.push(c),
        }
    }
    let end = all.iter().position(|word| ["|", "&&", ">", "#"].contains(&word.as_str())).unwrap_or(all.len());
    all.truncate(end);
    all
}

/// Collects every command with the end of its help text.
fn leaves(command: &clap::Command, path: &str, found: &mut Vec<(String, String)>) {
    let path = format!("{path} {}", command.get_name());
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let mut below = command.get_subcommands().filter(|below| below.get_name() != "help").peekable();
    if below.peek().is_none() {
        return found.push((path, help));
    }
    found.push((path.clone(), help));
    below.for_each(|below| leaves(below, &path, found));
}

#[test]
fn every_command_has_examples_and_each_is_one() {
    let mut found = Vec::new();
    leaves(&Cli::command(), "", &mut found);
    assert!(found.len() > 25, "{found:?}");
    let mut examples = 0;
    for (name, help) in found {
        let (_, after) = help.split_once("Examples:").unwrap_or_else(|| panic!("{name} --help has no examples"));
        let lines: Vec<&str> =
            after.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   ")).collect();
        for part in lines.iter().flat_map(|line| line.split(" | ").flat_map(|part| part.split(" && "))) {
            let Some(at) = part.find("sheave ") else { continue };
            // The explanation of an example follows after several blanks, and a server that a client starts is in
            // brackets.
            let line = part[at..].split("  ").next().unwrap_or_default();
            let line = line.split(" ]").next().unwrap_or_default();
            if let Err(error) = Cli::try_parse_from(words(line)) {
                panic!("{name}: `{line}`: {error}");
            }
            examples += 1;
        }
    }
    assert!(examples > 60, "{examples}");
}

/// The help of every command, including its usage line, fits on a narrow terminal, because everything that clap cannot
/// wrap is short.
#[test]
fn every_help_fits_sixty_columns() {
    fn look(command: &clap::Command, path: &str) {
        let mut narrow = command.clone().term_width(60).bin_name(path);
        let help = narrow.render_long_help().to_string();
        for line in help.lines().take_while(|line| !line.starts_with("Examples:")) {
            assert!(line.chars().count() <= 60, "{path} --help: {line}");
        }
        for below in command.get_subcommands() {
            look(below, &format!("{path} {}", below.get_name()));
        }
    }
    look(&Cli::command(), "sheave");
}
