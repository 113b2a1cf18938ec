//! `sheave man` and `sheave completions`: manual pages and shell completions, generated from the definition of the
//! arguments.
//!
//! A page has the contents of `--help`. The end of the help text is split into sections: examples, whose lines are
//! kept, the exit code, and notes.

use std::fs;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::Roff;
use sheave_daemon::failure::Failure;

use crate::args::Cli;
use crate::output;

/// Runs `sheave man`.
pub fn pages(dir: &Path) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        Failure::run(format!("cannot write the pages to {}: {error}", dir.display()))
            .fix("check the path, its permissions, and free space")
    };
    fs::create_dir_all(dir).map_err(failed)?;
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    let mut written = 0;
    let mut below = vec![root];
    while let Some(command) = below.pop() {
        below.extend(command.get_subcommands().filter(|below| !below.is_hide_set()).cloned());
        let man = Man::new(command.clone());
        fs::write(dir.join(man.get_filename()), page(&man, &command).map_err(failed)?).map_err(failed)?;
        written += 1;
    }
    output::text(&format!("{written} pages in {}\n", dir.display()));
    Ok(())
}

/// Runs `sheave completions`.
pub fn completions(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "sheave", &mut script);
    output::text(&String::from_utf8_lossy(&script));
    Ok(())
}

fn page(man: &Man, command: &clap::Command) -> std::io::Result<Vec<u8>> {
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.get_subcommands().any(|below| !below.is_hide_set()) {
        man.render_subcommands_section(&mut page)?;
    }
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    for (heading, text) in sections(&after) {
        let mut roff = Roff::default();
        roff.control("SH", [heading]);
        roff.control("nf", []);
        text.lines().for_each(|line| _ = roff.text([line.into()]));
        roff.control("fi", []);
        roff.to_writer(&mut page)?;
    }
    Ok(page)
}

/// Splits the end of a help text into sections, examples first.
fn sections(after: &str) -> Vec<(&'static str, String)> {
    let (mut examples, mut exit, mut notes) = (String::new(), String::new(), String::new());
    for paragraph in after.split("\n\n").filter(|paragraph| !paragraph.trim().is_empty()) {
        let (to, text) = match (paragraph.strip_prefix("Examples:\n"), paragraph.strip_prefix("Exit code: ")) {
            (Some(text), _) => (&mut examples, text),
            (_, Some(text)) => (&mut exit, text),
            _ => (&mut notes, paragraph),
        };
        if !to.is_empty() {
            to.push_str("\n\n");
        }
        to.push_str(text);
    }
    let all = [("EXAMPLES", examples), ("EXIT STATUS", exit), ("NOTES", notes)];
    all.into_iter().filter(|(_, text)| !text.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_exit_code_and_notes_have_sections() {
        let found = sections("First of all.\n\nExamples:\n  a\n      what a does\n\nExit code: 0 done.\n\nLast.");
        let wanted =
            [("EXAMPLES", "  a\n      what a does"), ("EXIT STATUS", "0 done."), ("NOTES", "First of all.\n\nLast.")];
        assert_eq!(found, wanted.map(|(heading, text)| (heading, text.to_owned())));
        assert_eq!(sections(""), []);
    }

    #[test]
    fn completions_know_every_command_and_option() {
        let mut script = Vec::new();
        clap_complete::generate(Shell::Bash, &mut Cli::command(), "sheave", &mut script);
        let script = String::from_utf8_lossy(&script);
        for word in ["export-diff", "--low-water", "disconnect", "completions"] {
            assert!(script.contains(word), "{word}");
        }
    }
}
