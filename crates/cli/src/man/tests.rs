//! Sections made of the end of a help text.

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
