//! `sheave top`: current activity of a daemon.
//!
//! | module | holds |
//! |---|---|
//! | [`rates`] | differences between two readings |
//! | [`screen`] | state of the display, and its keys |
//! | [`draw`] | drawing of the display |
//! | [`text`] | the same values as text, for `--once` |
//!
//! Calls `GetStatistics` in each interval; the daemon counts nothing extra for it. The terminal is restored at the end,
//! whether a key, a failure or a panic has ended the command.

mod draw;
mod rates;
mod screen;
#[cfg(test)]
mod tests;
pub mod text;

use std::io::IsTerminal;
use std::time::Instant;

use ratatui::crossterm::event::{self, Event};
use sheave_daemon::api::types as t;
use sheave_daemon::failure::Failure;

use self::rates::History;
use self::screen::Screen;
use crate::args::TopArgs;
use crate::control::commands::connect;
use crate::control::remote::Remote;
use crate::output;

/// Runs the command.
pub fn run(args: &TopArgs) -> Result<(), Failure> {
    let remote = connect(args.control.as_deref())?;
    if args.once {
        let mut history = History::new(read(&remote)?);
        std::thread::sleep(args.interval);
        let board = history.next(read(&remote)?);
        if args.json {
            return output::json(&board);
        }
        output::text(&text::page(&board));
        return Ok(());
    }
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        let why = Failure::usage("sheave top wants a terminal");
        return Err(why.fix("add --once, or --once --json for programs"));
    }
    let failed = |error| Failure::run(format!("the terminal: {error}"));
    let mut history = History::new(read(&remote)?);
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let outcome = watch(args, &remote, &mut history, &mut terminal);
    ratatui::restore();
    outcome
}

fn read(remote: &Remote) -> Result<t::Statistics, Failure> {
    remote.call("GetStatistics", &t::Nothing {})
}

/// Shows the display until a key ends it.
fn watch(
    args: &TopArgs,
    remote: &Remote,
    history: &mut History,
    terminal: &mut ratatui::DefaultTerminal,
) -> Result<(), Failure> {
    let failed = |error| Failure::run(format!("the terminal: {error}"));
    let mut screen = Screen::default();
    let mut next = Instant::now() + args.interval;
    loop {
        terminal.draw(|frame| draw::draw(frame, &mut screen)).map_err(failed)?;
        let left = next.saturating_duration_since(Instant::now());
        if event::poll(left).map_err(failed)? {
            if let Event::Key(key) = event::read().map_err(failed)?
                && screen.key(key).is_break()
            {
                return Ok(());
            }
        } else {
            screen.show(history.next(read(remote)?));
            next = Instant::now() + args.interval;
        }
    }
}
