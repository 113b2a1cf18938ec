//! Confirmation before something is destroyed.
//!
//! On a terminal the user is asked. Elsewhere nothing is destroyed without `--yes`, so that a script must contain it.

use std::io::{BufRead, IsTerminal};

use sheave_daemon::failure::Failure;

use crate::output;

/// Asks for confirmation. `what` describes the loss, in a sentence without its full stop. Returns an error unless the
/// user confirms.
pub fn destroy(yes: bool, what: &str) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        return Err(Failure::usage(what.to_owned()).fix("add --yes if that is what you want"));
    }
    output::say(format_args!("{what}.\nGo on? Type yes: "));
    let mut answer = String::new();
    match std::io::stdin().lock().read_line(&mut answer) {
        Ok(_) if answer.trim().eq_ignore_ascii_case("yes") => Ok(()),
        _ => Err(Failure::run("nothing was changed").fix("answer 'yes', or add --yes")),
    }
}
